"""Large broadcasts and reductions made of two collectives, each of which moves its bytes only once."""

from __future__ import annotations

from ccbench.schedules.binomial import gather_phases, scatter_phases
from ccbench.schedules.doubling import core_of, halving
from ccbench.schedules.flows import everyone, phase, schedule
from ccbench.schedules.ring import all_gather_phase
from ccbench.schedules.schedule import Schedule


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
