"""Counterparts of nccl-tests by makers of other libraries: nccom-test, hccl_test and mscclpp-test.

nccom-test of AWS Neuron (Trainium, Inferentia): a table without a comment sign and a closing average. size(B)
is nccl-tests' size (for all-gather the gathered buffer). algbw and busbw were in 2^30 bytes per second as its
documentation says, and are in 1e9 in newer versions; the rows tell which. Source: user guide of nccom-test,
https://awsdocs-neuron.readthedocs-hosted.com, and published tables of both kinds.

hccl_test of Huawei's CANN: rows of data size, mean time, algbw and the verdict of the check. data_size is
nccl-tests' size, also for all-gather, whose block is data_size over ranks; GB/s is 1e9 bytes per second; no
bus bandwidth is printed. Source: src/hccl_test of https://gitcode.com/cann/oam-tools
(hccl_opbase_rootinfo_base.h, hccl_allgather_rootinfo_test.cc: cal_execution_time).

mscclpp-test: one JSON object a line with name, kernel, ranks, ranksPerNode, algBw, busBw, size and time. time
is in microseconds, rates in 1e9 bytes per second, size is nccl-tests' size. Source: the lines of
https://github.com/microsoft/mscclpp, test/deploy/perf_ndmv4.jsonl, where size / time is algBw and busBw is
algBw times nccl-tests' factor; test/mscclpp-test/common.cc writes them.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.findings import SourceWarning
from ccbench.readers.benchmarks.log import (
    Columns,
    ImportedLog,
    ImportedRow,
    ImportedTable,
    LogOutcome,
    OpenTable,
    PrintedColumn,
    cells_of,
    json_record,
    log_of,
    row_of,
)
from ccbench.readers.benchmarks.words import (
    GIBI,
    Launch,
    LogLine,
    collective_name,
    dtype_name,
    launch_of,
    no_row,
    op_of,
    program_collective,
    rate_factor,
    root_of,
    source_lines,
    whole,
)
from ccbench.readers.lines import figure

# -- nccom-test ---------------------------------------------------------------------------------------------

_AVERAGE = re.compile(r"Avg bus bandwidth:[ \t]*(\d[\d.]{0,20})[ \t]*GB/s")
_NCCOM_COLUMNS = Columns(
    PrintedColumn(r"size\(B\)", "size_bytes"),
    PrintedColumn(r"count\(elems\)", "count"),
    PrintedColumn("type", "dtype"),
    PrintedColumn(r"time(?::avg)?\(us\)", "seconds", 1e6),
    PrintedColumn(r"algbw\(GB/s\)", "algbw"),
    PrintedColumn(r"busbw\(GB/s\)", "busbw"),
    PrintedColumn("algorithm", "algorithm"),
)


def _nccom_columns(line: LogLine) -> tuple[PrintedColumn, ...]:
    """The columns of a header, else nothing; nccl-tests' own header begins with # and has an operation."""
    words = line.text.split()
    times = [index for index, word in enumerate(words) if word.startswith("time")]
    if (
        words[0] != "size(B)"
        or "redop" in words
        or not {"type", "busbw(GB/s)"} <= set(words)
        or not times
    ):
        return ()
    columns = list(_NCCOM_COLUMNS.each(words))
    if all(
        column.name != "seconds" for column in columns
    ):  # percentiles only: the first one asked for
        columns[times[0]] = PrintedColumn(words[times[0]], "seconds", 1e6)
    return tuple(columns)


def is_nccom(text: str) -> bool:
    """Return whether a column header of nccom-test is in ``text``."""
    if "size(B)" not in text or "count(elems)" not in text:
        return False
    return any(map(_nccom_columns, source_lines(text)))


