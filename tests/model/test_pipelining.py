"""Pipelines: overlaps found once give what looking at every step would give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.model.fabric_loads import FabricCosts, LinkTable
from ccbench.model.fabric_pricing import overlaps, piece_counts, pipeline_load
from ccbench.model.patterns import Pipeline
from ccbench.topology.fabrics import Wire, single_switch

EVENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=25)
COSTS = st.lists(st.floats(0.1, 5), min_size=5, max_size=5)


@given(events=EVENTS, costs=COSTS, pieces=st.integers(1, 15))
@settings(max_examples=300, deadline=None)
def test_overlaps_give_the_worst_place_of_every_step(
    events: list[tuple[int, int]], costs: list[float], pieces: int
) -> None:
    place, start = np.array(events).T
    weight = np.array(costs)
    starts = int(start.max()) + 1
    steps = starts + pieces - 1
    found = overlaps(place, start, weight, starts).per_step(steps, pieces)
    expected = []
    for step in range(steps):
        busy = (start <= step) & (step < start + pieces)
        expected.append(max(weight[one] * np.count_nonzero(busy & (place == one)) for one in range(5)))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@given(starts=st.integers(1, 60), pieces=st.integers(1, 70), seed=st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_a_chain_of_uneven_places_is_a_sliding_maximum(starts: int, pieces: int, seed: int) -> None:
    value = np.random.default_rng(seed).uniform(1, 9, starts)
    every = np.arange(starts)
    found = overlaps(every, every, value, starts).per_step(starts + pieces - 1, pieces)
    padded = np.concatenate([np.zeros(pieces - 1), value, np.zeros(pieces - 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, pieces)
    np.testing.assert_allclose(found, windows.max(axis=1))


def test_the_bottleneck_is_the_link_that_most_pieces_pass_at_once() -> None:
    fabric = single_switch(4, Wire(1e9, 1e-6))
    # Rank 0 receives from 1 and 2 at different times, and again from 3 later.
    pipeline = Pipeline(np.array([1, 2, 3]), np.array([0, 0, 0]), np.array([0, 1, 5]))
    load = pipeline_load(LinkTable(fabric, FabricCosts(), 4), pipeline)
    assert load is not None
    down = 4  # links of a switch: up from every rank, then down to it
    assert load.bottleneck(1)[1] == pytest.approx(1e-9)
    for pieces, together in ((2, 2), (4, 2), (5, 2), (6, 3)):
        link, seconds = load.bottleneck(pieces)
        assert link == down
        assert seconds == pytest.approx(together * 1e-9)
    # One piece: two steps, three without anything, one more. Each busy step has one way.
    one = load.totals(1)
    assert one.steps == 6
    assert one.latency_seconds == pytest.approx(3 * 2e-6)
    assert one.seconds_per_slot_byte == pytest.approx(3e-9)
    # Three pieces: steps 0 and 3 carry one, 1 and 2 two, 4 none, 5 to 7 one.
    assert load.totals(3).seconds_per_slot_byte == pytest.approx((1 + 2 + 2 + 1 + 3) * 1e-9)
    assert load.totals(3) is load.totals(3)


def test_no_edges_are_no_load() -> None:
    empty = np.zeros(0, dtype=np.int64)
    table = LinkTable(single_switch(1, Wire(1e9)), FabricCosts(), 1)
    assert pipeline_load(table, Pipeline(empty, empty, empty)) is None


def test_numbers_of_pieces_rise_to_the_most_by_a_quarter() -> None:
    counts = piece_counts()
    assert counts[:5].tolist() == [1, 2, 3, 4, 5]
    assert counts[-1] == 4096
    assert bool(np.all(np.diff(counts) >= 1))
    assert bool(np.all(counts[8:] <= counts[7:-1] * 1.25))
