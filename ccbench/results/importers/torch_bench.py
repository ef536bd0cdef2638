"""all_reduce_bench.py (torch), in the forms it has printed over the years.

Blocks of one rank and one trial ("3:", "duration: s", "algo throughput: bps", "busbw: Gbps"), where busbw is
in bits and "algo throughput" counts the buffer twice, so that it is no algbw; one closing paragraph with
algbw and busbw in GBps; a Markdown table of payloads. The type is float32 in all of them. Source:
https://github.com/bigscience-workshop/bigscience (experiments/bandwidth) and
https://github.com/stas00/ml-engineering (network/benchmarks/all_reduce_bench.py).

Processes write their blocks at the same time, so that lines of several blocks mix: a line belongs to that
open block whose figures it fits (the throughput times the duration is twice the payload in bits; busbw is the
throughput times (ranks - 1) / ranks).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ccbench.machine.flags import Flag
from ccbench.results.importers import markdown_tables
from ccbench.results.importers.columns import log_of, row_of
from ccbench.results.importers.lines import LARGEST_SIZE, Line, source_lines, whole
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable
from ccbench.results.importers.words import LibraryLines, connected_rank
from ccbench.topology.graph import Notice
from ccbench.topology.text import Figure, figure

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


@dataclass
class _Block:
    """One rank's figures of one trial. Throughput and busbw in 1e9 bits per second."""

    rank: str
    line: int
    duration: Figure | None = None
    throughput: Figure | None = None
    busbw: Figure | None = None

    @property
    def seconds(self) -> float:
        """The duration; 0 where it has not been read."""
        return self.duration.value if self.duration else 0.0


def recognises(text: str) -> bool:
    """Return whether ``text`` has a line that only this script prints."""
    return any(sign in text for sign in _SIGNS) or ("payload" in text and bool(_OWN_HEADER.search(text)))


def read(text: str) -> ImportedLog:
    """Every payload that ``text`` has figures of, each form as its own table."""
    lines = list(source_lines(text))
    sizes = _payloads(lines)
    size_bytes = sizes.pop() if len(sizes) == 1 else None
    notices: list[Notice] = []
    tables = [
        *_of_blocks(lines, size_bytes, notices),
        *_paragraphs(lines),
        *_sweeps(text, lines),
    ]
    if lines and _PARAGRAPH.search(lines[-1].text):
        notices.append(Notice("truncated", "the figures of the last payload are missing", lines[-1].number))
    said = LibraryLines()
    for line in lines:
        said.take(line)
    devices = {one.rank: one for line in reversed(lines) if (one := connected_rank(line.text))}
    return log_of(
        "torch-all-reduce-bench",
        lines,
        tables,
        notices,
        library="NCCL" if "NCCL" in text else "",
        devices=tuple(devices[rank] for rank in sorted(devices)),
        versions=said.versions,
        environment=said.environment,
        hints=said.hints,
    )


def _blocks(lines: Sequence[Line], payload_bytes: int | None) -> tuple[list[_Block], int, int]:
    """(blocks by line, how many lack lines, ranks) of ``lines``."""
    stated = {int(m[1]) for line in lines if (m := _RANKS.search(line.text))}
    named = {match[1] for line in lines if (match := _RANK.match(line.text))}
    ranks = next(iter(stated)) if len(stated) == 1 else len(named)
    share = (ranks - 1) / ranks if ranks else 1.0
    waiting: list[_Block] = []
    closed: list[_Block] = []
    for line in lines:
        if match := _RANK.match(line.text):
            waiting = [*waiting, _Block(match[1], line.number)][-_MOST_OPEN:]
        elif (match := _DURATION.match(line.text)) and (duration := figure(match[1])):
            youngest = next((block for block in reversed(waiting) if block.duration is None), None)
            if youngest:
                youngest.duration = duration
        elif (match := _THROUGHPUT.match(line.text)) and (throughput := figure(match[1])):
            # Of equals the youngest; where the payload is not known all are equal.
            fitting = [one for one in reversed(waiting) if one.duration and one.throughput is None]
            known = payload_bytes is not None and throughput.value > 0
            expected = 2 * (payload_bytes or 0) * 8 / (throughput.value * 1e9) if known else 0.0
            if fitting:
                best = min(fitting, key=lambda one: abs(one.seconds - expected)) if known else fitting[0]
                best.throughput = throughput
        elif (match := _BUSBW.match(line.text)) and (busbw := figure(match[1])):
            rated = [
                (abs(one.throughput.value * share - busbw.value), -place)
                for place, one in enumerate(waiting)
                if one.throughput
            ]
            if rated:
                block = waiting.pop(-min(rated)[1])
                block.busbw = busbw
                closed.append(block)
    left = [block for block in waiting if block.duration]
    return sorted([*closed, *left], key=lambda block: block.line), len(waiting), ranks


