"""Gloo's own benchmark: elements, percentiles of time over iterations, and a rate where the version has one.

Elements are of one rank's input: the whole buffer of all-reduce, broadcast and reduce-scatter, one block of
all-gather. They are floats of 4 bytes, or of 2 with --halfprecision, which the rate tells apart. GB/s is 2^30
bytes per second of the mean time. Source: gloo/benchmark/main.cc and runner.cc of
https://github.com/facebookincubator/gloo.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers.lines import (
    GIBI,
    Figure,
    Line,
    bad_ending,
    capped,
    figure,
    is_torn,
    no_row,
    printed_row,
    rate_factor,
    source_lines,
    torn_row,
    whole,
)
from ccbench.results.importers.readers.words import collective_name, op_of, root_of, whole_size
from ccbench.topology.graph import Notice

_STATED = re.compile(r"(Device|Algorithm|Options):[ \t]*(.{0,500})$")
_COLUMN = re.compile(
    r"size \(B\)|elements|(?:min|p\d{1,4}|max|avg)L? \((?:us|ns)\)|"
    r"(?:min|p\d{1,4}|max|avg)(?:BW)? \(GB/s\)|bandwidth \(GB/s\)|samples|iterations"
)
_NAMES = {
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "alltoall": "all_to_all",
}


@dataclass
class _Table:
    """A table that is still being read."""

    line: int
    columns: tuple[str, ...]
    stated: dict[str, str]
    cells: list[tuple[Line, dict[str, str]]] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        pairs = (part.partition("=") for part in self.stated.get("Options", "").split(","))
        return {name.strip(): value.strip() for name, _, value in pairs if value}


def recognises(text: str) -> bool:
    """Whether a column header of this benchmark is in ``text``."""
    return "elements" in text and any(
        _columns(line) for line in source_lines(text) if "elements" in line.text
    )


def _columns(line: Line) -> tuple[str, ...]:
    """The columns of a header, else nothing."""
    columns = tuple(_COLUMN.findall(line.text))
    words = sum(len(column.split()) for column in columns)
    if "elements" not in columns or len(columns) < 4 or words != len(line.text.split()):
        return ()
    return columns


def read(text: str) -> ImportedLog:
    """Every table of ``text`` with the algorithm and options printed before it."""
    tables: list[_Table] = []
    notices: list[Notice] = []
    stated: dict[str, str] = {}
    lines = list(source_lines(text))
    for line in lines:
        if said := _STATED.match(line.text):
            stated[said[1]] = said[2].strip()
        elif columns := _columns(line):
            tables.append(_Table(line.number, columns, dict(stated)))
        elif tables and line.text.lstrip()[:1].isdigit():
            notices += _taken(tables[-1], line)
    ending = bad_ending(lines)
    torn = any(notice.kind == "truncated" for notice in notices)
    return ImportedLog(
        tool="gloo-benchmark",
        library="Gloo",
        tables=tuple(_closed(table) for table in tables),
        notices=capped(notices),
        outcome=ending[0] if ending else Outcome.CUT if torn else Outcome.UNKNOWN,
        detail=ending[1] if ending else "",
        facts={"device": stated["Device"]} if "Device" in stated else {},
    )


def _taken(table: _Table, line: Line) -> list[Notice]:
    if is_torn(line, table.cells[-1][0] if table.cells else None):
        return [torn_row(line)]
    cells = line.text.split()
    by_column = dict(zip(table.columns, cells, strict=False))
    sizes = [by_column.get("elements", ""), by_column.get("size (B)", "0")]
    if len(cells) != len(table.columns) or None in map(whole, sizes) or None in map(figure, cells):
        return [no_row(line)]
    table.cells.append((line, by_column))
    return []


def _algorithm(stated: str) -> tuple[str, str]:
    """(collective, algorithm) of a name such as new_allreduce_ring_chunked or cuda_broadcast_one_to_all."""
    name = stated.removeprefix("new_").removeprefix("cuda_")
    for word, collective in _NAMES.items():
        if name == word or name.startswith(f"{word}_"):
            return collective, name.removeprefix(word).strip("_") or "default"
    return collective_name(name), "default"


def _seconds(by_column: dict[str, str], wanted: str) -> Figure | None:
    """The time whose column begins with ``wanted``, such as p50."""
    for column, cell in by_column.items():
        if re.match(rf"{wanted}L? \((us|ns)\)", column):
            found = figure(cell)
            return found.over(1e6 if "(us)" in column else 1e9) if found else None
    return None


def _rate(by_column: dict[str, str]) -> Figure | None:
    """The rate of the mean or the median time, as printed."""
    for column in ("p50BW (GB/s)", "avg (GB/s)", "bandwidth (GB/s)", "avgBW (GB/s)"):
        if column in by_column:
            return figure(by_column[column])
    return None


def _item_bytes(table: _Table, collective: str) -> int:
    """Bytes of an element: from a size column, from the rate of the first row that tells, else 4."""
    if collective == "pairwise_exchange":
        return 1  # the only benchmark of chars
    for _, by_column in table.cells:
        elements = whole(by_column["elements"]) or 0
        size = whole(by_column.get("size (B)", "")) or 0
        if elements and size % elements == 0 and size:
            return size // elements
        seconds, rate = _seconds(by_column, "p50"), _rate(by_column)
        if elements and seconds and rate and rate.value > 20 * rate.half_unit:
            # Within a third, because the rate is of the mean and the time the median; 2 and 4 are apart.
            likely = rate.value * GIBI * 1e9 * seconds.value / elements
            return 2 if 1.5 < likely < 2.7 else 4
    return 4


def _closed(table: _Table) -> ImportedTable:
    collective, algorithm = _algorithm(table.stated.get("Algorithm", ""))
    ranks = whole(table.options.get("processes", "")) or None
    item = _item_bytes(table, collective)
    points = [
        (int(cells["elements"]) * item, seconds, rate)
        for _, cells in table.cells
        if (seconds := _seconds(cells, "p50")) and (rate := _rate(cells))
    ]
    factor = rate_factor(points, GIBI)
    rows = tuple(_row(line, cells, collective, ranks, item, factor) for line, cells in table.cells)
    return ImportedTable(
        collective=collective,
        rows=rows,
        ranks=ranks,
        algorithm=algorithm,
        line=table.line,
        facts={
            "algorithm": table.stated.get("Algorithm", ""),
            **table.options,
            "seconds_are": "median over iterations on rank 0",
            "printed_rate_unit_bytes": 2**30 if factor == GIBI else 10**9,
        },
    )


def _row(
    line: Line, cells: dict[str, str], collective: str, ranks: int | None, item: int, factor: float
) -> ImportedRow:
    elements = int(cells["elements"])
    size_bytes, flags = whole_size(collective, elements * item, ranks)
    if collective == "barrier":
        size_bytes = 0
    seconds, rate = _seconds(cells, "p50"), _rate(cells)
    rate = rate.times(factor) if rate else None
    # A rate of the mean, or of one block, is no algbw: it would contradict the median time, or the size.
    is_algbw = "p50BW (GB/s)" in cells and size_bytes == elements * item
    algbw = rate if is_algbw else None
    extra = {name: found.value for name in ("min", "p99", "max", "avg") if (found := _seconds(cells, name))}
    names = {
        "min": "minimum_seconds",
        "max": "maximum_seconds",
        "avg": "average_seconds",
        "p99": "p99_seconds",
    }
    samples = figure(cells.get("samples", cells.get("iterations", "")))
    return printed_row(
        line.number,
        size_bytes,
        seconds,
        algbw,
        count=elements,
        dtype={2: "float16", 4: "float32"}.get(item, ""),
        op=op_of(collective, "sum"),
        root=root_of(collective),
        in_place=True,  # the algorithms work on the pointers they are given
        flags=flags,
        extra={
            "printed_elements": elements,
            **{names[name]: value for name, value in extra.items()},
            **({"iterations": int(samples.value)} if samples else {}),
            **({"rate_gb_per_second": rate.value} if rate and not algbw else {}),
        },
    )
