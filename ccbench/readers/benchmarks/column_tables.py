"""Tools that print a line of column headings and a row for each size: hosts' benchmarks and vendors' tests.

A tool is a row of TOOLS: its columns, patterns of the lines above its tables, and a function that makes a
table of what both say. Each tool's source stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.findings import SourceWarning
from ccbench.readers.benchmarks.log import (
    NOT_PRINTED,
    Columns,
    ImportedLog,
    ImportedTable,
    LogOutcome,
    LogReader,
    OpenTable,
    PrintedColumn,
    cells_of,
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
    whole_size,
)

_OTHER = r"(?:[\w.]{1,20} ){0,2}[\w.]{0,20} ?\([^\s()]{1,9}\)|[^\s|]+"
"""Any heading: a few words with a unit, or one word."""
_GIVEN_UP = re.compile(r"[ \t]*(\d{1,18}) .*?(time-out|out-of-mem|int-overflow)")
"""A size that a benchmark did not measure."""
_OF_ONE_TABLE = {"name", "processes"}
"""Names in ``stated`` that hold for the next table alone: a damaged line must not give it those of the last."""
_OPTION = re.compile(r"(-[-\w]{1,40}|\w{1,40}(?==))[ =]{1,9}([^\s,-][^\s,]*)")


@dataclass(frozen=True)
class Tool:
    """One tool.

    tool: its name. library: what is measured, where no line names it.
    sign: what every output has somewhere. columns: what may be printed; a heading over several columns has
    their names with bars between. stated: patterns of lines whose named groups hold for the tables below;
    a match of the first ends what the lines before it said. table: returns the table, without rows, and the
    fields that its rows share, of a table that is read; it may change cells. of_block: sizes are of one rank's
    block. titled: the first of ``stated`` alone tells the tool. closing: what stands at the end of a whole
    output. separator: between the cells of a row.
    """

    tool: str
    library: str
    sign: re.Pattern[str]
    columns: Columns
    stated: tuple[re.Pattern[str], ...]
    table: Callable[[OpenTable], tuple[ImportedTable, dict[str, Any]]]
    of_block: bool = True
    titled: bool = False
    closing: re.Pattern[str] | None = None
    separator: str | None = None

    def recognises(self, text: str) -> bool:
        """Return whether the tool's sign is in ``text``, and a line of headings or a title that tells it."""
        return self.sign.search(text) is not None and any(
            self._headings(line.text) or (self.titled and self.stated[0].match(line.text))
            for line in source_lines(text)
        )

    def read(self, text: str) -> ImportedLog:
        """Every table of ``text``, with what the lines above it say."""
        tables: list[OpenTable] = []
        warnings: list[SourceWarning] = []
        context: dict[str, Any] = {"launch": Launch()}
        is_open = False
        lines = list(source_lines(text))
        for line in lines:
            context["launch"] = launch_of(line.text) or context["launch"]
            if self.stated[0].match(line.text):
                context = {"launch": context["launch"], "titled": True}
            for match in filter(None, (pattern.match(line.text) for pattern in self.stated)):
                words = match.groupdict("").items()
                context |= {name: word.strip(" ,") for name, word in words}
                is_open = False  # whatever stands below, under headings that are lost, is of another table
            if named := program_collective(line.text):
                context["collective"] = named
            if columns := self._headings(line.text):
                tables.append(OpenTable(line.number, columns, context))
                context = {key: context[key] for key in context.keys() - _OF_ONE_TABLE}
                is_open = True
            elif is_open and re.match(rf"\s*(?:\d|{NOT_PRINTED}\s)", line.text):
                warnings += self._row(tables[-1], line)
            elif tables and self.closing and self.closing.search(line.text):
                tables[-1].context["closing"] = True
        first, last = (tables[0].context, tables[-1].context) if tables else (context, context)
        ended = None
        if "closing" in last:
            ended = LogOutcome.COMPLETE, ""
        elif self.closing and ("titled" in context or not self.titled):
            ended = LogOutcome.CUT, "the closing line is missing"
        return log_of(
            self.tool,
            lines,
            [self._closed(table) for table in tables],
            warnings,
            ended,
            library=first.get("flavour", "").partition("-")[0] or self.library,
            versions={name: first[name] for name in ("osu", "imb", "MPI") if first.get(name)},
        )

    def _headings(self, text: str) -> tuple[PrintedColumn, ...]:
        """The columns of a line of headings, which begins with one that the tool has; () for other lines."""
        columns = self.columns.of(text.strip("# \t"))
        names = "|".join(column.name for column in columns).split("|")
        if not {"seconds", "algbw"} & set(names) or columns[0].heading == _OTHER:
            return ()
        return tuple(
            replace(column, name=name) for column in columns for name in column.name.split("|")
        )

    def _row(self, table: OpenTable, line: LogLine) -> list[SourceWarning]:
        """Keep the row that ``line`` is, or return the remark why it is none."""
        if skipped := _GIVEN_UP.match(line.text):
            given_up = {"size_bytes": int(skipped[1]), "given_up": skipped[2]}
            table.rows.append((line, given_up))
            return []
        # Tables of these tools have columns of one width, so that a last row that nothing ends and that is
        # shorter than the one before has lost digits of its last figure.
        if line.unfinished and table.rows and len(line.text) < len(table.rows[-1][0].text):
            text = "the last row has lost its end and was left out"
            return [SourceWarning("truncated", text, line.number)]
        texts = [text.strip() for text in line.text.split(self.separator)]
        cells = cells_of(table.columns, texts)
        if cells is None:
            return [no_row(line)]
        table.rows.append((line, cells))
        return []

    def _closed(self, table: OpenTable) -> ImportedTable:
        closed, shared = self.table(table)
        name = closed.collective
        fields = {"op": op_of(name, "sum"), "root": root_of(name), **shared}
        rows = []
        for line, cells in table.rows:
            more: dict[str, Any] = {}
            if self.of_block:
                printed = cells.get("size_bytes", 0)
                size, flags = whole_size(name, printed, closed.ranks)
                extra = {"printed_size_bytes": printed}
                more = {"size_bytes": size, "flags": flags, "extra": extra}
            rows.append(row_of(line.number, cells, **more, **fields))
        outcome = LogOutcome.COMPLETE if "closing" in table.context else LogOutcome.UNKNOWN
        return replace(closed, rows=tuple(rows), line=table.line, outcome=outcome)


