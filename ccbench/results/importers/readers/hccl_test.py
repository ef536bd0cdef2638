"""hccl_test of Huawei's CANN: rows of data size, mean time, algbw and the verdict of the check.

data_size is nccl-tests' size, also for all-gather, whose block is data_size over ranks; GB/s is 1e9 bytes per
second; no bus bandwidth is printed. Source: src/hccl_test of https://gitcode.com/cann/oam-tools
(hccl_opbase_rootinfo_base.h, hccl_allgather_rootinfo_test.cc: cal_execution_time).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers.lines import (
    Line,
    bad_ending,
    capped,
    figure,
    microseconds,
    no_row,
    printed_row,
    source_lines,
    whole,
)
from ccbench.results.importers.readers.words import (
    Launch,
    collective_name,
    dtype_name,
    launch_of,
    op_of,
    program_of,
)
from ccbench.topology.graph import Notice

_HEADER = re.compile(r"[ \t]*data_size\(Bytes\)")
_STATED = re.compile(r"the minbytes is (\d{1,19}),? maxbytes is (\d{1,19})(.{0,200})")
_BINARY = re.compile(r"(?:^|[ \t/])(\w{4,40})_test(?=[ \t]|$)")


@dataclass(frozen=True)
class _Command:
    """What a command line of a test says; "" and None where it says nothing."""

    collective: str = ""
    dtype: str = ""
    op: str = ""
    root: int | None = None


@dataclass
class _Table:
    """A table that is still being read."""

    line: int
    columns: tuple[str, ...]
    command: _Command
    launch: Launch
    sweep: dict[str, str]
    rows: list[ImportedRow] = field(default_factory=list)


def recognises(text: str) -> bool:
    """Whether the column header of this tool is in ``text``."""
    return "data_size(Bytes)" in text and any(_HEADER.match(line.text) for line in source_lines(text))


def read(text: str) -> ImportedLog:
    """Every table of ``text``; collective, type and ranks come from the command line before it."""
    tables: list[_Table] = []
    notices: list[Notice] = []
    command, launch = _Command(), Launch()
    sweep: dict[str, str] = {}
    lines = list(source_lines(text))
    for line in lines:
        if _HEADER.match(line.text):
            columns = tuple(cell.strip().rstrip(":") for cell in line.text.split("|"))
            tables.append(_Table(line.number, columns, command, launch, sweep))
        elif named := program_of(line.text):
            command = replace(command, collective=named)
        elif stated := _STATED.search(line.text):
            sweep = {
                "minimum_bytes": stated[1],
                "maximum_bytes": stated[2],
                "settings": stated[3].strip(" ,"),
            }
        elif tables and "|" in line.text:
            row = _row(tables[-1], line)
            if row is not None:
                tables[-1].rows.append(row)
            else:
                notices.append(no_row(line))
        elif binary := _BINARY.search(line.text):
            command, launch = _command(binary[1], line.text), launch_of(line.text) or Launch()
    ending = bad_ending(lines)
    return ImportedLog(
        tool="hccl_test",
        library="HCCL",
        tables=tuple(_closed(table) for table in tables),
        notices=capped(notices),
        outcome=ending[0] if ending else Outcome.UNKNOWN,
        detail=ending[1] if ending else "",
    )


def _command(binary: str, line: str) -> _Command:
    words = line.split()[:200]
    values = dict(pairwise(words))
    return _Command(
        collective=collective_name(binary),
        dtype=dtype_name(values.get("-d", "")),
        op=values.get("-o", ""),
        root=whole(values.get("-r", "")),
    )


def _row(table: _Table, line: Line) -> ImportedRow | None:
    by_column = dict(zip(table.columns, (cell.strip() for cell in line.text.split("|")), strict=False))
    size_bytes = whole(by_column.get("data_size(Bytes)", ""))
    # The program's own spelling is aveg_time, its manual's avg_time.
    seconds = microseconds(by_column.get("aveg_time(us)", by_column.get("avg_time(us)", "")))
    algbw = figure(by_column.get("alg_bandwidth(GB/s)", ""))
    verdict = by_column.get("check_result")
    if size_bytes is None or seconds is None or (verdict is None and "check_result" in table.columns):
        return None
    command = table.command
    rooted = command.collective in COLLECTIVES and COLLECTIVES[command.collective].rooted
    return printed_row(
        line.number,
        size_bytes,
        seconds,
        algbw,
        dtype=command.dtype,
        op=op_of(command.collective, command.op),
        root=(command.root or 0) if rooted else -1,
        wrong_elements={"success": 0, "failed": 1}.get((verdict or "").lower()),
        extra={"check_result": verdict} if verdict else {},
    )


def _closed(table: _Table) -> ImportedTable:
    return ImportedTable(
        collective=table.command.collective,
        rows=tuple(table.rows),
        ranks=table.launch.ranks,
        nodes=table.launch.nodes,
        line=table.line,
        facts={**table.sweep, "wrong_elements_are": "1 where the check failed, however many are wrong"},
    )
