"""Large broadcasts and reductions made of two collectives, each of which moves its bytes only once.

All-reduce in two levels: inside groups (nodes), and between ranks of equal position in each group.
"""

from __future__ import annotations

import math

import numpy as np

from ccbench.schedules.doubling import core_of, halving
from ccbench.schedules.ring import all_gather_phase
from ccbench.schedules.schedule import Advance, Phase, Schedule, everyone, phase, schedule
from ccbench.schedules.tree import gather_phases, scatter_phases


def scatter_all_gather_broadcast(ranks: int, parameter: int) -> Schedule:
    """Binomial scatter of p pieces, then ring all-gather.

    Source: Barnett, Shuler, van de Geijn, Gupta, Payne and Watts, "Interprocessor collective
    communication library (InterCom)", 1994. Steps ceil(log2 p) + p - 1; the root sends 2n(p-1)/p.
    """
    phases = [*scatter_phases(ranks), all_gather_phase(ranks)]
    return schedule("broadcast", "scatter_all_gather", ranks, ranks, phases)


def reduce_scatter_gather_reduce(ranks: int, parameter: int) -> Schedule:
    """Reduce-scatter by recursive halving, then binomial gather of the pieces to the root.

    Source: Rabenseifner, "Optimization of collective reduction operations", 2004. Steps 2 log2 p; a rank
    sends at most n(p-1)/p + n/2. Other than powers of two: one step more, in which some ranks send n.
    """
    core = core_of(ranks)
    phases = [
        phase(core.guest, core.host, 0, width=core.size, reduces=True),
        *halving(core, everyone(core.size + 1)),
        *gather_phases(core.size, core.member),
    ]
    return schedule("reduce", "reduce_scatter_gather", ranks, core.size, phases)


def default_group(ranks: int) -> int:
    """The divisor of ``ranks`` closest to its square root; the smaller one of two equally close."""
    root = math.sqrt(ranks)
    divisors = [size for size in range(1, math.isqrt(ranks) + 1) if ranks % size == 0]
    divisors += [ranks // size for size in divisors]
    return min(divisors, key=lambda size: (abs(size - root), size))


def hierarchical_all_reduce(ranks: int, parameter: int) -> Schedule:
    """Ring reduce-scatter in groups of g = parameter, ring all-reduce across, ring all-gather in groups.

    Rank r has position r mod g in group r div g. Only n/g of each rank crosses between groups.
    Source: Cho, Finkler, Serrano, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning
    on heterogeneous network hierarchy", 2019. Steps 2(g-1) + 2(m-1) with m = p/g groups; every rank
    sends 2n(g-1)/g inside its group and 2(n/g)(m-1)/m to others.
    """
    across_reduce, across_gather = _across(ranks, parameter)
    inside_reduce, inside_gather = _inside(ranks, parameter)
    phases = [inside_reduce, across_reduce, across_gather, inside_gather]
    return schedule("all_reduce", "hierarchical", ranks, ranks, phases, parameter=parameter)


def _inside(ranks: int, group: int) -> tuple[Phase, Phase]:
    """Ring phases inside groups; position i ends the first, and starts the second, with share i.

    A share is ``ranks // group`` consecutive slots, so one flow carries it.
    """
    share = ranks // group
    rank = everyone(ranks)
    position = rank % group
    right = rank - position + (position + 1) % group
    backwards = Advance(source_slot=-share, target_slot=-share)
    reduce_scatter = phase(
        rank,
        right,
        share * ((position - 1) % group),
        width=share,
        reduces=True,
        repeat=group - 1,
        advance=backwards,
    )
    all_gather = phase(rank, right, share * position, width=share, repeat=group - 1, advance=backwards)
    return reduce_scatter, all_gather


def _across(ranks: int, group: int) -> tuple[Phase, Phase]:
    """Ring phases between ranks of equal position, on the share that position holds.

    Flow s belongs to slot s: piece s mod m of the share of position s div m. It keeps its slot and moves
    to the next group in every step, because ranks wrap around at p = m g where slots would not wrap at
    the end of a share.
    """
    groups = ranks // group
    slot = everyone(ranks)
    position, piece = slot // groups, slot % groups
    onwards = Advance(source=group, target=group)

    def ring(first_group: np.ndarray[tuple[int], np.dtype[np.int32]], *, reduces: bool) -> Phase:
        source = first_group % groups * group + position
        target = (first_group + 1) % groups * group + position
        return phase(source, target, slot, reduces=reduces, repeat=groups - 1, advance=onwards)

    return ring(piece + 1, reduces=True), ring(piece, reduces=False)
