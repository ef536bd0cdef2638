"""A schedule: who sends which slot to whom, step by step, as a few phases of NumPy arrays.

With what every builder needs: phases from broadcastable indices, schedules from phases, another root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccbench.collectives import collective

Indices = NDArray[np.int32]


@dataclass(frozen=True)
class Advance:
    """Amounts added to each index at every repetition of a phase.

    Ranks wrap at the number of ranks. Slots come in regions of ``pieces`` slots (region 0 is where the
    collective's inputs start); an advancing slot wraps inside its region, and so does a wide flow.
    """

    source: int = 0
    target: int = 0
    source_slot: int = 0
    target_slot: int = 0


# Phase, Step and Schedule hold arrays, so they are equal only to themselves (eq=False): field-wise
# comparison of arrays has no truth value, and identity lets callers cache by schedule.
@dataclass(frozen=True, eq=False)
class Phase:
    """``repeat`` steps, each a set of flows that happen at once.

    Flow ``i`` takes ``width[i]`` consecutive slots of rank ``source[i]`` from ``source_slot[i]`` on and
    copies them to (or combines them into) as many slots of rank ``target[i]`` from ``target_slot[i]`` on
    (wrapping as Advance says).
    All arrays have shape (flows,) and dtype int32. Every flow of a step reads what was there before the
    step. A flow with source == target is a local move and costs no link.

    reduces: flows combine into the target slot instead of overwriting it.
    fan_in: several flows may combine into one slot in one step; the target does that work alone.
        Without it two flows into one slot are an error.
    pushed: the source writes into the target's memory (needs no notice from the target); otherwise the
        target reads the source's memory. Says who does the work, never what the result is.
    """

    source: Indices
    target: Indices
    source_slot: Indices
    target_slot: Indices
    width: Indices
    reduces: bool = False
    repeat: int = 1
    advance: Advance = Advance()
    fan_in: bool = False
    pushed: bool = False

    @property
    def executed_by_source(self) -> bool:
        """True if the source of a flow does its work, else the target does; what fans in, its owner adds."""
        return self.pushed and not self.fan_in

    @property
    def flows(self) -> int:
        """Flows in one step."""
        return len(self.source)


@dataclass(frozen=True, eq=False)
class Step:
    """One expanded step of a phase; ``index`` counts steps over the whole schedule."""

    index: int
    phase: Phase
    source: Indices
    target: Indices
    source_slot: Indices
    target_slot: Indices


@dataclass(frozen=True, eq=False)
class Schedule:
    """An algorithm made concrete for a number of ranks.

    pieces: into how many equal parts a collective's unit is cut: slot s has the size of piece
        ``s % pieces``. Equals ``ranks`` for blocked collectives (each piece is a whole block).
    slots: slots per rank; those beyond the collective's own are work space.
    parameter: the algorithm's parameter (group size, pieces, shift distance), 0 where it has none.
    """

    collective: str
    algorithm: str
    ranks: int
    pieces: int
    slots: int
    phases: tuple[Phase, ...]
    root: int = -1
    parameter: int = 0

    @property
    def steps(self) -> int:
        """Communication steps, repeats counted; steps of local moves only are not counted."""
        return sum(
            phase.repeat for phase in self.phases if bool(np.any(phase.source != phase.target))
        )

    def wrapped(self, slots: Indices, offset: int | Indices) -> Indices:
        """Return ``slots`` moved by ``offset``, each inside its own region of ``pieces`` slots."""
        inside = (slots + offset) % self.pieces
        return slots - slots % self.pieces + inside

    def single_slots(self, step: Step) -> tuple[Indices, Indices, Indices, Indices]:
        """Return source, its slot, target, its slot of the flows of ``step``, cut into flows of one slot."""
        width = step.phase.width
        if bool(np.all(width == 1)):
            return step.source, step.source_slot, step.target, step.target_slot
        flow = np.repeat(np.arange(len(width)), width)
        within = (np.arange(len(flow)) - np.repeat(np.cumsum(width) - width, width)).astype(
            np.int32
        )
        read, written = (
            self.wrapped(slots[flow], within) for slots in (step.source_slot, step.target_slot)
        )
        return step.source[flow], read, step.target[flow], written

    def expanded(self) -> Iterator[Step]:
        """Yield every step in order, indices advanced."""
        index = 0
        for phase in self.phases:
            for turn in range(phase.repeat):
                yield self.turn(phase, turn, index)
                index += 1

    def turn(self, phase: Phase, turn: int, index: int) -> Step:
        """Return repetition ``turn`` of ``phase``, the step number ``index`` of the schedule."""
        advance = phase.advance
        return Step(
            index,
            phase,
            (phase.source + turn * advance.source) % self.ranks,
            (phase.target + turn * advance.target) % self.ranks,
            self.wrapped(phase.source_slot, turn * advance.source_slot),
            self.wrapped(phase.target_slot, turn * advance.target_slot),
        )


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
    """Return a phase whose indices are broadcast against each other; without ``target_slot``, as source_slot.

    The arrays are read-only, because schedules are cached and shared.
    """
    ends = source_slot if target_slot is None else target_slot
    senders, receivers, read, written, widths = (
        frozen(array) for array in np.broadcast_arrays(source, target, source_slot, ends, width)
    )
    return Phase(
        senders,
        receivers,
        read,
        written,
        widths,
        reduces=reduces,
        repeat=repeat,
        advance=advance,
        fan_in=fan_in,
        pushed=pushed,
    )


def frozen(array: ArrayLike) -> Indices:
    """Return a read-only one-dimensional int32 copy."""
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
    """Return the schedule of ``phases`` with root 0 where there is a root; empty phases are dropped."""
    row = collective(name)
    return Schedule(
        collective=name,
        algorithm=algorithm,
        ranks=ranks,
        pieces=pieces,
        slots=row.slots(ranks, pieces) + work_regions * pieces,
        # With few ranks some steps of a general form have nobody to do them.
        phases=tuple(phase for phase in phases if phase.flows and phase.repeat),
        root=0 if row.rooted else -1,
        parameter=parameter,
    )


def relabelled(built: Schedule, root: int) -> Schedule:
    """Return ``built`` (made for root 0) for another root: every rank, and every block, moves up by ``root``.

    Rotations commute with Advance, which wraps ranks, and block slots inside their region. Pieces of a
    collective that is not blocked belong to no rank and stay where they are.
    """
    if root == 0:
        return built
    turn = root if collective(built.collective).blocked else 0
    phases = tuple(
        replace(
            phase,
            source=frozen((phase.source + root) % built.ranks),
            target=frozen((phase.target + root) % built.ranks),
            source_slot=frozen(built.wrapped(phase.source_slot, turn)),
            target_slot=frozen(built.wrapped(phase.target_slot, turn)),
        )
        for phase in built.phases
    )
    return replace(built, phases=phases, root=root)


def everyone(ranks: int) -> Indices:
    """Return 0, 1, ..., ranks - 1."""
    return np.arange(ranks, dtype=np.int32)


def ordered_pairs(ranks: int) -> tuple[Indices, Indices]:
    """Return all (source, target) with source != target, by source, then by distance to the target.

    Targets come in the order source+1, source+2, ...: ranks that work through their lists in step then
    never meet at the same target.
    """
    source = np.repeat(everyone(ranks), ranks - 1)
    distance = np.tile(np.arange(1, ranks, dtype=np.int32), ranks)
    return source, ((source + distance) % ranks).astype(np.int32)


def distances_up_to(ranks: int) -> list[int]:
    """Return 1, 2, 4, ... below ``ranks``: ceil(log2 ranks) of them."""
    return [1 << bit for bit in range((ranks - 1).bit_length())]


def sent_pieces(schedule: Schedule) -> NDArray[np.int64]:
    """Return the pieces each rank sends to other ranks, shape (ranks,); times n / pieces, these are bytes.

    n is the size of the case (``Collective.size_bytes``) for all collectives, because blocked ones have
    one piece for each of the blocks in that size. Where blocks differ in size (all_to_all_v), pieces are
    counted all the same, and bytes are not in proportion to them.
    """
    ranks, total = schedule.ranks, np.zeros(schedule.ranks, dtype=np.int64)
    for phase in schedule.phases:
        away, towards = phase.advance.source % ranks, phase.advance.target % ranks
        # Turns in which sources stay are counted at once: a flow is local where its target has come to it.
        turns = 1 if away else phase.repeat
        met = np.bincount(-towards * np.arange(turns) % ranks, minlength=ranks)
        for turn in range(0, phase.repeat, turns):
            source = (phase.source + turn * away) % ranks
            distance = (phase.target + turn * towards - source) % ranks
            np.add.at(total, source, phase.width * (turns - met[distance]))
    return total
