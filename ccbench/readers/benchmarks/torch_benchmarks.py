"""Benchmarks of collectives in PyTorch: PARAM's comms.py and all_reduce_bench.py.

PARAM: the lines that begin with COMMS-RES, under a header that begins so too. The size is nccl-tests' size
(the bytes of all blocks for all-gather, reduce-scatter and all-to-all); the time is the median over ranks of
each rank's mean over iterations; rates are in 1e9 bytes per second. Old lines have tabs and name no
collective; new ones are COMMS-RES-<collective>-<dtype>. Source: comms.py and pytorch_dist_backend.py
(get_mem_size) of https://github.com/facebookresearch/param.

all_reduce_bench.py, in the forms it has printed over the years: blocks of one rank and one trial ("3:",
"duration: s", "algo throughput: bps", "busbw: Gbps"), where busbw is in bits and "algo throughput" counts the
buffer twice, so that it is no algbw; one closing paragraph with algbw and busbw in GBps; a Markdown table of
payloads. The type is float32 in all of them. Source: https://github.com/bigscience-workshop/bigscience
(experiments/bandwidth) and https://github.com/stas00/ml-engineering (network/benchmarks/all_reduce_bench.py).
Processes write their blocks at the same time, so that lines of several blocks mix: a line belongs to that
open block whose figures it fits (the throughput times the duration is twice the payload in bits; busbw is the
throughput times (ranks - 1) / ranks).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ccbench.findings import SourceWarning
from ccbench.flags import Flag
from ccbench.readers.benchmarks.log import (
    Columns,
    DeviceLine,
    ImportedLog,
    ImportedRow,
    ImportedTable,
    PrintedColumn,
    cells_of,
    log_of,
    row_of,
)
from ccbench.readers.benchmarks.markdown_tables import figure_tables
from ccbench.readers.benchmarks.words import (
    LARGEST_SIZE,
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
from ccbench.readers.lines import PrintedFigure, figure

# -- PARAM --------------------------------------------------------------------------------------------------

_LINE = re.compile(
    r"[ \t]*COMMS-(?:QUANT-)?RES(?:-(?P<name>[A-Za-z]\w{0,40}))?(?:-(?P<dtype>[a-z]\w{0,20}))?"
    r"(?P<tag>[^ \t]{0,60})"
)
_PAIR_RATES = ("avgunibw", "avgbibw", "totalunibw", "totalbibw")
_COLUMNS = Columns(
    PrintedColumn(r"(?:total-pair-|total-)?size \(B\)", "size_bytes"),
    PrintedColumn("num-elements-pair|nElementsPairPerRank", ""),
    PrintedColumn("num-elements|nElementsPerRank", "count"),
    PrintedColumn(r"(?:ping)?Latency\(us\):p50", "seconds", 1e6),
    PrintedColumn(r"pingPongLatency\(us\):p50", "pingponglatency_p50_seconds", 1e6),
    PrintedColumn(r"TotalLatency\(us\):p50", "totallatency_p50_seconds", 1e6),
    PrintedColumn(r"CompLatency\(us\):p50", "complatency_p50_seconds", 1e6),
    PrintedColumn("p75|p95", "{}_seconds", 1e6),
    PrintedColumn("min", "minimum_seconds", 1e6),
    PrintedColumn("max", "maximum_seconds", 1e6),
    PrintedColumn(r"algbw\(GB/s\)", "algbw"),
    PrintedColumn(r"busbw\(GB/s\)", "busbw"),
    *(PrintedColumn(rf"{rate}\(GB/s\)", f"{rate}_gb_per_second") for rate in _PAIR_RATES),
    PrintedColumn("TFlops", "tflops"),
    PrintedColumn(r"op\[0\]", "op_0"),
    PrintedColumn(r"P95 Latency\(us\): Quant", "p95_quant_seconds", 1e6),
    PrintedColumn("Comms|De-Quant|Overall", "p95_{}_seconds", 1e6),
)
_QUOTED = _COLUMNS.only("size (B) algbw(GB/s) busbw(GB/s)")
_WORLD = re.compile(r"world_size:[ \t]*(\d{1,7})")
_COMMAND = re.compile(r"--collectives?[ =]([a-z_]{3,40})")


def is_param(text: str) -> bool:
    """Return whether a result line of PARAM is in ``text``."""
    return "COMMS-RES" in text or "COMMS-QUANT-RES" in text


def read_param(text: str) -> ImportedLog:
    """One table for each collective and element type, in the order they first appear."""
    rows: dict[tuple[str, str, int | None, int | None], list[ImportedRow]] = {}
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
        dtype, op = dtype_name(match["dtype"] or ""), op_of(name, "")
        key = (name, match["tag"].strip("-"), world or launch.ranks, launch.nodes)
        row = row_of(line.number, cells, dtype=dtype, op=op, root=root_of(name))
        rows.setdefault(key, []).append(row)
    tables = []
    for (name, tag, ranks, nodes), table_rows in rows.items():
        facts = {
            "seconds_are": "median over ranks of means over iterations",
            **({"tag": tag} if tag else {}),
        }
        tables.append(
            ImportedTable(
                name, tuple(table_rows), ranks, nodes, line=table_rows[0].line, facts=facts
            )
        )
    return log_of("param", lines, tables, warnings)


# -- all_reduce_bench.py ------------------------------------------------------------------------------------

_RANK = re.compile(r"((?:[\w.-]{1,100}:)?\d{1,7}):[ \t]*$")
_DURATION = re.compile(r"[ \t]*duration: (\d[\d.]{0,20}) sec")
_THROUGHPUT = re.compile(r"[ \t]*algo throughput: (?:\d[\d.]{0,30} bps, )?(\d[\d.]{0,20}) Gbps")
_BUSBW = re.compile(r"[ \t]*busbw: (\d[\d.]{0,20}) {1,4}Gbps")
_RANKS = re.compile(r"\bnranks (\d{1,7})\b")
_MOST_OPEN = 64
"""Blocks that wait for their lines; more are never waited for at once."""

_PAYLOAD = re.compile(r"(?:^|[ \t])data size:[ \t]*(\d[\d.e+]{0,20}) GB")
_PARAGRAPH = re.compile(
    r"The average bandwidth of all_reduce with a (\d[\d.e+-]{0,20})GB payload "
    r"\((\d{1,6}) trials, (\d{1,7}) ranks\)"
)
_SWEEP = re.compile(r"bandwidth of all_reduce over (\d{1,7}) ranks")
_PAIR = re.compile(r"[ \t]*(algbw|busbw):[ \t]*(\d[\d.]{0,20}) GBps")
_OWN_HEADER = re.compile(r"\|[ \t]*payload[ \t]*\|[ \t]*busbw[ \t]*\|[ \t]*algbw[ \t]*\|")
_SIGNS = ("algo throughput:", "bandwidth of all_reduce")
_CONNECTED = re.compile(
    r"(?:([\w.-]{1,200}):(\d{1,10}):\d{1,10} )?.{0,40}\brank (\d{1,7}) nranks \d{1,7} cudaDev (\d{1,4})"
    r"(?: nvmlDev \d{1,4})? busId ([0-9a-fA-F]{1,16})\b"
)
"""A rank whose communicator is complete."""


@dataclass
class _RankFigures:
    """One rank's figures of one trial. Throughput and busbw in 1e9 bits per second."""

    rank: str
    line: int
    duration: PrintedFigure | None = None
    throughput: PrintedFigure | None = None
    busbw: PrintedFigure | None = None

    @property
    def seconds(self) -> float:
        """The duration; 0 where it has not been read."""
        return self.duration.value if self.duration else 0.0


