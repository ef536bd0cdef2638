"""Memory that ranks keep between launches, and where it lies: flags, counters, message slots, scratch.

By default all of it lies in the ranks' devices, and peers write into it by peer access. With ``transport:
host`` what peers write (flags, packets, message slots) lies in pinned memory of the host that every device
addresses, as in NCCL's shared-memory transport (NVIDIA/nccl, src/transport/shm.cc); what only the rank itself
touches stays in its device. Each transport has memory and counters of its own, so that cases may alternate.

A kernel's own input and output stay in its device unless a peer reads or writes them. With ``transport:
host`` the case's data then go through an image in pinned memory: copied there before the kernel and back
after it, in the same stream, so that the copies are part of the time. That is sound because no kernel lets a
peer touch a rank's buffers before that rank's kernel has begun or after it has ended (kernels/README.md,
"Direct messages" and "Pull").
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.cuda.context import DeviceContext
from ccbench.backends.cuda.runtime import do_all
from ccbench.backends.kernels import abi
from ccbench.backends.kernels.layout import (
    ALIGNMENT_BYTES,
    ZEROED,
    RankBuffers,
    WorkAreas,
    rounded_up,
    tuning,
)
from ccbench.backends.kernels.sources import KernelEntry


class PeerAccess(NamedTuple):
    """inputs: peers read a rank's input; outputs: peers write a rank's output."""

    inputs: bool
    outputs: bool


NOTHING = PeerAccess(inputs=False, outputs=False)
INPUTS = PeerAccess(inputs=True, outputs=False)
OUTPUTS = PeerAccess(inputs=False, outputs=True)
BOTH = PeerAccess(inputs=True, outputs=True)

PEER_ACCESS: dict[str, PeerAccess] = {
    "barrier": NOTHING,
    "ring_all_reduce": OUTPUTS,
    "ring_all_gather": OUTPUTS,
    "ring_broadcast": OUTPUTS,
    "ring_reduce_scatter": NOTHING,
    "ring_reduce": NOTHING,
    "ring_send_recv": NOTHING,
    "tree_all_reduce": OUTPUTS,
    "tree_broadcast": OUTPUTS,
    "tree_reduce": NOTHING,
    "mesh_one_shot_all_reduce": NOTHING,
    "mesh_two_shot_all_reduce": BOTH,
    "mesh_all_gather": OUTPUTS,
    "mesh_gather": OUTPUTS,
    "mesh_scatter": INPUTS,
    "mesh_reduce_scatter": INPUTS,
    "mesh_broadcast": BOTH,
    "mesh_reduce": BOTH,
    # In place it would exchange with peers' inputs; with the outputs staged no rank works in place.
    "mesh_all_to_all": OUTPUTS,
    "schedule": NOTHING,
}
"""Read from the sources, and proven by tests in which what a kernel may not reach is no address at all."""

WRITTEN_BY_PEERS = ("flags", "packets", "fifo")
"""Areas of ``abi.RANK_VIEW`` that other ranks' blocks write."""

MOST_HOST_CHANNELS = 8
"""Of ``transport: host``: a link of 64 GB/s with 2 us of latency is busy with 128 KiB under way (Little's
law), and every channel takes its slots from memory that is pinned. CCBENCH_KERNEL_CHANNELS goes before it."""


def peer_access_of(entry: KernelEntry) -> PeerAccess:
    """Buffers that peers touch; of a kernel that nobody has looked at: all. ``ll`` is packets only."""
    return PEER_ACCESS.get(entry.name, NOTHING if entry.file == "ll.cu" else BOTH)


@dataclass(frozen=True)
class RankPlaces:
    """Addresses of one rank: its work areas by name, and bases of its buffers (0: not to be addressed).

    image: base of the buffers' image in pinned memory, 0 where there is none.
    """

    work: Mapping[str, int]
    buffers: int
    image: int = 0


