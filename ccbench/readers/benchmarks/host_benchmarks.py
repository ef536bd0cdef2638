"""Benchmarks of collectives between processes of hosts: OSU's, Intel's (IMB) and Gloo's own.

OSU micro-benchmarks (osu_allreduce, osu_latency, osu_bw, ...): the time is the mean over ranks of each rank's
mean over iterations; ``-f`` adds the smallest and largest rank. Rates of the point-to-point tests are in 1e6
bytes per second. Source: osu_util.c and osu_util_mpi.c of https://mvapich.cse.ohio-state.edu/benchmarks/
(versions 3 to 7).

Intel MPI Benchmarks (IMB-MPI1, IMB-NBC), the tables of "# Benchmarking NAME" sections: the time is the mean
over ranks (t_avg), as in OSU's benchmarks and nccl-tests; the fastest and the slowest rank are kept beside
it. Mbytes/sec is kept as printed and is no algbw: Sendrecv counts every byte twice, Exchange four times, and
the unit was 2^20 bytes before 2018 and 1e6 since. Roots of rooted collectives go round the ranks. Source:
Intel MPI Benchmarks User Guide; IMB_output.c of https://github.com/intel/mpi-benchmarks.

Gloo's benchmark: elements, percentiles of time over iterations, and a rate where the version has one.
Elements are of one rank's input: the whole buffer of all-reduce, broadcast and reduce-scatter, one block of
all-gather. They are floats of 4 bytes, or of 2 with --halfprecision, which the rate tells apart. GB/s is 2^30
bytes per second of the mean time. Source: gloo/benchmark/main.cc and runner.cc of
https://github.com/facebookincubator/gloo.
"""

from __future__ import annotations

import re
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
    block_row,
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
    rate_factor,
    root_of,
    source_lines,
    whole,
    whole_size,
)
from ccbench.readers.lines import PrintedFigure

# -- OSU ----------------------------------------------------------------------------------------------------

_OSU_TITLE = re.compile(
    r"#?[ \t]*(?:OSU|OMB\S{0,10})[ \t]+(.{3,120}?)[ \t]+Test(?:[ \t]+v?(\d[\w.]{0,20}))?[ \t]*$"
)
_OSU_DATATYPE = re.compile(r"#[ \t]*Datatype:[ \t]*(\w{1,40})")
_US = r"Lat(?:ency)? ?\(us\)"
_OSU_COLUMNS = Columns(
    PrintedColumn("Size", "size_bytes"),
    PrintedColumn(
        rf"(?:Avg )?{_US}|Pure Comm\. ?\(us\)", "seconds", 1e6
    ),  # of a non-blocking one: without overlap
    PrintedColumn(rf"Min {_US}", "minimum_seconds", 1e6),
    PrintedColumn(rf"Max {_US}", "maximum_seconds", 1e6),
    PrintedColumn(rf"P\d{{1,3}}\S{{0,5}} (?:Tail )?{_US}", "{}_seconds", 1e6),
    PrintedColumn(r"Overall ?\(us\)", "overall_seconds", 1e6),
    PrintedColumn(r"Compute ?\(us\)", "compute_seconds", 1e6),
    PrintedColumn(r"Coll\. Init ?\(us\)", "coll_init_seconds", 1e6),
    PrintedColumn(r"MPI_Test ?\(us\)", "mpi_test_seconds", 1e6),
    PrintedColumn(r"MPI_Wait ?\(us\)", "mpi_wait_seconds", 1e6),
    PrintedColumn(r"Overlap ?\(%\)", "overlap_percent"),
    PrintedColumn(r"(?:Bandwidth ?\()?MB/s\)?", "algbw", 1e3),
    PrintedColumn("Messages/s", "messages_per_second"),
    PrintedColumn("Iterations", "iterations"),
    PrintedColumn("Validation", "wrong_elements", words={"pass": 0, "fail": 1}),
)
_POINT_TO_POINT = {
    "Latency": "osu_latency",
    "Bandwidth": "osu_bw",
    "Bi-Directional Bandwidth": "osu_bibw",
    "Multi Latency": "osu_multi_lat",
    "Multi-threaded Latency": "osu_latency_mt",
    "Multiple Bandwidth / Message Rate": "osu_mbw_mr",
}


