"""Sizes of launches, and places of everything in a rank's memory, on GPUs and emulated.

None of the numbers was tuned on a machine with several GPUs; where ranks of one H100 settled or bounded one,
that is said, with figures of results/reference/nvidia-h100-80gb-hbm3/settle (mode graph; one round each, and the
same launch took up to 0.7 us more or less in two runs). Each has its reason,
what measurement would settle it, a default here and a variable of the environment, so that whoever has the
machine can try others without touching code; results keep the same name, so give such runs a directory of
their own. What stands in the sources because it is compiled: CHAIN_BYTES (block.cuh), COPIES_AT_ONCE
(primitives.cuh), PEERS_AT_ONCE and PACKET_CHANNELS (ll.cu), MESSAGE_PIECES (programs.py). How many blocks a
launch has follows from what it moves (traffic.py)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from ccbench.backends.kernels import abi
from ccbench.cases.axes import NO_ROOT, Case
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes
from ccbench.errors import UsageError
from ccbench.units import format_size, parse_size

PREFIX = "CCBENCH_KERNEL_"

MOST_CHANNELS = 32
"""Blocks that a rank runs. Little's law: a block has 64 KiB of loads under way, so behind a switch, at 2 us,
it loads 33 GB/s, and 14 of them keep a link of 450 GB/s busy if nothing else takes time; stores, barriers and
the wait for flags do: of an H100's own memory a block of two-shot loads 31 GB/s and stores as much (256 MiB,
2 ranks on 16 blocks each). There two-shot took 535, 474 and 410 us on 16, 24 and 32 blocks, ring 900, 718
and 594 in messages of 128 KiB; of 1 MiB two-shot took 7.2, 8.0 and 7.4 us. NCCL takes 16 to 32 on NVSwitch
machines (its log says how many).
To settle: bandwidth of ring_all_reduce of 1 GiB at 8, 16, 24 and 32 channels on 2 and on 8 GPUs; the fewest
that reach 98% of the best."""

CHANNEL_BYTES = 64 << 10
"""A channel more for every so many bytes that a rank moves: 512 lanes with eight loads of 16 bytes in flight
hold 64 KiB, so that a block with less has nothing to overlap. On one H100 two-shot of 64 KiB over 8 ranks
took 7.6, 7.1 and 7.0 us on 1, 4 and 16 blocks.
To settle: time of two-shot and ring at 64 KiB to 8 MiB over the number of channels; where one more stops
helping."""

LEAST_LANES = 64
"""Two warps: one would wait for memory with nobody to take its place. Of 16 B over 8 ranks of an H100 ll took
4.7 us on 32 lanes and 5.0 on 128; one round each, which settles nothing."""

MOST_LANES = abi.MAX_LANES
"""Registers are limited for so many (65,536 / 512 = 128 a lane); vLLM found blocks of 512 best for meshes on
A100 and V100 (csrc/custom_all_reduce.cuh). Settled: over 2 ranks of an H100, 16 blocks each, two-shot of 256
MiB took 817 us on 256 lanes and 535 on 512, ring 1040 and 900."""

SLOTS = 4
"""Messages under way on a connection: one is filled, one is under way, one is taken, and one makes up for
drift; NCCL has 8 steps (NCCL_STEPS). More take L2 cache where one GPU holds all of them. Ring of 256 MiB over
2 ranks of an H100 took 905, 900 and 924 us with 2, 4 and 8 slots of 128 KiB.
To settle: the same between GPUs, where ranks drift."""

SLOT_BYTES = 512 << 10
"""One message. A step costs a fence, a flag and two barriers of a block: 2 us on one H100, where ring of 256
MiB over 2 ranks on 16 blocks each took 2143, 1197, 900 and 741 us in messages of 32, 64, 128 and 512 KiB. A
link's share of one block of 32, 14 GB/s, takes 37 us for 512 KiB. NCCL's steps have 512 KiB.
To settle: bandwidth of ring_all_reduce of 256 MiB between GPUs at 128 KiB to 1 MiB, with 4 slots."""

FIFO_BYTES = 512 << 20
"""Slots of one rank, all connections together: what eight ranks need; more ranks get shorter messages."""

LOOPBACK_BYTES = 32 << 20
"""Slots in use at once where one GPU holds all ranks', one connection of a rank each: they should stay within
its L2 cache, of 50 MB in an H100. Over 4 ranks there, 16 blocks each, ring of 256 MiB took 1625, 1381 and
1514 us in messages of 64, 128 and 512 KiB: 16, 32 and 128 MiB."""

LEAST_SLOT_BYTES = 16 << 10

PACKETS_BYTES = 4 << 20
"""Boxes of the low-latency protocol: with 8 ranks 8 KiB of data a channel and round, so that 16 channels
carry the sizes for which `default` takes it in one.
To settle: where packets and two-shot cross; the boxes should hold that size in one round."""

STAGING_BYTES = 32 << 20
"""Work places of interpreted schedules: 32 channels with eight places of 128 KiB.
To settle: the most work places of any schedule at the rank counts in use; more room than for a whole slot
each changes nothing."""


@dataclass(frozen=True)
class Tuning:
    """Settings of the environment; 0: it says nothing, and the defaults above hold.

    channels, lanes: of every launch, whatever its size (fewer channels where not all blocks fit). slots,
    slot_bytes, packets_bytes, staging_bytes: of every communicator; they must be the same for all ranks.
    """

    channels: int = 0
    lanes: int = 0
    slots: int = 0
    slot_bytes: int = 0
    packets_bytes: int = 0
    staging_bytes: int = 0

    def __str__(self) -> str:
        """``channels=8, slot_bytes=64 KiB``; empty where nothing is set."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = {
            name: format_size(value) if "bytes" in name else value
            for name, value in settings.items()
        }
        return ", ".join(f"{name}={shown[name]}" for name, value in settings.items() if value)


