"""MPI and Gloo between hosts and on one: planted networks give back what textbooks say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.errors import BackendUnavailable, MachineError
from ccbench.model import Prediction
from ccbench.model.context import PredictionContext, predict_case
from ccbench.model.host_collectives import (
    HostNetwork,
    MessageTimes,
    plan_seconds,
    predict_host_library,
    swaps,
)
from ccbench.model.host_plans import GLOO_PLANS, MPI_PLANS
from ccbench.model.machine import Machine, load_machine
from ccbench.model.pricing import bound_seconds
from ccbench.runner.network_probe import (
    ONE_HOST_SIZES_BYTES,
    SIZES_BYTES,
    host_pairs,
    probe_network,
)
from tests.model.machines import flat
from tests.report.synthetic import case as case_with

LATENCY = 50e-6
RATE = 1.2e8


def line(
    latency: float = LATENCY, rate: float = RATE, sizes_bytes: tuple[int, ...] = SIZES_BYTES
) -> MessageTimes:
    return MessageTimes(sizes_bytes, tuple(latency + size / rate for size in sizes_bytes))


def network_of(
    host_of_rank: tuple[int, ...],
    latency: float = LATENCY,
    rate: float = RATE,
    backend: str = "gloo",
) -> HostNetwork:
    """Every message between hosts takes latency + bytes / rate; inside a host a tenth of it."""
    hosts = max(host_of_rank) + 1
    between = line(latency, rate) if hosts > 1 else None
    sizes = SIZES_BYTES if hosts > 1 else ONE_HOST_SIZES_BYTES
    inside = line(latency / 10, rate * 10, sizes) if len(host_of_rank) > hosts else None
    names = tuple(f"h{host}" for host in range(hosts))
    stream = rate if hosts > 1 else None
    return HostNetwork(backend, names, host_of_rank, between, inside, between or inside, stream)


def case_of(
    collective: str, ranks: int, size_bytes: int, backend: str = "gloo", **changes: object
) -> Case:
    return case_with(collective, "default", size_bytes, ranks, backend=backend, **changes)


def predicted(case: Case, network: HostNetwork, algorithm: str = "") -> Prediction:
    prediction = predict_host_library(case, network, algorithm)
    assert prediction is not None
    return prediction


def seconds(case: Case, network: HostNetwork) -> float:
    prediction = predicted(case, network)
    assert 0 <= prediction.bound_seconds <= prediction.predicted_seconds
    assert prediction.latency_seconds + prediction.bandwidth_seconds == pytest.approx(
        prediction.predicted_seconds
    )
    return prediction.predicted_seconds


@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e11), st.integers(0, 1 << 26))
def test_messages_on_a_straight_line_are_given_back_at_every_size(
    latency: float, rate: float, size: int
) -> None:
    expected = latency + max(size, SIZES_BYTES[0]) / rate
    assert float(line(latency, rate).at(size)) == pytest.approx(expected, rel=1e-6)


def test_a_time_that_falls_counts_as_the_smaller_one_after_it() -> None:
    disturbed = MessageTimes((8, 1024, 4096), (9e-3, 1e-4, 2e-4))
    assert float(disturbed.at(8)) == 1e-4
    assert disturbed.latency_seconds == 1e-4


@given(st.integers(2, 32), st.integers(0, 1 << 24))
def test_gloos_all_reduce_is_a_ring(ranks: int, size: int) -> None:
    size -= size % (4 * ranks)
    network = replace(network_of(tuple(range(ranks))), call_seconds=1e-4)
    block = max(size / ranks, SIZES_BYTES[0])
    expected = 1e-4 + 2 * (ranks - 1) * (LATENCY + block / RATE)
    assert seconds(case_of("all_reduce", ranks, size), network) == pytest.approx(
        expected, rel=1e-6
    )


def test_mpis_small_all_reduce_takes_the_logarithm_of_the_ranks_and_its_large_one_the_rings_share() -> (
    None
):
    network = network_of(tuple(range(16)), backend="mpi")
    small = seconds(case_of("all_reduce", 16, 64, "mpi"), network)
    large = seconds(case_of("all_reduce", 16, 1 << 28, "mpi"), network)
    assert small == pytest.approx(4 * (LATENCY + 64 / RATE))
    assert large == pytest.approx(2 * 15 / 16 * (1 << 28) / RATE, rel=0.02)


def test_ranks_of_one_host_share_its_port() -> None:
    """Recursive halving across two hosts sends two halves through one port; the ring sends one block."""
    apart = network_of((0, 1, 2, 3), backend="mpi")
    shared = network_of((0, 0, 1, 1), backend="mpi")
    crossing = ((0, 2), (1, 3), (2, 0), (3, 1))
    large = 1 << 24
    assert float(shared.step_seconds(crossing, large)) == pytest.approx(
        2 * float(apart.step_seconds(crossing, large)), rel=0.01
    )
    assert float(shared.step_seconds(((0, 1),), large)) < float(
        shared.step_seconds(((0, 2),), large)
    )
    # By turns two ranks of a host already shared its port when all were seen to send at once.
    ring = tuple((rank, (rank + 1) % 4) for rank in range(4))
    turns = network_of((0, 1, 0, 1), backend="mpi")
    assert turns.step_seconds(ring, large) == apart.step_seconds(ring, large)


def test_a_library_that_sends_and_receives_by_turns_is_priced_by_its_stream() -> None:
    network = network_of((0, 1, 2, 3))
    slow_pairs = replace(network, between=line(rate=RATE / 2), together=line(rate=RATE / 2))
    large = case_of("all_gather", 4, 1 << 26)
    assert seconds(large, slow_pairs) == pytest.approx(seconds(large, network), rel=0.02)


@given(
    st.sampled_from(sorted(GLOO_PLANS)),
    st.integers(2, 9),
    st.integers(1, 3),
    st.integers(0, 22),
    st.sampled_from(["gloo", "mpi"]),
)
def test_every_collective_has_a_price_that_grows_with_its_size(
    collective: str, hosts: int, ranks_per_host: int, power: int, backend: str
) -> None:
    host_of_rank = tuple(host for host in range(hosts) for _ in range(ranks_per_host))
    network = network_of(host_of_rank, backend=backend)
    ranks = len(host_of_rank)
    smaller, larger = (
        case_of(collective, ranks, size, backend) for size in (1 << power, 1 << (power + 2))
    )
    assert 0 < seconds(smaller, network) <= seconds(larger, network) * (1 + 1e-9)


def test_gloos_root_sends_to_all_its_children_through_one_port() -> None:
    large = 1 << 26
    whole = large / RATE
    apart = seconds(case_of("broadcast", 4, large), network_of((0, 1, 2, 3)))
    two_hosts = seconds(case_of("broadcast", 4, large), network_of((0, 0, 1, 1)))
    assert apart == pytest.approx(3 * whole, rel=0.02)
    assert two_hosts == pytest.approx(2 * whole, rel=0.02)


def test_ranks_that_swap_are_priced_by_what_swaps_take_and_a_ring_by_what_a_ring_takes() -> (
    None
):
    plain = network_of((0, 1, 2, 3), backend="mpi")
    slow = replace(plain, swapped=line(rate=RATE / 2))
    exchange, ring = (
        ((0, 2), (1, 3), (2, 0), (3, 1)),
        tuple((index, (index + 1) % 4) for index in range(4)),
    )
    size = 1 << 26
    assert float(slow.step_seconds(exchange, size)) == pytest.approx(2 * size / RATE, rel=0.01)
    assert float(slow.step_seconds(ring, size)) == pytest.approx(size / RATE, rel=0.01)


@given(st.integers(1, 12), st.integers(1, 4))
def test_partners_are_on_different_hosts_and_everybody_has_one(
    hosts: int, ranks_per_host: int
) -> None:
    host_of_rank = tuple(host for host in range(hosts) for _ in range(ranks_per_host))
    found = swaps(host_of_rank)
    if found:
        assert sorted(source for source, _ in found) == list(range(len(host_of_rank)))
        assert set(found) == {(target, source) for source, target in found}
        assert all(host_of_rank[source] != host_of_rank[target] for source, target in found)
    else:
        assert hosts == 1 or len(host_of_rank) % 2


def test_of_small_broadcasts_in_a_row_the_busiest_rank_sets_the_pace_and_alone_the_path_does() -> (
    None
):
    network = replace(network_of((0, 1, 2, 3)), one_way=line(latency=1e-6))
    small = case_of("broadcast", 4, 1024)
    each = 1e-6 + 1024 / RATE
    path = 2 * LATENCY + 3 * 1024 / RATE
    alone = seconds(replace(small, mode="isolated"), network)
    assert alone == pytest.approx(path, rel=1e-6)
    assert 2 * each < seconds(small, network) < 2 * each * 1.2
    large = case_of("broadcast", 4, 1 << 26)
    assert seconds(large, network) == seconds(replace(large, mode="isolated"), network)


def test_a_message_one_way_in_a_row_takes_what_the_probe_saw_of_such() -> None:
    network = replace(network_of((0, 0, 1, 1), backend="mpi"), one_way=line(latency=1e-6))
    one_way = case_of("send_recv", 4, 1024, "mpi", pair="0>2")
    assert seconds(one_way, network) == pytest.approx(1e-6 + 1024 / RATE, rel=0.1)
    alone, both = replace(one_way, mode="isolated"), replace(one_way, pair="0<>2")
    for waits in (alone, both):
        assert seconds(waits, network) == pytest.approx(LATENCY + 1024 / RATE)
    inside = replace(one_way, pair="0>1")
    assert seconds(inside, network) == pytest.approx((LATENCY + 1024 / RATE) / 10)


def test_no_bound_is_above_what_was_seen_of_messages_that_nobody_waits_for() -> None:
    network = replace(network_of((0, 1, 2, 3), backend="mpi"), one_way=line(latency=1e-6))
    for case in (
        case_of("broadcast", 4, 8, "mpi"),
        case_of("send_recv", 4, 8, "mpi", pair="0>2"),
    ):
        assert predicted(case, network).bound_seconds <= 1.2e-6
    assert predicted(case_of("all_reduce", 4, 8, "mpi"), network).bound_seconds >= LATENCY


def test_collectives_in_which_ranks_hear_back_do_not_run_ahead() -> None:
    network = replace(network_of((0, 1, 2, 3)), one_way=line(latency=1e-9, rate=1e12))
    for name in ("all_reduce", "all_gather", "all_to_all", "barrier"):
        case = case_of(name, 4, 4096)
        assert seconds(case, network) == seconds(replace(case, mode="isolated"), network)


def test_the_larger_pieces_of_rabenseifners_all_reduce_stay_on_the_host() -> None:
    shared = network_of((0, 0, 1, 1), backend="mpi")
    large = 1 << 26
    found = predicted(case_of("all_reduce", 4, large, "mpi"), shared, "mpi:rabenseifner")
    inside, between = large / 2 / (10 * RATE), 2 * large / 4 / RATE
    assert found.predicted_seconds == pytest.approx(2 * (inside + between), rel=0.01)


def test_nothing_is_said_of_another_team_or_what_the_library_was_not_asked() -> None:
    network = network_of((0, 1))
    assert (
        predict_host_library(case_of("all_to_all_v", 2, 1024), network) is None
    )  # there is no plan of it
    assert predict_host_library(case_of("all_reduce", 4, 1024), network) is None
    assert predict_host_library(case_of("all_reduce", 2, 1024, "mpi"), network) is None
    assert (
        predict_host_library(case_of("all_reduce", 2, 1024, groups="rank % 2"), network) is None
    )
    told = network_of((0, 1, 2, 3), backend="mpi")
    case = case_of("all_reduce", 4, 1 << 20, "mpi")
    assert predict_host_library(case, told, "mpi:basic_linear") is None
    ring, doubling = (
        predicted(case, told, f"mpi:{name}") for name in ("ring", "recursive_doubling")
    )
    assert ring.predicted_seconds < doubling.predicted_seconds


def test_a_case_is_predicted_on_the_network_it_was_probed_on_and_not_on_memory() -> None:
    case = case_of("all_reduce", 2, 1024)
    assert predict_case(case, network_of((0, 1)), "default") is not None
    assert predict_case(case, load_machine("cpu-shared-memory"), "default") is None
    assert predict_case(replace(case, memory="device"), network_of((0, 1)), "default") is None
    assert predict_case(case_of("all_gather", 2, 0), network_of((0, 1)), "default") is None
    assert predict_case(case_of("barrier", 2, 0), network_of((0, 1)), "default") is not None


def test_the_bound_counts_what_must_come_through_the_busiest_port() -> None:
    network = network_of((0, 0, 1, 1))
    gathered = predicted(case_of("all_gather", 4, 1 << 24), network)
    assert gathered.bound_seconds == pytest.approx((1 << 23) / RATE, rel=0.02)


@pytest.mark.parametrize(
    ("sizes", "times"), [((), ()), ((8,), (1.0, 2.0)), ((8, 8), (1.0, 1.0)), ((8,), (0.0,))]
)
def test_message_times_that_cannot_be_are_refused(
    sizes: tuple[int, ...], times: tuple[float, ...]
) -> None:
    with pytest.raises(MachineError, match="message times"):
        MessageTimes(sizes, times)


def test_a_network_without_what_its_hosts_need_is_refused() -> None:
    with pytest.raises(MachineError, match="between them"):
        HostNetwork("gloo", ("a", "b"), (0, 1), together=line())
    with pytest.raises(MachineError, match="every rank needs a host"):
        HostNetwork("gloo", ("a", "b"), (0, 0), together=line())


class PlantedTeam:
    """Answers send_recv cases as a network of known figures would."""

    def __init__(self, node_of_rank: tuple[int, ...]) -> None:
        self.node_of_rank = node_of_rank
        self.asked: list[str] = []

    def __call__(self, case: Case, sampling: Sampling) -> Measurement:
        self.asked.append(case.pair)
        pair = case.one_pair
        ends = (pair.source, pair.target) if pair else (0, case.ranks - 1)
        near = self.node_of_rank[ends[0]] == self.node_of_rank[ends[1]]
        latency, rate = (LATENCY / 10, RATE * 10) if near else (LATENCY, RATE)
        time = latency + case.size_bytes / rate
        return Measurement(
            case,
            Status.OK,
            samples_seconds=(time, time, 10 * time),
            hosts=tuple(f"h{node}" for node in self.node_of_rank),
            node_of_rank=self.node_of_rank,
        )


@pytest.mark.parametrize(
    "node_of_rank", [(0, 1, 2, 3), (0, 0, 1, 1), (0, 0, 0), (0, 1), (0, 0)]
)
def test_a_probe_finds_the_planted_figures(node_of_rank: tuple[int, ...]) -> None:
    network = probe_network(PlantedTeam(node_of_rank), "gloo", len(node_of_rank))
    planted = network_of(node_of_rank)
    assert network.hosts == planted.hosts
    assert network.host_of_rank == node_of_rank
    assert (network.between, network.inside) == (planted.between, planted.inside)
    assert network.one_way == planted.between
    assert network.inside_one_way == planted.inside
    assert (network.swapped is None) == (len(swaps(node_of_rank)) <= 2)
    for link in network.links:
        assert link.round_trip_seconds == pytest.approx(2 * (LATENCY + SIZES_BYTES[0] / RATE))
        assert link.bytes_per_second == pytest.approx(RATE)


@pytest.mark.parametrize(
    ("collective", "meets"),
    [
        ("all_reduce", True),
        ("all_gather", True),
        ("barrier", True),
        ("broadcast", False),
        ("gather", False),
    ],
)
def test_what_a_barrier_costs_beyond_messages_is_paid_where_all_ranks_are_busy_at_once(
    collective: str, meets: bool
) -> None:
    network = network_of((0, 1, 2, 3))
    case = case_of(collective, 4, 4096, mode="isolated")
    more = seconds(case, replace(network, call_seconds=1e-3)) - seconds(case, network)
    assert more == pytest.approx(1e-3 if meets else 0.0)


def test_two_ranks_of_one_host_are_a_pair_that_is_looked_at_once() -> None:
    team = PlantedTeam((0, 0))
    network = probe_network(team, "gloo", 2)
    assert network.inside == network.together == network_of((0, 0)).inside
    assert set(team.asked) == {"", "0>1"}


@given(st.integers(0, 1 << 30))
def test_on_one_host_nothing_much_larger_than_the_cases_to_come_is_sent(largest: int) -> None:
    found = probe_network(PlantedTeam((0, 0)), "gloo", 2, largest).inside
    assert found is not None
    sizes = found.sizes_bytes
    assert sizes == ONE_HOST_SIZES_BYTES[: len(sizes)]
    assert len(sizes) >= 2
    assert sizes[-1] >= min(largest, ONE_HOST_SIZES_BYTES[-1])
    assert len(sizes) == 2 or sizes[-2] < largest


def test_of_few_hosts_each_pair_is_looked_at_and_of_many_a_ring() -> None:
    assert host_pairs(3) == ((0, 1), (0, 2), (1, 2))
    assert len(host_pairs(100)) == 100
    assert {host for pair in host_pairs(100) for host in pair} == set(range(100))


def test_a_probe_that_fails_says_which_message_and_why() -> None:
    def failing(case: Case, sampling: Sampling) -> Measurement:
        return Measurement(case, Status.TIMED_OUT, "rank 1 on h1 is silent")

    with pytest.raises(
        BackendUnavailable, match=r"network probe: send_recv .* timed_out: rank 1 on h1"
    ):
        probe_network(failing, "gloo", 2)


def test_one_rank_has_no_network_to_probe() -> None:
    def never(case: Case, sampling: Sampling) -> Measurement:
        raise AssertionError

    assert probe_network(never, "gloo", 1).ranks == 1


def test_a_pipeline_streams_its_pieces() -> None:
    network = network_of((0, 1, 2, 3), backend="mpi")
    large = 1 << 26
    binomial = plan_seconds(MPI_PLANS["broadcast"]["binomial"](4, 0), large, network)
    whole = large / RATE
    assert (
        whole * (1 - 1e-9) <= seconds(case_of("broadcast", 4, large, "mpi"), network) < binomial
    )


def test_a_stream_of_small_pieces_is_no_quicker_than_the_link_however_quick_one_of_them_is() -> (
    None
):
    bursts = MessageTimes((8, 64 << 10, 4 << 20), (1e-6, 2e-6, 1e-6 + (4 << 20) / RATE))
    network = HostNetwork("mpi", ("a", "b"), (0, 1), bursts, None, bursts, RATE)
    large = 1 << 26
    assert seconds(case_of("broadcast", 2, large, "mpi"), network) >= large / RATE * (1 - 1e-3)


def test_what_a_barrier_takes_beyond_its_messages_is_the_librarys_call() -> None:
    team = PlantedTeam((0, 1, 2, 3))

    def measured(case: Case, sampling: Sampling) -> Measurement:
        found = team(case, sampling)
        if case.collective != "barrier":
            return found
        messages = 2 * (LATENCY + SIZES_BYTES[0] / RATE)
        return replace(found, samples_seconds=(messages + 3e-4,))

    assert probe_network(measured, "gloo", 4).call_seconds == pytest.approx(3e-4)
    assert probe_network(team, "gloo", 4).call_seconds == 0.0


@pytest.mark.parametrize("node_of_rank", [(0, 1, 2, 3), (0, 0, 1, 1)])
def test_a_second_in_which_everything_is_slow_spoils_no_figure(
    node_of_rank: tuple[int, ...],
) -> None:
    team = PlantedTeam(node_of_rank)
    asked: list[Case] = []

    def disturbed(case: Case, sampling: Sampling) -> Measurement:
        asked.append(case)
        found = team(case, sampling)
        slower = 100 if 30 <= len(asked) < 30 + len(SIZES_BYTES) else 1
        return replace(
            found, samples_seconds=tuple(second * slower for second in found.samples_seconds)
        )

    assert probe_network(disturbed, "gloo", 4) == probe_network(team, "gloo", 4)


COPIED, ADDED = 8e9, 4e9
"""Bytes per second of one process; twice as many of two or more, on two cores."""

LARGE = 1 << 24


def host(cores: int = 2) -> Machine:
    plain = load_machine("cpu-shared-memory")
    return replace(
        plain,
        fabric=replace(
            plain.fabric,
            cores=cores,
            copy=flat(COPIED, 2 * COPIED),
            reduce=flat(ADDED, 2 * ADDED),
        ),
    )


def two_prices(
    collective: str,
    ranks: int,
    size_bytes: int,
    algorithm: str = "",
    backend: str = "mpi",
    **changes: object,
) -> tuple[float, float]:
    """Seconds with what ranks do themselves, and of messages alone."""
    case = case_of(collective, ranks, size_bytes, backend, **changes)
    network = network_of((0,) * ranks, backend=backend)
    whole = predict_host_library(case, network, algorithm, host(4 if backend == "gloo" else 2))
    messages = predict_host_library(case, network, algorithm)
    assert whole is not None
    assert messages is not None
    assert whole.latency_seconds + whole.bandwidth_seconds == pytest.approx(
        whole.predicted_seconds
    )
    return whole.predicted_seconds, messages.predicted_seconds


@pytest.mark.parametrize(
    ("collective", "algorithm", "backend", "in_place", "copied", "added"),
    [
        # What two ranks do themselves, in sizes: the input is copied, and what comes is added.
        ("all_reduce", "mpi:ring", "mpi", False, 1.0, 0.5),
        ("all_reduce", "mpi:recursive_doubling", "mpi", False, 1.0, 1.0),
        ("all_reduce", "mpi:rabenseifner", "mpi", False, 1.0, 0.5),
        ("all_reduce", "mpi:ring", "mpi", True, 0.0, 0.5),
        ("all_gather", "mpi:ring", "mpi", False, 0.5, 0.0),  # its own block
        ("broadcast", "", "mpi", False, 0.0, 0.0),
        ("send_recv", "", "mpi", False, 0.0, 0.0),
        ("barrier", "", "mpi", False, 0.0, 0.0),
        ("all_reduce", "", "gloo", False, 0.0, 0.0),  # in its input, while it sends
    ],
)
def test_on_one_host_ranks_also_copy_and_add(
    collective: str, algorithm: str, backend: str, in_place: bool, copied: float, added: float
) -> None:
    size = 0 if collective == "barrier" else LARGE
    whole, messages = two_prices(collective, 2, size, algorithm, backend, in_place=in_place)
    assert whole - messages == pytest.approx(size * (copied / COPIED + added / ADDED))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gloo_is_priced_where_each_of_its_threads_has_a_processor(ranks: int) -> None:
    case, network = case_of("all_gather", ranks, LARGE), network_of((0,) * ranks)
    assert predict_host_library(case, network, "", host(2 * ranks)) is not None
    assert predict_host_library(case, network, "", host(2 * ranks - 1)) is None


def test_gloo_between_hosts_is_priced_however_few_processors_there_are() -> None:
    assert (
        predict_host_library(case_of("all_gather", 2, LARGE), network_of((0, 1)), "", host())
        is not None
    )


def test_ranks_without_a_core_of_their_own_work_by_turns() -> None:
    (two, of_two), (four, of_four) = (
        two_prices("all_gather", ranks, LARGE, "mpi:ring") for ranks in (2, 4)
    )
    assert two - of_two == pytest.approx(LARGE / 2 / COPIED)
    assert four - of_four == pytest.approx(2 * LARGE / 4 / COPIED)


def test_between_hosts_messages_hide_what_ranks_do_themselves() -> None:
    case, network = case_of("all_reduce", 2, LARGE, "mpi"), network_of((0, 1), backend="mpi")
    assert predict_host_library(case, network, "mpi:ring", host()) == predict_host_library(
        case, network, "mpi:ring"
    )


@given(
    st.sampled_from(sorted(set(COLLECTIVES) - {"all_to_all_v", "barrier"})),
    st.integers(2, 5),
    st.integers(1, 1 << 24),
    st.sampled_from(["mpi", "gloo"]),
)
def test_the_bound_is_that_of_the_host_s_memory(
    collective: str, ranks: int, size_bytes: int, backend: str
) -> None:
    case = case_of(collective, ranks, size_bytes, backend)
    prediction = predict_host_library(
        case, network_of((0,) * ranks, backend=backend), "", host(10)
    )
    assert prediction is not None
    row = COLLECTIVES[collective]
    memory = float(bound_seconds(row, ranks, case.count, 4, host(10), max(case.root, 0)))
    assert prediction.bound_seconds == pytest.approx(min(memory, prediction.predicted_seconds))


def test_a_run_s_basis_hands_its_host_on() -> None:
    network = network_of((0, 0), backend="mpi")
    case = case_of("all_reduce", 2, LARGE, "mpi")

    probed = PredictionContext(host=host(), host_networks={("mpi", 2): network})
    assert probed.predict(case) == predict_host_library(case, network, "", host())
    assert PredictionContext(host=host()).predict(case) is None
