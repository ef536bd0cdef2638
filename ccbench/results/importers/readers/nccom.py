"""nccom-test of AWS Neuron (Trainium, Inferentia): a table without a comment sign and a closing average.

size(B) is nccl-tests' size (for all-gather the gathered buffer). algbw and busbw were in 2^30 bytes per
second as its documentation says, and are in 1e9 in newer versions; the rows tell which. Source: user guide of
nccom-test, https://awsdocs-neuron.readthedocs-hosted.com, and published tables of both kinds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers.lines import (
    GIBI,
    Figure,
    Line,
    bad_ending,
    capped,
    figure,
    is_torn,
    microseconds,
    no_row,
    printed_row,
    rate_factor,
    source_lines,
    torn_row,
    whole,
)
from ccbench.results.importers.readers.words import collective_name, dtype_name, op_of, program_of
from ccbench.topology.graph import Notice

_AVERAGE = re.compile(r"Avg bus bandwidth:[ \t]*(\d[\d.]{0,20})[ \t]*GB/s")
_MEAN = "time:avg(us)"
_FIXED = ("time(us)", "size(B)", "count(elems)", "type", "algbw(GB/s)", "busbw(GB/s)", "algorithm")


@dataclass(frozen=True)
class _Command:
    """What a command line of nccom-test says."""

    collective: str = ""
    ranks: int | None = None
    nodes: int | None = None


@dataclass
class _Table:
    """A table that is still being read."""

    line: int
    columns: tuple[str, ...]
    command: _Command
    cells: list[tuple[Line, dict[str, str]]] = field(default_factory=list)
    average: Figure | None = None


def recognises(text: str) -> bool:
    """Whether a column header of this tool is in ``text``."""
    if "size(B)" not in text or "count(elems)" not in text:
        return False
    return any(_columns(line) for line in source_lines(text) if "size(B)" in line.text)


def _columns(line: Line) -> tuple[str, ...]:
    """The columns of a header, else nothing; nccl-tests' own header begins with # and has an operation."""
    columns = tuple(line.text.split())
    if columns[0] != "size(B)" or "redop" in columns or not {"type", "busbw(GB/s)"} <= set(columns):
        return ()
    return columns if any(column.startswith("time") for column in columns) else ()


def read(text: str) -> ImportedLog:
    """Every table of ``text``; collective and ranks come from the command line before it."""
    tables: list[_Table] = []
    notices: list[Notice] = []
    command, lines = _Command(), list(source_lines(text))
    for line in lines:
        if columns := _columns(line):
            tables.append(_Table(line.number, columns, command))
        elif "nccom-test" in line.text:
            command = _command(line.text)
        elif named := program_of(line.text):
            command = replace(command, collective=named)
        elif tables and (average := _AVERAGE.search(line.text)):
            tables[-1].average = figure(average[1])
        elif tables and line.text.lstrip()[:1].isdigit():
            notices += _taken(tables[-1], line)
    ending = bad_ending(lines)
    complete = bool(tables) and all(table.average for table in tables)
    outcome = ending[0] if ending else Outcome.COMPLETE if complete else Outcome.CUT
    return ImportedLog(
        tool="nccom-test",
        tables=tuple(_closed(table) for table in tables),
        notices=capped(notices),
        outcome=outcome,
        detail=ending[1] if ending else "" if complete else "no 'Avg bus bandwidth' at the end",
    )


def _command(line: str) -> _Command:
    words = line[line.index("nccom-test") :].replace("=", " ").split()[1:100]
    values = dict(pairwise(words))
    ranks = whole(values.get("-r", values.get("--nworkers", "")))
    nodes = whole(values.get("-N", values.get("--nnodes", "")))
    known = (collective_name(word) for word in words)
    collective = next((name for name in known if name in COLLECTIVES or name in ("permute", "alltoallv")), "")
    return _Command(collective, ranks or None, nodes or (1 if ranks else None))


def _taken(table: _Table, line: Line) -> list[Notice]:
    if is_torn(line, table.cells[-1][0] if table.cells else None):
        return [torn_row(line)]
    cells = line.text.split()
    by_column = dict(zip(table.columns, cells, strict=False))
    fits = len(cells) == len(table.columns) and whole(by_column["size(B)"]) is not None
    if not fits or _time(by_column) is None:
        return [no_row(line)]
    table.cells.append((line, by_column))
    return []


def _time(by_column: dict[str, str]) -> Figure | None:
    """The mean time in seconds, or the first percentile asked for where there is no mean."""
    names = [column for column in by_column if column.startswith("time")]
    chosen = next((name for name in names if name in ("time(us)", _MEAN)), names[0])
    return microseconds(by_column[chosen])


def _closed(table: _Table) -> ImportedTable:
    points = [
        (int(cells["size(B)"]), seconds, rate)
        for _, cells in table.cells
        if (seconds := _time(cells)) and (rate := figure(cells.get("algbw(GB/s)", "")))
    ]
    factor = rate_factor(points, GIBI)
    command = table.command
    return ImportedTable(
        collective=command.collective,
        rows=tuple(_row(line, cells, command.collective, factor) for line, cells in table.cells),
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


def _row(line: Line, cells: dict[str, str], collective: str, factor: float) -> ImportedRow:
    seconds = _time(cells)
    algbw, busbw = figure(cells.get("algbw(GB/s)", "")), figure(cells["busbw(GB/s)"])
    algbw, busbw = algbw.times(factor) if algbw else None, busbw.times(factor) if busbw else None
    count = whole(cells.get("count(elems)", ""))
    # The tool counts the whole buffer, ccbench one block where the buffer has one for each rank.
    whole_buffer = collective in COLLECTIVES and not COLLECTIVES[collective].blocked
    extra = {name: value for name, value in cells.items() if name not in _FIXED and name != _MEAN}
    return printed_row(
        line.number,
        int(cells["size(B)"]),
        seconds,
        algbw,
        busbw,
        count=count if whole_buffer else None,
        dtype=dtype_name(cells["type"]),
        op=op_of(collective, ""),
        extra={
            **{name: found.value for name, text in extra.items() if (found := figure(text))},
            **({"algorithm": cells["algorithm"]} if "algorithm" in cells else {}),
            **({"printed_elements": count} if count is not None else {}),
        },
    )
