"""Maps of all pairs of ranks, as figures, tables and lines; what joins the two is beside what was measured.

Pure functions of the matrices that ``ccbench.analysis.health`` makes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence

from ccbench.analysis.health import PairMatrix, pair_misses
from ccbench.analysis.health.matrix import FEWEST_OF_A_CLASS, MISS
from ccbench.report.figure import Axis, Figure, Grid
from ccbench.report.text import csv_text, markdown, percent, plural
from ccbench.units import format_size

MOST_NUMBERED = 16
"""Ranks up to which cells hold numbers."""

MOST_NAMED = 6
MATRIX_FILE = "pairs.csv"

SOURCE, TARGET = Axis("from rank", "rank", "linear"), Axis("to rank", "rank", "linear")


def pair_figures(matrices: Sequence[PairMatrix], where: str = "") -> list[Figure]:
    """One map for every matrix. where: host and machine, for the small print."""
    return [_figure(one, where) for one in matrices]


def _figure(matrix: PairMatrix, where: str) -> Figure:
    misses = pair_misses(matrix)
    cells = {(one.source, one.target) for one in misses}
    cells |= {(target, source) for source, target in cells} if matrix.both else set()
    parts = [plural(matrix.ranks, "rank"), plural(matrix.nodes, "node") if matrix.nodes > 1 else ""]
    parts += [_way(matrix), matrix.dtype, matrix.setting]
    label = "SIMULATED " if matrix.simulated else "EMULATION " if matrix.emulated else ""
    return Figure(
        key=key(matrix),
        topic="pairs",
        title=f"{label}{matrix.backend} send_recv: {_what(matrix)} of every pair, {_size(matrix)}",
        subtitle=" · ".join(part for part in parts if part),
        x=TARGET,
        y=SOURCE,
        series=(),
        footnote=tuple(note for note in (where, *notes(matrix)) if note),
        grid=Grid(
            values=_cells(matrix, lambda source, target: value(matrix, source, target)),
            texts=_texts(matrix),
            marked=tuple(sorted(cells)),
            unit="us" if matrix.is_latency else "GB/s",
            large_is_good=not matrix.is_latency,
            legend=tuple(class_lines(matrix)),
        ),
    )


def key(matrix: PairMatrix) -> str:
    """Words that name a figure's file."""
    words = ["pairs", matrix.backend, f"{matrix.ranks}ranks", f"{matrix.nodes}nodes", matrix.dtype]
    words += [f"{matrix.size_bytes}B", "both-ways" if matrix.both else "one-way", matrix.setting]
    return "-".join(word for word in words if word)


def _what(matrix: PairMatrix) -> str:
    return "latency" if matrix.is_latency else "bandwidth"


def _way(matrix: PairMatrix) -> str:
    return "both ways at once, figures of one way" if matrix.both else "one way"


def _size(matrix: PairMatrix) -> str:
    return format_size(matrix.size_bytes)


def value(matrix: PairMatrix, source: int, target: int) -> float | None:
    """What a cell shows: microseconds, or GB/s of one way."""
    seconds = matrix.seconds[source][target]
    if not seconds:
        return None
    return seconds * 1e6 if matrix.is_latency else matrix.size_bytes / seconds / 1e9


def _cells(
    matrix: PairMatrix, of: Callable[[int, int], float | None]
) -> tuple[tuple[float | None, ...], ...]:
    ranks = range(matrix.ranks)
    return tuple(tuple(of(source, target) for target in ranks) for source in ranks)


def _texts(matrix: PairMatrix) -> tuple[tuple[str, ...], ...]:
    """Numbers, with the link below where links differ; nothing where cells are too small."""
    if matrix.ranks > MOST_NUMBERED:
        return ()
    several = len(matrix.class_sizes) > 1

    def text(source: int, target: int) -> str:
        number = short(value(matrix, source, target))
        return f"{number}\n{matrix.classes[source][target]}" if number and several else number

    ranks = range(matrix.ranks)
    return tuple(tuple(text(source, target) for target in ranks) for source in ranks)


def short(number: float | None) -> str:
    """Three digits, without an exponent."""
    if number is None:
        return ""
    return f"{number:.0f}" if number >= 99.95 else f"{number:.3g}"


def class_lines(matrix: PairMatrix) -> list[str]:
    """For every class of pairs: how many, the median, and what its links should give at most."""
    lines = []
    for name, count in sorted(matrix.class_sizes.items()):
        usual = matrix.usual_seconds[name]
        middle = usual * 1e6 if matrix.is_latency else matrix.size_bytes / usual / 1e9
        unit = "us" if matrix.is_latency else "GB/s"
        line = f"{name or 'all'}: {plural(count, 'pair')}, median {short(middle)} {unit}"
        rates = {matrix.link_rates[s][t] for s, t in matrix.pairs() if matrix.classes[s][t] == name}
        known = sorted(rate for rate in rates if rate)
        if known and not matrix.is_latency:
            each = " to ".join(dict.fromkeys(short(rate / 1e9) for rate in (known[0], known[-1])))
            line += f" of {each} GB/s the link has"
            line += f" ({percent(middle * 1e9 / known[0])})" if len(known) == 1 else ""
        lines.append(line)
    return lines


