"""Intel MPI Benchmarks (IMB-MPI1, IMB-NBC): the tables of "# Benchmarking NAME" sections.

The time is the mean over ranks (t_avg), as in OSU's benchmarks and nccl-tests; the fastest and the slowest
rank are kept beside it. Mbytes/sec is kept as printed and is no algbw: Sendrecv counts every byte twice,
Exchange four times, and the unit was 2^20 bytes before 2018 and 1e6 since. Roots of rooted collectives go
round the ranks. Source: Intel MPI Benchmarks User Guide; IMB_output.c of
https://github.com/intel/mpi-benchmarks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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
    whole_size,
)
from ccbench.topology.graph import Notice

_BANNER = re.compile(r"#[ \t]*Intel ?\(R\) MPI Benchmarks[ \t]*(?:Suite )?V?(\d[\w.]{0,20})?")
_SECTION = re.compile(r"#[ \t]*Benchmarking[ \t]+(Multi-)?(\w{2,40})[ \t]*$")
_PROCESSES = re.compile(r"#[ \t(]*#processes[ \t]*=[ \t]*(\d{1,7})")
_GROUPS = re.compile(r"#[ \t]*\([ \t]*(\d{1,6}) groups of (\d{1,7}) processes")
_STATED = re.compile(
    r"#[ \t]*(MPI_Datatype for reductions|MPI_Datatype|MPI_Op|MPI Version)[ \t]*:[ \t]*(\S{1,40})"
)
_GIVEN_UP = ("time-out", "out-of-mem", "int-overflow")
_CLOSING = "All processes entering MPI_Finalize"

_TIMES = ("t_avg[usec]", "t[usec]", "t_pure[usec]")
_EXTRA_NAMES = {
    "t_min[usec]": "minimum_seconds",
    "t_max[usec]": "maximum_seconds",
    "t_ovrl[usec]": "overlapped_seconds",
    "t_CPU[usec]": "compute_seconds",
}
_OWN_WORDS = {"pingpong": "PingPong", "pingping": "PingPing", "exchange": "Exchange"}


@dataclass
class _Table:
    """A section that is still being read."""

    name: str
    line: int
    launch: Launch
    multiple: bool
    processes: int | None = None
    groups: int | None = None
    columns: tuple[str, ...] = ()
    rows: list[ImportedRow] = field(default_factory=list)
    last: Line | None = None

    @property
    def collective(self) -> str:
        plain = self.name.removesuffix("_pure")
        known = collective_name(plain)
        if known == plain and plain[:1] in "Ii":
            blocking = collective_name(plain[1:])
            known = blocking if blocking != plain[1:] else known
        return known


def recognises(text: str) -> bool:
    """Whether a section's column header of these benchmarks is in ``text``."""
    return "#repetitions" in text and "[usec]" in text


def read(text: str) -> ImportedLog:
    """Every section of ``text`` as a table; a table without its section's heading has no name."""
    tables: list[_Table] = []
    notices: list[Notice] = []
    stated: dict[str, str] = {}
    launch, lines = Launch(), list(source_lines(text))
    for line in lines:
        section = _SECTION.match(line.text)
        if section:
            tables.append(_Table(section[2], line.number, launch, bool(section[1])))
        elif "#repetitions" in line.text and "[usec]" in line.text:
            if not tables or tables[-1].columns:
                tables.append(_Table("", line.number, launch, False))
            tables[-1].columns = tuple(line.text.split())
        elif tables:
            notices += _taken(tables[-1], line, stated)
        if said := _STATED.match(line.text):
            stated.setdefault(said[1], said[2])
        launch = launch_of(line.text) or launch
    return _log(text, lines, tables, stated, notices)


def _log(
    text: str, lines: list[Line], tables: list[_Table], stated: dict[str, str], notices: list[Notice]
) -> ImportedLog:
    banner = next((found for line in lines if (found := _BANNER.match(line.text))), None)
    ending = bad_ending(lines)
    outcome, detail = ending or (Outcome.UNKNOWN, "")
    if _CLOSING in text:
        outcome, detail = Outcome.COMPLETE, ""
    elif ending is None and (banner or any(notice.kind == "truncated" for notice in notices)):
        outcome, detail = Outcome.CUT, f"no '{_CLOSING}' at the end"
    versions = {"imb": banner[1]} if banner and banner[1] else {}
    return ImportedLog(
        tool="imb",
        library="MPI",
        tables=tuple(_closed(table) for table in tables if table.rows or table.name),
        versions={**versions, **({"MPI": stated["MPI Version"]} if "MPI Version" in stated else {})},
        notices=capped(notices),
        outcome=outcome,
        detail=detail,
        facts={name: value for name, value in stated.items() if name != "MPI Version"},
    )


