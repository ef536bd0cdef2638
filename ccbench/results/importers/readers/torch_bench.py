"""all_reduce_bench.py (torch), in the forms it has printed over the years.

Blocks of one rank and one trial ("3:", "duration: s", "algo throughput: bps", "busbw: Gbps"), where busbw is
in bits and "algo throughput" counts the buffer twice, so that it is no algbw; one closing paragraph with
algbw and busbw in GBps; a Markdown table of payloads. The type is float32 in all of them. Source:
https://github.com/bigscience-workshop/bigscience (experiments/bandwidth) and
https://github.com/stas00/ml-engineering (network/benchmarks/all_reduce_bench.py).

The blocks that ranks of all_reduce_bench.py print for each trial, which get into each other's way.

A block is a line with the rank, then its duration, "algo throughput" and bus bandwidth. Processes write at
the same time, so that lines of several blocks mix: a line belongs to that open block whose figures it fits
(the throughput times the duration is twice the payload in bits; busbw is the throughput times
(ranks - 1) / ranks).

What NCCL's own lines say between those of a torch script: versions, ranks, and how it chose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ccbench.machine.flags import Flag
from ccbench.results.importers.log import DeviceLine, ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers import markdown_tables
from ccbench.results.importers.readers.lines import (
    LARGEST_SIZE,
    Figure,
    Line,
    bad_ending,
    figure,
    printed_row,
    source_lines,
    whole,
)
from ccbench.topology.graph import Notice

_RANK = re.compile(r"([\w.-]{1,100}:)?(\d{1,7}):[ \t]*$")
_DURATION = re.compile(r"[ \t]*duration: (\d[\d.]{0,20}) sec")
_THROUGHPUT = re.compile(r"[ \t]*algo throughput: (?:\d[\d.]{0,30} bps, )?(\d[\d.]{0,20}) Gbps")
_BUSBW = re.compile(r"[ \t]*busbw: (\d[\d.]{0,20}) {1,4}Gbps")
_RANKS = re.compile(r"\bnranks (\d{1,7})\b")

_MOST_OPEN = 64
"""Blocks that wait for their lines; more are never waited for at once."""


@dataclass
class _Open:
    """A block that is still being read. Throughput in 1e9 bits per second."""

    rank: str
    line: int
    duration: Figure | None = None
    throughput: Figure | None = None


@dataclass(frozen=True)
class Block:
    """One rank's figures of one trial. duration in seconds, busbw in 1e9 bytes per second."""

    rank: str
    line: int
    duration: Figure
    busbw: Figure | None = None


@dataclass(frozen=True)
class Trials:
    """What the blocks of a text say. slowest: of each trial, in order. blocks: how many were read."""

    slowest: tuple[Block, ...] = ()
    seconds_by_rank: dict[str, list[float]] = field(default_factory=dict)
    blocks: int = 0
    ranks: int | None = None
    notices: tuple[Notice, ...] = ()


def trials(lines: Sequence[Line], payload_bytes: int | None) -> Trials:
    """All blocks of ``lines``; the k-th block of each rank belongs to trial k."""
    stated = {int(m[1]) for line in lines if (m := _RANKS.search(line.text))}
    named = {match[0].strip() for line in lines if (match := _RANK.match(line.text))}
    ranks = next(iter(stated)) if len(stated) == 1 else len(named)
    open_blocks: list[_Open] = []
    closed: list[Block] = []
    for line in lines:
        if match := _RANK.match(line.text):
            open_blocks = [*open_blocks, _Open((match[1] or "") + match[2], line.number)][-_MOST_OPEN:]
        elif (match := _DURATION.match(line.text)) and (duration := figure(match[1])):
            waiting = [block for block in open_blocks if block.duration is None]
            if waiting:
                waiting[-1].duration = duration
        elif (match := _THROUGHPUT.match(line.text)) and (throughput := figure(match[1])):
            if block := _of_throughput(open_blocks, throughput, payload_bytes):
                block.throughput = throughput
        elif (match := _BUSBW.match(line.text)) and (busbw := figure(match[1])):
            block = _of_busbw(open_blocks, busbw, ranks)
            if block and block.duration:
                open_blocks.remove(block)
                closed.append(Block(block.rank, block.line, block.duration, busbw.over(8)))
    left = [Block(b.rank, b.line, b.duration) for b in open_blocks if b.duration]
    return _sorted([*closed, *left], len(open_blocks), ranks or None)


def _of_throughput(open_blocks: list[_Open], throughput: Figure, payload_bytes: int | None) -> _Open | None:
    """The open block whose duration the throughput fits; the youngest where the payload is not known."""
    waiting = [block for block in open_blocks if block.duration and block.throughput is None]
    if payload_bytes is None or not throughput.value:
        return waiting[-1] if waiting else None
    expected = 2 * payload_bytes * 8 / (throughput.value * 1e9)
    misfit = {id(b): abs(b.duration.value - expected) for b in waiting if b.duration}
    return min(reversed(waiting), key=lambda block: misfit[id(block)], default=None)


