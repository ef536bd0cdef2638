"""What ranks keep between launches, and where: flags, counters, message slots, scratch.

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
from typing import Any

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


@dataclass(frozen=True)
class PeerAccess:
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


def peer_access_of(entry: KernelEntry) -> PeerAccess:
    """What peers touch; of a kernel that nobody has looked at: everything. ``ll`` is packets only."""
    return PEER_ACCESS.get(entry.name, NOTHING if entry.file == "ll.cu" else BOTH)


@dataclass(frozen=True)
class RankPlaces:
    """Where one rank's memory is: its work areas by name, and bases of its buffers (0: not to be addressed).

    image: base of the buffers' image in pinned memory, 0 where there is none.
    """

    work: Mapping[str, int]
    buffers: int
    image: int = 0


def own_view(access: PeerAccess, one: RankBuffers, places: RankPlaces) -> NDArray[Any]:
    """RANK_VIEW of a rank as its own device sees it."""
    view: NDArray[Any] = np.zeros(1, abi.RANK_VIEW)
    view["input"] = (places.image if places.image and access.inputs else places.buffers) + one.input_offset
    view["output"] = (places.image if places.image and access.outputs else places.buffers) + one.output_offset
    for name, address in places.work.items():
        view[name] = address
    return view


def pinned_view(view: NDArray[Any], access: PeerAccess, written_by_peers: Sequence[str]) -> NDArray[Any]:
    """The same with only what lies in pinned memory: all that another device may address."""
    touched = [name for name, is_so in (("input", access.inputs), ("output", access.outputs)) if is_so]
    kept = {*written_by_peers, *touched}
    seen: NDArray[Any] = view.copy()
    for name in set(abi.RANK_VIEW.names or ()) - kept:
        seen[name] = 0
    return seen


def views_of(
    access: PeerAccess,
    layout: Sequence[RankBuffers],
    places: Mapping[int, RankPlaces],
    here: range,
    written_by_peers: Sequence[str] | None,
) -> NDArray[Any]:
    """The table of RANK_VIEW that the device of the ranks ``here`` is handed.

    written_by_peers: areas in pinned memory, which is all that it sees of other ranks; None where devices
    address each other's memory.
    """
    rows = []
    for rank, one in enumerate(layout):
        view = own_view(access, one, places[rank])
        hidden = written_by_peers is not None and rank not in here
        rows.append(pinned_view(view, access, written_by_peers or ()) if hidden else view)
    table: NDArray[Any] = np.concatenate(rows)
    return table


WRITTEN_BY_PEERS = ("flags", "packets", "fifo")
"""Areas of ``abi.RANK_VIEW`` that other ranks' blocks write."""

MOST_HOST_CHANNELS = 8
"""Of ``transport: host``: a link of 64 GB/s with 2 us of latency is busy with 128 KiB under way (Little's
law), and every channel takes its slots from memory that is pinned. CCBENCH_KERNEL_CHANNELS goes before it."""


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
                self._allocate(context)
        except BaseException:
            self.close()
            raise
        self.zero()

    def _allocate(self, context: DeviceContext) -> None:
        context.cuda.use(context.facts.number)
        for rank in context.ranks:
            self.device[rank] = context.cuda.allocate(self.own.total_bytes)
            if self.on_host:
                self.pinned[rank] = context.cuda.allocate_pinned(self.shared.total_bytes)

    def zero(self) -> None:
        """What the host must do before the first launch, and after an error; no launch may be under way."""
        for context in self.contexts:
            for rank in context.ranks:
                context.set_bytes(self.device[rank], 0, self.own.zeroed_bytes)
        for address in self.pinned.values():
            ctypes.memset(address, 0, self.shared.zeroed_bytes)

    def places(self, rank: int, base: int = 0) -> dict[str, int]:
        """Address of every area of a rank; ``base``: where this process sees the device memory of
        another's."""
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
        places = [(context, rank) for context in self.contexts for rank in context.ranks]
        do_all([partial(self._free, context, rank) for context, rank in places])

    def _free(self, context: DeviceContext, rank: int) -> None:
        context.cuda.use(context.facts.number)
        do_all(
            [
                partial(context.cuda.free, self.device.pop(rank, 0)),
                partial(context.cuda.free_pinned, self.pinned.pop(rank, 0)),
            ]
        )
