"""Intel MPI Benchmarks (IMB-MPI1, IMB-NBC): the tables of "# Benchmarking NAME" sections.

The time is the mean over ranks (t_avg), as in OSU's benchmarks and nccl-tests; the fastest and the slowest
rank are kept beside it. Mbytes/sec is kept as printed and is no algbw: Sendrecv counts every byte twice,
Exchange four times, and the unit was 2^20 bytes before 2018 and 1e6 since. Roots of rooted collectives go
round the ranks. Source: Intel MPI Benchmarks User Guide; IMB_output.c of
https://github.com/intel/mpi-benchmarks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ccbench.results.importers.columns import Column, Columns, OpenTable, block_row, log_of
from ccbench.results.importers.lines import Line, no_row, source_lines, whole
from ccbench.results.importers.log import ImportedLog, ImportedTable, Outcome
from ccbench.results.importers.words import NO_LAUNCH, Launch, collective_name, dtype_name, launch_of, op_of
from ccbench.topology.graph import Notice

_BANNER = re.compile(r"#[ \t]*Intel ?\(R\) MPI Benchmarks[ \t]*(?:Suite )?V?(\d[\w.]{0,20})?")
_SECTION = re.compile(r"#[ \t]*Benchmarking[ \t]+(Multi-)?(\w{2,40})[ \t]*$")
_PROCESSES = re.compile(r"#[ \t(]*#processes[ \t]*=[ \t]*(\d{1,7})")
_GROUPS = re.compile(r"#[ \t]*\([ \t]*(\d{1,6}) groups of (\d{1,7}) processes")
_STATED = re.compile(
    r"#[ \t]*(MPI_Datatype for reductions|MPI_Datatype|MPI_Op|MPI Version)[ \t]*:[ \t]*(\S{1,40})"
)
_GIVEN_UP = re.compile(r"[ \t]*(\S+) .*?(time-out|out-of-mem|int-overflow)")
_CLOSING = "All processes entering MPI_Finalize"
_COLUMNS = Columns(
    Column("#bytes", "size_bytes"),
    Column(r"t(?:_avg|_pure)?\[usec\]", "seconds", 1e6),
    Column(r"t_min\[usec\]", "minimum_seconds", 1e6),
    Column(r"t_max\[usec\]", "maximum_seconds", 1e6),
    Column(r"t_ovrl\[usec\]", "overlapped_seconds", 1e6),
    Column(r"t_CPU\[usec\]", "compute_seconds", 1e6),
    Column("Mbytes/sec", "mbytes_per_second"),
    Column("Msg/sec", "messages_per_second"),
    Column(r"overlap\[%\]", "overlap_percent"),
    Column("#repetitions", "iterations"),
    Column("defects", "defects"),
)
_GROUP = Column("group", "group")
_OWN_WORDS = {"pingpong": "PingPong", "pingping": "PingPing", "exchange": "Exchange"}


@dataclass
class _Table(OpenTable):
    name: str = ""
    launch: Launch = NO_LAUNCH
    multiple: bool = False
    processes: int | None = None
    groups: int | None = None


def recognises(text: str) -> bool:
    """Return whether a section's column header of these benchmarks is in ``text``."""
    return "#repetitions" in text and "[usec]" in text


def read(text: str) -> ImportedLog:
    """Every section of ``text`` as a table; a table without its section's heading has no name."""
    tables: list[_Table] = []
    notices: list[Notice] = []
    stated: dict[str, str] = {}
    version: str | None = None
    launch, lines = Launch(), list(source_lines(text))
    for line in lines:
        if section := _SECTION.match(line.text):
            tables.append(_Table(line.number, name=section[2], launch=launch, multiple=bool(section[1])))
        elif recognises(line.text):
            if not tables or tables[-1].columns:
                tables.append(_Table(line.number, launch=launch))
            tables[-1].columns = _COLUMNS.each(line.text.split())
        elif tables:
            notices += _taken(tables[-1], line)
        if said := _STATED.match(line.text):
            stated.setdefault(said[1], said[2])
        if version is None and (banner := _BANNER.match(line.text)):
            version = banner[1] or ""
        launch = launch_of(line.text) or launch
    torn = any(notice.kind == "truncated" for notice in notices)
    cut = (Outcome.CUT, f"no '{_CLOSING}' at the end") if version is not None or torn else None
    whole_text = _CLOSING in text
    versions = {"imb": version, "MPI": stated.pop("MPI Version", "")}
    return log_of(
        "imb",
        () if whole_text else lines,
        [_closed(table, stated) for table in tables if table.rows or table.name],
        notices,
        (Outcome.COMPLETE, "") if whole_text else cut,
        library="MPI",
        versions={name: one for name, one in versions.items() if one},
        facts=stated,
    )


def _taken(table: _Table, line: Line) -> list[Notice]:
    """Number of processes or row of ``table``; what looks like a row and is none is said."""
    if processes := _PROCESSES.match(line.text):
        table.processes = int(processes[1])
    elif groups := _GROUPS.match(line.text):
        table.groups, table.processes = int(groups[1]), int(groups[2])
    elif table.columns and line.text.lstrip()[:1].isdigit():
        if given_up := _GIVEN_UP.match(line.text):
            return _given_up(table, line, given_up)
        cells = line.text.split()
        if table.multiple and len(cells) == len(table.columns) + 1:
            table.columns = (_GROUP, *table.columns)
        return table.take(line, cells)
    return []


def _given_up(table: _Table, line: Line, match: re.Match[str]) -> list[Notice]:
    """A size that the benchmark did not measure."""
    size_bytes = whole(match[1])
    if size_bytes is None:
        return [no_row(line)]
    table.rows.append((line, {"size_bytes": size_bytes, "given_up": match[2]}))
    return []


def _closed(table: _Table, stated: dict[str, str]) -> ImportedTable:
    collective = collective_name(table.name.removesuffix("_pure"))
    if collective == table.name.removesuffix("_pure") and collective[:1] in ("I", "i"):
        blocking = collective_name(collective[1:])  # Iallreduce and the like
        collective = blocking if blocking != collective[1:] else collective
    facts = {"name": table.name, "seconds_are": "mean over ranks of means over iterations"}
    if table.groups:
        facts["simultaneous_groups"] = str(table.groups)
    op = op_of(collective, stated.get("MPI_Op", "MPI_SUM").removeprefix("MPI_").lower())
    datatype = "MPI_Datatype" if op in ("none", "") else "MPI_Datatype for reductions"
    common: dict[str, Any] = {"op": op, "root": -1, "dtype": dtype_name(stated.get(datatype, ""))}
    rows = []
    for line, cells in table.rows:
        if (defects := cells.pop("defects", None)) is not None:
            cells["wrong_elements"] = int(defects.value > 0)
        rows.append(block_row(line.number, cells, collective, table.processes, **common))
    return ImportedTable(
        collective=_OWN_WORDS.get(collective.lower(), collective),
        rows=tuple(rows),
        ranks=table.processes or table.launch.ranks,
        nodes=table.launch.nodes if table.processes == table.launch.ranks else None,
        line=table.line,
        facts=facts,
    )
