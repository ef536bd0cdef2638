"""OSU micro-benchmarks (osu_allreduce, osu_latency, osu_bw, ...): titles, columns and rows of their text.

The time is the mean over ranks of each rank's mean over iterations; ``-f`` adds the smallest and largest
rank. Rates of the point-to-point tests are in 1e6 bytes per second. Source: osu_util.c and osu_util_mpi.c of
https://mvapich.cse.ohio-state.edu/benchmarks/ (versions 3 to 7).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers.lines import (
    Figure,
    Line,
    bad_ending,
    capped,
    figure,
    is_torn,
    microseconds,
    no_row,
    printed_row,
    source_lines,
    torn_row,
    whole,
)
from ccbench.results.importers.readers.words import (
    Launch,
    collective_name,
    dtype_name,
    launch_of,
    op_of,
    root_of,
    whole_size,
)
from ccbench.topology.graph import Notice

_TITLE = re.compile(
    r"#?[ \t]*(?:OSU|OMB\S{0,10})[ \t]+(.{3,120}?)[ \t]+Test(?:[ \t]+v?(\d[\w.]{0,20}))?[ \t]*$"
)
_COLUMN = re.compile(
    r"Size|Coll\. Init ?\(us\)|MPI_Test ?\(us\)|MPI_Wait ?\(us\)|Overall ?\(us\)|Compute ?\(us\)|"
    r"Pure Comm\. ?\(us\)|Overlap ?\(%\)|(?:Avg |Min |Max |P\d{1,3}\S{0,5} (?:Tail )?)?Lat(?:ency)? ?\(us\)|"
    r"Bandwidth ?\(MB/s\)|MB/s|Messages/s|Iterations|Validation"
)
_DATATYPE = re.compile(r"#[ \t]*Datatype:[ \t]*(\w{1,40})")

_POINT_TO_POINT = {
    "Latency": "osu_latency",
    "Bandwidth": "osu_bw",
    "Bi-Directional Bandwidth": "osu_bibw",
    "Multi Latency": "osu_multi_lat",
    "Multi-threaded Latency": "osu_latency_mt",
    "Multiple Bandwidth / Message Rate": "osu_mbw_mr",
}

_EXTRA_NAMES = {"Min": "minimum_seconds", "Max": "maximum_seconds", "Ove": "overall_seconds"}


@dataclass
class _Table:
    """A table that is still being read."""

    title: str
    flavour: str
    version: str
    line: int
    launch: Launch
    columns: tuple[str, ...] = ()
    dtype: str = ""
    rows: list[ImportedRow] = field(default_factory=list)
    last: Line | None = None

    @property
    def collective(self) -> str:
        if self.title in _POINT_TO_POINT:
            return _POINT_TO_POINT[self.title]
        return collective_name(self.title.removesuffix("Latency").removeprefix("Non-blocking "))

    @property
    def ranks(self) -> int | None:
        return 2 if self.collective in ("osu_latency", "osu_bw", "osu_bibw") else self.launch.ranks


def recognises(text: str) -> bool:
    """Whether a title of these benchmarks is in ``text``."""
    if "OSU " not in text and "OMB" not in text:
        return False
    return any(_TITLE.match(line.text) for line in source_lines(text) if "Test" in line.text)


def read(text: str) -> ImportedLog:
    """Every table of ``text``; a title without rows gives a table without rows."""
    tables: list[_Table] = []
    notices: list[Notice] = []
    launch, lines = Launch(), list(source_lines(text))
    for line in lines:
        title = _TITLE.match(line.text)
        if title:
            tables.append(_opened(title, line, launch))
        elif tables:
            notices += _taken(tables[-1], line)
        launch = launch_of(line.text) or launch
    ending = bad_ending(lines)
    torn = any(notice.kind == "truncated" for notice in notices)
    outcome = ending[0] if ending else Outcome.CUT if torn else Outcome.UNKNOWN
    return ImportedLog(
        tool="osu",
        library=tables[0].flavour.partition("-")[0] if tables else "",
        tables=tuple(_closed(table) for table in tables),
        versions={"osu": tables[0].version} if tables and tables[0].version else {},
        notices=capped(notices),
        outcome=outcome,
        detail=ending[1] if ending else "",
    )


def _opened(title: re.Match[str], line: Line, launch: Launch) -> _Table:
    flavour, _, rest = title[1].partition(" ")
    if flavour in ("Python", "Py"):
        flavour, _, rest = rest.strip().partition(" ")
    if flavour.startswith("MPI_"):  # one-sided: "OSU MPI_Put Latency Test"
        flavour, rest = "MPI", f"{flavour} {rest}"
    return _Table(rest.strip(), flavour, title[2] or "", line.number, launch)


def _taken(table: _Table, line: Line) -> list[Notice]:
    """Header, element type or row of ``table``; what looks like a row and is none is said."""
    begin = line.text.lstrip("# \t")
    if dtype := _DATATYPE.match(line.text):
        table.dtype = dtype_name(dtype[1])
    elif not table.columns and begin[:1].isalpha():
        columns = tuple(_COLUMN.findall(begin))
        if columns and (columns[0] == "Size" or "Latency" in columns[0] or "(us)" in columns[0]):
            table.columns = columns
    elif table.columns and begin[:1].isdigit():
        if is_torn(line, table.last):
            return [torn_row(line)]
        row = _row(table, line)
        if row is None:
            return [no_row(line)]
        table.rows.append(row)
        table.last = line
    return []


def _row(table: _Table, line: Line) -> ImportedRow | None:
    cells = line.text.split()
    if len(cells) != len(table.columns):
        return None
    by_column = dict(zip(table.columns, cells, strict=True))
    printed = whole(by_column["Size"]) if "Size" in by_column else 0
    seconds = microseconds(next((v for c, v in by_column.items() if _is_time(c)), ""))
    rate = figure(next((v for c, v in by_column.items() if "MB/s" in c), ""))
    rate = rate.over(1e3) if rate else None
    if printed is None or (seconds is None and rate is None):
        return None
    collective = table.collective
    size_bytes, flags = whole_size(collective, printed, table.ranks)
    verdict = by_column.get("Validation", "").lower()
    return printed_row(
        line.number,
        size_bytes,
        seconds,
        rate,
        dtype=table.dtype,
        op=op_of(collective, "sum"),
        root=root_of(collective),
        wrong_elements={"pass": 0, "fail": 1}.get(verdict),
        flags=flags,
        extra={"printed_size_bytes": printed, **_extra(by_column)},
    )


def _is_time(column: str) -> bool:
    """Whether it is the column of the operation's time: the mean, or a non-blocking one without overlap."""
    return column.startswith(("Avg", "Latency", "Lat", "Pure"))


def _extra(by_column: dict[str, str]) -> dict[str, float | int]:
    extra: dict[str, float | int] = {}
    for column, cell in by_column.items():
        found: Figure | None = figure(cell)
        if found is None or column == "Size" or _is_time(column) or "MB/s" in column:
            continue
        if column == "Iterations":
            extra["iterations"] = int(found.value)
        elif column == "Messages/s":
            extra["messages_per_second"] = found.value
        elif column.startswith("Overlap"):
            extra["overlap_percent"] = found.value
        else:
            name = _EXTRA_NAMES.get(column[:3], re.sub(r"\W+", "_", column[:-4].strip()).lower() + "_seconds")
            extra[name] = found.value / 1e6
    return extra


def _closed(table: _Table) -> ImportedTable:
    return ImportedTable(
        collective=table.collective,
        rows=tuple(table.rows),
        ranks=table.ranks,
        nodes=table.launch.nodes,
        mode="isolated" if table.collective in COLLECTIVES else "streaming",
        line=table.line,
        facts={
            "title": table.title,
            "flavour": table.flavour,  # MPI-CUDA: buffers on the device
            "seconds_are": "mean over ranks of means over iterations",
            "non_blocking": table.title.startswith("Non-blocking"),
        },
    )