def _columns(*columns: PrintedColumn) -> Columns:
    """The columns of a tool, and as the last what keeps figures under any other heading as they are."""
    return Columns(*columns, PrintedColumn(_OTHER, "{}"))


def _patterns(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(map(re.compile, patterns))


# -- OSU micro-benchmarks -----------------------------------------------------------------------------------
# osu_util.c and osu_util_mpi.c of https://mvapich.cse.ohio-state.edu/benchmarks/ (versions 3 to 7). Rates of
# the point-to-point tests are in 1e6 bytes per second.

_US = r"Lat(?:ency)? ?\(us\)"
_OSU = _columns(
    PrintedColumn("Size", "size_bytes"),
    # Of a non-blocking collective the time without overlap.
    PrintedColumn(rf"(?:Avg )?{_US}|Pure Comm\. ?\(us\)", "seconds", 1e6),
    PrintedColumn(r"(?:Bandwidth ?\()?MB/s\)?", "algbw", 1e3),
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


def _osu(table: OpenTable) -> tuple[ImportedTable, dict[str, Any]]:
    context, launch = table.context, table.context["launch"]
    title = context.get("title", "")
    words = title.removesuffix("Latency").removeprefix("Non-blocking ")
    collective = _POINT_TO_POINT.get(title) or collective_name(words)
    closed = ImportedTable(
        collective,
        (),
        2 if collective in ("osu_latency", "osu_bw", "osu_bibw") else launch.ranks,
        launch.nodes,
        mode="isolated" if collective in COLLECTIVES else "streaming",
    )
    return closed, {"dtype": dtype_name(context.get("dtype", ""))}


# -- Intel MPI Benchmarks -----------------------------------------------------------------------------------
# Intel MPI Benchmarks User Guide; IMB_output.c of https://github.com/intel/mpi-benchmarks. Mbytes/sec is no
# algbw: Sendrecv counts every byte twice, Exchange four times, and the unit was 2^20 bytes before 2018. Roots
# of rooted collectives go round the ranks.

_IMB = _columns(
    PrintedColumn("#?bytes", "size_bytes"),
    PrintedColumn(r"t(?:_avg|_pure)?\[usec\]", "seconds", 1e6),
    PrintedColumn("#?repetitions", "{}"),
)


def _imb(table: OpenTable) -> tuple[ImportedTable, dict[str, Any]]:
    context, launch = table.context, table.context["launch"]
    word = context.get("name", "").removesuffix("_pure")
    names = (collective_name(text) for text in (word, word[1:]))  # Iallreduce and the like
    collective = next(filter(COLLECTIVES.__contains__, names), word)
    op = op_of(collective, context.get("op", "sum").lower())
    dtype = context.get("dtype" if op in ("none", "") else "reduced", "")
    for _, cells in table.rows:
        if defects := cells.pop("defects", None):
            cells["wrong_elements"] = int(defects.value > 0)
    ranks = whole(context.get("processes", "")) or launch.ranks
    nodes = launch.nodes if ranks == launch.ranks else None
    closed = ImportedTable(collective, (), ranks, nodes)
    return closed, {"dtype": dtype_name(dtype), "op": op, "root": -1}


# -- Gloo's benchmark ---------------------------------------------------------------------------------------
# gloo/benchmark/main.cc and runner.cc of https://github.com/facebookincubator/gloo. Elements are of one rank's
# input: the whole buffer of all-reduce, broadcast and reduce-scatter, one block of all-gather. GB/s is 2^30
# bytes per second, of the mean time but for p50BW.

_GLOO = _columns(
    PrintedColumn(r"size \(B\)", "size_bytes"),
    PrintedColumn("elements", "count"),
    PrintedColumn(r"p50L? \(us\)", "seconds", 1e6),
    PrintedColumn(r"p50L? \(ns\)", "seconds", 1e9),
    PrintedColumn(r"p50BW \(GB/s\)", "algbw", 1 / GIBI),
    PrintedColumn(r"(?:avg(?:BW)?|bandwidth) \(GB/s\)", "rate_gb_per_second", 1 / GIBI),
)


def _gloo(table: OpenTable) -> tuple[ImportedTable, dict[str, Any]]:
    # In new_allreduce_ring_chunked, the longest beginning that names a collective, then the algorithm.
    words = table.context.get("algorithm", "").removeprefix("new_").removeprefix("cuda_")
    parts = words.split("_")
    collective, algorithm = words, ""
    for count in range(1, len(parts) + 1):
        if (name := collective_name("_".join(parts[:count]))) in COLLECTIVES:
            collective, algorithm = name, "_".join(parts[count:])
    options = dict(_OPTION.findall(table.context.get("options", "")))
    ranks = whole(options.get("processes", "")) or None
    item = {"pairwise_exchange": 1, "barrier": 0}.get(collective, _float_bytes(table))
    for _, cells in table.rows:
        elements = cells.get("count", 0)
        size = cells.setdefault("size_bytes", elements * item)
        item = size // elements if elements else item
        cells |= {"dtype": {2: "float16", 4: "float32"}.get(item, "")}
        if whole_size(collective, 1, ranks) != (1, ()):
            cells.pop("algbw", None)  # of one block
    closed = ImportedTable(collective, (), ranks, algorithm=algorithm or "default")
    return closed, {"in_place": True}  # the algorithms work on the pointers that they get


def _float_bytes(table: OpenTable) -> int:
    """2 where the first rate with enough digits shows --halfprecision, else 4."""
    for _, cells in table.rows:
        rate = cells.get("algbw", cells.get("rate_gb_per_second"))
        if cells.get("count") and rate and rate.value > 20 * rate.half_unit:
            # Within a third, because the rate is of the mean and the time the median.
            likely = rate.value * 1e9 * cells["seconds"].value / cells["count"]
            return 2 if likely < 2.7 else 4
    return 4


# -- nccom-test of AWS Neuron -------------------------------------------------------------------------------
# User guide of nccom-test, https://awsdocs-neuron.readthedocs-hosted.com. size(B) is nccl-tests' size, and the
# count is of the whole buffer. Rates were in 2^30 bytes per second and are in 1e9: the rows tell which.

_NCCOM = _columns(
    PrintedColumn(r"size\(B\)", "size_bytes"),
    PrintedColumn(r"count\(elems\)", "count"),
    PrintedColumn("type", "dtype"),
    PrintedColumn(r"time(?::avg|:p50)?\(us\)", "seconds", 1e6),
    PrintedColumn(r"algbw\(GB/s\)", "algbw"),
    PrintedColumn(r"busbw\(GB/s\)", "busbw"),
)


def _nccom(table: OpenTable) -> tuple[ImportedTable, dict[str, Any]]:
    context, command = table.context, table.context.get("options", "")
    options: dict[str, str] = dict(_OPTION.findall(command))
    ranks = whole(options.get("-r", options.get("--nworkers", ""))) or None
    nodes = whole(options.get("-N", options.get("--nnodes", ""))) or (1 if ranks else None)
    names = map(collective_name, command.split())
    kinds = {*COLLECTIVES, "permute", "alltoallv"}
    collective = next(filter(kinds.__contains__, names), context.get("collective", ""))
    rated = [cells for _, cells in table.rows if {"seconds", "algbw"} <= cells.keys()]
    factor = rate_factor(
        ((cells.get("size_bytes", 0), cells["seconds"], cells["algbw"]) for cells in rated),
        GIBI,
    )
    for _, cells in table.rows:
        cells |= {
            rate: cells[rate].times(factor) for rate in ("algbw", "busbw") if rate in cells
        }
        if collective not in COLLECTIVES or COLLECTIVES[collective].blocked:
            cells.pop("count", None)
    closed = ImportedTable(collective, (), ranks, nodes)
    return closed, {"op": op_of(collective, ""), "root": -1}


# -- hccl_test of Huawei's CANN -----------------------------------------------------------------------------
# src/hccl_test of https://gitcode.com/cann/oam-tools (hccl_opbase_rootinfo_base.h, hccl_allgather_rootinfo_
# test.cc: cal_execution_time). data_size is nccl-tests' size, GB/s is 1e9 bytes per second.

_HCCL = _columns(
    PrintedColumn(r"data_size\(Bytes\):?", "size_bytes"),
    PrintedColumn(r"ave?g_time\(us\):?", "seconds", 1e6),  # the program's own is aveg_time
    PrintedColumn(r"alg_bandwidth\(GB/s\):?", "algbw"),
    PrintedColumn("check_result:?", "wrong_elements", words={"success": 0, "failed": 1}),
)


def _hccl(table: OpenTable) -> tuple[ImportedTable, dict[str, Any]]:
    context, launch = table.context, table.context["launch"]
    collective = collective_name(context.get("collective", ""))
    options = dict(_OPTION.findall(context.get("options", "")))
    return ImportedTable(collective, (), launch.ranks, launch.nodes), {
        "dtype": dtype_name(options.get("-d", "")),
        "op": op_of(collective, options.get("-o", "")),
        "root": root_of(collective),
    }


# -- ucc_perftest of Unified Collective Communication -------------------------------------------------------
# tools/perf/ucc_pt_benchmark.cc and ucc_pt_coll_*.cc (get_bw) of https://github.com/openucx/ucc; the table of
# its pull request 223. Rates are nccl-tests' busbw in 1e9 bytes per second. Ranks are not printed.

_UCC = _columns(
    PrintedColumn("Count", ""),
    PrintedColumn("Size", "size_bytes"),
    PrintedColumn("Time, us", "seconds|minimum_seconds|maximum_seconds", 1e6),
    PrintedColumn("Bandwidth, GB/s", "busbw||"),
)


def _ucc(table: OpenTable) -> tuple[ImportedTable, dict[str, Any]]:
    context, launch = table.context, table.context["launch"]
    collective = collective_name(context.get("collective", ""))
    closed = ImportedTable(
        collective,
        (),
        launch.ranks,
        launch.nodes,
        mode="isolated",  # a barrier stands between iterations
    )
    return closed, {
        "op": op_of(collective, context.get("op", "").lower()),
        "dtype": dtype_name(context.get("dtype", "")),
        "in_place": context.get("inplace") == "1",
    }


TOOLS = (
    Tool(
        "osu",
        "MPI",
        re.compile("OSU |OMB"),
        _OSU,
        _patterns(
            r"#?[ \t]*(?:OSU|OMB\S{0,10})[ \t]+(?:Py(?:thon)?[ \t]+)?"
            r"(?:(?!MPI_)(?P<flavour>\S{1,20})[ \t]+)?(?P<title>.{3,120}?)[ \t]+Test"
            r"(?:[ \t]+v?(?P<osu>\d[\w.]{0,20}))?[ \t]*$",
            r"#[ \t]*Datatype:[ \t]*(?P<dtype>\w{1,40})",
        ),
        _osu,
        titled=True,
    ),
    Tool(
        "imb",
        "MPI",
        re.compile(r"\[usec\]|Intel ?\(R\) MPI Benchmarks"),
        _IMB,
        _patterns(
            r"#[ \t]*Intel ?\(R\) MPI Benchmarks[ \t]*(?:Suite )?V?(?P<imb>\d[\w.]{0,20})?",
            r"#[ \t]*Benchmarking[ \t]+(?P<name>\w{2,40})[ \t]*$",
            r"#[ \t(]*#processes[ \t]*=[ \t]*(?P<processes>\d{1,7})",
            r"#[ \t]*MPI_Datatype[ \t]*:[ \t]*(?P<dtype>\S{1,40})",
            r"#[ \t]*MPI_Datatype for reductions[ \t]*:[ \t]*(?P<reduced>\S{1,40})",
            r"#[ \t]*MPI_Op[ \t]*:[ \t]*MPI_(?P<op>\S{1,40})",
            r"#[ \t]*MPI Version[ \t]*:[ \t]*(?P<MPI>\S{1,40})",
        ),
        _imb,
        titled=True,
        closing=re.compile("All processes entering MPI_Finalize"),
    ),
    Tool(
        "nccom-test",
        "",
        re.compile(r"count\(elems\)"),
        _NCCOM,
        _patterns(r".{0,400}?\bnccom-test(?P<options>[ \t].{0,400})"),
        _nccom,
        of_block=False,
        closing=re.compile(r"Avg bus bandwidth:[ \t]*\d"),
    ),
    Tool(
        "hccl_test",
        "HCCL",
        re.compile(r"data_size\(Bytes\)"),
        _HCCL,
        _patterns(
            r"(?:.{0,400}?[ \t/])?(?P<collective>\w{4,40})_test(?P<options>[ \t].{0,400}|$)",
        ),
        _hccl,
        of_block=False,
        separator="|",
    ),
    Tool(
        "gloo-benchmark",
        "Gloo",
        re.compile("elements"),
        _GLOO,
        _patterns(
            r"Algorithm:[ \t]*(?P<algorithm>.{0,100})$", r"Options:[ \t]*(?P<options>.{0,500})$"
        ),
        _gloo,
    ),
    Tool(
        "ucc_perftest",
        "UCC",
        re.compile("Time, us"),
        _UCC,
        _patterns(
            r"[ \t]*Collective:[ \t]+(?P<collective>\S.{0,80}?)[ \t]*$",
            r"[ \t]*Datatype:[ \t]+(?P<dtype>\S{1,20})",
            r"[ \t]*Reduction:[ \t]+(?P<op>\S{1,20})",
            r"[ \t]*Inplace:[ \t]+(?P<inplace>\S{1,20})",
        ),
        _ucc,
    ),
)

READERS = tuple(LogReader(tool.tool, tool.recognises, tool.read) for tool in TOOLS)
