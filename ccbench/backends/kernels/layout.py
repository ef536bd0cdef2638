"""Where everything lies in a rank's memory: arithmetic only, the same for GPUs and for their emulation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.backends.kernels import abi
from ccbench.backends.kernels.tuning import (
    CHANNEL_BYTES,
    LEAST_LANES,
    LOOPBACK_SLOT_BYTES,
    MOST_CHANNELS,
    MOST_LANES,
    PACKETS_BYTES,
    SLOT_BYTES,
    SLOTS,
    STAGING_BYTES,
    tuning,
)
from ccbench.cases import NO_ROOT, Case
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes

ALIGNMENT_BYTES = 256
"""What cudaMalloc aligns to, and two lines of the L2 cache."""

ZEROED = ("flags", "state", "errors", "packets")
"""What the host zeroes before the first launch and after an error; it lies in one piece at the start."""


def rounded_up(value: int, unit: int) -> int:
    """The next multiple of ``unit``."""
    return -(-value // unit) * unit


@dataclass(frozen=True)
class WorkAreas:
    """Sizes of what a rank keeps besides its buffers, for as many channels and ranks as there may be."""

    ranks: int
    channels: int
    slots: int
    slot_bytes: int
    packets_bytes: int
    staging_bytes: int

    def sizes(self) -> dict[str, int]:
        """Bytes of each area, by the names of ``abi.RANK_VIEW``."""
        return {
            "flags": abi.flags_bytes(self.channels, self.ranks),
            "state": abi.state_bytes(self.channels, self.ranks),
            "errors": abi.errors_bytes(self.channels),
            "packets": self.packets_bytes,
            "fifo": abi.fifo_bytes(self.channels, self.ranks, self.slots, self.slot_bytes),
            "staging": self.staging_bytes,
        }

    def offsets(self) -> dict[str, int]:
        """Where each area begins in a rank's allocation."""
        found, end = {}, 0
        for name, size in self.sizes().items():
            found[name] = end
            end = rounded_up(end + size, ALIGNMENT_BYTES)
        return found

    @property
    def zeroed_bytes(self) -> int:
        """Bytes from the start that hold all of ZEROED."""
        return self.offsets()["fifo"]

    @property
    def total_bytes(self) -> int:
        """Bytes of a rank's allocation."""
        return self.offsets()["staging"] + max(self.staging_bytes, ALIGNMENT_BYTES)


def work_areas(ranks: int, most_ranks_of_a_device: int, processors: int) -> WorkAreas:
    """Room for the channels that fit when every multiprocessor runs one block; sizes by tuning.py and the
    environment."""
    asked = tuning()
    most = asked.channels or MOST_CHANNELS
    usual_slot_bytes = SLOT_BYTES if most_ranks_of_a_device == 1 else LOOPBACK_SLOT_BYTES
    return WorkAreas(
        ranks,
        max(1, min(most, processors // most_ranks_of_a_device)),
        asked.slots or SLOTS,
        asked.slot_bytes or usual_slot_bytes,
        asked.packets_bytes or PACKETS_BYTES,
        asked.staging_bytes or STAGING_BYTES,
    )


@dataclass(frozen=True)
class RankBuffers:
    """One rank's input and output in its allocation; in place they overlap, as in nccl-tests."""

    input_offset: int
    input_bytes: int
    output_offset: int
    output_bytes: int
    total_bytes: int


def rank_buffers(case: Case, rank: int) -> RankBuffers:
    """Where ``rank`` has its input and output in ``case``.

    In place there is one buffer as long as the longer of the two; the shorter one is its own block of it.
    """
    row = collective(case.collective)
    root = 0 if case.root == NO_ROOT else case.root
    size = item_bytes(case.dtype)
    bytes_in, bytes_out = case.input_count(rank) * size, case.output_count(rank) * size
    if not case.in_place:
        begin = rounded_up(bytes_in, ALIGNMENT_BYTES)
        return RankBuffers(0, bytes_in, begin, bytes_out, rounded_up(begin + bytes_out, ALIGNMENT_BYTES))
    inputs = row.inputs(rank, case.ranks, case.ranks, root)
    outputs = row.outputs(rank, case.ranks, case.ranks, root)
    first = min((slots.start for slots in (inputs, outputs) if len(slots)), default=0)
    block = case.count * size if row.blocked else 0
    at_input = (inputs.start - first) * block if len(inputs) else 0
    at_output = (outputs.start - first) * block if len(outputs) else 0
    end = max(at_input + bytes_in, at_output + bytes_out)
    return RankBuffers(at_input, bytes_in, at_output, bytes_out, rounded_up(end, ALIGNMENT_BYTES))


def all_buffers(case: Case) -> tuple[RankBuffers, ...]:
    """``rank_buffers`` of every rank."""
    return tuple(rank_buffers(case, rank) for rank in range(case.ranks))


def channels_for(size_bytes: int, most: int) -> int:
    """Channels for a case: as the environment asks, else one for every CHANNEL_BYTES; from 1 to ``most``."""
    return max(1, min(most, tuning().channels or -(-size_bytes // CHANNEL_BYTES)))


def blocks_fit(ranks_here: int, channels: int, blocks_per_processor: int, processors: int) -> bool:
    """Whether all blocks of a launch run at once on a device of so many multiprocessors."""
    return ranks_here * channels <= blocks_per_processor * processors


def most_channels(ranks_here: int, blocks_per_processor: int, processors: int, wanted: int) -> int:
    """The most channels, up to ``wanted``, of which all blocks run at once; 0 where not even one does."""
    return min(wanted, blocks_per_processor * processors // max(ranks_here, 1))


def ranks_of_devices(ranks: int, devices: int) -> tuple[range, ...]:
    """Which ranks each device holds: neighbours together, as evenly as can be; no device without ranks."""
    used = min(ranks, devices)
    edges = [ranks * device // used for device in range(used + 1)]
    return tuple(range(begin, end) for begin, end in itertools.pairwise(edges))


def device_of_rank(groups: Sequence[range], rank: int) -> int:
    """The device that holds ``rank``."""
    return next(device for device, group in enumerate(groups) if rank in group)


def lanes_for(bytes_of_channel: int, most: int = MOST_LANES) -> int:
    """Lanes of a block that moves so many bytes: as the environment asks, else one for 16 in whole warps
    from LEAST_LANES; at most ``most``."""
    asked = tuning().lanes
    if asked:
        return min(most, asked)
    return max(LEAST_LANES, min(most, rounded_up(-(-bytes_of_channel // abi.VECTOR_BYTES), 32)))
