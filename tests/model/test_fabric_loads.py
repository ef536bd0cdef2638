"""Which steps and ranks are looked at, and that nothing is lost by looking at no more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.model import fabric_loads
from ccbench.model.fabric_loads import (
    FabricCosts,
    LinkTable,
    representative_ranks,
    representatives,
    sampled_turns,
    stratified,
    uniform_load,
)
from ccbench.model.fabric_pricing import price_algorithm
from ccbench.model.traffic_patterns import RepeatedSteps, Uniform
from ccbench.topology.composition import cluster
from ccbench.topology.fabrics import Fabric, Wire, torus
from ccbench.topology.files import load_catalog
from ccbench.topology.networks import dragonfly, fat_tree
from tests.model.fabrics import box_cluster

WIRE = Wire(50e9, 1e-6)
SIZES = [0.0, 1e6, 1e12]


@given(turns=st.integers(1, 10**6), samples=st.integers(4, 200))
def test_strata_count_every_turn_once(turns: int, samples: int) -> None:
    chosen, counts = zip(*stratified(turns, samples), strict=True)
    assert sum(counts) == turns
    assert len(chosen) <= max(samples, 2) + 1
    assert list(chosen) == sorted(set(chosen))
    assert chosen[0] >= 0
    assert chosen[-1] < turns
    assert (counts == (1,) * turns) == (turns <= samples)


@given(turns=st.integers(1000, 10**6))
def test_the_first_and_the_last_turn_stand_for_themselves(turns: int) -> None:
    sample = stratified(turns, 32)
    assert (sample[0], sample[-1]) == ((0, 1), (turns - 1, 1))


def steps(
    source: list[int], target: list[int], turns: int, moves: tuple[int, int]
) -> RepeatedSteps:
    return RepeatedSteps(
        np.array(source), np.array(target), np.ones(len(source), dtype=np.int64), turns, *moves
    )


def test_equal_steps_are_looked_at_once() -> None:
    still = steps([0, 1], [1, 0], 9, (0, 0))
    assert sampled_turns(still, 4) == [(0, 9)]
    turning = steps([0, 1, 2, 3], [1, 2, 3, 0], 9, (1, 1))
    assert sampled_turns(turning, 4) == [(0, 9)]
    widths = RepeatedSteps(turning.source, turning.target, np.array([1, 2, 1, 1]), 9, 1, 1)
    assert len(sampled_turns(widths, 4)) == 9
    drifting = steps([0, 1, 2, 3], [1, 2, 3, 0], 3, (0, 1))
    assert [turn for turn, _ in sampled_turns(drifting, 4)] == [0, 1, 2]


LARGE: list[Fabric] = [
    fat_tree([4, 8, 16], WIRE),
    fat_tree([4, 8, 16], WIRE, 3.0),
    fat_tree([8, 4, 16], WIRE, 4.0),
    dragonfly(13, 6, 4, 2, WIRE),
    box_cluster(40),
    cluster(load_catalog("dgx-a100"), 48, "ib-hdr-200x8", fat_tree([16, 24], WIRE, 2.0)),
]


@pytest.mark.parametrize("fabric", LARGE, ids=lambda fabric: f"{fabric.name}-{fabric.ranks}")
def test_representatives_show_what_all_ranks_show(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric_loads, "FEWEST_RANKS", 64)
    table = LinkTable(fabric, FabricCosts(), fabric.ranks)
    few = representatives(table)
    assert few is not None
    assert len(few) < fabric.ranks / 2
    for distance in (*range(1, 40), fabric.ranks // 2, fabric.ranks - 3):
        patterns = [Uniform(distance, 1)]
        if fabric.ranks & (fabric.ranks - 1) == 0:
            patterns.append(Uniform(distance, 1, exchange=True))
        for pattern in patterns:
            whole, part = uniform_load(table, pattern, None), uniform_load(table, pattern, few)
            assert whole is not None
            assert part is not None
            assert part.latency_seconds == pytest.approx(whole.latency_seconds)
            assert part.seconds_per_slot_byte == pytest.approx(whole.seconds_per_slot_byte)
            assert part.hops == whole.hops


def test_a_torus_has_no_representatives_because_others_pass_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fabric_loads, "FEWEST_RANKS", 64)
    fabric = cluster(
        load_catalog("dgx-a100"), 16, "ib-hdr-200x8", torus([8, 16], Wire(1e9, 1e-6))
    )
    assert representative_ranks(fabric) is not None
    assert representatives(LinkTable(fabric, FabricCosts(), fabric.ranks)) is None


ALL_PAIRS = [
    ("all_to_all", "pairwise"),
    ("all_to_all", "direct"),
    ("broadcast", "direct"),
    ("reduce_scatter", "pairwise"),
    ("all_reduce", "one_shot"),
]


@pytest.mark.parametrize(("collective", "algorithm"), ALL_PAIRS)
@pytest.mark.parametrize(
    "fabric", [*LARGE[:4], torus([8, 8, 8], WIRE)], ids=lambda fabric: str(fabric.ranks)
)
def test_a_sample_of_the_shifts_is_near_the_whole(
    fabric: Fabric, collective: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = price_algorithm(collective, algorithm, fabric, SIZES)
    monkeypatch.setattr(fabric_loads, "MOST_EXACT_FLOWS", 1000)
    monkeypatch.setattr(fabric_loads, "MOST_SAMPLED_FLOWS", 40 * fabric.ranks)
    monkeypatch.setattr(fabric_loads, "FEWEST_RANKS", 64)
    costs = FabricCosts()  # other costs: nothing of what was found before is used
    sampled = price_algorithm(collective, algorithm, fabric, SIZES, costs)
    assert abs(sampled.seconds / whole.seconds - 1).max() < 0.05
