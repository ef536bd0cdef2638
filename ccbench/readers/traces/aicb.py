"""Tables of aicb, the communication benchmark of SimAI: what a training job sends, measured or planned.

A row is a call on rank 0: a measured log has its milliseconds, a workload has none. msg_size is the larger
buffer of a rank, for workload_applyer.py of github.com/aliyun/aicb gathers into it and scatters from it. Rows
name the kind of group and its size, never its ranks; the element type is not said.
"""

from __future__ import annotations

import re
from collections import Counter
from statistics import median

from ccbench.findings import SourceWarning
from ccbench.readers.traces.events import Communication, ProcessGroup, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.words import buffers, collective_of, count, number, told_damage
from ccbench.units import format_seconds, plain

LONGEST_LINE = 1 << 16

NOT_A_COLLECTIVE = "computing and other rows that send nothing"

_HEAD = re.compile(rb"(?:\[rank[^\n]{0,200}\]\s{1,2})?comm_type,comm_group,")
_RANKS = re.compile(r"\[rank0 ~ rank([0-9]{1,7})\]")


def recognises(head: bytes) -> bool:
    """Tell whether a file begins with aicb's columns; a line with the ranks may come before them."""
    return _HEAD.match(head) is not None


def read(file: TraceFile) -> Trace:
    """Return a communication for each row that sends something; which rank's they are is not said."""
    communications: list[Communication] = []
    warnings: list[SourceWarning] = []
    not_taken: Counter[str] = Counter()
    epochs: list[float] = []
    columns: list[str] = []
    world = 0
    for line, raw in file.lines(LONGEST_LINE):
        text = raw.decode("utf-8-sig", "replace").rstrip("\r\n")
        if not columns:
            if ranks := _RANKS.match(text):
                world = int(ranks[1]) + 1
            elif text.startswith("comm_type,"):
                columns = text.split(",")
            continue
        values = text.split(",")
        row = dict(zip(columns, values, strict=False))
        word = row["comm_type"].removeprefix("CommType.")
        collective, size = collective_of(word), count(row.get("msg_size"))
        if len(values) != len(columns) or (collective and size is None):
            kind = "damaged_line" if raw.endswith(b"\n") else "truncated"
            told_damage(warnings, kind, f"no row of its table: {plain(text)!r}", line)
        elif collective:
            group_ranks = count(row.get("comm_group_size", "")) or 0
            sent, received = buffers(collective, size or 0, group_ranks)
            # What ran beside computing was not waited for, and has 0 for its time.
            elapsed = number(row.get("_elapsed_time")) or 0.0
            is_timed = elapsed > 0 and row.get("additional") != "overlap"
            communications.append(
                Communication(
                    rank=None,
                    collective=collective,
                    name=plain(word),
                    group=ProcessGroup(
                        plain(row["comm_group"].removeprefix("CommGroup.")), group_ranks
                    ),
                    input_bytes=sent,
                    output_bytes=received,
                    duration_seconds=elapsed / 1e3 if is_timed else None,
                    count=count(row.get("count", "")) or 1,
                    line=line,
                )
            )
        elif word == "epoch_end":
            epochs.append(number(row.get("_elapsed_time")) or 0.0)
        else:
            not_taken[NOT_A_COLLECTIVE] += 1
    timed = [epoch for epoch in epochs if epoch > 0]
    return Trace(
        communications=tuple(communications),
        world_size=world,
        not_taken=not_taken,
        facts={"epochs": f"{len(timed)}, median {format_seconds(median(timed) / 1e3)}"}
        if timed
        else {},
        warnings=tuple(warnings),
    )
