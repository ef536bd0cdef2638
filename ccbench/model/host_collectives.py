"""Times of MPI's and Gloo's collectives: their algorithms' messages, as such messages were seen to take.

The messages are in ``host_plans``. Gloo has one algorithm for each. Of MPI's the one counts that the case
names, else the one that the library is known to choose (``mpi_choices.yaml``), else the cheapest: what a
library would choose if it knew this network. Between hosts messages hide the arithmetic; on one host it
is added, as fast as NumPy was seen to add there.
"""

from __future__ import annotations

import math

import numpy as np

from ccbench.cases import Case, PricedBy, Sampling, capabilities_of
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes
from ccbench.model import Prediction
from ccbench.model.host_network import HostNetwork
from ccbench.model.host_plans import (
    GLOO_PLANS,
    MPI_PLANS,
    SEGMENTS_BYTES,
    TOLD_PLANS,
    Plan,
    Stage,
    own_choice,
    pipeline_broadcast,
)
from ccbench.model.machine import Machine
from ccbench.model.pricing import bound_seconds
from ccbench.model.rank_subset import subset_of
from ccbench.units import format_rate, format_seconds

GLOO_THREADS = 2
"""Of a rank: the caller, and one that sends and receives (gloo/transport/tcp/loop.cc in
github.com/pytorch/gloo)."""

LAUNCHES_LIMIT = 10_000
"""In a row, whose first one is then of no weight."""