def notes(matrix: PairMatrix) -> list[str]:
    """Findings, and what is not compared."""
    misses = pair_misses(matrix)
    lines = []
    if misses:
        worst = [
            f"{one.name} {one.ratio:.2f} times the time of its class"
            + (f" ({one.link_class})" if one.link_class else "")
            for one in misses[:MOST_NAMED]
        ]
        more = f"; and {len(misses) - MOST_NAMED} more" if len(misses) > MOST_NAMED else ""
        lines.append(f"Framed, more than {percent(MISS)} worse than their class: {'; '.join(worst)}{more}")
    elif not (matrix.simulated or matrix.emulated) and _judged(matrix):
        lines.append(f"No pair is more than {percent(MISS)} worse than the median of its class")
    doubts = {matrix.doubts[s][t] for s, t in matrix.pairs()} - {""}
    if doubts:
        count = sum(bool(matrix.doubts[s][t]) for s, t in matrix.pairs())
        lines.append(
            f"Flagged as doubtful, and not judged: {plural(count, 'pair')} ({'; '.join(sorted(doubts))})"
        )
    if any(name == "" for name in matrix.class_sizes):
        lines.append("What joins the ranks is not known: all pairs are one class")
    small = [name for name, size in matrix.class_sizes.items() if size < FEWEST_OF_A_CLASS]
    if small:
        lines.append(f"Classes of fewer than {FEWEST_OF_A_CLASS} pairs are not judged: {', '.join(small)}")
    return lines


def _judged(matrix: PairMatrix) -> bool:
    return any(
        not matrix.doubts[s][t] and matrix.class_sizes[matrix.classes[s][t]] >= FEWEST_OF_A_CLASS
        for s, t in matrix.pairs()
    )


def pair_lines(matrices: Sequence[PairMatrix], width: int) -> list[str]:
    """The matrices for a screen; those too wide for it as their classes and findings only."""
    lines: list[str] = []
    for matrix in matrices:
        unit = "us" if matrix.is_latency else "GB/s"
        name = ", ".join(
            part for part in (matrix.backend, matrix.dtype, _way(matrix), matrix.setting) if part
        )
        lines.append(f"{_what(matrix)} of every pair in {unit}, {_size(matrix)}, {name}:")
        ranks = range(matrix.ranks)
        rows = [["from\\to", *map(str, ranks)]]
        rows += [[str(s), *(short(value(matrix, s, t)) or "-" for t in ranks)] for s in ranks]
        size = max(len(cell) for row in rows[1:] for cell in row[1:])
        if 9 + (size + 2) * matrix.ranks <= width:
            lines += [f"{row[0]:>9}" + "".join(cell.rjust(size + 2) for cell in row[1:]) for row in rows]
        lines += [f"  {line}" for line in (*class_lines(matrix), *notes(matrix))]
    return lines


def matrices_markdown(matrices: Sequence[PairMatrix]) -> str:
    """The matrices as Markdown tables."""
    parts = []
    for matrix in matrices:
        unit = "us" if matrix.is_latency else "GB/s"
        parts.append(
            f"{matrix.backend}, {_what(matrix)} in {unit}, {_size(matrix)}, {_way(matrix)}"
            + (f", {markdown(matrix.setting)}" if matrix.setting else "")
        )
        ranks = range(matrix.ranks)
        table = ["| from \\ to | " + " | ".join(map(str, ranks)) + " |", "| ---: " * (matrix.ranks + 1) + "|"]
        for source in ranks:
            cells = [short(value(matrix, source, target)) or " " for target in ranks]
            table.append(f"| {source} | " + " | ".join(cells) + " |")
        parts.append("\n".join(table))
        found = [*class_lines(matrix), *notes(matrix)]
        parts.append("\n".join(f"* {markdown(line, 500)}" for line in found))
    return "\n\n".join(parts)


_COLUMNS = (
    "backend", "setting", "dtype", "ranks", "nodes", "size_bytes", "both_ways", "source", "target",
    "median_seconds", "GB_s_each_way", "link_class", "link_GB_s", "class_median_seconds", "finding",
)  # fmt: skip


def matrices_csv(matrices: Iterable[PairMatrix]) -> str:
    """A row for every pair (RFC 4180): full precision, units in the names; empty where nothing is known."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\r\n")
    writer.writerow(_COLUMNS)
    for matrix in matrices:
        missed = {(one.source, one.target) for one in pair_misses(matrix)}
        for source, target in matrix.pairs():
            link_class, link = matrix.classes[source][target], matrix.link_rates[source][target]
            rate = matrix.rate(source, target)
            writer.writerow(
                [
                    csv_text(matrix.backend), csv_text(matrix.setting), matrix.dtype, matrix.ranks,
                    matrix.nodes, matrix.size_bytes, str(matrix.both).lower(), source, target,
                    repr(matrix.time(source, target)), "" if rate is None else repr(rate / 1e9),
                    csv_text(link_class), "" if link is None else repr(link / 1e9),
                    repr(matrix.usual_seconds[link_class]),
                    "slow" if (source, target) in missed else "",
                ]
            )  # fmt: skip
    return sink.getvalue()
