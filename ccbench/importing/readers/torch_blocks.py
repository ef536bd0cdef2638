"""The blocks that ranks of all_reduce_bench.py print for each trial, which get into each other's way.

A block is a line with the rank, then its duration, "algo throughput" and bus bandwidth. Processes write at
the same time, so that lines of several blocks mix: a line belongs to that open block whose figures it fits
(the throughput times the duration is twice the payload in bits; busbw is the throughput times
(ranks - 1) / ranks).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ccbench.importing.readers.figures import Figure, figure
from ccbench.importing.readers.lines import Line
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
