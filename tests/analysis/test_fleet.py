"""Who is to blame on a fleet: planted faults are found, and nobody else is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.analysis.fleet import FleetVerdict, fleet_of, second_look, usual_of
from ccbench.analysis.fleet_causes import FleetCause
from ccbench.analysis.fleet_times import GroupTime
from ccbench.groups import PairingRound
from tests.analysis.fleet_trials import Planted, trial

NODES = 8
NAMES = [f"n{number}" for number in range(NODES)]


def pairs(
    slow: Sequence[tuple[int, ...]] = (), rounds: int = 3, factor: float = 1.5
) -> list[GroupTime]:
    """Rounds of pairs of eight nodes, of which those with all nodes of one of ``slow`` take longer."""
    return [
        GroupTime(
            "pair", pair, factor if any(set(members) <= set(pair) for members in slow) else 1.0
        )
        for number in range(rounds)
        for pair in PairingRound("matching", number, 5).pairs(NODES)
    ]


def alone(slow: Sequence[int] = ()) -> list[GroupTime]:
    return [GroupTime("alone", (node,), 1.5 if node in slow else 1.0) for node in range(NODES)]


def verdict(observations: Sequence[GroupTime]) -> FleetVerdict:
    return fleet_of(observations, NAMES)


def test_one_rail_of_a_node_is_told_from_its_network() -> None:
    observations = [
        GroupTime("pair", pair, 1.5 if 3 in pair and rail == 1 else 1.0, rail=rail)
        for number in range(3)
        for pair in PairingRound("matching", number, 5).pairs(NODES)
        for rail in range(4)
    ]
    assert verdict(observations).causes == (FleetCause("slow_rail", (3,), 1),)


def test_a_node_that_is_slow_alone_and_fast_with_others_is_slow_inside() -> None:
    once = verdict([*alone([3]), *pairs()])
    assert (once.word, once.once) == ("NO VERDICT", (FleetCause("slow_inside", (3,)),))
    twice = verdict([*alone([3]), *alone([3]), *pairs()])
    assert (twice.causes, twice.exclude) == ((FleetCause("slow_inside", (3,)),), "--exclude=n3")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("bad", [1, 3, 6])
def test_up_to_four_nodes_in_ten_may_be_bad(bad: int) -> None:
    for seed in range(20):
        assert trial(16, bad, 0, 0.5, seed).found == bad, seed


def test_what_is_much_faster_than_most_keeps_the_verdict_open() -> None:
    fleet = verdict(pairs([(node,) for node in range(3, NODES)], rounds=7))
    assert (fleet.word, fleet.causes) == ("NO VERDICT", ())
    few = verdict(
        [
            pair
            for pair in pairs([(2,), (3,), (4,), (5,), (6,)], rounds=7)
            if max(pair.nodes) < 5
        ]
    )
    assert few.doubt
    noisy = [
        replace(observation, seconds=1 + place % 5 / 100)
        for place, observation in enumerate(pairs())
    ]
    fast = [*noisy, GroupTime("pair", (0, 1), 0.5), GroupTime("pair", (2, 3), 0.5)]
    assert "2 of 13 groups of pair are much faster than usual" in verdict(fast).doubt


def test_times_that_vary_by_more_than_faults_do_give_no_verdict() -> None:
    observations = [
        replace(observation, seconds=1.0 + number % 6)
        for number, observation in enumerate(pairs())
    ]
    fleet = verdict(observations)
    assert fleet.word == "NO VERDICT"
    assert "vary so much" in fleet.doubt


def test_of_a_lost_pair_the_one_that_ends_with_others_is_not_to_blame() -> None:
    lost = GroupTime("pair", (2, 5), None, detail="rank 5 hangs")
    unaffected = [pair for pair in pairs() if 5 not in pair.nodes]
    fleet = verdict([*unaffected, lost])
    assert fleet.lost == (5,)
    assert (fleet.exit_code, fleet.exclude) == (1, "--exclude=n5")
    assert "rank 5 hangs" in "\n".join(fleet.lines())


def test_a_fleet_that_is_slow_as_a_whole_is_beyond_the_model() -> None:
    observations = [GroupTime("pair", pair.nodes, 2.0, limit_seconds=1.0) for pair in pairs()]
    assert [finding.kind for finding in verdict(observations).findings] == ["slow_fleet"]


@given(st.integers(0, 2**32), st.floats(0.0, 0.4))
def test_the_usual_time_is_that_of_the_healthy_whatever_the_others_take(
    seed: int, share: float
) -> None:
    import numpy as np

    draw = np.random.default_rng(seed)
    healthy = np.exp(draw.normal(0.0, 0.02, 200))
    slow = np.exp(draw.normal(0.4, 0.3, int(200 * share)).clip(0.2))
    usual, sigma = usual_of([*healthy, *slow])
    assert abs(usual) < 0.02
    assert 0.01 < sigma < 0.04


@given(st.integers(0, 10_000), st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_a_second_look_pairs_every_node_at_most_once_and_suspects_with_the_fast(
    seed: int, bad: int
) -> None:
    import random

    draw = random.Random(seed)
    planted = Planted(dict.fromkeys(draw.sample(range(32), bad), 2.0), {})
    observations = [
        planted.seen("pairs", pair, draw)
        for number in range(3)
        for pair in PairingRound("matching", number, seed).pairs(32)
    ]
    names = [str(node) for node in range(32)]
    fleet = fleet_of(observations, names)
    assert set(fleet.excluded) <= set(planted.nodes) <= set(fleet.suspects)
    for some in second_look(fleet, seed):
        met = [node for pair in some for node in pair]
        assert len(met) == len(set(met))
        observations += [planted.seen("pairs", pair, draw) for pair in some]
    # Three partners of a node may all be slow themselves; the second look's are not.
    assert set(fleet_of(observations, names).excluded) == set(planted.nodes)


def test_planted_faults_of_fifty_percent_are_found_on_64_nodes() -> None:
    for seed in range(3):
        outcome = trial(64, 3, 2, 0.5, seed)
        assert (outcome.found, outcome.blamed) == (outcome.bad, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("nodes", "bad", "least"),
    [(64, 1, 0.99), (256, 5, 0.99), (1024, 20, 0.99), (1024, 102, 0.95)],
)
def test_planted_faults_of_fifteen_percent_are_found_and_no_healthy_node_is_blamed(
    nodes: int, bad: int, least: float
) -> None:
    done = [
        trial(nodes, bad, nodes // 32, 0.15, seed) for seed in range(30 if nodes < 1024 else 8)
    ]
    assert sum(outcome.found for outcome in done) >= least * sum(
        outcome.bad for outcome in done
    )
    assert bad > 0.02 * nodes or sum(outcome.blamed for outcome in done) == 0


def racked(nodes: int, size: int, bad: int, kind: str, factor: float) -> FleetVerdict:
    """The verdict on nodes in racks of ``size``, of which rack ``bad`` has a fault of ``kind``."""
    members = set(range(bad * size, (bad + 1) * size))
    draw = random.Random(f"{nodes} {size} {bad} {kind} {factor}")

    def seen(work: str, group: tuple[int, ...]) -> GroupTime:
        inside = len({*group} & members)
        whole = kind == "slow_rack" or len(group) == 2
        slow = inside and whole and not (kind == "slow_uplinks" and inside == 2)
        return GroupTime(
            work, group, (factor if slow else 1.0) * draw.lognormvariate(0.0, 0.01)
        )

    times = [seen("alone", (node,)) for node in range(nodes)]
    for number in range(3):
        times += [
            seen("pairs", pair) for pair in PairingRound("matching", number, 7).pairs(nodes)
        ]
    names = [f"n{node}" for node in range(nodes)]
    racks = [f"r{node // size}" for node in range(nodes)]
    first = fleet_of(times, names, racks)
    times += [seen("pairs", pair) for pairs in second_look(first, 3) for pair in pairs]
    # A round inside the rack tells its leaf from the uplinks of that.
    times += [seen("pairs", pair) for pair in itertools.pairwise(sorted(members))]
    return fleet_of(times, names, racks)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(4, 8),
    st.integers(2, 8),
    st.sampled_from(["slow_rack", "slow_leaf", "slow_uplinks"]),
    st.floats(1.2, 3.0),
    st.data(),
)
def test_a_planted_bad_rack_is_named_as_one_cause_and_its_nodes_are_left_out(
    racks: int, size: int, kind: str, factor: float, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, racks - 1))
    fleet = racked(racks * size, size, bad, kind, factor)
    nodes = tuple(range(bad * size, (bad + 1) * size))
    assert fleet.causes == (FleetCause(kind, nodes, rack=f"r{bad}"),)
    assert (fleet.word, fleet.unknown, fleet.excluded) == ("NOT HEALTHY", (), nodes)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 15), st.booleans())
def test_one_bad_node_of_a_rack_is_the_node_and_not_its_rack(node: int, inside: bool) -> None:
    names = [f"n{number}" for number in range(16)]
    observed = [
        GroupTime("alone", (number,), 1.5 if inside and number == node else 1.0)
        for number in range(16)
    ]
    for number in range(3):
        observed += [
            GroupTime("pairs", pair, 1.5 if node in pair else 1.0)
            for pair in PairingRound("matching", number, 7).pairs(16)
        ]
    fleet = fleet_of(observed, names, [f"r{number // 4}" for number in range(16)])
    assert [(cause.nodes, cause.rack) for cause in fleet.causes] == [((node,), "")]


def test_the_verdict_says_what_a_rack_shares() -> None:
    fleet = racked(32, 8, 2, "slow_uplinks", 1.5)
    assert fleet.lines()[0] == "NOT HEALTHY: slow uplinks: uplinks of rack r2"
    assert "look at the uplinks of the rack's leaf switch" in fleet.lines()[2]
    assert fleet.document["causes"] == [{"kind": "slow_uplinks", "name": "uplinks of rack r2"}]
    assert fleet.of_node(16) == fleet.of_node(23) == list(fleet.findings)
    assert fleet.of_node(15) == []