def is_all_reduce_bench(text: str) -> bool:
    """Return whether ``text`` has a line that only this script prints."""
    return any(sign in text for sign in _SIGNS) or (
        "payload" in text and bool(_OWN_HEADER.search(text))
    )


def read_all_reduce_bench(text: str) -> ImportedLog:
    """Every payload that ``text`` has figures of, each form as its own table."""
    lines = list(source_lines(text))
    stated = {_payload(match[1]) for line in lines if (match := _PAYLOAD.search(line.text))} - {
        0
    }
    warnings: list[SourceWarning] = []
    tables = [
        *_of_blocks(lines, stated.pop() if len(stated) == 1 else 0, warnings),
        *_paragraphs(lines),
    ]
    # The Markdown tables of payloads; their number of ranks is in the heading before them.
    headings = [(line.number, int(m[1])) for line in lines if (m := _SWEEP.search(line.text))]
    for table in figure_tables(text):
        above = [count for number, count in headings if number < table.line]
        rows = tuple(
            replace(row, dtype="float32", op="sum", in_place=True) for row in table.rows
        )
        ranks = table.ranks or (above[-1] if above else None)
        tables.append(replace(table, collective="all_reduce", rows=rows, ranks=ranks))
    if lines and _PARAGRAPH.search(lines[-1].text):
        warnings.append(
            SourceWarning("truncated", "the last payload has no figures", lines[-1].number)
        )
    library_lines = LibraryLines()
    devices: dict[int, DeviceLine] = {}
    for line in lines:
        library_lines.take(line)
        if "Init COMPLETE" in line.text and (match := _CONNECTED.search(line.text)):
            rank, process = int(match[3]), int(match[2]) if match[2] else None
            device = DeviceLine(
                rank, None, process, match[1] or "", int(match[4]), match[5].lower()
            )
            devices.setdefault(rank, device)
    return log_of(
        "torch-all-reduce-bench",
        lines,
        tables,
        warnings,
        library="NCCL" if "NCCL" in text else "",
        devices=tuple(devices[rank] for rank in sorted(devices)),
        versions=library_lines.versions,
        environment=library_lines.environment,
        hints=library_lines.hints,
        facts={"network": library_lines.network} if library_lines.network else {},
    )


