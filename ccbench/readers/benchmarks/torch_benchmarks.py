"""Benchmarks of collectives in PyTorch: PARAM's comms.py and all_reduce_bench.py.

PARAM: the lines that begin with COMMS-RES, under a header that begins so too. The size is nccl-tests' size
(the bytes of all blocks for all-gather, reduce-scatter and all-to-all); the time is the median over ranks of
each rank's mean over iterations; rates are in 1e9 bytes per second. Old lines have tabs and name no
collective; new ones are COMMS-RES-<collective>-<dtype>. Source: comms.py and pytorch_dist_backend.py
(get_mem_size) of https://github.com/facebookresearch/param.

all_reduce_bench.py: one closing paragraph with algbw and busbw in GBps, or a Markdown table of payloads. The type is
float32 in both. Source: https://github.com/stas00/ml-engineering (network/benchmarks/all_reduce_bench.py). Older
versions let each rank print its figures; lines of ranks that mix cannot be told apart and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from ccbench.findings import SourceWarning
from ccbench.readers.benchmarks.log import (
    Columns,
    ImportedLog,
    ImportedRow,
    ImportedTable,
    PrintedColumn,
    cells_of,
    log_of,
    row_of,
    tables_of,
)
from ccbench.readers.benchmarks.words import (
    Launch,
    LibraryLines,
    LogLine,
    collective_name,
    dtype_name,
    launch_of,
    no_row,
    op_of,
    program_collective,
    root_of,
    source_lines,
    whole,
)
from ccbench.readers.lines import figure, searches
from ccbench.units import parse_size

# -- PARAM --------------------------------------------------------------------------------------------------

_LINE = re.compile(
    r"[ \t]*COMMS-RES(?:-(?P<name>[A-Za-z]\w{0,40}))?(?:-(?P<dtype>[a-z]\w{0,20}))?"
    r"(?P<tag>[^ \t]{0,60})"
)
_COLUMNS = Columns(
    PrintedColumn(r"(?:total-pair-|total-)?size \(B\)", "size_bytes"),
    PrintedColumn("num-elements-pair|nElementsPairPerRank", ""),
    PrintedColumn("num-elements|nElementsPerRank", "count"),
    PrintedColumn(r"(?:ping)?Latency\(us\):p50", "seconds", 1e6),
    PrintedColumn(r"algbw\(GB/s\)", "algbw"),
    PrintedColumn(r"busbw\(GB/s\)", "busbw"),
    PrintedColumn(
        r"p75|p95|min|max|(?:pingPong|Total|Comp)Latency\(us\):p50|(?:avg|total)(?:Uni|Bi)BW\(GB/s\)"
        r"|TFlops|op\[0\]",
        "{}",
    ),
)
_QUOTED = _COLUMNS.of("size (B) algbw(GB/s) busbw(GB/s)")
_WORLD = re.compile(r"world_size:[ \t]*(\d{1,7})")
_COMMAND = re.compile(r"--collectives?[ =]([a-z_]{3,40})")


is_param = searches(re.compile("COMMS-RES"))


def read_param(text: str) -> ImportedLog:
    """One table for each collective and element type, in the order they first appear."""
    rows: list[tuple[ImportedTable, ImportedRow]] = []
    warnings: list[SourceWarning] = []
    columns: tuple[PrintedColumn, ...] = ()
    launch, stated, world = Launch(), "", None
    lines = list(source_lines(text))
    for line in lines:
        launch = launch_of(line.text) or launch
        if mention := _WORLD.search(line.text):
            world = int(mention[1])
        if mention := _COMMAND.search(line.text):
            stated = mention[1]
        stated = program_collective(line.text) or stated
        match = _LINE.match(line.text)
        if match is None:
            continue
        if "size (B)" in line.text:
            columns = _COLUMNS.of(line.text[match.end() :])
            continue
        name = collective_name(match["name"] or stated)
        texts = line.text[match.end() :].split()
        # As people quote a line: size and both rates. A header may name columns that its mode leaves empty;
        # they are the last ones.
        shown = _QUOTED if len(texts) == 3 and len(columns) != 3 else columns[: len(texts)]
        cells = cells_of(shown, texts) if len(texts) >= 3 else None
        if cells is None or shown[0].name != "size_bytes":
            warnings.append(no_row(line))
            continue
        dtype = dtype_name(match["dtype"] or "")
        op = op_of(name, "")
        tag = match["tag"].strip("-")
        facts = {"tag": tag} if tag else {}
        table = ImportedTable(name, (), world or launch.ranks, launch.nodes, facts=facts)
        rows.append((table, row_of(line.number, cells, dtype=dtype, op=op, root=root_of(name))))
    return log_of("param", lines, tables_of(rows), warnings)


# -- all_reduce_bench.py ------------------------------------------------------------------------------------

_PARAGRAPH = re.compile(
    r"The average bandwidth of all_reduce with a (\d[\d.e+-]{0,20})GB payload "
    r"\(\d{1,6} trials, (\d{1,7}) ranks\)"
)
_SWEEP = re.compile(r"bandwidth of all_reduce over (\d{1,7}) ranks")
_PAIR = re.compile(r"[ \t]*(algbw|busbw):[ \t]*(\d[\d.]{0,20}) GBps")
_NUMBER = r"[ \t]*(\d{1,12}(?:\.\d{1,9})?"
_OWN_ROW = re.compile(
    rf"[ \t]*\|{_NUMBER} ?[KMGT]?i?B)[ \t]*\|{_NUMBER}) ?GBps[ \t]*\|{_NUMBER}) ?GBps[ \t]*\|"
)


_row = partial(row_of, dtype="float32", op="sum", in_place=True)

is_all_reduce_bench = searches(
    re.compile(
        r"bandwidth of all_reduce|\|[ \t]*payload[ \t]*\|[ \t]*busbw[ \t]*\|[ \t]*algbw[ \t]*\|"
    )
)


def read_all_reduce_bench(text: str) -> ImportedLog:
    """Every payload that ``text`` has figures of, each form as its own table."""
    lines = list(source_lines(text))
    library_lines = LibraryLines()
    for line in lines:
        library_lines.take(line)
    return log_of(
        "torch-all-reduce-bench",
        lines,
        [*_paragraphs(lines), *_sweeps(lines)],
        (),
        library="NCCL" if "NCCL" in text else "",
        **library_lines.shown,
    )


def _sweeps(lines: list[LogLine]) -> Iterator[ImportedTable]:
    """One table for each Markdown table of payloads; the ranks are in the heading before it."""
    ranks: int | None = None
    rows: list[ImportedRow] = []
    for line in [*lines, LogLine(0, "")]:
        if heading := _SWEEP.search(line.text):
            ranks = int(heading[1])
        if match := _OWN_ROW.match(line.text):
            rates = {"busbw": figure(match[2]), "algbw": figure(match[3])}
            rows.append(_row(line.number, rates, size_bytes=parse_size(match[1])))
        elif rows and not line.text.lstrip().startswith("|"):
            yield ImportedTable("all_reduce", tuple(rows), ranks, line=rows[0].line)
            rows = []


def _paragraphs(lines: list[LogLine]) -> Iterator[ImportedTable]:
    """One table for each closing paragraph; its figures are on the lines below."""
    for index, line in enumerate(lines):
        match = _PARAGRAPH.search(line.text)
        if match is None:
            continue
        payload = figure(match[1])
        pairs = {
            m[1]: figure(m[2])
            for near in lines[index + 1 : index + 4]
            if (m := _PAIR.match(near.text))
        }
        if pairs and payload and 0 < payload.value < 1e9:
            row = _row(line.number, pairs, size_bytes=round(payload.value * 1e9))
            ranks = whole(match[2]) or None
            yield ImportedTable("all_reduce", (row,), ranks, mode="isolated", line=line.number)
