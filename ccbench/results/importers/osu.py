"""OSU micro-benchmarks (osu_allreduce, osu_latency, osu_bw, ...): titles, columns and rows of their text.

The time is the mean over ranks of each rank's mean over iterations; ``-f`` adds the smallest and largest
rank. Rates of the point-to-point tests are in 1e6 bytes per second. Source: osu_util.c and osu_util_mpi.c of
https://mvapich.cse.ohio-state.edu/benchmarks/ (versions 3 to 7).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.columns import Column, Columns, OpenTable, block_row, log_of
from ccbench.results.importers.lines import Line, source_lines
from ccbench.results.importers.log import ImportedLog, ImportedTable
from ccbench.results.importers.words import NO_LAUNCH, Launch, collective_name, dtype_name, launch_of
from ccbench.topology.graph import Notice

_TITLE = re.compile(
    r"#?[ \t]*(?:OSU|OMB\S{0,10})[ \t]+(.{3,120}?)[ \t]+Test(?:[ \t]+v?(\d[\w.]{0,20}))?[ \t]*$"
)
_DATATYPE = re.compile(r"#[ \t]*Datatype:[ \t]*(\w{1,40})")
_US = r"Lat(?:ency)? ?\(us\)"
_COLUMNS = Columns(
    Column("Size", "size_bytes"),
    Column(rf"(?:Avg )?{_US}|Pure Comm\. ?\(us\)", "seconds", 1e6),  # of a non-blocking one: without overlap
    Column(rf"Min {_US}", "minimum_seconds", 1e6),
    Column(rf"Max {_US}", "maximum_seconds", 1e6),
    Column(rf"P\d{{1,3}}\S{{0,5}} (?:Tail )?{_US}", "{}_seconds", 1e6),
    Column(r"Overall ?\(us\)", "overall_seconds", 1e6),
    Column(r"Compute ?\(us\)", "compute_seconds", 1e6),
    Column(r"Coll\. Init ?\(us\)", "coll_init_seconds", 1e6),
    Column(r"MPI_Test ?\(us\)", "mpi_test_seconds", 1e6),
    Column(r"MPI_Wait ?\(us\)", "mpi_wait_seconds", 1e6),
    Column(r"Overlap ?\(%\)", "overlap_percent"),
    Column(r"(?:Bandwidth ?\()?MB/s\)?", "algbw", 1e3),
    Column("Messages/s", "messages_per_second"),
    Column("Iterations", "iterations"),
    Column("Validation", "wrong_elements", words={"pass": 0, "fail": 1}),
)
_POINT_TO_POINT = {
    "Latency": "osu_latency",
    "Bandwidth": "osu_bw",
    "Bi-Directional Bandwidth": "osu_bibw",
    "Multi Latency": "osu_multi_lat",
    "Multi-threaded Latency": "osu_latency_mt",
    "Multiple Bandwidth / Message Rate": "osu_mbw_mr",
}


@dataclass
class _Table(OpenTable):
    title: str = ""
    flavour: str = ""
    version: str = ""
    launch: Launch = NO_LAUNCH
    dtype: str = ""


def recognises(text: str) -> bool:
    """Return whether a title of these benchmarks is in ``text``."""
    if "OSU " not in text and "OMB" not in text:
        return False
    return any(_TITLE.match(line.text) for line in source_lines(text) if "Test" in line.text)


def read(text: str) -> ImportedLog:
    """Every table of ``text``; a title without rows gives a table without rows."""
    tables: list[_Table] = []
    notices: list[Notice] = []
    launch, lines = Launch(), list(source_lines(text))
    for line in lines:
        if title := _TITLE.match(line.text):
            tables.append(_opened(title, line, launch))
        elif tables:
            notices += _taken(tables[-1], line)
        launch = launch_of(line.text) or launch
    first = tables[0] if tables else _Table(0)
    return log_of(
        "osu",
        lines,
        [_closed(table) for table in tables],
        notices,
        library=first.flavour.partition("-")[0],
        versions={"osu": first.version} if first.version else {},
    )


def _opened(title: re.Match[str], line: Line, launch: Launch) -> _Table:
    flavour, _, rest = title[1].partition(" ")
    if flavour in ("Python", "Py"):
        flavour, _, rest = rest.strip().partition(" ")
    if flavour.startswith("MPI_"):  # one-sided: "OSU MPI_Put Latency Test"
        flavour, rest = "MPI", f"{flavour} {rest}"
    return _Table(line.number, title=rest.strip(), flavour=flavour, version=title[2] or "", launch=launch)


def _taken(table: _Table, line: Line) -> list[Notice]:
    """Header, element type or row of ``table``; what looks like a row and is none is said."""
    begin = line.text.lstrip("# \t")
    if dtype := _DATATYPE.match(line.text):
        table.dtype = dtype_name(dtype[1])
    elif not table.columns and begin[:1].isalpha():
        columns = _COLUMNS.of(begin)
        if columns and (columns[0].name == "size_bytes" or "(us" in columns[0].heading):
            table.columns = columns
    elif table.columns and begin[:1].isdigit():
        return table.take(line, line.text.split())
    return []


def _closed(table: _Table) -> ImportedTable:
    collective = _POINT_TO_POINT.get(table.title) or collective_name(
        table.title.removesuffix("Latency").removeprefix("Non-blocking ")
    )
    ranks = 2 if collective in ("osu_latency", "osu_bw", "osu_bibw") else table.launch.ranks
    rows = (block_row(line.number, cells, collective, ranks, dtype=table.dtype) for line, cells in table.rows)
    return ImportedTable(
        collective=collective,
        rows=tuple(rows),
        ranks=ranks,
        nodes=table.launch.nodes,
        mode="isolated" if collective in COLLECTIVES else "streaming",
        line=table.line,
        facts={
            "title": table.title,
            "flavour": table.flavour,  # MPI-CUDA: buffers on the device
            "seconds_are": "mean over ranks of means over iterations",
            "non_blocking": table.title.startswith("Non-blocking"),
        },
    )