def _blocks(
    lines: Sequence[LogLine], payload_bytes: int, ranks: int
) -> tuple[list[_RankFigures], int]:
    """(blocks by line, number of those that lack lines)."""
    share = (ranks - 1) / ranks if ranks else 1.0
    waiting: list[_RankFigures] = []
    closed: list[_RankFigures] = []
    for line in lines:
        if match := _RANK.match(line.text):
            waiting = [*waiting, _RankFigures(match[1], line.number)][-_MOST_OPEN:]
        elif (match := _DURATION.match(line.text)) and (duration := figure(match[1])):
            youngest = next(
                (block for block in reversed(waiting) if block.duration is None), None
            )
            if youngest:
                youngest.duration = duration
        elif (match := _THROUGHPUT.match(line.text)) and (throughput := figure(match[1])):
            # Of equals the youngest; where the payload is not known all are equal.
            fitting = [
                block
                for block in reversed(waiting)
                if block.duration and block.throughput is None
            ]
            comparable = payload_bytes > 0 and throughput.value > 0
            expected = 2 * payload_bytes * 8 / (throughput.value * 1e9) if comparable else 0.0
            if fitting:
                best = (
                    min(fitting, key=lambda block: abs(block.seconds - expected))
                    if comparable
                    else fitting[0]
                )
                best.throughput = throughput
        elif (match := _BUSBW.match(line.text)) and (busbw := figure(match[1])):
            rated = [
                (abs(block.throughput.value * share - busbw.value), -place)
                for place, block in enumerate(waiting)
                if block.throughput
            ]
            if rated:
                block = waiting.pop(-min(rated)[1])
                block.busbw = busbw
                closed.append(block)
    left = [block for block in waiting if block.duration]
    return sorted([*closed, *left], key=lambda block: block.line), len(waiting)


def _of_blocks(
    lines: list[LogLine], size_bytes: int, warnings: list[SourceWarning]
) -> Iterator[ImportedTable]:
    """One row: the time of a trial is its slowest rank's, and the row shows the trial of median time."""
    stated = {int(match[1]) for line in lines if (match := _RANKS.search(line.text))}
    named = {match[1] for line in lines if (match := _RANK.match(line.text))}
    ranks = stated.pop() if len(stated) == 1 else len(named)
    blocks, unfinished = _blocks(lines, size_bytes, ranks)
    by_rank: dict[str, list[_RankFigures]] = {}
    for block in blocks:
        by_rank.setdefault(block.rank, []).append(block)
    longest = max(map(len, by_rank.values()), default=0)
    if unfinished or any(len(own) < longest for own in by_rank.values()):
        text = (
            f"{unfinished} blocks without all their lines; not every rank has {longest} trials"
        )
        warnings.append(SourceWarning("truncated", text))
    if not blocks:
        return
    # The k-th block of each rank belongs to trial k.
    trials = ([own[k] for own in by_rank.values() if k < len(own)] for k in range(longest))
    slowest = [max(trial, key=lambda block: block.seconds) for trial in trials]
    shown = sorted(slowest, key=lambda block: block.seconds)[(len(slowest) - 1) // 2]
    row = _row(
        shown.line,
        size_bytes,
        {"seconds": shown.duration, "busbw": shown.busbw.over(8) if shown.busbw else None},
        samples_seconds=tuple(block.seconds for block in slowest),
        flags=() if size_bytes else (Flag.SIZE_NOT_STATED,),
        extra={
            "rank": shown.rank,
            "blocks": len(blocks),
            "rank_seconds": {
                rank: tuple(block.seconds for block in own) for rank, own in by_rank.items()
            },
        },
    )
    yield ImportedTable(
        collective="all_reduce",
        rows=(row,),
        ranks=ranks or None,
        # One process of each node is local rank 0.
        nodes=sum(line.text.strip() == "local_rank: 0" for line in lines) or None,
        mode="isolated",
        line=shown.line,
        facts={
            "seconds_are": "slowest rank of the trial of median time",
            "trials": len(slowest),
            "first_trial_is_cold": True,
        },
    )


def _paragraphs(lines: list[LogLine]) -> Iterator[ImportedTable]:
    """One table for each closing paragraph; its figures are on the lines below."""
    for index, line in enumerate(lines):
        match = _PARAGRAPH.search(line.text)
        if match is None:
            continue
        size_bytes = _payload(match[1])
        pairs = {
            m[1]: figure(m[2])
            for near in lines[index + 1 : index + 4]
            if (m := _PAIR.match(near.text))
        }
        if size_bytes and pairs:
            row = _row(line.number, size_bytes, pairs)
            facts = {
                "trials": int(match[2]),
                "rates_are": "mean over ranks and trials of rates",
            }
            ranks = whole(match[3]) or None
            yield ImportedTable(
                "all_reduce", (row,), ranks, mode="isolated", line=line.number, facts=facts
            )


def _row(
    line: int, size_bytes: int, cells: dict[str, PrintedFigure | None], **more_fields: Any
) -> ImportedRow:
    return row_of(
        line,
        cells,
        size_bytes=size_bytes,
        dtype="float32",
        op="sum",
        in_place=True,
        **more_fields,
    )


def _payload(text: str) -> int:
    """Bytes of a payload printed in 1e9 bytes; 0 for what is none."""
    quantity = figure(text)
    size = round(quantity.value * 1e9) if quantity and quantity.value < 1e9 else 0
    return size if size <= LARGEST_SIZE else 0