def read_nccom(text: str) -> ImportedLog:
    """Every table of ``text``; collective and ranks come from the command line before it."""
    tables: list[OpenTable] = []
    warnings: list[SourceWarning] = []
    command: dict[str, Any] = {"collective": "", "ranks": None, "nodes": None}
    lines = list(source_lines(text))
    for line in lines:
        if columns := _nccom_columns(line):
            tables.append(OpenTable(line.number, columns, dict(command)))
        elif "nccom-test" in line.text:
            words = line.text[line.text.index("nccom-test") :].replace("=", " ").split()[1:100]
            values = dict(pairwise(words))
            ranks = whole(values.get("-r", values.get("--nworkers", "")))
            nodes = whole(values.get("-N", values.get("--nnodes", "")))
            names = [collective_name(word) for word in words]
            collectives = (
                name
                for name in names
                if name in COLLECTIVES or name in ("permute", "alltoallv")
            )
            command = {"collective": next(collectives, ""), "ranks": ranks or None}
            command["nodes"] = nodes or (1 if ranks else None)
        elif named := program_collective(line.text):
            command["collective"] = named
        elif tables and (average := _AVERAGE.search(line.text)):
            tables[-1].context["average"] = figure(average[1])
        elif tables and line.text.lstrip()[:1].isdigit():
            warnings += tables[-1].take(line, line.text.split())
    complete = bool(tables) and all(table.context.get("average") for table in tables)
    cut = (LogOutcome.CUT, "no 'Avg bus bandwidth' at the end")
    otherwise = (LogOutcome.COMPLETE, "") if complete else cut
    return log_of(
        "nccom-test", lines, [_nccom_table(table) for table in tables], warnings, otherwise
    )


def _nccom_table(table: OpenTable) -> ImportedTable:
    collective, average = table.context["collective"], table.context.get("average")
    rated = (cells for _, cells in table.rows if "algbw" in cells)
    factor = rate_factor(
        ((cells["size_bytes"], cells["seconds"], cells["algbw"]) for cells in rated), GIBI
    )
    # The tool counts the whole buffer, ccbench one block where the buffer has one for each rank.
    counts_alike = collective in COLLECTIVES and not COLLECTIVES[collective].blocked
    rows = []
    for line, cells in table.rows:
        rates: dict[str, Any] = {
            name: cells[name].times(factor) for name in ("algbw", "busbw") if name in cells
        }
        printed = {"printed_elements": cells["count"]} if "count" in cells else {}
        count = cells.get("count") if counts_alike else None
        op = op_of(collective, "")
        rows.append(row_of(line.number, {**cells, **rates}, count=count, op=op, extra=printed))
    return ImportedTable(
        collective=collective,
        rows=tuple(rows),
        ranks=table.context["ranks"],
        nodes=table.context["nodes"],
        outcome=LogOutcome.COMPLETE if average else LogOutcome.CUT,
        line=table.line,
        facts={
            "printed_rate_unit_bytes": 2**30 if factor == GIBI else 10**9,
            **({"printed_average_busbw": average.value} if average else {}),
        },
    )


# -- hccl_test ----------------------------------------------------------------------------------------------

_HCCL_HEADER = re.compile(r"[ \t]*data_size\(Bytes\)")
_STATED = re.compile(r"the minbytes is (\d{1,19}),? maxbytes is (\d{1,19})(.{0,200})")
_BINARY = re.compile(r"(?:^|[ \t/])(\w{4,40})_test(?=[ \t]|$)")
_HCCL_COLUMNS = Columns(
    PrintedColumn(r"data_size\(Bytes\)", "size_bytes"),
    PrintedColumn(
        r"ave?g_time\(us\)", "seconds", 1e6
    ),  # the program's own spelling is aveg_time
    PrintedColumn(r"alg_bandwidth\(GB/s\)", "algbw"),
    PrintedColumn("check_result", "check_result"),
)


def is_hccl(text: str) -> bool:
    """Return whether the column header of hccl_test is in ``text``."""
    return "data_size(Bytes)" in text and any(
        _HCCL_HEADER.match(line.text) for line in source_lines(text)
    )