def is_osu(text: str) -> bool:
    """Return whether a title of these benchmarks is in ``text``."""
    if "OSU " not in text and "OMB" not in text:
        return False
    return any(
        _OSU_TITLE.match(line.text) for line in source_lines(text) if "Test" in line.text
    )


def read_osu(text: str) -> ImportedLog:
    """Every table of ``text``; a title without rows gives a table without rows."""
    tables: list[OpenTable] = []
    warnings: list[SourceWarning] = []
    launch, lines = Launch(), list(source_lines(text))
    for line in lines:
        begin = line.text.lstrip("# \t")
        if title := _OSU_TITLE.match(line.text):
            flavour, _, rest = title[1].partition(" ")
            if flavour in ("Python", "Py"):
                flavour, _, rest = rest.strip().partition(" ")
            if flavour.startswith("MPI_"):  # one-sided: "OSU MPI_Put Latency Test"
                flavour, rest = "MPI", f"{flavour} {rest}"
            context = {
                "title": rest.strip(),
                "flavour": flavour,
                "version": title[2] or "",
                "launch": launch,
            }
            tables.append(OpenTable(line.number, context=context))
        elif tables and (dtype := _OSU_DATATYPE.match(line.text)):
            tables[-1].context["dtype"] = dtype_name(dtype[1])
        elif tables and not tables[-1].columns and begin[:1].isalpha():
            # Prose may name columns as well; a header begins with a size or is of a barrier's times.
            columns = _OSU_COLUMNS.of(begin)
            if columns and (columns[0].name == "size_bytes" or "(us" in columns[0].heading):
                tables[-1].columns = columns
        elif tables and tables[-1].columns and begin[:1].isdigit():
            warnings += tables[-1].take(line, line.text.split())
        launch = launch_of(line.text) or launch
    first = tables[0].context if tables else {"flavour": "", "version": ""}
    versions = {"osu": first["version"]} if first["version"] else {}
    library = first["flavour"].partition("-")[0]
    closed = [_osu_table(table) for table in tables]
    return log_of("osu", lines, closed, warnings, library=library, versions=versions)


def _osu_table(table: OpenTable) -> ImportedTable:
    title, launch, dtype = (
        table.context["title"],
        table.context["launch"],
        table.context.get("dtype", ""),
    )
    collective = _POINT_TO_POINT.get(title) or collective_name(
        title.removesuffix("Latency").removeprefix("Non-blocking ")
    )
    ranks = 2 if collective in ("osu_latency", "osu_bw", "osu_bibw") else launch.ranks
    rows = (
        block_row(line.number, cells, collective, ranks, dtype=dtype)
        for line, cells in table.rows
    )
    return ImportedTable(
        collective=collective,
        rows=tuple(rows),
        ranks=ranks,
        nodes=launch.nodes,
        mode="isolated" if collective in COLLECTIVES else "streaming",
        line=table.line,
        facts={
            "title": title,
            "flavour": table.context["flavour"],  # MPI-CUDA: buffers on the device
            "seconds_are": "mean over ranks of means over iterations",
            "non_blocking": title.startswith("Non-blocking"),
        },
    )


# -- Intel MPI Benchmarks -----------------------------------------------------------------------------------

