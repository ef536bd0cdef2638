"""How wide and how deep kernels run: every number that was chosen, why, and what measurement would settle it.

None of these was tuned on a machine with several GPUs. Each has a default here and a variable of the
environment, so that whoever has the machine can try others without touching code; results keep the same name,
so give such runs a directory of their own. What stands in the sources because it is compiled: COPIES_AT_ONCE
(primitives.cuh), SENDERS_AT_ONCE and PACKET_CHANNELS (ll.cu), MESSAGE_PIECES (traffic.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from ccbench.backends.kernels import abi
from ccbench.errors import UsageError
from ccbench.units import format_size, parse_size

PREFIX = "CCBENCH_KERNEL_"

MOST_CHANNELS = 24
"""Blocks that a rank runs. Little's law: a link of 450 GB/s with 2 us of latency has 0.9 MB under way,
which is 14 blocks with 64 KiB each in flight; NCCL takes 16 to 32 on NVSwitch machines (its log says how
many).
To settle: bandwidth of ring_all_reduce of 1 GiB at 8, 16, 24 and 32 channels on 2 and on 8 GPUs; the fewest
that reach 98% of the best."""

CHANNEL_BYTES = 64 << 10
"""A channel more for every so many bytes: 512 lanes with eight loads of 16 bytes in flight hold 64 KiB, so
that a block with less has nothing to overlap.
To settle: time of two-shot and ring at 64 KiB to 8 MiB over the number of channels; where one more stops
helping."""

LEAST_LANES = 64
"""Two warps: one would wait for memory with nobody to take its place.
To settle: isolated time of ll_all_reduce of 8 B to 1 KiB at 32, 64 and 128 lanes."""

MOST_LANES = abi.MAX_LANES
"""Registers are limited for so many (65,536 / 512 = 128 a lane); vLLM found blocks of 512 best for meshes
on A100 and V100 (csrc/custom_all_reduce.cuh).
To settle: bandwidth of ring and two-shot of 256 MiB at 256 and 512 lanes."""

SLOTS = 4
"""Messages under way on a connection: one is filled, one is under way, one is taken, and one makes up for
drift; NCCL has 8 steps (NCCL_STEPS). More take L2 cache where one GPU holds all of them.
To settle: bandwidth of ring_all_reduce of 256 MiB at 2, 4 and 8 slots of the same total size."""

SLOT_BYTES = 128 << 10
"""One message. A step costs a fence and a flag, 2 to 4 us; a link's share of one block of 24, 19 GB/s,
takes 7 us for 128 KiB.
To settle: bandwidth of ring_all_reduce of 256 MiB at 32 KiB to 1 MiB, with 4 slots."""

LOOPBACK_SLOT_BYTES = 64 << 10
"""Where one GPU holds all ranks' slots: 8 ranks x 16 channels x 4 slots x 64 KiB are 32 MiB in use at once,
which stays within the 50 MB L2 cache of an H100.
To settle: loopback ring_all_reduce of 256 MiB over 8 ranks at 16 to 128 KiB, with ncu's L2 hit rate beside
it."""

PACKETS_BYTES = 4 << 20
"""Boxes of the low-latency protocol: with 8 ranks 32 KiB of data a channel and round, the size up to which
`default` takes it.
To settle: where ll and one-shot cross; the boxes should hold that size in one round."""

STAGING_BYTES = 32 << 20
"""Work places of interpreted schedules: 24 channels with ten places of 128 KiB.
To settle: the most work places of any schedule at the rank counts in use; more room than for a whole slot
each changes nothing."""


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


@dataclass(frozen=True)
class Tuning:
    """What the environment says; 0: it says nothing, and the defaults above hold.

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
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        shown = {name: format_size(value) if "bytes" in name else value for name, value in given.items()}
        return ", ".join(f"{name}={shown[name]}" for name, value in given.items() if value)


@dataclass(frozen=True)
class _Variable:
    read: Callable[[str], int]
    fits: Callable[[int], bool]
    expected: str


_VARIABLES: dict[str, _Variable] = {
    "channels": _Variable(_whole, lambda n: 1 <= n <= 64, "1 to 64"),
    "lanes": _Variable(
        _whole, lambda n: 32 <= n <= MOST_LANES and n % 32 == 0, f"a multiple of 32, at most {MOST_LANES}"
    ),
    "slots": _Variable(_whole, lambda n: 2 <= n <= 64 and n & (n - 1) == 0, "2, 4, 8, 16, 32 or 64"),
    "slot_bytes": _Variable(
        parse_size, lambda n: 1 << 10 <= n <= 1 << 30 and n % 16 == 0, "1 KiB to 1 GiB, a multiple of 16"
    ),
    "packets_bytes": _Variable(parse_size, lambda n: 64 << 10 <= n <= 1 << 30, "64 KiB to 1 GiB"),
    "staging_bytes": _Variable(parse_size, lambda n: 64 << 10 <= n <= 1 << 34, "64 KiB to 16 GiB"),
}


def variable(name: str) -> str:
    """The variable of the environment for a field of Tuning."""
    return PREFIX + name.upper()


def tuning(environment: Mapping[str, str] | None = None) -> Tuning:
    """What ``environment`` (by default the process's own) sets; UsageError names what cannot be."""
    given = os.environ if environment is None else environment
    unknown = sorted(
        key for key in given if key.startswith(PREFIX) and key.removeprefix(PREFIX).lower() not in _VARIABLES
    )
    if unknown:
        known = ", ".join(map(variable, _VARIABLES))
        raise UsageError(f"{unknown[0]}: there is no such variable; one of {known}")
    return Tuning(
        **{
            name: _read(name, one, given[variable(name)])
            for name, one in _VARIABLES.items()
            if given.get(variable(name))
        }
    )


def _read(name: str, one: _Variable, text: str) -> int:
    try:
        number = one.read(text.strip())
    except ValueError as error:
        raise UsageError(f"{variable(name)}: {error}; write {one.expected}") from None
    if not one.fits(number):
        raise UsageError(f"{variable(name)}: {text!r} cannot be; write {one.expected}")
    return number
