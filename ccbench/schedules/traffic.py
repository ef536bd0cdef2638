"""How much each rank sends and receives over a whole schedule, counted without expanding its steps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ccbench.schedules.schedule import Phase, Schedule

Pieces = NDArray[np.int64]


def sent_pieces(schedule: Schedule) -> Pieces:
    """Pieces each rank sends to other ranks, shape (ranks,); times n / pieces, these are bytes.

    n is the size of the case (``Collective.size_bytes``) for all collectives, because blocked ones have
    one piece for each of the blocks in that size. Where blocks differ in size (all_to_all_v), pieces are
    counted all the same, and bytes are not in proportion to them.
    """
    return _moved(schedule, outgoing=True)


def received_pieces(schedule: Schedule) -> Pieces:
    """Pieces each rank receives from other ranks, shape (ranks,)."""
    return _moved(schedule, outgoing=False)


def busiest_share(schedule: Schedule) -> float:
    """What the busiest sender sends in all, as a multiple of the size n of the case."""
    return float(sent_pieces(schedule).max()) / schedule.pieces


def _moved(schedule: Schedule, *, outgoing: bool) -> Pieces:
    total = np.zeros(schedule.ranks, dtype=np.int64)
    for phase in schedule.phases:
        end = phase.source if outgoing else phase.target
        moves = phase.advance.source if outgoing else phase.advance.target
        local = _local_turns(phase, schedule.ranks)
        if moves % schedule.ranks == 0:
            np.add.at(total, end, phase.width * (phase.repeat - local))
        elif bool(np.all((local == 0) | (local == phase.repeat))):
            first = np.zeros_like(total)
            np.add.at(first, end, phase.width * (local == 0))
            total += _swept(first, moves, phase.repeat)
        else:
            for turn in range(phase.repeat):
                source = (phase.source + turn * phase.advance.source) % schedule.ranks
                target = (phase.target + turn * phase.advance.target) % schedule.ranks
                np.add.at(total, source if outgoing else target, phase.width * (source != target))
    return total


def _swept(first: Pieces, moves: int, turns: int) -> Pieces:
    """Sum over t < turns of ``first`` rotated by t * moves ranks.

    Rotating by ``moves`` splits the ranks into gcd(moves, ranks) cycles; along a cycle the sum is that of
    a window of ``turns`` positions, whole rounds apart from the rest.
    """
    ranks = len(first)
    cycles = math.gcd(moves, ranks)
    length = ranks // cycles
    order = (np.arange(cycles)[:, None] + moves * np.arange(length)[None, :]) % ranks
    rounds, rest = divmod(turns, length)
    along = first[order]
    ends = np.cumsum(np.concatenate([along, along], axis=1), axis=1)
    window = ends[:, length:] - ends[:, length - rest : 2 * length - rest]
    total = np.empty_like(first)
    total[order] = window + rounds * along.sum(axis=1, keepdims=True)
    return total


def _local_turns(phase: Phase, ranks: int) -> Pieces:
    """In how many of its turns each flow stays on its rank, shape (flows,).

    Source and target drift apart by ``drift`` ranks a turn, so turn t is local where t * drift equals
    their first distance modulo the ranks: every ``ranks / gcd(drift, ranks)`` turns, or never.
    """
    distance = (phase.source.astype(np.int64) - phase.target) % ranks
    drift = (phase.advance.target - phase.advance.source) % ranks
    if drift == 0:
        return np.where(distance == 0, phase.repeat, 0)
    divisor = math.gcd(drift, ranks)
    period = ranks // divisor
    inverse = pow(drift // divisor, -1, period) if period > 1 else 0
    first = distance // divisor * inverse % period
    turns = np.maximum(0, -((first - phase.repeat) // period))
    return np.where(distance % divisor == 0, turns, 0)
