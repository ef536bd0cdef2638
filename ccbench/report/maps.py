"""Maps of cells: all pairs of ranks, as figures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ccbench.analysis.pair_matrix import FEWEST_OF_A_CLASS, MISS, PairMatrix, pair_misses
from ccbench.report.figure import Figure, FigureAxis, Grid
from ccbench.report.present import Table, aligned, beyond, columns, csv_of, named, values_of
from ccbench.units import format_size, percent, plural

MOST_NUMBERED = 16
"""Ranks up to which cells hold numbers."""

MOST_NAMED = 6
MATRIX_FILE = "pairs.csv"


def pair_figures(matrices: Sequence[PairMatrix], where: str = "") -> list[Figure]:
    """One map for every matrix. where: host and machine, for the small print."""
    figures = []
    for matrix in matrices:
        ranks = range(matrix.ranks)
        # Both ways at once the matrix is symmetric, and so are its frames.
        marked = {(miss.source, miss.target) for miss in pair_misses(matrix)}
        marked |= {(target, source) for source, target in marked} if matrix.both else set()
        values = tuple(
            tuple(value(matrix, source, target) for target in ranks) for source in ranks
        )
        several = len(matrix.class_sizes) > 1
        texts = tuple(
            tuple(
                f"{short(number)}\n{link}" if several and number is not None else short(number)
                for number, link in zip(row, classes, strict=True)
            )
            for row, classes in zip(values, matrix.classes, strict=True)
        )
        parts = [
            plural(matrix.ranks, "rank"),
            plural(matrix.nodes, "node") if matrix.nodes > 1 else "",
        ]
        parts += [_way(matrix), matrix.dtype, matrix.setting]
        label = "SIMULATED " if matrix.simulated else "EMULATION " if matrix.emulated else ""
        size = format_size(matrix.size_bytes)
        way = "both-ways" if matrix.both else "one-way"
        team = f"{matrix.ranks}ranks-{matrix.nodes}nodes-{matrix.dtype}-{matrix.size_bytes}B"
        key = f"pairs-{matrix.backend}-{team}-{way}-{matrix.setting}"
        figures.append(
            Figure(
                key=key.strip("-"),
                topic="pairs",
                title=f"{label}{matrix.backend} send_recv: {_what(matrix)} of every pair, {size}",
                subtitle=" · ".join(part for part in parts if part),
                x=FigureAxis("to rank", "rank", "linear"),
                y=FigureAxis("from rank", "rank", "linear"),
                footnote=tuple(note for note in (where, *notes(matrix)) if note),
                grid=Grid(
                    values=values,
                    texts=texts if matrix.ranks <= MOST_NUMBERED else (),
                    marked=tuple(sorted(marked)),
                    unit=_unit(matrix),
                    large_is_good=not matrix.is_latency,
                    legend=tuple(class_lines(matrix)),
                ),
            )
        )
    return figures


def _what(matrix: PairMatrix) -> str:
    return "latency" if matrix.is_latency else "bandwidth"


def _unit(matrix: PairMatrix) -> str:
    return "us" if matrix.is_latency else "GB/s"


def _way(matrix: PairMatrix) -> str:
    return "both ways at once, figures of one way" if matrix.both else "one way"


def value(matrix: PairMatrix, source: int, target: int) -> float | None:
    """Figure of a cell: microseconds, or GB/s of one way."""
    seconds = matrix.seconds[source][target]
    return _figure(matrix, seconds) if seconds else None


def _figure(matrix: PairMatrix, seconds: float) -> float:
    return seconds * 1e6 if matrix.is_latency else matrix.size_bytes / seconds / 1e9


def short(number: float | None) -> str:
    """Three digits, without an exponent."""
    if number is None:
        return ""
    return f"{number:.0f}" if number >= 99.95 else f"{number:.3g}"


def class_lines(matrix: PairMatrix) -> list[str]:
    """For every class of pairs: how many, the median, and what its links should give at most."""
    lines = []
    for name, count in sorted(matrix.class_sizes.items()):
        middle = _figure(matrix, matrix.usual_seconds[name])
        line = (
            f"{name or 'all'}: {plural(count, 'pair')}, median {short(middle)} {_unit(matrix)}"
        )
        rates = {
            matrix.link_rates[s][t] for s, t in matrix.pairs() if matrix.classes[s][t] == name
        }
        known = sorted(rate for rate in rates if rate)
        if known and not matrix.is_latency:
            each = " to ".join(
                dict.fromkeys(short(rate / 1e9) for rate in (known[0], known[-1]))
            )
            line += f" of {each} GB/s the link has"
            line += f" ({percent(middle * 1e9 / known[0])})" if len(known) == 1 else ""
        lines.append(line)
    return lines


def notes(matrix: PairMatrix) -> list[str]:
    """Findings, and what is not compared."""
    misses, sizes = pair_misses(matrix), matrix.class_sizes
    cells = list(matrix.pairs())
    judged = any(
        not matrix.doubts[s][t] and sizes[matrix.classes[s][t]] >= FEWEST_OF_A_CLASS
        for s, t in cells
    )
    lines = []
    if misses:
        worst = [
            f"{miss.name} {miss.ratio:.2f} times the time of its class"
            + (f" ({miss.link_class})" if miss.link_class else "")
            for miss in misses[:MOST_NAMED]
        ]
        worst += beyond(misses, MOST_NAMED)
        lines.append(
            f"Framed, more than {percent(MISS)} worse than their class: {'; '.join(worst)}"
        )
    elif judged and not (matrix.simulated or matrix.emulated):
        lines.append(f"No pair is more than {percent(MISS)} worse than the median of its class")
    doubts = [matrix.doubts[s][t] for s, t in cells if matrix.doubts[s][t]]
    if doubts:
        named = "; ".join(sorted({*doubts}))
        lines.append(
            f"Flagged as doubtful, and not judged: {plural(len(doubts), 'pair')} ({named})"
        )
    if "" in sizes:
        lines.append("What joins the ranks is not known: all pairs are one class")
    small = [name for name, size in sizes.items() if size < FEWEST_OF_A_CLASS]
    if small:
        lines.append(
            f"Classes of fewer than {FEWEST_OF_A_CLASS} pairs are not judged: {', '.join(small)}"
        )
    return lines


def matrix_table(matrix: PairMatrix) -> Table:
    """Rows are sources, columns targets."""
    parts = (
        format_size(matrix.size_bytes),
        matrix.backend,
        matrix.dtype,
        _way(matrix),
        matrix.setting,
    )
    ranks = range(matrix.ranks)
    return Table(
        columns("from \\ to", *map(str, ranks)),
        [
            [str(source), *(short(value(matrix, source, target)) or "-" for target in ranks)]
            for source in ranks
        ],
        f"{_what(matrix)} of every pair in {_unit(matrix)}, {', '.join(part for part in parts if part)}",
    )


def pair_lines(matrices: Sequence[PairMatrix], width: int) -> list[str]:
    """The matrices for a screen; those too wide for it as their classes and findings only."""
    lines: list[str] = []
    for matrix in matrices:
        table = matrix_table(matrix)
        rows = aligned(table)
        lines += [f"{table.title}:", *(rows if max(map(len, rows)) <= width else ())]
        lines += [f"  {line}" for line in (*class_lines(matrix), *notes(matrix))]
    return lines


def matrices_csv(matrices: Iterable[PairMatrix]) -> str:
    """A row for every pair; units are in the names."""
    rows: list[dict[str, object]] = []
    fields = ("backend", "setting", "dtype", "ranks", "nodes", "size_bytes")
    for matrix in matrices:
        missed = {(miss.source, miss.target) for miss in pair_misses(matrix)}
        for source, target in matrix.pairs():
            link_class, link = matrix.classes[source][target], matrix.link_rates[source][target]
            rate = matrix.rate(source, target)
            rows.append(
                values_of(matrix, *fields)
                | {
                    "both_ways": matrix.both,
                    "source": source,
                    "target": target,
                    "median_seconds": matrix.time(source, target),
                    "GB_s_each_way": rate and rate / 1e9,
                    "link_class": link_class,
                    "link_GB_s": link and link / 1e9,
                    "class_median_seconds": matrix.usual_seconds[link_class],
                    "finding": "slow" if (source, target) in missed else "",
                }
            )
    return csv_of(named(*rows[0]), rows)
