"""hccl_test of Huawei's CANN: rows of data size, mean time, algbw and the verdict of the check.

data_size is nccl-tests' size, also for all-gather, whose block is data_size over ranks; GB/s is 1e9 bytes per
second; no bus bandwidth is printed. Source: src/hccl_test of https://gitcode.com/cann/oam-tools
(hccl_opbase_rootinfo_base.h, hccl_allgather_rootinfo_test.cc: cal_execution_time).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.columns import Column, Columns, OpenTable, log_of, row_of
from ccbench.results.importers.lines import source_lines, whole
from ccbench.results.importers.log import ImportedLog, ImportedTable
from ccbench.results.importers.words import (
    NO_LAUNCH,
    Launch,
    collective_name,
    dtype_name,
    launch_of,
    op_of,
    program_collective,
)
from ccbench.topology.graph import Notice

_HEADER = re.compile(r"[ \t]*data_size\(Bytes\)")
_STATED = re.compile(r"the minbytes is (\d{1,19}),? maxbytes is (\d{1,19})(.{0,200})")
_BINARY = re.compile(r"(?:^|[ \t/])(\w{4,40})_test(?=[ \t]|$)")
_COLUMNS = Columns(
    Column(r"data_size\(Bytes\)", "size_bytes"),
    Column(r"ave?g_time\(us\)", "seconds", 1e6),  # the program's own spelling is aveg_time
    Column(r"alg_bandwidth\(GB/s\)", "algbw"),
    Column("check_result", "check_result"),
)


@dataclass
class _Table(OpenTable):
    collective: str = ""
    options: dict[str, str] = field(default_factory=dict)
    launch: Launch = NO_LAUNCH
    sweep: dict[str, str] = field(default_factory=dict)


def recognises(text: str) -> bool:
    """Return whether the column header of this tool is in ``text``."""
    return "data_size(Bytes)" in text and any(_HEADER.match(line.text) for line in source_lines(text))


def read(text: str) -> ImportedLog:
    """Every table of ``text``; collective, type and ranks come from the command line before it."""
    tables: list[_Table] = []
    notices: list[Notice] = []
    collective, launch = "", NO_LAUNCH
    options: dict[str, str] = {}
    sweep: dict[str, str] = {}
    lines = list(source_lines(text))
    for line in lines:
        cells = [cell.strip() for cell in line.text.split("|")]
        if _HEADER.match(line.text):
            columns = _COLUMNS.each([cell.rstrip(":") for cell in cells])
            tables.append(_Table(line.number, columns, [], collective, options, launch, sweep))
        elif named := program_collective(line.text):
            collective = named
        elif stated := _STATED.search(line.text):
            names = ("minimum_bytes", "maximum_bytes", "settings")
            sweep = dict(zip(names, (one.strip(" ,") for one in stated.groups()), strict=True))
        elif tables and "|" in line.text:
            notices += tables[-1].take(line, cells)
        elif binary := _BINARY.search(line.text):
            collective, launch = collective_name(binary[1]), launch_of(line.text) or NO_LAUNCH
            options = dict(pairwise(line.text.split()[:200]))
    return log_of("hccl_test", lines, [_closed(table) for table in tables], notices, library="HCCL")


def _closed(table: _Table) -> ImportedTable:
    collective, options = table.collective, table.options
    rooted = collective in COLLECTIVES and COLLECTIVES[collective].rooted
    root = (whole(options.get("-r", "")) or 0) if rooted else -1
    op, dtype = op_of(collective, options.get("-o", "")), dtype_name(options.get("-d", ""))
    verdicts = {"success": 0, "failed": 1}
    rows = []
    for line, cells in table.rows:
        wrong = verdicts.get(cells.get("check_result", "").lower())
        rows.append(row_of(line.number, cells, dtype=dtype, op=op, root=root, wrong_elements=wrong))
    return ImportedTable(
        collective=collective,
        rows=tuple(rows),
        ranks=table.launch.ranks,
        nodes=table.launch.nodes,
        line=table.line,
        facts={**table.sweep, "wrong_elements_are": "1 where the check failed, however many are wrong"},
    )