_BANNER = re.compile(r"#[ \t]*Intel ?\(R\) MPI Benchmarks[ \t]*(?:Suite )?V?(\d[\w.]{0,20})?")
_SECTION = re.compile(r"#[ \t]*Benchmarking[ \t]+(Multi-)?(\w{2,40})[ \t]*$")
_PROCESSES = re.compile(r"#[ \t(]*#processes[ \t]*=[ \t]*(\d{1,7})")
_GROUPS = re.compile(r"#[ \t]*\([ \t]*(\d{1,6}) groups of (\d{1,7}) processes")
_IMB_STATED = re.compile(
    r"#[ \t]*(MPI_Datatype for reductions|MPI_Datatype|MPI_Op|MPI Version)[ \t]*:[ \t]*(\S{1,40})"
)
_GIVEN_UP = re.compile(r"[ \t]*(\S+) .*?(time-out|out-of-mem|int-overflow)")
_CLOSING = "All processes entering MPI_Finalize"
_IMB_COLUMNS = Columns(
    PrintedColumn("#bytes", "size_bytes"),
    PrintedColumn(r"t(?:_avg|_pure)?\[usec\]", "seconds", 1e6),
    PrintedColumn(r"t_min\[usec\]", "minimum_seconds", 1e6),
    PrintedColumn(r"t_max\[usec\]", "maximum_seconds", 1e6),
    PrintedColumn(r"t_ovrl\[usec\]", "overlapped_seconds", 1e6),
    PrintedColumn(r"t_CPU\[usec\]", "compute_seconds", 1e6),
    PrintedColumn("Mbytes/sec", "mbytes_per_second"),
    PrintedColumn("Msg/sec", "messages_per_second"),
    PrintedColumn(r"overlap\[%\]", "overlap_percent"),
    PrintedColumn("#repetitions", "iterations"),
    PrintedColumn("defects", "defects"),
)
_OWN_WORDS = {"pingpong": "PingPong", "pingping": "PingPing", "exchange": "Exchange"}


def is_imb(text: str) -> bool:
    """Return whether the first line of these benchmarks or a section's column header is in ``text``."""
    return _has_columns(text) or _BANNER.search(text) is not None


def _has_columns(text: str) -> bool:
    return "#repetitions" in text and "[usec]" in text


def read_imb(text: str) -> ImportedLog:
    """Every section of ``text`` as a table; a table without its section's heading has no name."""
    tables: list[OpenTable] = []
    warnings: list[SourceWarning] = []
    stated: dict[str, str] = {}
    version: str | None = None
    launch, lines = Launch(), list(source_lines(text))
    for line in lines:
        if section := _SECTION.match(line.text):
            tables.append(
                OpenTable(line.number, context={"name": section[2], "launch": launch})
            )
            tables[-1].context["multiple"] = bool(section[1])
        elif _has_columns(line.text):
            if not tables or tables[-1].columns:
                tables.append(OpenTable(line.number, context={"name": "", "launch": launch}))
            tables[-1].columns = _IMB_COLUMNS.each(line.text.split())
        elif tables:
            warnings += _imb_line(tables[-1], line)
        if match := _IMB_STATED.match(line.text):
            stated.setdefault(match[1], match[2])
        if version is None and (banner := _BANNER.match(line.text)):
            version = banner[1] or ""
        launch = launch_of(line.text) or launch
    torn = any(warning.kind == "truncated" for warning in warnings)
    ended = _CLOSING in text
    cut = (
        (LogOutcome.CUT, f"no '{_CLOSING}' at the end") if version is not None or torn else None
    )
    versions = {"imb": version, "MPI": stated.pop("MPI Version", "")}
    return log_of(
        "imb",
        lines,
        [_imb_table(table, stated) for table in tables if table.rows or table.context["name"]],
        warnings,
        (LogOutcome.COMPLETE, "") if ended else cut,
        library="MPI",
        versions={name: value for name, value in versions.items() if value},
        facts=stated,
    )


def _imb_line(table: OpenTable, line: LogLine) -> list[SourceWarning]:
    """Take the number of processes or a row; a line that looks like a row and is none gives a remark."""
    if groups := _GROUPS.match(line.text):
        table.context |= {"groups": int(groups[1]), "processes": int(groups[2])}
    elif processes := _PROCESSES.match(line.text):
        table.context["processes"] = int(processes[1])
    elif table.columns and line.text.lstrip()[:1].isdigit():
        if given_up := _GIVEN_UP.match(line.text):  # a size that the benchmark did not measure
            size_bytes = whole(given_up[1])
            if size_bytes is None:
                return [no_row(line)]
            table.rows.append((line, {"size_bytes": size_bytes, "given_up": given_up[2]}))
            return []
        cells = line.text.split()
        # Of several groups at once each row begins with its group, for which the header has no word.
        if table.context.get("multiple") and len(cells) == len(table.columns) + 1:
            table.columns = (PrintedColumn("group", "group"), *table.columns)
        return table.take(line, cells)
    return []


