"""Orders of summation: which additions made an output, and so what its bits depend on besides its data.

A sum of floating point numbers depends on the order of its additions, and a schedule fixes that order: two
outputs of one order have equal bits for equal data. Where several flows combine into a slot in one step, they
are added in the order of the ranks that hold them, the slot's own among them, as kernels do and as the CPU
backend does out of place. In place the CPU backend begins with the slot's own where that lies there already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from ccbench.collectives import collective
from ccbench.dtypes import EXACT_LIMIT
from ccbench.errors import ScheduleError
from ccbench.schedules import (
    MOST_DEFAULT_PIECES,
    PIECE_BYTES,
    algorithm_row,
    algorithms_of,
    schedule_for,
)
from ccbench.schedules.schedule import Schedule

Order = int | tuple["Order", "Order"]
"""A rank's contribution, or the rounded sum of two orders, first the one that has the smallest rank.

Sums have this one form because addition is commutative bit for bit (NaNs aside); it is not associative.
"""

MOST_RANKS, MOST_MOVES = 128, 1 << 16
"""Ranks, and moves of single slots, that are followed: half a second. Python compares nested tuples by
recursion, so the ranks of a chain must stay well below its limit."""


@dataclass(frozen=True)
class Sum:
    """An order with its ranks, a bit for each, and its height: most roundings that a contribution passes."""

    order: Order
    ranks: int
    height: int

    @classmethod
    def of(cls, rank: int) -> Sum:
        """Return the contribution of ``rank`` alone."""
        return cls(rank, 1 << rank, 0)

    def __add__(self, added: Sum) -> Sum:
        """Return the sum of both; ScheduleError where a rank would be in it twice."""
        twice = self.ranks & added.ranks
        if twice:
            raise ScheduleError(
                f"rank {twice.bit_length() - 1} is added twice, expected once; prove the schedule first"
            )
        # A number's lowest bit is what it has in common with its negative.
        first, second = sorted((self, added), key=lambda part: part.ranks & -part.ranks)
        height = 1 + max(self.height, added.height)
        return Sum((first.order, second.order), self.ranks | added.ranks, height)


def chain(ranks: Iterable[int]) -> Sum:
    """Return ((first + second) + third) + ..."""
    return reduce(Sum.__add__, map(Sum.of, ranks))


@dataclass(frozen=True)
class BitDependence:
    """What the bits of a sum depend on besides its data.

    positions: on an element's place in the message, and so on the message's size, whose parts slots are.
    ranks: on the rank that holds the sum. sums: the distinct ones.
    """

    positions: bool
    ranks: bool
    sums: tuple[Sum, ...]

    @property
    def depth(self) -> int:
        """Most roundings that any contribution passes."""
        return max(total.height for total in self.sums)

    @property
    def orders(self) -> tuple[Order, ...]:
        """Orders of the sums."""
        return tuple(total.order for total in self.sums)


def followed(schedule: Schedule) -> bool:
    """Return whether ``schedule`` is of at most MOST_RANKS ranks and MOST_MOVES moves."""
    moves = sum(int(phase.width.sum()) * phase.repeat for phase in schedule.phases)
    return schedule.ranks <= MOST_RANKS and moves <= MOST_MOVES


def orders(schedule: Schedule, own_first: bool = False) -> Mapping[tuple[int, int], Order]:
    """Return (rank, output slot) -> the order in which its contributions are combined.

    own_first: what fans in begins with the slot's own, as on the CPU in place, unless others read the slot in
    that step: then the sum is made elsewhere. The CPU makes further sums elsewhere in double_binary_tree and in
    reduce's direct, whose orders then are those of ranks.
    The schedule's collective reduces, and it is proven; ScheduleError where it is too wrong to be followed.
    """
    return {key: total.order for key, total in _sums(schedule, own_first).items()}


def _sums(schedule: Schedule, own_first: bool = False) -> dict[tuple[int, int], Sum]:
    row, ranks, pieces = collective(schedule.collective), schedule.ranks, schedule.pieces
    held = {
        (rank, slot): Sum.of(rank)
        for rank in range(ranks)
        for slot in row.inputs(rank, ranks, pieces, schedule.root)
    }
    try:
        for step in schedule.expanded():
            # Everything is read before anything is written.
            arriving: dict[tuple[int, int], list[tuple[int, Sum]]] = {}
            leaving: set[tuple[int, int]] = set()
            flows = (ends.tolist() for ends in schedule.single_slots(step))
            for source, read, target, written in zip(*flows, strict=True):
                arriving.setdefault((target, written), []).append((source, held[source, read]))
                leaving.add((source, read))
            if step.phase.reduces:
                for key, parts in arriving.items():
                    first = own_first and key not in leaving
                    parts.append((-1 if first else key[0], held[key]))
                    parts.sort(key=lambda part: part[0])
            for key, parts in arriving.items():
                held[key] = reduce(Sum.__add__, (part for _, part in parts))
        return {
            (rank, slot): held[rank, slot]
            for rank in range(ranks)
            for slot in row.outputs(rank, ranks, pieces, schedule.root)
        }
    except KeyError as error:
        rank, slot = error.args[0]
        raise ScheduleError(
            f"{schedule.collective} {schedule.algorithm}, {ranks} ranks: slot {slot} of rank {rank} is read, "
            "but nothing was written to it; prove the schedule first"
        ) from None


def bit_dependence(schedule: Schedule, own_first: bool = False) -> BitDependence:
    """Return what the bits of the schedule's sums depend on; see ``orders`` for what is expected of it.

    own_first: as of ``orders``.
    Where the algorithm's parameter follows from the size, the schedules of some more sizes count, too.
    """
    blocked = collective(schedule.collective).blocked
    by_holder: dict[int, set[Sum]] = {}
    by_piece: dict[tuple[int, int], set[Sum]] = {}
    for size, of_size in enumerate((schedule, *_of_more_sizes(schedule))):
        for (rank, slot), total in _sums(of_size, own_first).items():
            # A rank's block is a part of the message that all ranks have together.
            by_holder.setdefault(0 if blocked else rank, set()).add(total)
            by_piece.setdefault((size, slot), set()).add(total)
    return BitDependence(
        positions=any(len(held) > 1 for held in by_holder.values()),
        ranks=any(len(held) > 1 for held in by_piece.values()),
        sums=tuple(set().union(*by_holder.values())),
    )


def _of_more_sizes(schedule: Schedule) -> Iterator[Schedule]:
    name, ranks = schedule.collective, schedule.ranks
    # A schedule that was built by hand has no row to say what it is at other sizes.
    if schedule.algorithm not in algorithms_of(name):
        return
    row = algorithm_row(name, schedule.algorithm)
    parameters = {
        row.default_parameter(ranks, pieces * PIECE_BYTES)
        for pieces in (1, 2, 3, MOST_DEFAULT_PIECES)
    }
    # Where all sizes have one default, a schedule with another parameter was named so, for all sizes.
    if len(parameters) == 1:
        return
    for parameter in sorted(parameters - {schedule.parameter}):
        if row.unsupported(ranks, parameter) is None:
            made = schedule_for(
                name, row.name, ranks, schedule.root, parameter=parameter, prove=False
            )
            if followed(made):
                yield made


def unit_roundoff(dtype: str) -> float:
    """Return half the distance from 1 to the next larger number of a floating point ``dtype``."""
    return 1 / EXACT_LIMIT[dtype]


def error_bound(depth: int, dtype: str) -> float:
    """Return the most that a sum may be wrong, as a share of the sum of its contributions' magnitudes.

    gamma_k = k u / (1 - k u), where k = ``depth`` (one more for an average) and u is the unit roundoff of the
    floating point ``dtype``; infinite from k u = 1 on. Each contribution passes k roundings at most: N. J.
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, lemma 3.1 and section 4.2
    (eq. 4.4 for chains, 4.6 for pairs). Nothing may overflow.
    """
    relative = depth * unit_roundoff(dtype)
    return relative / (1 - relative) if relative < 1 else math.inf
