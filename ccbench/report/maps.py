"""Maps of cells: all pairs of ranks, as figures and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ccbench.analysis.pair_matrix import FEWEST_OF_A_CLASS, MISS, PairMatrix
from ccbench.report.figure import Figure, FigureAxis, Grid
from ccbench.report.present import Table, aligned, beyond, columns, csv_of, named, values_of
from ccbench.units import percent, plural

MOST_NUMBERED = 16
"""Ranks up to which cells hold numbers."""

MOST_NAMED = 6
MATRIX_FILE = "pairs.csv"


def pair_figures(matrices: Sequence[PairMatrix], where: str = "") -> list[Figure]:
    """One map for every matrix. where: host and machine, for the small print."""
    figures = []
    for matrix in matrices:
        first, misses = matrix.first, matrix.misses
        # Both ways at once the matrix is symmetric, and so are its frames.
        marked = {*zip(misses.source, misses.target, strict=True)}
        marked |= {(target, source) for source, target in marked} if matrix.both else set()
        values = values_in(matrix)
        several = matrix.cells.link_class.nunique() > 1
        texts = tuple(
            tuple(
                f"{short(number)}\n{link}" if several and number is not None else short(number)
                for number, link in zip(row, classes, strict=True)
            )
            for row, classes in zip(values, matrix.table("link_class"), strict=True)
        )
        parts = [
            plural(first.ranks, "rank"),
            plural(first.nodes, "node") if first.nodes > 1 else "",
        ]
        parts += [_way(matrix), first.dtype, matrix.setting]
        label = "SIMULATED " if first.simulated else "EMULATION " if matrix.emulated else ""
        way = "both-ways" if matrix.both else "one-way"
        team = f"{first.ranks}ranks-{first.nodes}nodes-{first.dtype}-{first.size_bytes}B"
        key = f"pairs-{first.backend}-{team}-{way}-{matrix.setting}"
        figures.append(
            Figure(
                key=key.strip("-"),
                topic="pairs",
                title=f"{label}{first.backend} send_recv: {_what(matrix)} of every pair, {first.size}",
                subtitle=" · ".join(part for part in parts if part),
                x=FigureAxis("to rank", "rank", "linear"),
                y=FigureAxis("from rank", "rank", "linear"),
                footnote=tuple(note for note in (where, *notes(matrix)) if note),
                grid=Grid(
                    values=values,
                    texts=texts if first.ranks <= MOST_NUMBERED else (),
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


def values_in(matrix: PairMatrix) -> tuple[tuple[float | None, ...], ...]:
    """Figures of all cells: microseconds, or GB/s of one way; None where nothing was measured."""
    return tuple(
        tuple(seconds and _figure(matrix, seconds) for seconds in row)
        for row in matrix.table("seconds")
    )


def _figure(matrix: PairMatrix, seconds: float) -> float:
    return seconds * 1e6 if matrix.is_latency else matrix.first.size_bytes / seconds / 1e9


def short(number: float | None) -> str:
    """Three digits, without an exponent."""
    if number is None:
        return ""
    return f"{number:.0f}" if number >= 99.95 else f"{number:.3g}"


def class_lines(matrix: PairMatrix) -> list[str]:
    """For every class of pairs: how many, the median, and what its links should give at most."""
    lines = []
    for name, cells in matrix.cells.groupby("link_class"):
        middle = _figure(matrix, cells.seconds.median())
        count = plural(len(cells), "pair")
        line = f"{str(name) or 'all'}: {count}, median {short(middle)} {_unit(matrix)}"
        known = sorted(rate for rate in {*cells.link_rate} if rate < math.inf)
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
    misses, cells = matrix.misses, matrix.cells
    lines = []
    if len(misses):
        worst = [
            f"{miss['name']} {miss['ratio']:.2f} times the time of its class"
            + (f" ({miss['link_class']})" if miss["link_class"] else "")
            for miss in misses[:MOST_NAMED].to_dict("records")
        ]
        worst += beyond(misses, MOST_NAMED)
        lines.append(
            f"Framed, more than {percent(MISS)} worse than their class: {'; '.join(worst)}"
        )
    elif matrix.is_judged.any() and matrix.is_measured:
        lines.append(f"No pair is more than {percent(MISS)} worse than the median of its class")
    doubts = cells.doubts[cells.doubts != ""]
    if len(doubts):
        named = "; ".join(sorted({*doubts}))
        lines.append(
            f"Flagged as doubtful, and not judged: {plural(len(doubts), 'pair')} ({named})"
        )
    if (cells.link_class == "").any():
        lines.append("What joins the ranks is not known: all pairs are one class")
    small = cells.link_class[cells.class_size < FEWEST_OF_A_CLASS].unique()
    if len(small):
        lines.append(
            f"Classes of fewer than {FEWEST_OF_A_CLASS} pairs are not judged: {', '.join(small)}"
        )
    return lines


def matrix_table(matrix: PairMatrix) -> Table:
    """Rows are sources, columns targets."""
    first = matrix.first
    parts = (first.size, first.backend, first.dtype, _way(matrix), matrix.setting)
    return Table(
        columns("from \\ to", *map(str, range(first.ranks))),
        [
            [str(source), *(short(number) or "-" for number in row)]
            for source, row in enumerate(values_in(matrix))
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
    for matrix in matrices:
        first, missed = matrix.first, {*matrix.misses.name}
        rows += [
            {
                "backend": first.backend,
                "setting": matrix.setting,
                **values_of(first, "dtype", "ranks", "nodes", "size_bytes"),
                "both_ways": matrix.both,
                "source": cell["source"],
                "target": cell["target"],
                "median_seconds": cell["seconds"],
                "GB_s_each_way": first.size_bytes / cell["seconds"] / 1e9,
                "link_class": cell["link_class"],
                "link_GB_s": cell["link_rate"] / 1e9 if cell["link_rate"] < math.inf else None,
                "class_median_seconds": cell["usual_seconds"],
                "finding": "slow" if cell["name"] in missed else "",
            }
            for cell in matrix.cells.to_dict("records")
        ]
    return csv_of(named(*rows[0]), rows)
