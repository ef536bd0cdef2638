"""Gloo's own benchmark: elements, percentiles of time over iterations, and a rate where the version has one.

Elements are of one rank's input: the whole buffer of all-reduce, broadcast and reduce-scatter, one block of
all-gather. They are floats of 4 bytes, or of 2 with --halfprecision, which the rate tells apart. GB/s is 2^30
bytes per second of the mean time. Source: gloo/benchmark/main.cc and runner.cc of
https://github.com/facebookincubator/gloo.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.columns import Column, Columns, OpenTable, log_of, row_of
from ccbench.results.importers.lines import GIBI, Line, rate_factor, source_lines, whole
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable
from ccbench.results.importers.words import collective_name, op_of, root_of, whole_size
from ccbench.topology.graph import Notice
from ccbench.topology.text import Figure

_STATED = re.compile(r"(Device|Algorithm|Options):[ \t]*(.{0,500})$")
_TIMES = {
    "min": "minimum_seconds",
    "p50": "seconds",
    "p99": "p99_seconds",
    "max": "maximum_seconds",
    "avg": "average_seconds",
    r"p\d{1,4}": "",
}
_COLUMNS = Columns(
    Column(r"size \(B\)", "printed_bytes"),
    Column("elements", "count"),
    *(Column(rf"{word}L? \(us\)", name, 1e6) for word, name in _TIMES.items()),
    *(Column(rf"{word}L? \(ns\)", name, 1e9) for word, name in _TIMES.items()),
    Column(r"p50BW \(GB/s\)", "median_rate"),
    Column(r"avg(?:BW)? \(GB/s\)|bandwidth \(GB/s\)", "rate_gb_per_second"),
    Column(r"(?:min|p\d{1,4}|max)(?:BW)? \(GB/s\)", ""),
    Column("samples|iterations", "iterations"),
)


@dataclass
class _Table(OpenTable):
    stated: dict[str, str] = field(default_factory=dict)


def recognises(text: str) -> bool:
    """Return whether a column header of this benchmark is in ``text``."""
    return "elements" in text and any(
        _columns(line) for line in source_lines(text) if "elements" in line.text
    )


def _columns(line: Line) -> tuple[Column, ...]:
    """The columns of a header, else nothing."""
    columns = _COLUMNS.only(line.text)
    return columns if len(columns) >= 4 and any(column.name == "count" for column in columns) else ()


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
            tables.append(_Table(line.number, columns, stated=dict(stated)))
        elif tables and line.text.lstrip()[:1].isdigit():
            notices += tables[-1].take(line, line.text.split())
    facts = {"device": stated["Device"]} if "Device" in stated else {}
    closed = [_closed(table) for table in tables]
    return log_of("gloo-benchmark", lines, closed, notices, library="Gloo", facts=facts)


def _algorithm(stated: str) -> tuple[str, str]:
    """(collective, algorithm) of a name such as new_allreduce_ring_chunked or cuda_broadcast_one_to_all."""
    words = stated.removeprefix("new_").removeprefix("cuda_").split("_")
    for count in range(len(words), 0, -1):
        collective = collective_name("_".join(words[:count]))
        if collective in COLLECTIVES:
            return collective, "_".join(words[count:]) or "default"
    return "_".join(words), "default"


def _rate(cells: dict[str, Any]) -> Figure | None:
    """The rate of the median or the mean time, as printed."""
    rate: Figure | None = cells.get("median_rate", cells.get("rate_gb_per_second"))
    return rate


def _item_bytes(table: _Table, collective: str) -> int:
    """Bytes of an element: from a size column, from the rate of the first row that tells, else 4."""
    if collective == "pairwise_exchange":
        return 1  # the only benchmark of chars
    for _, cells in table.rows:
        elements, seconds, rate = cells["count"], cells["seconds"], _rate(cells)
        size = cells["printed_bytes"].value if "printed_bytes" in cells else 0
        if elements and size and size % elements == 0:
            return int(size // elements)
        if elements and rate and rate.value > 20 * rate.half_unit:
            # Within a third, because the rate is of the mean and the time the median; 2 and 4 are apart.
            likely = rate.value * GIBI * 1e9 * seconds.value / elements
            return 2 if 1.5 < likely < 2.7 else 4
    return 4


def _closed(table: _Table) -> ImportedTable:
    stated = table.stated.get("Algorithm", "")
    collective, algorithm = _algorithm(stated)
    pairs = (part.partition("=") for part in table.stated.get("Options", "").split(","))
    options = {name.strip(): value.strip() for name, _, value in pairs if value}
    ranks = whole(options.get("processes", "")) or None
    item = _item_bytes(table, collective)
    rated = [(cells, rate) for _, cells in table.rows if (rate := _rate(cells))]
    factor = rate_factor(((cells["count"] * item, cells["seconds"], rate) for cells, rate in rated), GIBI)
    rows = tuple(_row(line, cells, collective, ranks, item, factor) for line, cells in table.rows)
    return ImportedTable(
        collective=collective,
        rows=rows,
        ranks=ranks,
        algorithm=algorithm,
        line=table.line,
        facts={
            "algorithm": stated,
            **options,
            "seconds_are": "median over iterations on rank 0",
            "printed_rate_unit_bytes": 2**30 if factor == GIBI else 10**9,
        },
    )


def _row(
    line: Line, cells: dict[str, Any], collective: str, ranks: int | None, item: int, factor: float
) -> ImportedRow:
    elements = cells["count"]
    size_bytes, flags = whole_size(collective, elements * item, ranks)
    if collective == "barrier":
        size_bytes = 0
    rate = _rate(cells)
    rate = rate.times(factor) if rate else None
    # A rate of the mean, or of one block, is no algbw: it would contradict the median time, or the size.
    is_algbw = "median_rate" in cells and size_bytes == elements * item
    named = {"algbw" if is_algbw else "rate_gb_per_second": rate}
    left = {name: one for name, one in cells.items() if name not in ("median_rate", "rate_gb_per_second")}
    left.pop("printed_bytes", None)
    return row_of(
        line.number,
        {**left, **named},
        size_bytes=size_bytes,
        dtype={2: "float16", 4: "float32"}.get(item, ""),
        op=op_of(collective, "sum"),
        root=root_of(collective),
        in_place=True,  # the algorithms work on the pointers they are given
        flags=flags,
        extra={"printed_elements": elements},
    )
