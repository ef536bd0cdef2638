"""Patterns made directly cost what the schedules cost that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.collectives import collective as collective_row
from ccbench.errors import ScheduleError, UsageError
from ccbench.model.fabric_loads import FabricCosts
from ccbench.model.fabric_pricing import FabricPrices, fabric_loads, price_loads
from ccbench.model.traffic_patterns import (
    DIRECTLY,
    PIPELINES,
    AlgorithmTraffic,
    AllPairs,
    Pattern,
    RepeatedSteps,
    Uniform,
    steps_of,
    traffic_for,
    traffic_of,
)
from ccbench.schedules import ALGORITHMS, Algorithm, schedule_for
from ccbench.schedules.schedule import Schedule
from ccbench.topology.fabrics import Fabric, Wire, single_switch
from tests.model.fabrics import random_fabric

COSTS = FabricCosts(sender_seconds=3e-7, message_seconds=2e-7)
SIZES = [0.0, 1000.0, 1e8]


def priced(what: Schedule | AlgorithmTraffic, fabric: Fabric) -> FabricPrices:
    return price_loads(fabric_loads(what, fabric, COSTS), SIZES)


def listed(schedule: Schedule) -> AlgorithmTraffic:
    """What ``schedule`` sends, flow by flow."""
    flows = tuple(steps_of(phase) for phase in schedule.phases)
    return AlgorithmTraffic(
        schedule.collective, schedule.algorithm, schedule.ranks, schedule.pieces, flows
    )


def assert_the_same(one: FabricPrices, other: FabricPrices) -> None:
    for name in ("latency", "bandwidth"):
        np.testing.assert_allclose(
            getattr(one, name), getattr(other, name), rtol=1e-12, err_msg=name
        )


@pytest.mark.parametrize("row", ALGORITHMS, ids=lambda row: f"{row.collective}-{row.name}")
@given(seed=st.integers(0, 10**6), root=st.integers(0, 1000))
@settings(max_examples=25)
def test_patterns_cost_what_their_schedule_costs_flow_by_flow(
    row: Algorithm, seed: int, root: int
) -> None:
    """Both as they are read off the schedule, and as they are made directly where there is no schedule."""
    fabric = random_fabric(seed)
    name, ranks = (row.collective, row.name), fabric.ranks
    place = root % ranks if collective_row(row.collective).rooted else 0
    try:
        schedule = schedule_for(*name, ranks, place, prove=False)
    except ScheduleError:
        return  # not for this number of ranks
    expected = priced(listed(schedule), fabric)
    assert_the_same(priced(schedule, fabric), expected)
    if name in DIRECTLY:
        assert_the_same(
            priced(AlgorithmTraffic(*name, ranks, *DIRECTLY[name](ranks, place)), fabric),
            expected,
        )


@pytest.mark.parametrize(("collective", "algorithm"), list(PIPELINES))
@given(seed=st.integers(0, 10**6), pieces=st.integers(1, 40), root=st.integers(0, 1000))
def test_a_pipeline_costs_what_its_schedule_costs_for_any_number_of_pieces(
    collective: str, algorithm: str, seed: int, pieces: int, root: int
) -> None:
    fabric = random_fabric(seed)
    place = root % fabric.ranks if collective_row(collective).rooted else 0
    schedule = schedule_for(collective, algorithm, fabric.ranks, place, pieces, prove=False)
    traffic = traffic_for(collective, f"{algorithm}:{pieces}", fabric.ranks, place)
    assert_the_same(priced(traffic, fabric), priced(schedule, fabric))


def test_every_direct_pattern_and_pipeline_is_an_algorithm() -> None:
    known = {(row.collective, row.name) for row in ALGORITHMS}
    assert set(DIRECTLY) <= known
    assert set(PIPELINES) == {
        (row.collective, row.name) for row in ALGORITHMS if row.parameter.startswith("pieces")
    }


@pytest.mark.parametrize("row", ALGORITHMS, ids=lambda row: f"{row.collective}-{row.name}")
def test_many_ranks_need_no_schedule_of_all_pairs(row: Algorithm) -> None:
    traffic = traffic_for(row.collective, row.name, 4096)
    flows = [
        len(pattern.source)
        for pattern in traffic.patterns
        if isinstance(pattern, RepeatedSteps)
    ]
    assert max(flows, default=0) <= 4096
    assert traffic.ranks == 4096


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        ("all_gather", "ring", Uniform(1, 1, 511)),
        ("all_gather", "bruck", Uniform(511, 1)),
        ("reduce_scatter", "recursive_halving", Uniform(256, 256)),
        ("all_reduce", "recursive_doubling", Uniform(1, 1, exchange=True)),
        ("reduce_scatter", "pairwise", AllPairs(at_once=False)),
        ("all_to_all", "bruck", Uniform(1, 256)),
    ],
)
def test_phases_in_which_all_send_alike_are_recognised(
    collective: str, algorithm: str, expected: Pattern
) -> None:
    assert traffic_for(collective, algorithm, 512).patterns[0] == expected


def test_slots_between_the_same_two_ranks_are_one_message() -> None:
    # On eight ranks a block goes on by 1 if the first bit of its distance is set: blocks 1, 3, 5 and 7.
    phases = schedule_for("all_to_all", "bruck", 8).phases
    sent = [phase for phase in phases if bool((phase.source != phase.target).all())]
    assert sent[0].flows > 8
    assert [steps_of(phase).width.tolist() for phase in sent] == [[4] * 8] * 3
    assert [len(steps_of(phase).source) for phase in sent] == [8] * 3


def test_names_with_a_number_fix_the_pieces() -> None:
    assert traffic_for("broadcast", "chain:8", 4).pieces_under_way == 8
    assert traffic_for("broadcast", "chain", 4).pieces_under_way is None
    assert traffic_of(schedule_for("broadcast", "chain:8", 4)).pieces == 8


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "root", "words"),
    [
        ("broadcast", "chain:0", 4, 0, "chain:0"),
        ("broadcast", "chain:9999", 4, 0, "9999 pieces"),
        ("broadcast", "chain", 4, 4, "root 4"),
        ("broadcast", "chain", 0, 0, "0 ranks"),
        ("broadcast", "direct", 1000, -1, "root -1"),
        ("all_to_all", "direct", 0, 0, "0 ranks"),
        ("all_reduce", "fast", 4, 0, "fast"),
        ("all_reduce", "hierarchical:3", 4, 0, "groups of 3"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    collective: str, algorithm: str, ranks: int, root: int, words: str
) -> None:
    with pytest.raises((ScheduleError, UsageError), match=words) as raised:
        traffic_for(collective, algorithm, ranks, root)
    assert "\n" not in str(raised.value)


def test_one_rank_sends_nothing() -> None:
    fabric = single_switch(1, Wire(1e9, 1e-6))
    for row in ALGORITHMS:
        traffic = traffic_for(row.collective, row.name, 1)
        assert price_loads(fabric_loads(traffic, fabric), SIZES).seconds.tolist() == [0, 0, 0]