_ALLOWED: dict[str, tuple[Sequence[int], str]] = {
    "channels": (range(1, 65), "1 to 64"),
    "lanes": (range(32, MOST_LANES + 1, 32), f"a multiple of 32, at most {MOST_LANES}"),
    "slots": ((2, 4, 8, 16, 32, 64), "2, 4, 8, 16, 32 or 64"),
    "slot_bytes": (range(1 << 10, (1 << 30) + 1, 16), "1 KiB to 1 GiB, a multiple of 16"),
    "packets_bytes": (range(64 << 10, (1 << 30) + 1), "64 KiB to 1 GiB"),
    "staging_bytes": (range(64 << 10, (1 << 34) + 1), "64 KiB to 16 GiB"),
}


def tuning() -> Tuning:
    """Settings of the environment; UsageError names what cannot be."""
    numbers = {}
    for variable in sorted(name for name in os.environ if name.startswith(PREFIX)):
        name, text = variable.removeprefix(PREFIX).lower(), os.environ[variable]
        if name not in _ALLOWED:
            names = ", ".join(PREFIX + setting.upper() for setting in _ALLOWED)
            raise UsageError(f"{variable}: there is no such variable; one of {names}")
        if not text:
            continue
        allowed, expected = _ALLOWED[name]
        try:
            numbers[name] = parse_size(text)
        except ValueError as error:
            raise UsageError(f"{variable}: {error}; write {expected}") from None
        if numbers[name] not in allowed:
            raise UsageError(f"{variable}: {text!r} cannot be; write {expected}")
    return Tuning(**numbers)


ALIGNMENT_BYTES = 256
"""Alignment of cudaMalloc, and two lines of the L2 cache."""

ZEROED = ("flags", "state", "errors", "packets")
"""Memory that the host zeroes before the first launch and after an error; it lies in one piece at the start."""


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
        connections = (
            self.channels * self.ranks
        )  # every peer has flags and slots of its own on every channel
        return {
            "flags": connections * abi.FLAG_KINDS * abi.FLAG_STRIDE_WORDS * 8,
            "state": connections * abi.STATE_KINDS * 8,
            "errors": self.channels * abi.ERROR_WORD.itemsize,
            "packets": self.packets_bytes,
            "fifo": connections * self.slots * self.slot_bytes,
            "staging": self.staging_bytes,
        }