def read_hccl(text: str) -> ImportedLog:
    """Every table of ``text``; collective, type and ranks come from the command line before it."""
    tables: list[OpenTable] = []
    warnings: list[SourceWarning] = []
    command: dict[str, Any] = {"collective": "", "options": {}, "launch": Launch()}
    sweep: dict[str, str] = {}
    lines = list(source_lines(text))
    for line in lines:
        cells = [cell.strip() for cell in line.text.split("|")]
        if _HCCL_HEADER.match(line.text):
            columns = _HCCL_COLUMNS.each([cell.rstrip(":") for cell in cells])
            tables.append(OpenTable(line.number, columns, {**command, "sweep": sweep}))
        elif named := program_collective(line.text):
            command["collective"] = named
        elif stated := _STATED.search(line.text):
            names = ("minimum_bytes", "maximum_bytes", "settings")
            sweep = dict(
                zip(names, (group.strip(" ,") for group in stated.groups()), strict=True)
            )
        elif tables and "|" in line.text:
            warnings += tables[-1].take(line, cells)
        elif binary := _BINARY.search(line.text):
            options = dict(pairwise(line.text.split()[:200]))
            launch = launch_of(line.text) or Launch()
            command = {
                "collective": collective_name(binary[1]),
                "options": options,
                "launch": launch,
            }
    return log_of(
        "hccl_test", lines, [_hccl_table(table) for table in tables], warnings, library="HCCL"
    )


def _hccl_table(table: OpenTable) -> ImportedTable:
    collective, options, launch = (
        table.context["collective"],
        table.context["options"],
        table.context["launch"],
    )
    rooted = collective in COLLECTIVES and COLLECTIVES[collective].rooted
    root = (whole(options.get("-r", "")) or 0) if rooted else -1
    op, dtype = op_of(collective, options.get("-o", "")), dtype_name(options.get("-d", ""))
    verdicts = {"success": 0, "failed": 1}
    rows = []
    for line, cells in table.rows:
        wrong = verdicts.get(cells.get("check_result", "").lower())
        rows.append(
            row_of(line.number, cells, dtype=dtype, op=op, root=root, wrong_elements=wrong)
        )
    facts = {
        **table.context["sweep"],
        "wrong_elements_are": "1 where the check failed, however many are wrong",
    }
    return ImportedTable(
        collective, tuple(rows), launch.ranks, launch.nodes, line=table.line, facts=facts
    )


# -- mscclpp-test -------------------------------------------------------------------------------------------

_NEEDED = frozenset({"name", "ranks", "size", "time"})
_RATES = frozenset({"algBw", "busBw"})
_MSCCLPP_COLUMNS = Columns(
    PrintedColumn("size", "size_bytes"),
    PrintedColumn("time", "seconds", 1e6),
    PrintedColumn("algBw", "algbw"),
    PrintedColumn("busBw", "busbw"),
    PrintedColumn("target", "target"),
    PrintedColumn("name|kernel|ranks|ranksPerNode", ""),
)


def _mscclpp_record(text: str) -> dict[str, str]:
    record = json_record(text)
    return record if record.keys() >= _NEEDED and record.keys() & _RATES else {}


def is_mscclpp(text: str) -> bool:
    """Return whether a line of ``text`` is an object of mscclpp-test."""
    return '"algBw"' in text and any(_mscclpp_record(line.text) for line in source_lines(text))


def read_mscclpp(text: str) -> ImportedLog:
    """One table for each name, kernel and number of ranks, in the order they first appear."""
    rows: dict[tuple[str, str, int | None, int | None], list[ImportedRow]] = {}
    warnings: list[SourceWarning] = []
    lines = list(source_lines(text))
    for line in lines:
        if not line.text.lstrip().startswith("{"):
            continue
        record = _mscclpp_record(line.text)
        shown = {
            key: text for key, text in record.items() if key in _NEEDED | _RATES | {"target"}
        }
        cells = (
            cells_of(_MSCCLPP_COLUMNS.each(list(shown)), list(shown.values()))
            if shown
            else None
        )
        if cells is None or "seconds" not in cells:
            warnings.append(no_row(line))
            continue
        name, ranks = collective_name(record["name"]), whole(record["ranks"]) or None
        each = whole(record.get("ranksPerNode", ""))
        # Ranks that do not divide evenly over nodes leave the number of nodes open.
        nodes = ranks // each if ranks and each and ranks % each == 0 else None
        row = row_of(line.number, cells, op=op_of(name, "sum"), root=root_of(name))
        rows.setdefault((name, record.get("kernel", ""), ranks, nodes), []).append(row)
    tables = []
    for (name, kernel, ranks, nodes), table_rows in rows.items():
        algorithm = f"kernel:{kernel}" if kernel else "default"
        tables.append(
            ImportedTable(
                name, tuple(table_rows), ranks, nodes, algorithm, line=table_rows[0].line
            )
        )
    return log_of("mscclpp", lines, tables, warnings)