def _taken(table: _Table, line: Line, stated: dict[str, str]) -> list[Notice]:
    """Number of processes or row of ``table``; what looks like a row and is none is said."""
    if processes := _PROCESSES.match(line.text):
        table.processes = int(processes[1])
    elif groups := _GROUPS.match(line.text):
        table.groups, table.processes = int(groups[1]), int(groups[2])
    elif table.columns and line.text.lstrip()[:1].isdigit():
        if is_torn(line, table.last):
            return [torn_row(line)]
        row = _row(table, line, stated)
        if row is None:
            return [no_row(line)]
        table.rows.append(row)
        table.last = line
    return []


def _row(table: _Table, line: Line, stated: dict[str, str]) -> ImportedRow | None:
    cells = line.text.split()
    columns = table.columns
    given_up = next((word for word in _GIVEN_UP if word in line.text), None)
    if given_up:
        by_column = {"#bytes": cells[0]} if "#bytes" in columns else {}
    elif len(cells) == len(columns) + 1 and table.multiple:
        by_column = {"group": cells[0], **dict(zip(columns, cells[1:], strict=True))}
    elif len(cells) == len(columns):
        by_column = dict(zip(columns, cells, strict=True))
    else:
        return None
    printed = whole(by_column["#bytes"]) if "#bytes" in by_column else 0
    seconds = microseconds(next((by_column[c] for c in _TIMES if c in by_column), ""))
    if printed is None or (seconds is None and not given_up):
        return None
    return _made(table, line, stated, by_column, printed, seconds, given_up)


def _made(
    table: _Table,
    line: Line,
    stated: dict[str, str],
    by_column: dict[str, str],
    printed: int,
    seconds: Figure | None,
    given_up: str | None,
) -> ImportedRow:
    collective = table.collective
    size_bytes, flags = whole_size(collective, printed, table.processes)
    op = op_of(collective, stated.get("MPI_Op", "MPI_SUM").removeprefix("MPI_").lower())
    datatype = "MPI_Datatype" if op in ("none", "") else "MPI_Datatype for reductions"
    defects = figure(by_column.get("defects", ""))
    return printed_row(
        line.number,
        size_bytes,
        seconds,
        dtype=dtype_name(stated.get(datatype, "")),
        op=op,
        wrong_elements=None if defects is None else int(defects.value > 0),
        flags=flags,
        extra={
            "printed_size_bytes": printed,
            **_extra(by_column),
            **({"given_up": given_up} if given_up else {}),
        },
    )


def _extra(by_column: dict[str, str]) -> dict[str, float | int]:
    extra: dict[str, float | int] = {}
    for column, cell in by_column.items():
        found = figure(cell)
        if found is None:
            continue
        if column in _EXTRA_NAMES:
            extra[_EXTRA_NAMES[column]] = found.value / 1e6
        elif column == "Mbytes/sec":
            extra["mbytes_per_second"] = found.value
        elif column == "Msg/sec":
            extra["messages_per_second"] = found.value
        elif column == "overlap[%]":
            extra["overlap_percent"] = found.value
        elif column == "#repetitions":
            extra["iterations"] = int(found.value)
        elif column == "group":
            extra["group"] = int(found.value)
    return extra


def _closed(table: _Table) -> ImportedTable:
    facts = {"name": table.name, "seconds_are": "mean over ranks of means over iterations"}
    if table.groups:
        facts["simultaneous_groups"] = str(table.groups)
    return ImportedTable(
        collective=_OWN_WORDS.get(table.collective.lower(), table.collective),
        rows=tuple(table.rows),
        ranks=table.processes or table.launch.ranks,
        nodes=table.launch.nodes if table.processes == table.launch.ranks else None,
        line=table.line,
        facts=facts,
    )
