"""nccom-test of AWS Neuron (Trainium, Inferentia): a table without a comment sign and a closing average.

size(B) is nccl-tests' size (for all-gather the gathered buffer). algbw and busbw were in 2^30 bytes per
second as its documentation says, and are in 1e9 in newer versions; the rows tell which. Source: user guide of
nccom-test, https://awsdocs-neuron.readthedocs-hosted.com, and published tables of both kinds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.columns import Column, Columns, OpenTable, log_of, row_of
from ccbench.results.importers.lines import GIBI, Line, rate_factor, source_lines, whole
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.words import collective_name, op_of, program_collective
from ccbench.topology.graph import Notice
from ccbench.topology.text import Figure, figure

_AVERAGE = re.compile(r"Avg bus bandwidth:[ \t]*(\d[\d.]{0,20})[ \t]*GB/s")
_COLUMNS = Columns(
    Column(r"size\(B\)", "size_bytes"),
    Column(r"count\(elems\)", "count"),
    Column("type", "dtype"),
    Column(r"time(?::avg)?\(us\)", "seconds", 1e6),
    Column(r"algbw\(GB/s\)", "algbw"),
    Column(r"busbw\(GB/s\)", "busbw"),
    Column("algorithm", "algorithm"),
)


@dataclass(frozen=True)
class _Command:
    """Facts of a command line of nccom-test."""

    collective: str = ""
    ranks: int | None = None
    nodes: int | None = None


@dataclass
class _Table(OpenTable):
    command: _Command = _Command()
    average: Figure | None = None


def recognises(text: str) -> bool:
    """Return whether a column header of this tool is in ``text``."""
    if "size(B)" not in text or "count(elems)" not in text:
        return False
    return any(_columns(line) for line in source_lines(text) if "size(B)" in line.text)


def _columns(line: Line) -> tuple[Column, ...]:
    """The columns of a header, else nothing; nccl-tests' own header begins with # and has an operation."""
    words = line.text.split()
    times = [index for index, word in enumerate(words) if word.startswith("time")]
    if words[0] != "size(B)" or "redop" in words or not {"type", "busbw(GB/s)"} <= set(words) or not times:
        return ()
    columns = list(_COLUMNS.each(words))
    if all(column.name != "seconds" for column in columns):  # percentiles only: the first one asked for
        columns[times[0]] = Column(words[times[0]], "seconds", 1e6)
    return tuple(columns)


def read(text: str) -> ImportedLog:
    """Every table of ``text``; collective and ranks come from the command line before it."""
    tables: list[_Table] = []
    notices: list[Notice] = []
    command, lines = _Command(), list(source_lines(text))
    for line in lines:
        if columns := _columns(line):
            tables.append(_Table(line.number, columns, command=command))
        elif "nccom-test" in line.text:
            command = _command(line.text)
        elif named := program_collective(line.text):
            command = replace(command, collective=named)
        elif tables and (average := _AVERAGE.search(line.text)):
            tables[-1].average = figure(average[1])
        elif tables and line.text.lstrip()[:1].isdigit():
            notices += tables[-1].take(line, line.text.split())
    complete = bool(tables) and all(table.average for table in tables)
    cut = (Outcome.CUT, "no 'Avg bus bandwidth' at the end")
    otherwise = (Outcome.COMPLETE, "") if complete else cut
    return log_of("nccom-test", lines, [_closed(table) for table in tables], notices, otherwise)


def _command(line: str) -> _Command:
    words = line[line.index("nccom-test") :].replace("=", " ").split()[1:100]
    values = dict(pairwise(words))
    ranks = whole(values.get("-r", values.get("--nworkers", "")))
    nodes = whole(values.get("-N", values.get("--nnodes", "")))
    known = (collective_name(word) for word in words)
    collective = next((name for name in known if name in COLLECTIVES or name in ("permute", "alltoallv")), "")
    return _Command(collective, ranks or None, nodes or (1 if ranks else None))


def _closed(table: _Table) -> ImportedTable:
    rated = (cells for _, cells in table.rows if "algbw" in cells)
    factor = rate_factor(((one["size_bytes"], one["seconds"], one["algbw"]) for one in rated), GIBI)
    command = table.command
    return ImportedTable(
        collective=command.collective,
        rows=tuple(_row(line, cells, command.collective, factor) for line, cells in table.rows),
        ranks=command.ranks,
        nodes=command.nodes,
        average_busbw=table.average.value * factor if table.average else None,
        outcome=Outcome.COMPLETE if table.average else Outcome.CUT,
        line=table.line,
        facts={
            "printed_rate_unit_bytes": 2**30 if factor == GIBI else 10**9,
            **({"printed_average_busbw": table.average.value} if table.average else {}),
        },
    )


def _row(line: Line, cells: dict[str, Any], collective: str, factor: float) -> ImportedRow:
    rates: dict[str, Any] = {name: cells[name].times(factor) for name in ("algbw", "busbw") if name in cells}
    printed = {"printed_elements": cells["count"]} if "count" in cells else {}
    # The tool counts the whole buffer, ccbench one block where the buffer has one for each rank.
    whole_buffer = collective in COLLECTIVES and not COLLECTIVES[collective].blocked
    count = cells.get("count") if whole_buffer else None
    op = op_of(collective, "")
    return row_of(line.number, {**cells, **rates}, count=count, op=op, extra=printed)
