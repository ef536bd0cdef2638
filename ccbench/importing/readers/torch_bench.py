"""all_reduce_bench.py (torch), in the forms it has printed over the years.

Blocks of one rank and one trial ("3:", "duration: s", "algo throughput: bps", "busbw: Gbps"), where busbw is
in bits and "algo throughput" counts the buffer twice, so that it is no algbw; one closing paragraph with
algbw and busbw in GBps; a Markdown table of payloads. The type is float32 in all of them. Source:
https://github.com/bigscience-workshop/bigscience (experiments/bandwidth) and
https://github.com/stas00/ml-engineering (network/benchmarks/all_reduce_bench.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from ccbench.importing.checks import SIZE_NOT_STATED
from ccbench.importing.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.importing.readers import markdown_tables, torch_blocks
from ccbench.importing.readers.figures import LARGEST_SIZE, Figure, figure, half_unit_of, value_of, whole
from ccbench.importing.readers.lines import Line, bad_ending, source_lines
from ccbench.importing.readers.torch_nccl import devices_of, environment_of, hints_of, versions_of
from ccbench.topology.graph import Notice

_PAYLOAD = re.compile(r"(?:^|[ \t])data size:[ \t]*(\d[\d.e+]{0,20}) GB")
_PARAGRAPH = re.compile(
    r"The average bandwidth of all_reduce with a (\d[\d.e+-]{0,20})GB payload "
    r"\((\d{1,6}) trials, (\d{1,7}) ranks\)"
)
_SWEEP = re.compile(r"bandwidth of all_reduce over (\d{1,7}) ranks")
_PAIR = re.compile(r"[ \t]*(algbw|busbw):[ \t]*(\d[\d.]{0,20}) GBps")
_MEANS = re.compile(
    r"tput_avg \(Gbps\):[ \t]*(\d[\d.e+-]{0,25})[ \t]+busbw_avg \(Gbps\):[ \t]*(\d[\d.e+-]{0,25})"
)
_OWN_HEADER = re.compile(r"\|[ \t]*payload[ \t]*\|[ \t]*busbw[ \t]*\|[ \t]*algbw[ \t]*\|")
_SIGNS = ("algo throughput:", "bandwidth of all_reduce", "busbw_avg (Gbps)")


def recognises(text: str) -> bool:
    """Whether ``text`` has a line that only this script prints."""
    return any(sign in text for sign in _SIGNS) or ("payload" in text and bool(_OWN_HEADER.search(text)))


def read(text: str) -> ImportedLog:
    """Every payload that ``text`` has figures of, each form as its own table."""
    lines = list(source_lines(text))
    sizes = _payloads(lines)
    size_bytes = sizes.pop() if len(sizes) == 1 else None
    found = torch_blocks.trials(lines, size_bytes)
    tables = [
        *_of_blocks(found, lines, size_bytes),
        *_paragraphs(lines),
        *_means(lines),
        *_sweeps(text, lines),
    ]
    ending = bad_ending(lines)
    cut = any(notice.kind == "truncated" for notice in found.notices)
    return ImportedLog(
        tool="torch-all-reduce-bench",
        library="NCCL" if "NCCL" in text else "",
        tables=tuple(tables),
        devices=devices_of(lines),
        versions=versions_of(lines),
        environment=environment_of(lines),
        hints=hints_of(lines),
        notices=(*found.notices, *_unpaired(lines)),
        outcome=ending[0] if ending else Outcome.CUT if cut else Outcome.UNKNOWN,
        detail=ending[1] if ending else "",
    )


def _payload(text: str) -> int | None:
    """Bytes of a payload printed in 1e9 bytes."""
    found = figure(text)
    size = round(found.value * 1e9) if found and found.value < 1e9 else 0
    return size if 0 < size <= LARGEST_SIZE else None


def _payloads(lines: Iterable[Line]) -> set[int]:
    found = (_payload(match[1]) for line in lines if (match := _PAYLOAD.search(line.text)))
    return {size for size in found if size}


def _nodes(lines: Iterable[Line]) -> int | None:
    """One process of each node is local rank 0."""
    return sum(line.text.strip() == "local_rank: 0" for line in lines) or None


def _row(
    size_bytes: int, seconds: Figure | None, algbw: Figure | None, busbw: Figure | None, line: int
) -> ImportedRow:
    return ImportedRow(
        size_bytes=size_bytes,
        count=None,
        dtype="float32",
        op="sum",
        root=-1,
        in_place=True,
        seconds=value_of(seconds),
        algbw=value_of(algbw),
        busbw=value_of(busbw),
        half_units=(half_unit_of(seconds), half_unit_of(algbw), half_unit_of(busbw)),
        line=line,
    )


def _of_blocks(found: torch_blocks.Trials, lines: list[Line], size_bytes: int | None) -> list[ImportedTable]:
    """One row: the time of a trial is its slowest rank's, and the row shows the trial of median time."""
    if not found.slowest:
        return []
    by_time = sorted(found.slowest, key=lambda block: block.duration.value)
    shown = by_time[(len(by_time) - 1) // 2]
    row = replace(
        _row(size_bytes or 0, shown.duration, None, shown.busbw, shown.line),
        samples_seconds=tuple(block.duration.value for block in found.slowest),
        flags=() if size_bytes else (SIZE_NOT_STATED,),
        extra={
            "rank": shown.rank,
            "blocks": found.blocks,
            "rank_seconds": {rank: tuple(seconds) for rank, seconds in found.seconds_by_rank.items()},
        },
    )
    return [
        ImportedTable(
            collective="all_reduce",
            rows=(row,),
            ranks=found.ranks,
            nodes=_nodes(lines),
            mode="isolated",
            line=shown.line,
            facts={
                "seconds_are": "slowest rank of the trial of median time",
                "trials": len(found.slowest),
                "first_trial_is_cold": True,
            },
        )
    ]


def _paragraphs(lines: list[Line]) -> list[ImportedTable]:
    """One table for each closing paragraph; its figures are on the two lines below."""
    tables = []
    for index, line in enumerate(lines):
        match = _PARAGRAPH.search(line.text)
        size_bytes = _payload(match[1]) if match else None
        if match is None or size_bytes is None:
            continue
        pairs = {m[1]: m[2] for near in lines[index + 1 : index + 4] if (m := _PAIR.match(near.text))}
        if not pairs:
            continue
        algbw, busbw = figure(pairs.get("algbw", "")), figure(pairs.get("busbw", ""))
        row = _row(size_bytes, None, algbw, busbw, line.number)
        facts = {"trials": int(match[2]), "rates_are": "mean over ranks and trials of rates"}
        tables.append(
            ImportedTable(
                "all_reduce", (row,), whole(match[3]) or None, mode="isolated", line=line.number, facts=facts
            )
        )
    return tables


def _means(lines: list[Line]) -> list[ImportedTable]:
    """The variant of DeepSpeed's tests, which prints both means in one line."""
    tables = []
    for index, line in enumerate(lines):
        match = _MEANS.search(line.text)
        busbw = figure(match[2]) if match else None
        sizes = _payloads(lines[max(0, index - 2000) : index]) if busbw else set()
        if busbw is None or len(sizes) != 1:
            continue
        row = _row(sizes.pop(), None, None, busbw.over(8), line.number)
        facts = {"rates_are": "mean over ranks and trials of rates"}
        tables.append(ImportedTable("all_reduce", (row,), mode="isolated", line=line.number, facts=facts))
    return tables


def _sweeps(text: str, lines: list[Line]) -> list[ImportedTable]:
    """The Markdown tables of payloads; how many ranks is in the heading before them."""
    headings = [(line.number, int(m[1])) for line in lines if (m := _SWEEP.search(line.text))]
    tables = []
    for table in markdown_tables.figure_tables(text):
        ranks = [count for number, count in headings if number < table.line]
        rows = tuple(replace(row, dtype="float32", op="sum", in_place=True) for row in table.rows)
        tables.append(
            replace(
                table, collective="all_reduce", rows=rows, ranks=table.ranks or (ranks[-1] if ranks else None)
            )
        )
    return tables


def _unpaired(lines: list[Line]) -> tuple[Notice, ...]:
    """A heading of a paragraph without its figures: the text ends there."""
    last = lines[-1] if lines else None
    if last and _PARAGRAPH.search(last.text):
        return (Notice("truncated", "the figures of the last payload are missing", last.number),)
    return ()