def views_of(
    access: PeerAccess,
    layout: Sequence[RankBuffers],
    places: Mapping[int, RankPlaces],
    here: range,
    written_by_peers: Sequence[str] | None,
) -> NDArray[Any]:
    """The table of RANK_VIEW, shape (ranks,), that the device of the ranks ``here`` is handed.

    written_by_peers: areas in pinned memory, which is all that it sees of other ranks; None where devices
    address each other's memory.
    """
    views: NDArray[Any] = np.zeros(len(layout), abi.RANK_VIEW)
    touched = [name for name, is_so in (("input", access.inputs), ("output", access.outputs)) if is_so]
    for rank, one in enumerate(layout):
        at, view = places[rank], views[rank]
        view["input"] = (at.image if at.image and access.inputs else at.buffers) + one.input_offset
        view["output"] = (at.image if at.image and access.outputs else at.buffers) + one.output_offset
        for name, address in at.work.items():
            view[name] = address
        if written_by_peers is not None and rank not in here:
            # An address that the device cannot reach is none: a kernel that uses it faults at once.
            for name in set(abi.RANK_VIEW.names or ()) - {*written_by_peers, *touched}:
                view[name] = 0
    return views


@dataclass(frozen=True)
class Piece:
    """Areas of one rank that lie in one allocation; what must be zeroed comes first."""

    offsets: Mapping[str, int]
    zeroed_bytes: int
    total_bytes: int


def piece(areas: WorkAreas, names: Sequence[str]) -> Piece:
    """One allocation for the areas called ``names``."""
    sizes = areas.sizes()
    offsets, end, zeroed = {}, 0, 0
    # What is zeroed lies in one piece at the start, so that one memset does it.
    for name in sorted(names, key=lambda name: name not in ZEROED):
        offsets[name] = end
        end = rounded_up(end + max(sizes[name], ALIGNMENT_BYTES), ALIGNMENT_BYTES)
        zeroed = end if name in ZEROED else zeroed
    return Piece(offsets, zeroed, end)


def host_areas(areas: WorkAreas) -> WorkAreas:
    """The sizes that ``transport: host`` takes where the devices' own memory would have ``areas``."""
    return areas if tuning().channels else replace(areas, channels=min(areas.channels, MOST_HOST_CHANNELS))


@dataclass
class Communicator:
    """The work memory of all ranks that this process drives; OutOfMemory leaves nothing behind."""

    contexts: Sequence[DeviceContext]
    areas: WorkAreas
    on_host: bool = False
    device: dict[int, int] = field(default_factory=dict)
    pinned: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        on_host = WRITTEN_BY_PEERS if self.on_host else ()
        self.own = piece(self.areas, [name for name in self.areas.sizes() if name not in on_host])
        self.shared = piece(self.areas, on_host)
        try:
            for context in self.contexts:
                context.cuda.use(context.facts.number)
                for rank in context.ranks:
                    self.device[rank] = context.cuda.allocate(self.own.total_bytes)
                    if self.on_host:
                        self.pinned[rank] = context.cuda.allocate_pinned(self.shared.total_bytes)
        except BaseException:
            self.close()
            raise
        self.zero()

    def zero(self) -> None:
        """Zero all that outlives a launch: before the first one and after an error, with none under way."""
        for context in self.contexts:
            for rank in context.ranks:
                context.set_bytes(self.device[rank], 0, self.own.zeroed_bytes)
        for address in self.pinned.values():
            ctypes.memset(address, 0, self.shared.zeroed_bytes)

    def places(self, rank: int, base: int = 0) -> dict[str, int]:
        """Address of every area of a rank.

        base: where this process sees the device memory of another's.
        """
        device = base or self.device[rank]
        found = {name: device + offset for name, offset in self.own.offsets.items()}
        found.update({name: self.pinned[rank] + offset for name, offset in self.shared.offsets.items()})
        return found

    def errors(self) -> list[abi.GivenUp]:
        """Waits that were given up by ranks here."""
        found: list[abi.GivenUp] = []
        for context in self.contexts:
            for rank in context.ranks:
                words = np.zeros(self.areas.channels, abi.ERROR_WORD)
                context.read(self.device[rank] + self.own.offsets["errors"], words)
                found += abi.given_up(words)
        return found

    def close(self) -> None:
        """Give everything back."""
        steps = []
        for context in self.contexts:
            for rank in context.ranks:
                steps += [
                    partial(context.cuda.use, context.facts.number),
                    partial(context.cuda.free, self.device.pop(rank, 0)),
                    partial(context.cuda.free_pinned, self.pinned.pop(rank, 0)),
                ]
        do_all(steps)
