"""From a case to what its kernel is handed, and from what it left on a device to what of it is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.cuda.context import DeviceContext
from ccbench.backends.cuda.gate import Gate
from ccbench.backends.kernels import abi
from ccbench.backends.kernels.layout import WorkAreas
from ccbench.backends.kernels.plans import topology_orders
from ccbench.backends.kernels.sources import entry_named, program
from ccbench.cases import NO_OP, NO_ROOT, Case
from ccbench.collectives import collective
from ccbench.dtypes import numpy_dtype
from ccbench.errors import CcbenchError
from ccbench.verification import PERIOD_ELEMENTS, Array, Piece, fill

LIMIT_SECONDS = 5.0
"""Of one wait inside a kernel; a sound launch waits for microseconds, or milliseconds where devices are
shared."""

GRAPH_LAUNCHES = 32
"""Launches of one CUDA graph."""


LEAST_STREAMED, LONGEST_STREAM_SECONDS = 20, 0.02
"""Launches of a sample in mode streaming: as many as nccl-tests takes by default, so that what the host
takes for each shows. Fewer where they would last longer: a launch of milliseconds hides the next one's."""


def sample_launches(mode: str, wanted: int, seconds: float, items: int) -> int:
    """How many launches a sample of a case in ``mode`` has, ``wanted`` being enough for its length.

    seconds: of a launch. items: how many places of a stream's queue it takes. Graphs are whole, and no more
    than may wait behind a gate.
    """
    if mode == "streaming":
        return max(wanted, min(LEAST_STREAMED, math.ceil(LONGEST_STREAM_SECONDS / max(seconds, 1e-9))))
    if mode == "graph" and wanted > GRAPH_LAUNCHES:
        return GRAPH_LAUNCHES * min(-(-wanted // GRAPH_LAUNCHES), Gate.most_held(GRAPH_LAUNCHES * items))
    return wanted


def held_launches(mode: str, items: int) -> int:
    """How many launches, or graphs of them, are enqueued before the gate opens.

    streaming: the first, so that no stream starts late and the others are launched as applications launch.
    graph: all, so that the host has no share.
    """
    if mode == "streaming":
        return 1
    return Gate.most_held(GRAPH_LAUNCHES * items if mode == "graph" else items)


def graph_sizes(launches: int) -> tuple[int, ...]:
    """How many launches each of the graphs has that together make ``launches``."""
    whole, rest = divmod(launches, GRAPH_LAUNCHES)
    return (GRAPH_LAUNCHES,) * whole + ((rest,) if rest else ())


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


def input_period(case: Case, rank: int, size_bytes: int, seed: int, launches: int) -> NDArray[np.generic]:
    """The first elements of a rank's input, of which all others are repetitions."""
    dtype = numpy_dtype(case.dtype)
    period: NDArray[np.generic] = np.empty(min(PERIOD_ELEMENTS, size_bytes // dtype.itemsize), dtype)
    fill(case, rank, period, seed, launches)
    return period


COMPARED_BYTES = 64 << 10
"""Of an output for each block that compares it, up to a block for each multiprocessor."""


@dataclass(frozen=True)
class DeviceOutput:
    """Implements ``endpoint.Output``: what lies at ``address``; memory: room for it here."""

    context: DeviceContext
    address: int
    memory: Array

    @property
    def elements(self) -> int:
        """How many it has."""
        return len(self.memory)

    def read(self) -> Array:
        """What is in it, on the host."""
        self.context.read(self.address, self.memory)
        return self.memory

    def differing(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """By the kernel ``compare`` on the device."""
        context, dtype = self.context, abi.COPY_TYPES[self.memory.itemsize]
        kernel = context.extra_kernel(program(entry_named("compare"), dtype, "sum"), abi.MAX_LANES)
        blocks = max(1, min(context.facts.processors, self.memory.nbytes // COMPARED_BYTES))
        found, views = np.zeros(blocks * kernel.lanes, abi.COMPARED), np.zeros(1, abi.RANK_VIEW)
        table, periods = abi.compare_tables(pieces)
        at = context.upload(
            context.compared, [views, table, periods, found, np.zeros(blocks, abi.ERROR_WORD)]
        )
        views["input"], views["output"], views["staging"], views["errors"] = at[2], self.address, at[3], at[4]
        context.write_repeated(at[0], views.nbytes, views)
        given = np.zeros(1, abi.ARGUMENTS)
        given["views"], given["program"], given["program_words"] = at[0], at[1], table.nbytes // 4
        given["ranks"] = given["ranks_here"] = given["iterations"] = 1
        given["channels"], given["type"] = blocks, abi.type_number(dtype)
        context.launch_extra(kernel, blocks, given, context.stream)
        context.read(at[3], found)
        return abi.compared(found)


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


def ring_orders(contexts: Sequence[DeviceContext]) -> tuple[tuple[int, ...], ...]:
    """Rings for one rank per device, from what the system shows of the links between them."""
    from ccbench.machine.detection import detect

    topology = detect()
    names = {gpu.bus_id.lower(): gpu.name for gpu in topology.gpus if gpu.bus_id}
    devices = [names.get(context.facts.bus_id.lower(), "") for context in contexts]
    return topology_orders(topology, devices) if all(devices) and len(devices) > 1 else ()
