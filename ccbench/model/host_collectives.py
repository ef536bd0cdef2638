"""What MPI's and Gloo's collectives cost between hosts: their algorithms' messages on a probed network.

An algorithm is a list of stages; in a stage some messages leave together, so many times in a row. Ring,
recursive doubling, recursive halving, binomial tree, Bruck and pairwise exchange are as in Thakur,
Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19 (2005) 49;
pipelines and chains as in Pjesivac-Grbovic et al., "Performance Analysis of MPI Collective Operations",
Cluster Computing 10 (2007) 127. Which ones a library has: gloo/allreduce.cc, allgather.cc, broadcast.cc,
reduce.cc, alltoall.cc, gather.cc, scatter.cc and barrier.cc in github.com/pytorch/gloo; ompi/mca/coll/base in
github.com/open-mpi/ompi and src/mpi/coll in github.com/pmodels/mpich for MPI.

Gloo has one algorithm for each. Of MPI's the cheapest counts, unless the case names one: what a library would
choose if it knew this network. Arithmetic is left out; between hosts it is hidden by the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ccbench.cases import Case
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes
from ccbench.model.host_network import HostNetwork
from ccbench.model.prediction import Prediction
from ccbench.units import format_rate, format_seconds

HOST_LIBRARIES = ("mpi", "gloo")
"""Backends whose collectives are made of messages between processes."""

SEGMENTS_BYTES = (8 << 10, 64 << 10, 128 << 10)
"""Into which MPI libraries cut what they pass on in pipelines."""

Messages = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Stage:
    """Messages that leave together, each of ``share`` of the buffer, ``times`` in a row.

    share: of the collective's size. segment_bytes: not 0 where the stage is a pipeline, in which such pieces
    follow each other, each over all of ``times`` hops. overlapped: messages go in two halves at once.
    """

    messages: Messages
    share: float
    times: int = 1
    segment_bytes: int = 0
    overlapped: bool = False


Plan = list[Stage]
Maker = Callable[[int, int], Plan]
"""(ranks, root) -> plan."""


def _ring(ranks: int) -> Messages:
    return tuple((rank, (rank + 1) % ranks) for rank in range(ranks))


def _exchange(ranks: int, distance: int) -> Messages:
    """Partners that differ in one bit; where ranks are no power of two, those without a partner rest."""
    return tuple((rank, rank ^ distance) for rank in range(ranks) if rank ^ distance < ranks)


def _shift(ranks: int, distance: int) -> Messages:
    return tuple((rank, (rank + distance) % ranks) for rank in range(ranks))


def _distances(ranks: int) -> list[int]:
    """1, 2, 4, ... below ``ranks``."""
    return [1 << bit for bit in range((ranks - 1).bit_length())]


def _tree(ranks: int, root: int, distance: int) -> Messages:
    """A binomial tree's stage in which ranks below ``distance`` (from the root on) send that far."""
    numbers = range(min(distance, ranks - distance))
    return tuple(((root + one) % ranks, (root + one + distance) % ranks) for one in numbers)


def _uneven(ranks: int) -> Plan:
    """What is sent before and after so that a power of two of ranks is left, of the whole buffer."""
    power = 1 << (ranks.bit_length() - 1)
    extra = tuple((power + one, one) for one in range(ranks - power))
    return [Stage(extra, 1.0), Stage(tuple((b, a) for a, b in extra), 1.0)] if extra else []


def ring_reduce_scatter(ranks: int, root: int) -> Plan:
    """Each block once round the ring."""
    return [Stage(_ring(ranks), 1 / ranks, ranks - 1)]


def ring_all_gather(ranks: int, root: int) -> Plan:
    """The same without sums."""
    return ring_reduce_scatter(ranks, root)


def ring_all_reduce(ranks: int, root: int) -> Plan:
    """Both, one after the other."""
    return [Stage(_ring(ranks), 1 / ranks, 2 * (ranks - 1))]


def overlapped(make: Maker) -> Maker:
    """The same with every message in two, as Gloo sends them to add one while the other is on its way.

    Two that are on their way together wait for one latency.
    """

    def made(ranks: int, root: int) -> Plan:
        return [replace(stage, overlapped=True) for stage in make(ranks, root)]

    return made