def _of_busbw(open_blocks: list[_Open], busbw: Figure, ranks: int) -> _Open | None:
    """The open block whose throughput times (ranks - 1) / ranks is nearest; the youngest of equals."""
    share = (ranks - 1) / ranks if ranks else 1.0
    misfit = {id(b): abs(b.throughput.value * share - busbw.value) for b in open_blocks if b.throughput}
    waiting = [block for block in reversed(open_blocks) if id(block) in misfit]
    return min(waiting, key=lambda block: misfit[id(block)], default=None)


def _sorted(blocks: list[Block], unfinished: int, ranks: int | None) -> Trials:
    by_rank: dict[str, list[Block]] = {}
    for block in sorted(blocks, key=lambda block: block.line):
        by_rank.setdefault(block.rank, []).append(block)
    longest = max(map(len, by_rank.values()), default=0)
    slowest = tuple(
        max((own[trial] for own in by_rank.values() if trial < len(own)), key=lambda b: b.duration.value)
        for trial in range(longest)
    )
    notices = []
    if unfinished or len({len(own) for own in by_rank.values()}) > 1:
        text = f"{unfinished} blocks without all their lines; not every rank has {longest} trials"
        notices.append(Notice("truncated", text))
    return Trials(
        slowest=slowest,
        seconds_by_rank={rank: [block.duration.value for block in own] for rank, own in by_rank.items()},
        blocks=len(blocks),
        ranks=ranks,
        notices=tuple(notices),
    )


_VERSION = re.compile(r"\bNCCL version (\d[\w.]{0,20})(?:\+cuda(\d[\d.]{0,10}))?")
_COMPLETE = re.compile(
    r"(?:([\w.-]{1,200}):(\d{1,10}):\d{1,10} )?.{0,40}\brank (\d{1,7}) nranks \d{1,7} cudaDev (\d{1,4})"
    r"(?: nvmlDev \d{1,4})? busId ([0-9a-fA-F]{1,16})\b"
)
_SET = re.compile(r"\b(NCCL_[A-Z0-9_]{2,60}) set (?:by environment )?to (\S{1,200})")
_HINT = re.compile(
    r"NCCL INFO ((?:Using network|threadThresholds|\d+ coll channels|Channel \S+/\d+ :?|NVLS).{0,200})"
)

_MOST_HINTS = 20


def versions_of(lines: Iterable[Line]) -> dict[str, str]:
    """The first version of NCCL, with CUDA's where it is attached."""
    found = next((m for line in lines if (m := _VERSION.search(line.text))), None)
    if found is None:
        return {}
    return {"NCCL": found[1], **({"CUDA": found[2]} if found[2] else {})}


def devices_of(lines: Iterable[Line]) -> tuple[DeviceLine, ...]:
    """One for each rank that says that its communicator is complete, by rank."""
    found: dict[int, DeviceLine] = {}
    for line in lines:
        match = _COMPLETE.search(line.text) if "nranks" in line.text else None
        if match and "Init COMPLETE" in line.text:
            rank, process = int(match[3]), int(match[2]) if match[2] else None
            found.setdefault(
                rank, DeviceLine(rank, None, process, match[1] or "", int(match[4]), match[5].lower())
            )
    return tuple(found[rank] for rank in sorted(found))


def environment_of(lines: Iterable[Line]) -> dict[str, str]:
    """Variables that NCCL says it found set."""
    return {m[1]: m[2] for line in lines if (m := _SET.search(line.text))}


def hints_of(lines: Iterable[Line]) -> tuple[str, ...]:
    """Different lines from which NCCL's choice shows, without the process they come from."""
    found = {match[1].strip(): None for line in lines if (match := _HINT.search(line.text))}
    return tuple(found)[:_MOST_HINTS]


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
    found = trials(lines, size_bytes)
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
    return printed_row(line, size_bytes, seconds, algbw, busbw, dtype="float32", op="sum", in_place=True)


def _of_blocks(found: Trials, lines: list[Line], size_bytes: int | None) -> list[ImportedTable]:
    """One row: the time of a trial is its slowest rank's, and the row shows the trial of median time."""
    if not found.slowest:
        return []
    by_time = sorted(found.slowest, key=lambda block: block.duration.value)
    shown = by_time[(len(by_time) - 1) // 2]
    row = replace(
        _row(size_bytes or 0, shown.duration, None, shown.busbw, shown.line),
        samples_seconds=tuple(block.duration.value for block in found.slowest),
        flags=() if size_bytes else (Flag.SIZE_NOT_STATED,),
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
