"""Summaries of collectives by TraceLens (CSV): nccl_summary_long, nccl_summary_implicit_sync.

The first has a row for each rank, group, stream and kind of call, with the mean duration of the kernel in
microseconds, waiting for other ranks included. The second has a row for each kind of call, and its
comm_latency is the mean of the shortest duration among the ranks, without waiting. MB is 2^20 bytes. Source:
TraceLens/NcclAnalyser/nccl_analyser.py of github.com/AMD-AGI/TraceLens.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping

from ccbench.findings import SourceWarning
from ccbench.readers.traces.events import Communication, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.groups import Groups
from ccbench.readers.traces.words import (
    buffers,
    collective_of,
    count,
    dtype_of,
    figures,
    number,
    told_damage,
    uneven,
)
from ccbench.units import plain

LONGEST_LINE = 1 << 20
"""A row lists the ranks of its group."""

MEBI = 2**20

_COUNTS = {"dur_mean": "operation_count", "comm_latency_mean": "count"}
"""Column of the mean in microseconds -> column of how many calls it is of."""

_WITHOUT_WAITING = (
    "its times are means of the shortest time among the ranks, so without waiting for others"
)

_SPLITS = ("In split size", "Out split size")
_KIND = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", *_SPLITS, "stream")


def recognises(head: bytes) -> bool:
    """Tell whether a file begins with the columns of one of the two summaries."""
    return _mean(_cells(head.partition(b"\n")[0])) != ""


def read(file: TraceFile) -> Trace:
    """Return a communication for each row, with its mean duration and how often it ran."""
    communications: list[Communication] = []
    warnings: list[SourceWarning] = []
    not_taken: Counter[str] = Counter()
    groups, kinds = Groups(), dict[tuple[str, ...], int]()
    columns: list[str] = []
    for line, raw in file.lines(LONGEST_LINE):
        cells = _cells(raw)
        if not columns:
            columns = cells
            continue
        row = dict(zip(columns, cells, strict=False))
        calls = count(number(row.get(_COUNTS[_mean(columns)])))
        if len(cells) != len(columns) or not calls:
            if any(cells):
                kind = "damaged_line" if raw.endswith(b"\n") else "truncated"
                text = f"no row of its table: {plain(','.join(cells))!r}"
                told_damage(warnings, kind, text, line)
        elif collective := collective_of(row["Collective name"]):
            communications.append(_communication(row, collective, groups, kinds, line))
        else:
            name = plain(row["Collective name"]) or "without a name"
            not_taken[f"{name}: no collective that ccbench measures"] += calls
    if "comm_latency_mean" in columns:
        warnings.append(SourceWarning("not_visible", _WITHOUT_WAITING))
    return Trace(
        communications=tuple(communications),
        ranks=tuple(sorted({call.rank for call in communications if call.rank is not None})),
        not_taken=not_taken,
        warnings=tuple(warnings),
    )


def _cells(raw: bytes) -> list[str]:
    try:
        rows = csv.reader([raw.decode("utf-8-sig", "replace").strip()])
        return [cell.strip() for cell in next(rows, [])]
    except csv.Error:
        return []


def _mean(columns: list[str]) -> str:
    """Name of the column of the mean; "" where the columns are of no such summary."""
    is_summary = {"Collective name", "dtype", "Group size", "In msg nelems"} <= set(columns)
    means = (mean for mean, calls in _COUNTS.items() if {mean, calls} <= set(columns))
    return next(means, "") if is_summary else ""


def _communication(
    row: Mapping[str, str],
    collective: str,
    groups: Groups,
    kinds: dict[tuple[str, ...], int],
    line: int,
) -> Communication:
    dtype, item = dtype_of(row["dtype"])
    ranks = count(number(row["Group size"])) or 0
    group = groups.of(
        row.get("Process Group Name", ""), ranks, row.get("Process Group Ranks", "").strip("()")
    )
    # Rows stand by their duration: ranks are joined by the kind of call, not by its place.
    kind = (group.name, *(row.get(name, "") for name in _KIND))
    splits = (figures(row.get(name, "").strip("()"))[0] for name in _SPLITS)
    input_splits, output_splits = (
        uneven([elements * (item or 0) for elements in split]) for split in splits
    )
    sent, received = (
        elements * item if elements is not None and item else None
        for elements in (
            count(number(row.get(name))) for name in ("In msg nelems", "Out msg nelems")
        )
    )
    # One of the two summaries names the input alone, and the larger buffer of types that it knows.
    full = number(row.get("Full msg size (MB)"))
    if received is None and full is not None:
        sent, received = buffers(collective, round(full * MEBI), ranks)
    mean = number(row.get("dur_mean", row.get("comm_latency_mean")))
    return Communication(
        rank=count(number(row.get("rank"))),
        collective=collective,
        name=plain(row["Collective name"]),
        group=group,
        dtype=dtype,
        input_bytes=sent,
        output_bytes=received,
        duration_seconds=mean / 1e6 if mean else None,
        stream=plain(row.get("stream", "")),
        input_splits=input_splits,
        output_splits=output_splits,
        sequence=kinds.setdefault(kind, len(kinds)) if "rank" in row else None,
        count=count(number(row[_COUNTS[_mean([*row])]])) or 1,
        line=line,
    )