def doubling_all_reduce(ranks: int, root: int) -> Plan:
    """Everything to partners ever farther away."""
    power = 1 << (ranks.bit_length() - 1)
    return [*_uneven(ranks), *(Stage(_exchange(power, d), 1.0) for d in _distances(power))]


def halving_all_reduce(ranks: int, root: int) -> Plan:
    """Rabenseifner's: halves, quarters, ... scattered, then gathered the same way back."""
    power = 1 << (ranks.bit_length() - 1)
    one_way = [Stage(_exchange(power, power // (2 * d)), 1 / (2 * d)) for d in _distances(power)]
    return [*_uneven(ranks), *one_way, *reversed(one_way)]


def halving_reduce_scatter(ranks: int, root: int) -> Plan:
    """The first half of that."""
    power = 1 << (ranks.bit_length() - 1)
    one_way = [Stage(_exchange(power, power // (2 * d)), 1 / (2 * d)) for d in _distances(power)]
    return [*_uneven(ranks), *one_way]


def bruck_all_gather(ranks: int, root: int) -> Plan:
    """Twice as much to ranks twice as far, as with recursive doubling where ranks are a power of two."""
    return [Stage(_shift(ranks, d), min(d, ranks - d) / ranks) for d in _distances(ranks)]


def doubling_all_gather(ranks: int, root: int) -> Plan:
    """Partners give each other all that they have."""
    if ranks & (ranks - 1):
        return bruck_all_gather(ranks, root)
    return [Stage(_exchange(ranks, d), d / ranks) for d in _distances(ranks)]


def linear_all_to_all(ranks: int, root: int) -> Plan:
    """Every rank to every other, in turns."""
    return [Stage(_shift(ranks, distance), 1 / ranks) for distance in range(1, ranks)]


def binomial_broadcast(ranks: int, root: int) -> Plan:
    """Whoever has it hands it on."""
    return [Stage(_tree(ranks, root, distance), 1.0) for distance in _distances(ranks)]


def binomial_broadcast_at_once(ranks: int, root: int) -> Plan:
    """The same tree, where a rank begins with all of its messages at once, which then share its port."""

    def children(number: int) -> Messages:
        distances = (distance for distance in _distances(ranks) if distance > number)
        below = (number + distance for distance in distances if number + distance < ranks)
        return tuple(((root + number) % ranks, (root + child) % ranks) for child in below)

    depths: dict[int, list[tuple[int, int]]] = {}
    for number in range(ranks):
        depths.setdefault(number.bit_count(), []).extend(children(number))
    return [Stage(tuple(messages), 1.0) for _, messages in sorted(depths.items()) if messages]


def binomial_reduce(ranks: int, root: int) -> Plan:
    """The same tree, towards the root."""
    return [
        Stage(tuple((target, source) for source, target in stage.messages), 1.0)
        for stage in reversed(binomial_broadcast(ranks, root))
    ]


def pipeline_broadcast(ranks: int, root: int, segment_bytes: int) -> Plan:
    """From rank to rank in pieces, so that all links are busy."""
    chain = tuple(((root + one) % ranks, (root + one + 1) % ranks) for one in range(ranks - 1))
    return [Stage(chain, 1.0, ranks - 1, segment_bytes)]


def scatter_broadcast(ranks: int, root: int) -> Plan:
    """Van de Geijn's: scattered down a tree, then gathered round the ring."""
    return [*binomial_scatter(ranks, root), *ring_all_gather(ranks, root)]


def binomial_scatter(ranks: int, root: int) -> Plan:
    """Half of the blocks to the far half, and so on."""
    return [
        Stage(tuple((m[0], m[1]) for m in _tree(ranks, root, d)[:1] or ()), min(d, ranks - d) / ranks)
        for d in reversed(_distances(ranks))
    ]


def binomial_gather(ranks: int, root: int) -> Plan:
    """The same, towards the root."""
    return [
        Stage(tuple((target, source) for source, target in stage.messages), stage.share)
        for stage in reversed(binomial_scatter(ranks, root))
    ]


def linear_scatter(ranks: int, root: int) -> Plan:
    """The root to each in turn."""
    return [Stage(((root, rank),), 1 / ranks) for rank in range(ranks) if rank != root]


def linear_gather(ranks: int, root: int) -> Plan:
    """Each in turn to the root."""
    return [Stage(((rank, root),), 1 / ranks) for rank in range(ranks) if rank != root]


def ring_shift(ranks: int, root: int) -> Plan:
    """Everybody to the next."""
    return [Stage(_ring(ranks), 1.0)]


def dissemination(ranks: int, root: int) -> Plan:
    """Empty messages to ranks ever farther away."""
    return [Stage(_shift(ranks, distance), 0.0) for distance in _distances(ranks)]


def gathered_reduce(ranks: int, root: int) -> Plan:
    """Blocks are summed round the ring, then gathered by the root."""
    return [*ring_reduce_scatter(ranks, root), *linear_gather(ranks, root)]


def _pipelines(ranks: int, root: int) -> dict[str, Plan]:
    return {f"pipeline {size}": pipeline_broadcast(ranks, root, size) for size in SEGMENTS_BYTES}


GLOO_PLANS: dict[str, tuple[str, Maker]] = {
    "all_reduce": ("ring", overlapped(ring_all_reduce)),
    "all_gather": ("ring", overlapped(ring_all_gather)),
    "reduce_scatter": ("halving", halving_reduce_scatter),
    "broadcast": ("binomial", binomial_broadcast_at_once),
    "reduce": ("ring", gathered_reduce),
    "all_to_all": ("pairwise", linear_all_to_all),
    "gather": ("linear", linear_gather),
    "scatter": ("linear", linear_scatter),
    "send_recv": ("shift", ring_shift),
    "barrier": ("dissemination", dissemination),
}
"""What Gloo does, with its name."""

MPI_PLANS: dict[str, dict[str, Maker]] = {
    "all_reduce": {
        "ring": ring_all_reduce,
        "recursive_doubling": doubling_all_reduce,
        "rabenseifner": halving_all_reduce,
    },
    "all_gather": {
        "ring": ring_all_gather,
        "recursive_doubling": doubling_all_gather,
        "bruck": bruck_all_gather,
    },
    "reduce_scatter": {"ring": ring_reduce_scatter, "recursive_halving": halving_reduce_scatter},
    "broadcast": {"binomial": binomial_broadcast, "scatter_allgather": scatter_broadcast},
    "reduce": {"binomial": binomial_reduce, "scatter_gather": gathered_reduce},
    "all_to_all": {"pairwise": linear_all_to_all},
    "gather": {"linear": linear_gather, "binomial": binomial_gather},
    "scatter": {"linear": linear_scatter, "binomial": binomial_scatter},
    "send_recv": {"shift": ring_shift},
    "barrier": {"dissemination": dissemination},
}
"""Among which MPI libraries choose; pipelines of broadcast are added by segment size."""


def plan_seconds(plan: Plan, size_bytes: int, network: HostNetwork) -> float:
    """The stages' times, one after another."""
    total = 0.0
    for stage in plan:
        if stage.segment_bytes:
            pieces = max(1, -(-size_bytes // stage.segment_bytes))
            piece = min(size_bytes, stage.segment_bytes)
            hop = float(network.step_seconds(stage.messages[:1], piece))
            # While pieces stream over all hops at once, ports carry them both ways and share as a stage does.
            flow = float(network.step_seconds(stage.messages, piece))
            flow = max(flow, network.sustained_seconds(stage.messages, piece))
            total += stage.times * hop + (pieces - 1) * flow
        else:
            share = stage.share * size_bytes
            total += stage.times * float(network.step_seconds(stage.messages, share, stage.overlapped))
    return total


def _plans(case: Case, ranks: int, root: int, algorithm: str) -> dict[str, Plan]:
    """The plans among which the library chooses, by name; one alone where the case names one."""
    if case.backend == "gloo":
        name, make = GLOO_PLANS[case.collective]
        return {name: make(ranks, root)}
    plans = {name: make(ranks, root) for name, make in MPI_PLANS[case.collective].items()}
    if case.collective == "broadcast":
        plans |= _pipelines(ranks, root)
    named = algorithm.removeprefix("mpi:").replace("-", "_")
    return {name: plan for name, plan in plans.items() if name.split()[0] == named} if named else plans


def predict_between_hosts(case: Case, network: HostNetwork, algorithm_used: str = "") -> Prediction | None:
    """What one launch of ``case`` should take; None where nothing is known of what runs there.

    algorithm_used: ``mpi:<name>`` where the library was told which; '' and ``default`` leave it the choice.
    """
    if case.backend != network.backend or case.ranks != network.ranks or case.groups or case.beside:
        return None
    size = case.count * item_bytes(case.dtype) * (case.ranks if collective(case.collective).blocked else 1)
    root = max(case.root, 0)
    algorithm = "" if algorithm_used in ("", "default") else algorithm_used
    if case.ranks == 1:
        return None
    pair = case.one_pair
    if pair is not None:
        both = ((pair.source, pair.target), (pair.target, pair.source))
        plans = {"pair": [Stage(both if pair.both else both[:1], 1.0)]}
    else:
        plans = _plans(case, case.ranks, root, algorithm)
    if not plans:
        return None
    # Messages of a pair are what the probe itself timed: nothing comes on top of them.
    call = 0.0 if case.collective == "send_recv" else network.call_seconds
    priced = {name: (call + plan_seconds(plan, size, network), plan) for name, plan in plans.items()}
    name, (seconds, plan) = min(priced.items(), key=lambda one: one[1][0])
    latency = min(seconds, call + plan_seconds(plan, 0, network))
    return Prediction(
        bound_seconds=min(seconds, bound_between_hosts(case, size, network)),
        predicted_seconds=seconds,
        latency_seconds=latency,
        bandwidth_seconds=seconds - latency,
        bottleneck=_bottleneck(name, plan, seconds, latency, network),
    )


def _bottleneck(name: str, plan: Plan, seconds: float, latency: float, network: HostNetwork) -> str:
    where = "between hosts" if len(network.hosts) > 1 else "inside the host"
    steps = sum(stage.times for stage in plan)
    if seconds <= 0:
        return "nothing to do"
    if 2 * latency >= seconds:
        text = f"{steps} messages in a row {where} ({name})"
        return f"{text}: {latency / seconds:.0%} ({format_seconds(latency)})"
    carried = seconds - latency
    rate = network.between or network.inside or network.together
    at = f" at {format_rate(rate.bytes_per_second)}" if rate and np.isfinite(rate.bytes_per_second) else ""
    return f"bytes {where}{at} ({name}): {carried / seconds:.0%} ({format_seconds(carried)})"


def bound_between_hosts(case: Case, size_bytes: int, network: HostNetwork) -> float:
    """No algorithm is quicker: the least time of any message, or the bytes that must pass the busiest port.

    Bytes that must come to a host: those of its ranks' outputs that depend on ranks elsewhere, each once.
    """
    if len(network.hosts) == 1 or case.one_pair is not None:
        return network.least_seconds
    row = collective(case.collective)
    if not row.moves_data or not size_bytes or not network.peak_bytes_per_second:
        return network.least_seconds
    ranks, root = case.ranks, max(case.root, 0)
    slot = size_bytes / ranks if row.blocked else float(size_bytes)
    needed = [0.0] * len(network.hosts)
    for host in range(len(network.hosts)):
        wanted: set[object] = set()
        for rank in range(ranks):
            if network.host_of_rank[rank] != host:
                continue
            outputs = row.outputs(rank, ranks, ranks if row.blocked else 1, root)
            for index in range(len(outputs)):
                origins = tuple(row.origins(rank, index, ranks, root))
                if any(network.host_of_rank[origin] != host for origin, _ in origins):
                    wanted.add(origins)
        needed[host] = len(wanted) * slot
    return max(network.least_seconds, max(needed) / network.peak_bytes_per_second)
