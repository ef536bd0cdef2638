"""Kernels on a CPU: ranks' memory in one arena, launches by the engine in kernels/host.

A world is a communicator: its flags and counters live on from launch to launch. Times taken here say
nothing about any device.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.kernels import abi
from ccbench.backends.kernels.building import Build, built
from ccbench.backends.kernels.layout import ZEROED, WorkAreas
from ccbench.backends.kernels.sources import Plan
from ccbench.errors import CcbenchError

Bytes = NDArray[np.uint8]

SPARE_BYTES = 64 << 20
"""Room for buffers in an arena unless more is asked for; what is not used costs no memory."""

LINE_BYTES = 128


@dataclass(frozen=True, eq=False)
class HostCommunicator:
    """Memory that some ranks keep between launches: flags, counters, slots, scratch; no other touches it.

    members: their numbers in the world; among each other they count from 0. work: its sizes. areas: of each
    member, by the names of ``abi.RANK_VIEW``, where each lies.
    """

    members: tuple[int, ...]
    work: WorkAreas
    areas: tuple[dict[str, int], ...]

    @property
    def ranks(self) -> int:
        """Number of ranks that communicate."""
        return len(self.members)

    @property
    def begin(self) -> int:
        """Offset of the first area."""
        return min(self.areas[0].values())


class HostWorld:
    """Some ranks' memory in an arena, with the communicator of all, and the launches on it.

    More communicators can be had of some of the ranks.
    """

    def __init__(
        self,
        ranks: int,
        channels: int,
        *,
        slots: int = 4,
        slot_bytes: int = 256,
        packets_bytes: int = 0,
        staging_bytes: int = 0,
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        """slots (a power of two, 2 or more), slot_bytes (n * 16): of every connection. packets_bytes,
        staging_bytes: per rank. spare_bytes: for buffers, further communicators, plans, tables of addresses.
        """
        self.ranks = ranks
        self.channels = channels
        self.work = WorkAreas(ranks, channels, slots, slot_bytes, packets_bytes, staging_bytes)
        # Pages that nobody touches cost nothing, so there is room to spare; the arena begins at a page.
        own_bytes = LINE_BYTES + communicator_bytes(self.work)
        whole = np.zeros(own_bytes + spare_bytes + 4096, np.uint8)
        start = -whole.ctypes.data % 4096
        self.arena: Bytes = whole[start : start + own_bytes + spare_bytes]
        self.used = LINE_BYTES  # so that no offset is 0, which means none
        self.everybody = self._communicator(tuple(range(ranks)))
        self._parts: list[HostCommunicator] = []

    def allocate(self, size_bytes: int, misalignment: int = 0) -> int:
        """Offset of new memory, ``misalignment`` bytes behind a multiple of 128, never 0."""
        begin = -(-self.used // LINE_BYTES) * LINE_BYTES + misalignment
        if begin + size_bytes > len(self.arena):
            raise ValueError(
                f"the arena of {len(self.arena)} bytes is full; ask for more spare_bytes"
            )
        self.used = begin + size_bytes
        return begin

    def free_after(self, offset: int) -> None:
        """Forget every allocation from ``offset`` on, communicators too."""
        self.used = offset
        self._parts = [
            communicator for communicator in self._parts if communicator.begin < offset
        ]

    def communicator(self, members: Sequence[int]) -> HostCommunicator:
        """A communicator of these ranks alone, in the order in which they count."""
        made = self._communicator(tuple(members))
        self._zero(made)  # the memory may have been another's
        self._parts.append(made)
        return made

    def _communicator(self, members: tuple[int, ...]) -> HostCommunicator:
        work = replace(self.work, ranks=len(members))
        sizes = work.sizes()
        areas = tuple(
            {name: self.allocate(size) for name, size in sizes.items()} for _ in members
        )
        return HostCommunicator(members, work, areas)

    def view(self, offset: int, size_bytes: int) -> Bytes:
        """The memory itself."""
        return self.arena[offset : offset + size_bytes]

    def area(self, rank: int, name: str, of: HostCommunicator | None = None) -> Bytes:
        """A rank's flags, state, errors, packets, fifo or staging; ``rank`` as ``of`` counts (all ranks)."""
        communicator = of or self.everybody
        return self.view(communicator.areas[rank][name], communicator.work.sizes()[name])

    def errors(self) -> list[abi.GivenUp]:
        """Every wait that was given up since the last reset; ranks by their numbers in the world."""
        return [
            error.among(communicator.members)
            for communicator in (self.everybody, *self._parts)
            for rank in range(communicator.ranks)
            for error in abi.given_up(
                self.area(rank, "errors", communicator).view(abi.ERROR_WORD)
            )
        ]

    def reset(self) -> None:
        """Zero all that outlives a launch, as a host must after an error."""
        for communicator in (self.everybody, *self._parts):
            self._zero(communicator)

    def _zero(self, communicator: HostCommunicator) -> None:
        for rank in range(communicator.ranks):
            for name in ZEROED:
                self.area(rank, name, communicator)[:] = 0

    # -- launches ------------------------------------------------------------------------------------------

    def run(
        self, build: Build, calls: Sequence[HostCall], options: HostOptions | None = None
    ) -> None:
        """Launch ``calls``, one after another on every device, and wait for all.

        Calls of different communicators are on devices of their own, so that they run at once.

        build: the kernel file that has the calls' entries.
        Raises KernelDeadlock, KernelFailed naming rank and peer: then reset it.
        """
        options = options or HostOptions()
        mark = self.used
        try:
            fixups: list[int] = []
            records = self.records(calls, options, fixups)
            self.launch(built(build), records, options, fixups)
        finally:
            self.free_after(mark)
        given_up = self.errors()
        if given_up:
            raise KernelFailed("; ".join(map(str, given_up)))

    def records(
        self, calls: Sequence[HostCall], options: HostOptions, fixups: list[int]
    ) -> NDArray[Any]:
        """Records of all launches; fixups: gets the offsets of words that are to become addresses."""
        groups = dict.fromkeys(id(self._of(call)) for call in calls)
        places = {group: place for place, group in enumerate(groups)}
        records = np.concatenate([self.records_of(call, options, fixups) for call in calls])
        shifts = [places[id(self._of(call))] * options.devices for call in calls]
        records["device"] += np.repeat(np.asarray(shifts, np.int32), options.devices)
        return records

    def _of(self, call: HostCall) -> HostCommunicator:
        return call.communicator or self.everybody

    def _put(self, words: NDArray[Any]) -> int:
        flat = np.ascontiguousarray(words).view(np.uint8).ravel()
        offset = self.allocate(len(flat))
        self.view(offset, len(flat))[:] = flat
        return offset

    def records_of(
        self, call: HostCall, options: HostOptions, fixups: list[int]
    ) -> NDArray[Any]:
        """Records of one launch, by device; its tables are in the arena."""
        records = np.zeros(options.devices, RECORD)
        records["entry"] = call.entry.encode()
        records["device"] = np.arange(options.devices)
        arguments = records["arguments"]
        views = np.zeros(self._of(call).ranks, abi.RANK_VIEW)
        for rank, areas in enumerate(self._of(call).areas):
            views[rank]["input"] = call.inputs[rank]
            views[rank]["output"] = call.outputs[rank]
            for name, offset in areas.items():
                views[rank][name] = offset
        arguments["views"] = at = self._put(views)
        # Offsets become addresses only where the launch runs, and only for as long as it does.
        fixups.extend(at + 8 * int(index) for index in np.flatnonzero(views.view(np.uint64)))
        channels = self.channels if call.channels is None else call.channels
        if not 1 <= channels <= self.channels or (
            call.plan is not None and len(call.plan) < channels
        ):
            raise ValueError(
                f"{call.entry}: {channels} channels, but this world has {self.channels} and the plan is for "
                f"{'any number' if call.plan is None else len(call.plan)}; use no more than both have"
            )
        if call.plan is not None:
            arguments["plan"] = self._put(np.asarray(call.plan, np.int32))
            arguments["plan_words"] = call.plan.shape[1]
        if call.program is not None:
            arguments["program"] = self._put(np.asarray(call.program, np.int32))
            arguments["program_words"] = call.program.size
        work = self._of(call).work
        # Each device launches a grid for its share of the ranks, as evenly as can be.
        first = np.arange(options.devices + 1) * work.ranks // options.devices
        arguments["first_rank"] = first[:-1]
        arguments["ranks_here"] = np.diff(first)
        arguments["limit_nanoseconds"] = options.limit_nanoseconds
        arguments["channels"] = channels
        for name in ("count", "root", "iterations"):
            arguments[name] = getattr(call, name)
        for name in ("ranks", "slots", "slot_bytes", "packets_bytes", "staging_bytes"):
            arguments[name] = getattr(work, name)
        arguments["type"] = abi.TYPES[call.dtype]
        arguments["op"] = abi.OPS[call.op]
        return records

    def launch(
        self, library: Path, records: NDArray[Any], options: HostOptions, fixups: Sequence[int]
    ) -> None:
        """Run what ``records`` say by the engine in ``library``."""
        # Tables hold offsets, so that another process can run them; for this launch they become addresses.
        base = np.uint64(self.arena.ctypes.data)
        words = self.arena[: len(self.arena) // 8 * 8].view(np.uint64)
        at = np.asarray(fixups, np.int64) // 8
        words[at] += base
        arguments = records["arguments"]
        for name in ("views", "plan", "program"):
            arguments[name] = np.where(
                arguments[name] > 0, arguments[name] + base, arguments[name]
            )
        report = ctypes.create_string_buffer(REPORT_BYTES)
        settings = option_words(options)
        # The engine's fibers and clock are globals of the library.
        with _ONE_AT_A_TIME:
            result = loaded(library).ccb_host_launch(
                ctypes.c_void_p(records.ctypes.data),
                ctypes.c_int(len(records)),
                ctypes.c_void_p(settings.ctypes.data),
                report,
                ctypes.c_int(REPORT_BYTES),
            )
        words[at] -= base
        raise_for(result, report.value.decode())


def communicator_bytes(work: WorkAreas) -> int:
    """Room that a communicator with such areas takes."""
    return work.ranks * sum(size + 2 * LINE_BYTES for size in work.sizes().values())


RECORD = np.dtype(
    [("entry", "S64"), ("arguments", abi.ARGUMENTS), ("device", "i4"), ("free_0", "i4")],
    align=True,
)
OPTIONS = np.dtype(
    [("seed", "u8"), ("engine", "i4"), ("lanes", "i4"), ("resident", "i4"), ("free_0", "i4")],
    align=True,
)

ENGINES = {"fibers": 0, "threads": 1}
REPORT_BYTES = 8192
_ONE_AT_A_TIME = threading.Lock()
"""A loaded engine runs one call's launches at a time."""

_RESULTS = {3: "deadlock", 4: "unknown entry", 5: "bad options", 6: "bad file"}


class KernelFailed(CcbenchError):
    """A launch did not end: a wait was given up, or the engine found that nobody could go on."""

    exit_code = 4


class KernelDeadlock(KernelFailed):
    """No lane could go on; the message names every waiting block."""


@dataclass(frozen=True)
class HostOptions:
    """Options of how launches are run.

    lanes: per block. seed: of the fibers' order. resident: blocks of one device that run at once (fibers
    only), 0 for all. devices: over how many grids the ranks are split; grids of different devices drift.
    limit_nanoseconds: of one wait, 0 for none; with fibers it passes only when nothing else can happen.
    """

    engine: Literal["fibers", "threads"] = "fibers"
    lanes: int = 8
    seed: int = 0
    resident: int = 0
    devices: int = 1
    limit_nanoseconds: int = 0


@dataclass(frozen=True, eq=False)
class HostCall:
    """One collective: which entry, on what.

    count: elements as ccbench counts them. inputs, outputs: an arena offset per rank (HostWorld.allocate),
    0 where the rank has no such buffer. plan: shape (channels, words); None where the kernel needs none.
    program: what ``schedule`` interprets. channels: None for all of the world's. communicator: whose members
    take part, in their order; None for all ranks of the world.
    """

    entry: str
    dtype: str
    count: int
    inputs: Sequence[int]
    outputs: Sequence[int]
    op: str = "sum"
    root: int = 0
    plan: Plan | None = None
    program: NDArray[np.int32] | None = None
    channels: int | None = None
    iterations: int = 1
    communicator: HostCommunicator | None = None


def option_words(options: HostOptions) -> NDArray[Any]:
    """``options`` as the engine takes them."""
    engine = ENGINES[options.engine]
    return np.array([(options.seed, engine, options.lanes, options.resident, 0)], OPTIONS)


def raise_for(result: int, report: str) -> None:
    """KernelDeadlock or KernelFailed for any result of the engine's but 0."""
    if result == 3:
        raise KernelDeadlock(report)
    if result != 0:
        raise KernelFailed(f"{_RESULTS.get(result, f'exit code {result}')}: {report}")


@functools.lru_cache(maxsize=64)
def loaded(path: Path) -> ctypes.CDLL:
    """The library that was built at ``path``."""
    return ctypes.CDLL(str(path))