def _imb_table(table: OpenTable, stated: dict[str, str]) -> ImportedTable:
    context, launch, processes = (
        table.context,
        table.context["launch"],
        table.context.get("processes"),
    )
    word = context["name"].removesuffix("_pure")
    collective = collective_name(word)
    if collective == word and word[:1] in ("I", "i"):  # Iallreduce and the like
        blocking = collective_name(word[1:])
        collective = blocking if blocking != word[1:] else collective
    facts = {"name": context["name"], "seconds_are": "mean over ranks of means over iterations"}
    if context.get("groups"):
        facts["simultaneous_groups"] = str(context["groups"])
    op = op_of(collective, stated.get("MPI_Op", "MPI_SUM").removeprefix("MPI_").lower())
    dtype = dtype_name(
        stated.get("MPI_Datatype" if op in ("none", "") else "MPI_Datatype for reductions", "")
    )
    rows = []
    for line, cells in table.rows:
        if (defects := cells.pop("defects", None)) is not None:
            cells["wrong_elements"] = int(defects.value > 0)
        rows.append(
            block_row(line.number, cells, collective, processes, op=op, root=-1, dtype=dtype)
        )
    return ImportedTable(
        collective=_OWN_WORDS.get(collective.lower(), collective),
        rows=tuple(rows),
        ranks=processes or launch.ranks,
        nodes=launch.nodes if processes == launch.ranks else None,
        line=table.line,
        facts=facts,
    )


# -- Gloo ---------------------------------------------------------------------------------------------------

_GLOO_STATED = re.compile(r"(Device|Algorithm|Options):[ \t]*(.{0,500})$")
_TIMES = {
    "min": "minimum_seconds",
    "p50": "seconds",
    "p99": "p99_seconds",
    "max": "maximum_seconds",
    "avg": "average_seconds",
    r"p\d{1,4}": "",
}
_GLOO_COLUMNS = Columns(
    PrintedColumn(r"size \(B\)", "printed_bytes"),
    PrintedColumn("elements", "count"),
    *(PrintedColumn(rf"{word}L? \(us\)", name, 1e6) for word, name in _TIMES.items()),
    *(PrintedColumn(rf"{word}L? \(ns\)", name, 1e9) for word, name in _TIMES.items()),
    PrintedColumn(r"p50BW \(GB/s\)", "median_rate"),
    PrintedColumn(r"avg(?:BW)? \(GB/s\)|bandwidth \(GB/s\)", "rate_gb_per_second"),
    PrintedColumn(r"(?:min|p\d{1,4}|max)(?:BW)? \(GB/s\)", ""),
    PrintedColumn("samples|iterations", "iterations"),
)


def _gloo_columns(line: LogLine) -> tuple[PrintedColumn, ...]:
    """The columns of a header, else nothing."""
    columns = _GLOO_COLUMNS.only(line.text) if "elements" in line.text else ()
    return (
        columns
        if len(columns) >= 4 and any(column.name == "count" for column in columns)
        else ()
    )


def is_gloo(text: str) -> bool:
    """Return whether a column header of this benchmark is in ``text``."""
    return "elements" in text and any(map(_gloo_columns, source_lines(text)))


def read_gloo(text: str) -> ImportedLog:
    """Every table of ``text`` with the algorithm and options printed before it."""
    tables: list[OpenTable] = []
    warnings: list[SourceWarning] = []
    stated: dict[str, str] = {}
    lines = list(source_lines(text))
    for line in lines:
        if match := _GLOO_STATED.match(line.text):
            stated[match[1]] = match[2].strip()
        elif columns := _gloo_columns(line):
            tables.append(OpenTable(line.number, columns, dict(stated)))
        elif tables and line.text.lstrip()[:1].isdigit():
            warnings += tables[-1].take(line, line.text.split())
    facts = {"device": stated["Device"]} if "Device" in stated else {}
    closed = [_gloo_table(table) for table in tables]
    return log_of("gloo-benchmark", lines, closed, warnings, library="Gloo", facts=facts)


