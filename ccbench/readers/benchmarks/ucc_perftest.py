"""ucc_perftest of Unified Collective Communication (UCC): its settings, then a table a collective.

Times are means over iterations; avg, min and max are over ranks. Size is of one rank's block for all-gather,
all-to-all, gather and scatter, and of the whole buffer for the others. With -F there is a bandwidth in 1e9 bytes
per second, which is nccl-tests' busbw of each time; N/A where the tool computes none. Ranks are not printed.
Sources: tools/perf/ucc_pt_benchmark.cc and ucc_pt_coll_*.cc (get_bw) of https://github.com/openucx/ucc, and the
table of its pull request 223, whose rates are of eight blocks.
"""

from __future__ import annotations

import re

from ccbench.findings import SourceWarning
from ccbench.readers.benchmarks.log import (
    ImportedLog,
    ImportedTable,
    OpenTable,
    PrintedColumn,
    block_row,
    log_of,
)
from ccbench.readers.benchmarks.words import (
    Launch,
    collective_name,
    dtype_name,
    launch_of,
    no_row,
    op_of,
    source_lines,
)

_STATED = re.compile(
    r"[ \t]*(Collective|Memory type|Datatype|Reduction|Inplace):[ \t]+(\S.{0,80}?)[ \t]*$"
)
_HEADER = re.compile(r"[ \t]*Count[ \t]+Size[ \t]+Time, us(?:[ \t]+(Bandwidth, GB/s))?[ \t]*$")
_TIMES = (
    PrintedColumn("Count", "printed_elements"),
    PrintedColumn("Size", "size_bytes"),
    PrintedColumn("avg", "seconds", 1e6),
    PrintedColumn("min", "minimum_seconds", 1e6),
    PrintedColumn("max", "maximum_seconds", 1e6),
)
_RATES = (PrintedColumn("avg", "busbw"), *2 * (PrintedColumn("min|max", ""),))
_NOT_PRINTED = "N/A"


def recognises(text: str) -> bool:
    """Return whether a table's header is in ``text``."""
    return "Time, us" in text and any(_HEADER.match(line.text) for line in source_lines(text))


def read(text: str) -> ImportedLog:
    """Every table of ``text``, with the settings printed before it."""
    tables: list[OpenTable] = []
    warnings: list[SourceWarning] = []
    stated: dict[str, str] = {}
    launch, lines = Launch(), list(source_lines(text))
    for line in lines:
        words = line.text.split()
        if setting := _STATED.match(line.text):
            if setting[1] == "Collective":
                stated = {}
            stated[setting[1]] = setting[2]
        elif header := _HEADER.match(line.text):
            columns = (*_TIMES, *(_RATES if header[1] else ()))
            context = {"stated": stated, "launch": launch, "columns": columns}
            tables.append(OpenTable(line.number, context=context))
        elif tables and (words[0].isdigit() or words[0] == _NOT_PRINTED):
            columns = tables[-1].context["columns"]
            printed = [
                (column, word)
                for column, word in zip(columns, words, strict=False)
                if word != _NOT_PRINTED
            ]
            if len(words) == len(columns):
                tables[-1].columns = tuple(column for column, _ in printed)
                warnings += tables[-1].take(line, [word for _, word in printed])
            else:
                warnings.append(no_row(line))
        launch = launch_of(line.text) or launch
    closed = [_table(table) for table in tables]
    return log_of("ucc_perftest", lines, closed, warnings, library="UCC")


def _table(table: OpenTable) -> ImportedTable:
    stated, launch = table.context["stated"], table.context["launch"]
    collective = collective_name(stated.get("Collective", ""))
    more_fields = {
        "op": op_of(collective, stated.get("Reduction", "").lower()),
        "dtype": dtype_name(stated.get("Datatype", "")),
        "in_place": stated.get("Inplace") == "1",
    }
    rows = (
        block_row(line.number, cells, collective, launch.ranks, **more_fields)
        for line, cells in table.rows
    )
    facts = {"memory": stated["Memory type"]} if "Memory type" in stated else {}
    return ImportedTable(
        collective=collective,
        rows=tuple(rows),
        ranks=launch.ranks,
        nodes=launch.nodes,
        mode="isolated",  # a barrier stands between iterations
        line=table.line,
        facts={**facts, "seconds_are": "mean over ranks of means over iterations"},
    )