def work_areas(ranks: int, most_ranks_of_a_device: int, processors: int) -> WorkAreas:
    """Room for the channels that fit when every multiprocessor runs one block; sizes by tuning.py and the
    environment."""
    tuned = tuning()
    most, slots = tuned.channels or MOST_CHANNELS, tuned.slots or SLOTS
    # Blocks wait for each other, so all blocks of all ranks of a device must run at once.
    channels = max(1, min(most, processors // most_ranks_of_a_device))
    room = FIFO_BYTES // ranks
    if most_ranks_of_a_device > 1:
        room = min(room, LOOPBACK_BYTES // most_ranks_of_a_device)
    # A slot of a connection, on all channels: a power of two, up to SLOT_BYTES.
    each = max(room // (channels * slots), 1)
    return WorkAreas(
        ranks,
        channels,
        slots,
        tuned.slot_bytes
        or max(LEAST_SLOT_BYTES, min(SLOT_BYTES, 1 << (each.bit_length() - 1))),
        tuned.packets_bytes or PACKETS_BYTES,
        tuned.staging_bytes or STAGING_BYTES,
    )


@dataclass(frozen=True)
class KernelBuffers:
    """One rank's input and output in its allocation; in place they overlap, as in nccl-tests."""

    input_offset: int
    input_bytes: int
    output_offset: int
    output_bytes: int
    total_bytes: int


def rank_buffers(case: Case, rank: int) -> KernelBuffers:
    """Places of the input and output of ``rank`` in ``case``.

    In place there is one buffer as long as the longer of the two; the shorter one is its own block of it.
    """
    row = collective(case.collective)
    root = 0 if case.root == NO_ROOT else case.root
    size = item_bytes(case.dtype)
    bytes_in, bytes_out = case.input_count(rank) * size, case.output_count(rank) * size
    if not case.in_place:
        begin = rounded_up(bytes_in, ALIGNMENT_BYTES)
        return KernelBuffers(
            0, bytes_in, begin, bytes_out, rounded_up(begin + bytes_out, ALIGNMENT_BYTES)
        )
    # In place the collective's own slots say where in the longer buffer the shorter one lies.
    inputs = row.inputs(rank, case.ranks, case.ranks, root)
    outputs = row.outputs(rank, case.ranks, case.ranks, root)
    first = min((slots.start for slots in (inputs, outputs) if len(slots)), default=0)
    block = case.count * size if row.blocked else 0
    at_input = (inputs.start - first) * block if len(inputs) else 0
    at_output = (outputs.start - first) * block if len(outputs) else 0
    end = max(at_input + bytes_in, at_output + bytes_out)
    return KernelBuffers(
        at_input, bytes_in, at_output, bytes_out, rounded_up(end, ALIGNMENT_BYTES)
    )


def all_buffers(case: Case) -> tuple[KernelBuffers, ...]:
    """``rank_buffers`` of every rank."""
    return tuple(rank_buffers(case, rank) for rank in range(case.ranks))


def most_channels(
    ranks_here: int, blocks_per_processor: int, processors: int, requested: int
) -> int:
    """The most channels, up to ``requested``, of which all blocks run at once; 0 where not even one does."""
    return min(requested, blocks_per_processor * processors // max(ranks_here, 1))


def ranks_of_devices(ranks: int, devices: int) -> tuple[range, ...]:
    """Ranks of each device: neighbours together, as evenly as can be; no device without ranks."""
    used = min(ranks, devices)
    edges = [ranks * device // used for device in range(used + 1)]
    return tuple(range(begin, end) for begin, end in itertools.pairwise(edges))


def device_of_rank(groups: Sequence[range], rank: int) -> int:
    """The device that holds ``rank``."""
    return next(device for device, group in enumerate(groups) if rank in group)


def lanes_for(bytes_of_channel: int) -> int:
    """Lanes of a block that moves so many bytes: as the environment asks, else one for 16 in whole warps
    from LEAST_LANES; at most MOST_LANES."""
    usual = rounded_up(-(-bytes_of_channel // abi.VECTOR_BYTES), 32)
    return tuning().lanes or max(LEAST_LANES, min(MOST_LANES, usual))
