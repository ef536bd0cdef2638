"""What every builder needs: phases from broadcastable indices, schedules from phases, another root."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from ccbench.collectives import collective
from ccbench.schedules.schedule import Advance, Indices, Phase, Schedule

STILL = Advance()
"""Nothing advances: every repetition is alike."""


def phase(
    source: ArrayLike,
    target: ArrayLike,
    source_slot: ArrayLike,
    target_slot: ArrayLike | None = None,
    width: ArrayLike = 1,
    *,
    reduces: bool = False,
    repeat: int = 1,
    advance: Advance = STILL,
    fan_in: bool = False,
    pushed: bool = False,
) -> Phase:
    """A phase whose indices are broadcast against each other; without ``target_slot``, as source_slot.

    The arrays are read-only, because schedules are cached and shared.
    """
    ends = source_slot if target_slot is None else target_slot
    first, second, third, fourth, fifth = np.broadcast_arrays(source, target, source_slot, ends, width)
    return Phase(
        frozen(first),
        frozen(second),
        frozen(third),
        frozen(fourth),
        frozen(fifth),
        reduces=reduces,
        repeat=repeat,
        advance=advance,
        fan_in=fan_in,
        pushed=pushed,
    )


def frozen(array: ArrayLike) -> Indices:
    """A read-only one-dimensional int32 copy."""
    copy: Indices = np.array(array, dtype=np.int32, ndmin=1)
    copy.setflags(write=False)
    return copy


def schedule(
    name: str,
    algorithm: str,
    ranks: int,
    pieces: int,
    phases: Iterable[Phase],
    *,
    parameter: int = 0,
    work_regions: int = 0,
) -> Schedule:
    """The schedule of ``phases`` with root 0 where there is a root; empty phases are dropped."""
    row = collective(name)
    return Schedule(
        collective=name,
        algorithm=algorithm,
        ranks=ranks,
        pieces=pieces,
        slots=row.slots(ranks, pieces) + work_regions * pieces,
        phases=tuple(phase for phase in phases if phase.flows and phase.repeat),
        root=0 if row.rooted else -1,
        parameter=parameter,
    )


def relabelled(built: Schedule, root: int) -> Schedule:
    """``built`` (made for root 0) for another root: every rank, and every block, moves up by ``root``.

    Rotations commute with Advance, which wraps ranks, and block slots inside their region. Pieces of a
    collective that is not blocked belong to no rank and stay where they are.
    """
    if root == 0:
        return built
    turn = root if collective(built.collective).blocked else 0
    phases = tuple(
        replace(
            one,
            source=frozen((one.source + root) % built.ranks),
            target=frozen((one.target + root) % built.ranks),
            source_slot=frozen(built.wrapped(one.source_slot, turn)),
            target_slot=frozen(built.wrapped(one.target_slot, turn)),
        )
        for one in built.phases
    )
    return replace(built, phases=phases, root=root)


def everyone(ranks: int) -> Indices:
    """0, 1, ..., ranks - 1."""
    return np.arange(ranks, dtype=np.int32)


def ordered_pairs(ranks: int) -> tuple[Indices, Indices]:
    """All (source, target) with source != target, by source, then by distance to the target.

    Targets come in the order source+1, source+2, ...: ranks that work through their lists in step then
    never meet at the same target.
    """
    source = np.repeat(everyone(ranks), ranks - 1)
    distance = np.tile(np.arange(1, ranks, dtype=np.int32), ranks)
    return source, ((source + distance) % ranks).astype(np.int32)


def distances_up_to(ranks: int) -> list[int]:
    """1, 2, 4, ... below ``ranks``: ceil(log2 ranks) of them."""
    return [1 << bit for bit in range((ranks - 1).bit_length())]