def _of_blocks(lines: list[Line], size_bytes: int | None, notices: list[Notice]) -> Iterator[ImportedTable]:
    """One row: the time of a trial is its slowest rank's, and the row shows the trial of median time."""
    blocks, unfinished, ranks = _blocks(lines, size_bytes)
    by_rank: dict[str, list[_Block]] = {}
    for block in blocks:
        by_rank.setdefault(block.rank, []).append(block)
    longest = max(map(len, by_rank.values()), default=0)
    if unfinished or any(len(own) < longest for own in by_rank.values()):
        text = f"{unfinished} blocks without all their lines; not every rank has {longest} trials"
        notices.append(Notice("truncated", text))
    if not blocks:
        return
    # The k-th block of each rank belongs to trial k.
    trials = ([own[k] for own in by_rank.values() if k < len(own)] for k in range(longest))
    slowest = [max(trial, key=lambda block: block.seconds) for trial in trials]
    shown = sorted(slowest, key=lambda block: block.seconds)[(len(slowest) - 1) // 2]
    row = _row(
        shown.line,
        size_bytes or 0,
        seconds=shown.duration,
        busbw=shown.busbw.over(8) if shown.busbw else None,
        samples_seconds=tuple(block.seconds for block in slowest),
        flags=() if size_bytes else (Flag.SIZE_NOT_STATED,),
        extra={
            "rank": shown.rank,
            "blocks": len(blocks),
            "rank_seconds": {rank: tuple(block.seconds for block in own) for rank, own in by_rank.items()},
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


def _row(line: int, size_bytes: int, **printed: Any) -> ImportedRow:
    cells = {name: printed.pop(name, None) for name in ("seconds", "algbw", "busbw")}
    return row_of(line, cells, size_bytes=size_bytes, dtype="float32", op="sum", in_place=True, **printed)


def _payload(text: str) -> int | None:
    """Bytes of a payload printed in 1e9 bytes."""
    found = figure(text)
    size = round(found.value * 1e9) if found and found.value < 1e9 else 0
    return size if 0 < size <= LARGEST_SIZE else None


def _payloads(lines: Iterable[Line]) -> set[int]:
    found = (_payload(match[1]) for line in lines if (match := _PAYLOAD.search(line.text)))
    return {size for size in found if size}


def _paragraphs(lines: list[Line]) -> Iterator[ImportedTable]:
    """One table for each closing paragraph; its figures are on the two lines below."""
    for index, line in enumerate(lines):
        match = _PARAGRAPH.search(line.text)
        size_bytes = _payload(match[1]) if match else None
        if match is None or size_bytes is None:
            continue
        pairs = {m[1]: figure(m[2]) for near in lines[index + 1 : index + 4] if (m := _PAIR.match(near.text))}
        if pairs:
            row = _row(line.number, size_bytes, **pairs)
            facts = {"trials": int(match[2]), "rates_are": "mean over ranks and trials of rates"}
            ranks = whole(match[3]) or None
            yield ImportedTable("all_reduce", (row,), ranks, mode="isolated", line=line.number, facts=facts)


def _sweeps(text: str, lines: list[Line]) -> Iterator[ImportedTable]:
    """The Markdown tables of payloads; how many ranks is in the heading before them."""
    headings = [(line.number, int(m[1])) for line in lines if (m := _SWEEP.search(line.text))]
    for table in markdown_tables.figure_tables(text):
        above = [count for number, count in headings if number < table.line]
        rows = tuple(replace(row, dtype="float32", op="sum", in_place=True) for row in table.rows)
        ranks = table.ranks or (above[-1] if above else None)
        yield replace(table, collective="all_reduce", rows=rows, ranks=ranks)