def _gloo_table(table: OpenTable) -> ImportedTable:
    stated = table.context.get("Algorithm", "")
    # In new_allreduce_ring_chunked, the longest beginning that names a collective, then the algorithm.
    words = stated.removeprefix("new_").removeprefix("cuda_").split("_")
    collective, algorithm = "_".join(words), "default"
    for count in range(len(words), 0, -1):
        name = collective_name("_".join(words[:count]))
        if name in COLLECTIVES:
            collective, algorithm = name, "_".join(words[count:]) or "default"
            break
    pairs = (part.partition("=") for part in table.context.get("Options", "").split(","))
    options = {name.strip(): value.strip() for name, _, value in pairs if value}
    ranks = whole(options.get("processes", "")) or None
    item = (
        1 if collective == "pairwise_exchange" else _item_bytes(table)
    )  # the only benchmark of chars
    rated = [(cells, rate) for _, cells in table.rows if (rate := _gloo_rate(cells))]
    factor = rate_factor(
        ((cells["count"] * item, cells["seconds"], rate) for cells, rate in rated), GIBI
    )
    return ImportedTable(
        collective=collective,
        rows=tuple(
            _gloo_row(line, cells, collective, ranks, item, factor)
            for line, cells in table.rows
        ),
        ranks=ranks,
        algorithm=algorithm,
        line=table.line,
        facts={
            "algorithm": stated,
            **options,
            "seconds_are": "median over iterations on rank 0",
            "printed_rate_unit_bytes": 2**30 if factor == GIBI else 10**9,
        },
    )


def _gloo_rate(cells: dict[str, Any]) -> PrintedFigure | None:
    """The rate of the median or the mean time, as printed."""
    rate: PrintedFigure | None = cells.get("median_rate", cells.get("rate_gb_per_second"))
    return rate


def _item_bytes(table: OpenTable) -> int:
    """Bytes of an element: from a size column, from the rate of the first row that tells, else 4."""
    for _, cells in table.rows:
        elements, seconds, rate = cells["count"], cells["seconds"], _gloo_rate(cells)
        size = cells["printed_bytes"].value if "printed_bytes" in cells else 0
        if elements and size and size % elements == 0:
            return int(size // elements)
        if elements and rate and rate.value > 20 * rate.half_unit:
            # Within a third, because the rate is of the mean and the time the median; 2 and 4 are apart.
            likely = rate.value * GIBI * 1e9 * seconds.value / elements
            return 2 if 1.5 < likely < 2.7 else 4
    return 4


def _gloo_row(
    line: LogLine,
    cells: dict[str, Any],
    collective: str,
    ranks: int | None,
    item: int,
    factor: float,
) -> ImportedRow:
    elements = cells["count"]
    size_bytes, flags = whole_size(collective, elements * item, ranks)
    if collective == "barrier":
        size_bytes = 0
    rate = _gloo_rate(cells)
    # A rate of the mean, or of one block, is no algbw: it would contradict the median time, or the size.
    is_algbw = "median_rate" in cells and size_bytes == elements * item
    kept = {
        name: value
        for name, value in cells.items()
        if name not in ("median_rate", "rate_gb_per_second", "printed_bytes")
    }
    kept["algbw" if is_algbw else "rate_gb_per_second"] = rate.times(factor) if rate else None
    return row_of(
        line.number,
        kept,
        size_bytes=size_bytes,
        dtype={2: "float16", 4: "float32"}.get(item, ""),
        op=op_of(collective, "sum"),
        root=root_of(collective),
        in_place=True,  # the algorithms work on the pointers they are given
        flags=flags,
        extra={"printed_elements": elements},
    )
