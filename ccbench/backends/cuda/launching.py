"""From a case to what its kernel is handed: arithmetic and tables, without any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.cases import NO_OP, NO_ROOT, Case
from ccbench.collectives import collective
from ccbench.dtypes import numpy_dtype
from ccbench.errors import CcbenchError
from ccbench.kernels import abi
from ccbench.kernels.layout import WorkAreas
from ccbench.verification import PERIOD_ELEMENTS, fill

MOST_CHANNELS = 24
"""NCCL takes 16 to 32 on NVSwitch machines; 16 to 24 blocks of 64 KiB keep a link of 450 GB/s with 2 us of
latency busy (Little's law: 0.9 MB)."""

SLOTS = 4
SLOT_BYTES = 128 << 10
LOOPBACK_SLOT_BYTES = 64 << 10
"""Smaller where one device holds all slots, so that those in use stay in its L2 cache."""

PACKETS_BYTES = 4 << 20
STAGING_BYTES = 32 << 20

LIMIT_SECONDS = 5.0
"""Of one wait inside a kernel; a sound launch waits for microseconds, or milliseconds where devices are
shared."""

GRAPH_LAUNCHES = 32
"""Launches of one CUDA graph."""


def work_areas(ranks: int, most_ranks_of_a_device: int, processors: int) -> WorkAreas:
    """Room for the channels that fit when every multiprocessor runs one block."""
    channels = max(1, min(MOST_CHANNELS, processors // most_ranks_of_a_device))
    slot_bytes = SLOT_BYTES if most_ranks_of_a_device == 1 else LOOPBACK_SLOT_BYTES
    return WorkAreas(ranks, channels, SLOTS, slot_bytes, PACKETS_BYTES, STAGING_BYTES)


def root_of(case: Case) -> int:
    """The root, 0 where the collective has none."""
    return 0 if case.root == NO_ROOT else case.root


def op_of(case: Case) -> str:
    """The op, sum where nothing is reduced."""
    return "sum" if case.op == NO_OP else case.op


def arguments_for(case: Case, areas: WorkAreas, channels: int, limit_seconds: float) -> NDArray[Any]:
    """One ARGUMENTS record without addresses and without a device's share of the ranks."""
    given = np.zeros(1, abi.ARGUMENTS)
    values = {
        "limit_nanoseconds": int(limit_seconds * 1e9),
        "count": case.count,
        "slot_bytes": areas.slot_bytes,
        "packets_bytes": areas.packets_bytes,
        "staging_bytes": areas.staging_bytes,
        "ranks": case.ranks,
        "channels": channels,
        "root": root_of(case),
        "type": abi.type_number(case.dtype),
        "op": abi.op_number(op_of(case)),
        "slots": areas.slots,
        "iterations": 1,
    }
    for name, value in values.items():
        given[name] = value
    return given


def input_period(case: Case, rank: int, size_bytes: int, salt: int) -> NDArray[np.generic]:
    """The first elements of a rank's input, of which all others are repetitions."""
    dtype = numpy_dtype(case.dtype)
    period: NDArray[np.generic] = np.empty(min(PERIOD_ELEMENTS, size_bytes // dtype.itemsize), dtype)
    fill(case, rank, period, salt)
    return period


class CollectiveFailed(CcbenchError):
    """A kernel gave up waiting; the message names who waited for whom."""

    exit_code = 4


def failure(case: Case, given_up: Sequence[abi.GivenUp]) -> CollectiveFailed:
    """All waits that were given up in one line, the first few spelt out."""
    shown = "; ".join(map(str, given_up[:4]))
    more = f"; and {len(given_up) - 4} more" if len(given_up) > 4 else ""
    return CollectiveFailed(f"{case.collective} {case.algorithm}: {shown}{more}")


def moves_data(case: Case) -> bool:
    """Whether there is a result to be compared."""
    return collective(case.collective).moves_data
