"""Which kernels touch a peer's input or output: what ``transport: host`` must stage, what devices see.

Flags, packets and message slots are every kernel's; they are the communicator's business. A kernel's own
input and output stay in its device unless a peer reads or writes them. Then the case's data go through pinned
memory: copied there before the kernel and back after it, in the same stream, so that the copies are part of
the time. That is sound because no kernel lets a peer touch a rank's buffers before that rank's kernel has
begun or after it has ended (kernels/README.md, "Direct messages" and "Pull").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.kernels import abi
from ccbench.backends.kernels.layout import RankBuffers
from ccbench.backends.kernels.sources import KernelEntry


@dataclass(frozen=True)
class Reach:
    """inputs: peers read a rank's input; outputs: peers write a rank's output."""

    inputs: bool
    outputs: bool


NOTHING = Reach(inputs=False, outputs=False)
INPUTS = Reach(inputs=True, outputs=False)
OUTPUTS = Reach(inputs=False, outputs=True)
BOTH = Reach(inputs=True, outputs=True)

REACHES: dict[str, Reach] = {
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


def reach_of(entry: KernelEntry) -> Reach:
    """What peers touch; of a kernel that nobody has looked at: everything. ``ll`` is packets only."""
    return REACHES.get(entry.name, NOTHING if entry.file == "ll.cu" else BOTH)


@dataclass(frozen=True)
class Copy:
    """One copy between a rank's buffer and its pinned image, where both have the same offsets."""

    offset: int
    size_bytes: int


def copies_before(reach: Reach, one: RankBuffers) -> tuple[Copy, ...]:
    """From the device: what peers, and the rank itself, read of the image."""
    return (Copy(one.input_offset, one.input_bytes),) if reach.inputs and one.input_bytes else ()


def copies_after(reach: Reach, one: RankBuffers) -> tuple[Copy, ...]:
    """To the device: what peers, and the rank itself, wrote into the image."""
    return (Copy(one.output_offset, one.output_bytes),) if reach.outputs and one.output_bytes else ()


@dataclass(frozen=True)
class RankPlaces:
    """Where one rank's memory is: its work areas by name, and bases of its buffers (0: not to be addressed).

    image: base of the buffers' image in pinned memory, 0 where there is none.
    """

    work: Mapping[str, int]
    buffers: int
    image: int = 0


def own_view(reach: Reach, one: RankBuffers, places: RankPlaces) -> NDArray[Any]:
    """RANK_VIEW of a rank as its own device sees it."""
    view: NDArray[Any] = np.zeros(1, abi.RANK_VIEW)
    view["input"] = (places.image if places.image and reach.inputs else places.buffers) + one.input_offset
    view["output"] = (places.image if places.image and reach.outputs else places.buffers) + one.output_offset
    for name, address in places.work.items():
        view[name] = address
    return view


def pinned_view(view: NDArray[Any], reach: Reach, written_by_peers: Sequence[str]) -> NDArray[Any]:
    """The same with only what lies in pinned memory: all that another device may address."""
    kept = {*written_by_peers, *(("input",) if reach.inputs else ()), *(("output",) if reach.outputs else ())}
    seen: NDArray[Any] = view.copy()
    for name in set(abi.RANK_VIEW.names or ()) - kept:
        seen[name] = 0
    return seen


def views_of(
    reach: Reach,
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
        view = own_view(reach, one, places[rank])
        hidden = written_by_peers is not None and rank not in here
        rows.append(pinned_view(view, reach, written_by_peers or ()) if hidden else view)
    table: NDArray[Any] = np.concatenate(rows)
    return table