def plan_seconds(
    plan: Plan, size_bytes: int, network: HostNetwork, adding_seconds_per_byte: float = 0.0
) -> float:
    """The stages' times, one after another."""
    total = 0.0
    for stage in plan:
        if stage.segment_bytes:
            pieces = max(1, -(-size_bytes // stage.segment_bytes))
            piece = min(size_bytes, stage.segment_bytes)
            hop = float(network.step_seconds(stage.messages[:1], piece))
            # While pieces stream over all hops at once, ports carry them both ways and share as a stage does.
            flow = float(network.step_seconds(stage.messages, piece))
            # Queues let a few pieces through faster than links carry them; a long pipeline cannot.
            flow = max(flow, network.sustained_seconds(stage.messages, piece))
            total += stage.times * hop + (pieces - 1) * flow
        else:
            share = stage.share * size_bytes
            total += stage.times * float(network.step_seconds(stage.messages, share, stage.overlapped))
            if stage.adds and not stage.overlapped:
                total += stage.times * share * adding_seconds_per_byte
    return total


def _goes_one_way(plan: Plan) -> bool:
    """True if no rank ever hears, directly or not, of one to which it sent."""
    targets: dict[int, set[int]] = {}
    for stage in plan:
        for source, target in stage.messages:
            targets.setdefault(source, set()).add(target)
    left = set(targets)
    while left:
        ends = {source for source in left if not targets[source] & left}
        if not ends:
            return False
        left -= ends
    return True


def row_seconds(
    plan: Plan, size_bytes: int, network: HostNetwork, adding_seconds_per_byte: float = 0.0
) -> float:
    """Of one launch among as many in a row as are in a sample (``Sampling.minimum_sample_seconds``).

    The first takes the stages' times. Where messages go one way only, from a root or to it, the others
    follow at the pace of the busiest rank: the root is long at the next while the last ranks get the first.
    """
    first = plan_seconds(plan, size_bytes, network, adding_seconds_per_byte)
    sample = Sampling().minimum_sample_seconds
    if first >= sample or not _goes_one_way(plan):
        return first
    sent = [(message, stage.share * size_bytes) for stage in plan for message in stage.messages]
    following = min(first, network.following_seconds(sent))
    # The first launch pays the whole way, the others only the pace; a sample is their mean.
    launches = math.ceil(sample / max(following, sample / LAUNCHES_LIMIT))
    return following + (first - following) / launches


def is_priced_on_one_host(backend: str, ranks: int, host: Machine | None) -> bool:
    """True if times of a library on one host are those of its messages.

    Gloo's are not where its threads share processors: each message then waits for a time slice, or does not
    (all_reduce of 256 KiB took 0.25 to 3.6 ms within one run on two processors).
    """
    return not _is_gloo(backend) or host is None or GLOO_THREADS * ranks <= host.fabric.cores


def _is_gloo(backend: str) -> bool:
    return capabilities_of(backend).priced_by is PricedBy.GLOO


def _plans(case: Case, network: HostNetwork, size_bytes: int, root: int, algorithm: str) -> dict[str, Plan]:
    """The plans among which the library chooses, by name; one alone where the case or the sources name it."""
    ranks, pair = network.ranks, case.one_pair
    if pair is not None:
        both = ((pair.source, pair.target), (pair.target, pair.source))
        return {"pair": [Stage(both if pair.both else both[:1], 1.0)]}
    if _is_gloo(case.backend):
        name, make = GLOO_PLANS[case.collective]
        return {name: make(ranks, root)}
    if not algorithm and case.mode in ("streaming", "isolated"):  # others have algorithms of their own
        own = own_choice(network.library, case.collective, size_bytes, case.count, network.host_of_rank)
        if own:
            return {own: TOLD_PLANS[case.collective][own](ranks, root)}
    plans = {name: make(ranks, root) for name, make in MPI_PLANS[case.collective].items()}
    if case.collective == "broadcast":
        plans |= {f"pipeline {size}": pipeline_broadcast(ranks, root, size) for size in SEGMENTS_BYTES}
    named = algorithm.removeprefix("mpi:").replace("-", "_")
    return {name: plan for name, plan in plans.items() if name.split()[0] == named} if named else plans


def _own_work(case: Case, size_bytes: int, host: Machine) -> tuple[float, float]:
    """Seconds that a rank adds for each byte, and copies for before it sends.

    All ranks work on an input and an output of this size, on few cores by turns.
    """
    row, fabric = collective(case.collective), host.fabric
    working = min(case.ranks, fabric.cores)
    adding, copying = (
        case.ranks / float(rates.at(2 * size_bytes, working, fabric.cores))
        for rates in (fabric.reduce, fabric.copy)
    )
    # What has to be added to is copied whole, of what is gathered each rank's own block
    # (ompi/mca/coll/base/coll_base_allreduce.c and ..._allgather.c in github.com/open-mpi/ompi; MPICH's
    # src/mpi/coll/allreduce alike). Gloo's all_reduce has no output but its input.
    share = 1.0 if row.reduces else 1 / case.ranks
    uncopied = case.in_place or not row.moves_data or case.collective in ("broadcast", "send_recv")
    if uncopied or (row.reduces and _is_gloo(case.backend)):
        share = 0.0
    return adding, share * size_bytes * copying


def predict_host_library(
    case: Case, network: HostNetwork, algorithm_used: str = "", host: Machine | None = None
) -> Prediction | None:
    """The prediction for one launch of ``case``; None where nothing is known of what runs there.

    algorithm_used: ``mpi:<name>`` where the library was told which; '' and ``default`` leave it the choice.
    host: the one host of all ranks, for how fast it adds and for a bound by its memory.
    """
    if case.backend != network.backend or case.ranks != network.ranks or case.groups or case.concurrent:
        return None
    if case.ranks == 1 or case.collective not in GLOO_PLANS:
        return None
    one_host = len(network.hosts) == 1
    if one_host and not is_priced_on_one_host(case.backend, case.ranks, host):
        return None
    size = case.count * item_bytes(case.dtype) * (case.ranks if collective(case.collective).blocked else 1)
    algorithm = "" if algorithm_used in ("", "default") else algorithm_used
    plans = _plans(case, network, size, max(case.root, 0), algorithm)
    if not plans:
        return None
    adding, copied = _own_work(case, size, host) if one_host and host is not None else (0.0, 0.0)
    pair = case.one_pair
    price = row_seconds if case.mode == "streaming" and not (pair and pair.both) else plan_seconds
    # What comes on top of messages, as a barrier shows it, in which all ranks are busy at the same time.
    # Nothing does where they are busy one after the other, and in send_recv, which the probe itself timed.
    free = case.collective == "send_recv"
    calls = {
        name: 0.0 if free or _goes_one_way(plan) else network.call_seconds for name, plan in plans.items()
    }
    priced = {name: calls[name] + copied + price(plan, size, network, adding) for name, plan in plans.items()}
    # Unless it is known or named, the algorithm is the one a library would choose that knew this network.
    name, seconds = min(priced.items(), key=lambda one: one[1])
    latency = min(seconds, calls[name] + price(plans[name], 0, network))
    carried = seconds - latency
    where = "inside the host" if one_host else "between hosts"
    rate = network.between or network.inside or network.together
    if seconds <= 0:
        told = "nothing to do"
    elif 2 * latency >= seconds:
        steps = sum(stage.times for stage in plans[name])
        told = (
            f"{steps} messages in a row {where} ({name}): {latency / seconds:.0%} ({format_seconds(latency)})"
        )
    else:
        at = (
            f" at {format_rate(rate.bytes_per_second)}" if rate and np.isfinite(rate.bytes_per_second) else ""
        )
        told = f"bytes {where}{at} ({name}): {carried / seconds:.0%} ({format_seconds(carried)})"
    bound = min(seconds, bound_of(case, size, network, host))
    return Prediction(bound, seconds, latency, carried, told)


def bound_of(case: Case, size_bytes: int, network: HostNetwork, host: Machine | None) -> float:
    """No algorithm is quicker: the least time of any message, or the bytes that must pass the busiest port.

    Bytes that must come to a host: those of its ranks' outputs that depend on ranks elsewhere, each once. On
    one host its memory is the port, which no library's ranks share less than those of shared memory.
    """
    row, root, pair = collective(case.collective), max(case.root, 0), case.one_pair
    one_host, place_of = len(network.hosts) == 1, network.host_of_rank
    if one_host and host is not None:
        asked = case.group_ranks, case.count, item_bytes(case.dtype)
        return float(bound_seconds(row, *asked, host, root, case.in_place, subset_of(case)))
    # The quickest message seen where this case's go; of launches in a row whose messages go one way only,
    # the quickest of those for whose answer nobody waited.
    near = pair is not None and place_of[pair.source] == place_of[pair.target]
    least = min(network.inside.seconds) if near and network.inside else network.least_seconds
    unanswered = network.inside_one_way if near or one_host else network.one_way
    if case.mode == "streaming" and unanswered and (row.rooted or (pair is not None and not pair.both)):
        least = min(least, *unanswered.seconds)
    if one_host or pair is not None:
        return least
    if not row.moves_data or not size_bytes or not network.peak_bytes_per_second:
        return least
    ranks = case.ranks
    slots = ranks if row.blocked else 1
    # What must come to each host: outputs there that depend on a rank elsewhere, equal ones once.
    wanted: list[set[object]] = [set() for _ in network.hosts]
    for rank, place in enumerate(place_of):
        for index in range(len(row.outputs(rank, ranks, slots, root))):
            origins = tuple(row.origins(rank, index, ranks, root))
            if any(place_of[origin] != place for origin, _ in origins):
                wanted[place].add(origins)
    most = max(map(len, wanted)) * (size_bytes / slots)
    return max(least, most / network.peak_bytes_per_second)
