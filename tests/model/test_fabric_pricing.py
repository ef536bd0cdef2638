"""Prices on fabrics: closed forms, all sizes at once, what costs do, what is said about it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import CcbenchError, MachineError, ScheduleError
from ccbench.model.fabric_pricing import (
    PIECE_COUNTS,
    AlgorithmTraffic,
    FabricCosts,
    FabricPrices,
    RepeatedSteps,
    fabric_loads,
    price_algorithm,
    price_loads,
)
from ccbench.schedules import ALGORITHMS, schedule_for
from ccbench.schedules.schedule import Schedule
from ccbench.topology.fabrics import Fabric, Wire, single_switch
from tests.model.fabrics import random_fabric

A, B = 2e-6, 1 / 50e9
"""Seconds of a message, of a byte sent."""

RANKS = 16
LG = 4
SIZE = 3e6
SWITCH = single_switch(RANKS, Wire(1 / B, A / 2))
SHARE = (RANKS - 1) / RANKS
CLOSED_FORMS: dict[tuple[str, str], Callable[[int, float], float]] = {
    ("all_reduce", "ring"): lambda p, n: 2 * (p - 1) * A + 2 * n * SHARE * B,
    ("all_reduce", "recursive_doubling"): lambda p, n: LG * (A + n * B),
    ("all_reduce", "halving_doubling"): lambda p, n: 2 * LG * A + 2 * n * SHARE * B,
    ("all_reduce", "one_shot"): lambda p, n: A + (p - 1) * n * B,
    ("all_reduce", "two_shot"): lambda p, n: 2 * A + 2 * n * SHARE * B,
    ("all_reduce", "hierarchical:4"): lambda p, n: 12 * A + 2 * n * (3 / 4 + 3 / 16) * B,
    ("all_gather", "ring"): lambda p, n: (p - 1) * A + n * SHARE * B,
    ("all_gather", "recursive_doubling"): lambda p, n: LG * A + n * SHARE * B,
    ("all_gather", "bruck"): lambda p, n: LG * A + n * SHARE * B,
    ("all_gather", "direct"): lambda p, n: A + n * SHARE * B,
    ("reduce_scatter", "ring"): lambda p, n: (p - 1) * A + n * SHARE * B,
    ("reduce_scatter", "recursive_halving"): lambda p, n: LG * A + n * SHARE * B,
    ("reduce_scatter", "pairwise"): lambda p, n: (p - 1) * A + n * SHARE * B,
    ("reduce_scatter", "direct"): lambda p, n: A + n * SHARE * B,
    ("broadcast", "binomial"): lambda p, n: LG * (A + n * B),
    ("broadcast", "chain:7"): lambda p, n: (p - 2 + 7) * (A + n * B / 7),
    ("broadcast", "scatter_all_gather"): lambda p, n: (LG + p - 1) * A + 2 * n * SHARE * B,
    ("broadcast", "direct"): lambda p, n: 2 * A + 2 * n * SHARE * B,
    ("reduce", "binomial"): lambda p, n: LG * (A + n * B),
    ("reduce", "chain:7"): lambda p, n: (p - 2 + 7) * (A + n * B / 7),
    ("reduce", "reduce_scatter_gather"): lambda p, n: 2 * LG * A + 2 * n * SHARE * B,
    ("reduce", "direct"): lambda p, n: 2 * A + 2 * n * SHARE * B,
    ("all_to_all", "pairwise"): lambda p, n: (p - 1) * A + n * SHARE * B,
    ("all_to_all", "direct"): lambda p, n: A + n * SHARE * B,
    ("all_to_all_v", "pairwise"): lambda p, n: (p - 1) * A + n * SHARE * B,
    ("all_to_all_v", "direct"): lambda p, n: A + n * SHARE * B,
    ("all_to_all", "bruck"): lambda p, n: LG * A + n / 2 * LG * B,
    ("gather", "binomial"): lambda p, n: LG * A + n * SHARE * B,
    ("gather", "linear"): lambda p, n: (p - 1) * A + n * SHARE * B,
    ("gather", "direct"): lambda p, n: A + n * SHARE * B,
    ("scatter", "binomial"): lambda p, n: LG * A + n * SHARE * B,
    ("scatter", "linear"): lambda p, n: (p - 1) * A + n * SHARE * B,
    ("scatter", "direct"): lambda p, n: A + n * SHARE * B,
    ("send_recv", "shift"): lambda p, n: A + n * B,
    ("barrier", "dissemination"): lambda p, n: LG * A,
}
"""Time on a switch of ``p`` ranks for size ``n``: Thakur, Rabenseifner and Gropp, 2005; Chan et al., 2007;
Pjesivac-Grbovic et al., 2007."""


def price_schedule(schedule: Schedule, fabric: Fabric, size_bytes: float) -> FabricPrices:
    return price_loads(fabric_loads(schedule, fabric), size_bytes)


@pytest.mark.parametrize(("collective", "algorithm"), list(CLOSED_FORMS))
def test_prices_on_a_switch_are_the_closed_forms(collective: str, algorithm: str) -> None:
    expected = CLOSED_FORMS[collective, algorithm](RANKS, SIZE)
    by_name = price_algorithm(collective, algorithm, SWITCH, SIZE)
    by_schedule = price_schedule(schedule_for(collective, algorithm, RANKS), SWITCH, SIZE)
    assert by_name.seconds[0] == pytest.approx(expected, rel=1e-12)
    assert by_schedule.seconds[0] == pytest.approx(expected, rel=1e-12)


def test_every_algorithm_without_pieces_or_trees_has_a_closed_form() -> None:
    named = {(collective, name.partition(":")[0]) for collective, name in CLOSED_FORMS}
    trees = {("all_reduce", "binary_tree"), ("all_reduce", "double_binary_tree")}
    assert named | trees == {(row.collective, row.name) for row in ALGORITHMS}


MESSAGE = 3e-7
"""Seconds of each message of a rank in a step, after its first."""


@given(seed=st.integers(0, 10**6), index=st.integers(0, len(ALGORITHMS) - 1))
def test_without_bytes_a_price_grows_by_the_messages_of_each_steps_busiest_rank(
    seed: int, index: int
) -> None:
    """Counted again from the schedule, a pair at a time: slots that go the same way are one message."""
    fabric, row = random_fabric(seed), ALGORITHMS[index]
    pieces = 3 if row.parameter.startswith("pieces") else None
    try:
        schedule = schedule_for(
            row.collective, row.name, fabric.ranks, parameter=pieces, prove=False
        )
    except ScheduleError:
        return  # not for this number of ranks
    further, all_messages = 0, 0
    for step in schedule.expanded():
        ends = zip(step.source.tolist(), step.target.tolist(), strict=True)
        pairs = {(source, target) for source, target in ends if source != target}
        handled = [Counter(pair[end] for pair in pairs) for end in (0, 1)]
        busiest = max((count for one in handled for count in one.values()), default=0)
        further, all_messages = further + max(busiest - 1, 0), all_messages + busiest
    plain = price_schedule(schedule, fabric, 0.0).seconds[0]
    costs = FabricCosts(sender_seconds=MESSAGE, message_seconds=MESSAGE)
    priced = price_loads(fabric_loads(schedule, fabric, costs), 0.0)
    assert priced.messages[0] == pytest.approx(further * MESSAGE)
    assert priced.seconds[0] >= all_messages * MESSAGE * (1 - 1e-9)
    assert priced.seconds[0] >= plain + further * MESSAGE * (1 - 1e-9)


@given(
    seed=st.integers(0, 10**6),
    flows=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=40),
)
def test_another_message_is_never_cheaper(seed: int, flows: list[tuple[int, int]]) -> None:
    fabric, random = random_fabric(seed), np.random.default_rng(seed)
    costs = FabricCosts(message_seconds=random.uniform(0, 1e-6, fabric.links))
    pairs = list(
        dict.fromkeys((one % fabric.ranks, other % fabric.ranks) for one, other in flows)
    )
    sizes, before = [0.0, 1e2, 1e4, 1e6], np.zeros(4)
    for count in range(1, len(pairs) + 1):
        source, target = np.array(pairs[:count]).T
        steps = RepeatedSteps(source, target, np.ones(count, dtype=np.int64))
        traffic = AlgorithmTraffic("all_to_all", "some flows", fabric.ranks, 1, (steps,))
        seconds = price_loads(fabric_loads(traffic, fabric, costs), sizes).seconds
        assert bool(np.all(seconds >= before * (1 - 1e-12)))
        before = seconds


@given(n=st.floats(1e3, 1e11), ranks=st.integers(3, 40))
def test_the_best_chain_is_within_four_percent_of_its_square_root_form(
    n: float, ranks: int
) -> None:
    fabric = single_switch(ranks, Wire(1 / B, A / 2))
    prices = price_algorithm("broadcast", "chain", fabric, n)
    best = (ranks - 2) * A + n * B + 2 * math.sqrt((ranks - 2) * A * n * B)
    pieces = math.sqrt((ranks - 2) * n * B / A)
    if 1 <= pieces <= PIECE_COUNTS[-1]:
        assert best * (1 - 1e-12) <= prices.seconds[0] <= best * 1.04
    assert prices.seconds[0] >= best * (1 - 1e-12)
    fixed = [
        price_algorithm("broadcast", f"chain:{k}", fabric, n).seconds[0] for k in PIECE_COUNTS
    ]
    assert prices.seconds[0] == pytest.approx(min(fixed), rel=1e-12)
    assert PIECE_COUNTS[int(np.argmin(fixed))] == prices.pieces[0]


@given(seed=st.integers(0, 10**6), index=st.integers(0, len(ALGORITHMS) - 1))
def test_all_sizes_at_once_are_what_each_alone_is_and_all_are_explained(
    seed: int, index: int
) -> None:
    fabric, row = random_fabric(seed), ALGORITHMS[index]
    sizes = [0.0, 1.0, 1e3, 1e5, 1e7, 1e9, 1e11]
    together = price_algorithm(row.collective, row.name, fabric, sizes)
    alone = [
        price_algorithm(row.collective, row.name, fabric, size).seconds[0] for size in sizes
    ]
    np.testing.assert_array_equal(together.seconds, alone)
    assert bool(np.all(np.diff(together.seconds) >= 0))
    assert bool(np.all(np.isfinite(together.seconds)))
    for place in range(len(sizes)):
        words = together.explanation(place)
        assert words
        assert "\n" not in words
        assert together.bottleneck_link(place)[2] <= together.bandwidth[place] * (1 + 1e-9)


@given(
    seed=st.integers(0, 10**6),
    index=st.integers(0, len(ALGORITHMS) - 1),
    share=st.floats(0.1, 1.0),
    slower=st.floats(1.0, 10.0),
)
def test_more_of_anything_that_is_fast_is_never_slower(
    seed: int, index: int, share: float, slower: float
) -> None:
    fabric, row = random_fabric(seed), ALGORITHMS[index]
    sizes = [1.0, 1e5, 1e9]
    random = np.random.default_rng(seed)
    shares = np.where(random.random(fabric.links) < 0.5, share, 1.0)
    latencies = fabric.link_latency_seconds * random.uniform(1, slower, fabric.links)
    worse = FabricCosts(1e-6, latencies, shares, random.uniform(0, 1e-6, fabric.links))
    base = price_algorithm(row.collective, row.name, fabric, sizes)
    priced = price_algorithm(row.collective, row.name, fabric, sizes, worse)
    assert bool(np.all(base.seconds <= priced.seconds * (1 + 1e-12)))


def test_the_explanation_takes_links_of_one_rate_together() -> None:
    prices = price_algorithm("broadcast", "binomial", SWITCH, SIZE)
    link, load, seconds = prices.bottleneck_link(0)
    assert seconds == pytest.approx(prices.bandwidth[0])
    assert load == pytest.approx(SIZE)
    assert SWITCH.link_name(link) in prices.explanation(0)


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ({"sender_seconds": -1.0}, "sender_seconds: -1"),
        ({"rate_efficiency": 1.5}, "rate_efficiency"),
        ({"rate_efficiency": np.ones(3)}, "rate_efficiency"),
        ({"link_latency_seconds": np.ones(3)}, "link_latency_seconds"),
        ({"link_latency_seconds": np.full(SWITCH.links, -1.0)}, "link_latency_seconds"),
        ({"message_seconds": -1e-9}, "message_seconds"),
        (
            {"message_seconds": np.ones(3)},
            "message_seconds: not zero or more for each of 32 links",
        ),
    ],
)
def test_costs_that_cannot_be_are_refused(costs: dict[str, object], words: str) -> None:
    with pytest.raises(MachineError, match=words) as raised:
        price_algorithm("all_reduce", "ring", SWITCH, 8, FabricCosts(**costs))  # type: ignore[arg-type]  # wrong
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("sizes", [[-1.0], [math.nan], [math.inf], [[1.0]]])
def test_sizes_that_cannot_be_are_refused(sizes: object) -> None:
    with pytest.raises(MachineError, match="size_bytes"):
        price_algorithm("all_reduce", "ring", SWITCH, sizes)  # type: ignore[arg-type]  # wrong on purpose


def test_too_few_ranks_in_the_fabric_are_refused() -> None:
    with pytest.raises(MachineError, match="17 ranks, but single switch has 16"):
        price_schedule(schedule_for("all_reduce", "ring", 17), SWITCH, 8)


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "root", "words"),
    [
        ("broadcast", "chain:0", 4, 0, "chain:0"),
        ("broadcast", "chain:9999", 4, 0, "9999 pieces"),
        ("broadcast", "chain", 4, 4, "root 4"),
        ("broadcast", "direct", 1000, -1, "root -1"),
        ("all_reduce", "fast", 4, 0, "fast"),
        ("all_reduce", "hierarchical:3", 4, 0, "groups of 3"),
        ("all_reduce", "ring", 2049, 0, "2048 ranks at most, these are 2049; --model nccl"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    collective: str, algorithm: str, ranks: int, root: int, words: str
) -> None:
    with pytest.raises(CcbenchError, match=words) as raised:
        price_algorithm(collective, algorithm, single_switch(ranks, Wire(1e9)), 8, root=root)
    assert "\n" not in str(raised.value)


def test_one_rank_sends_nothing() -> None:
    fabric = single_switch(1, Wire(1e9, 1e-6))
    for row in ALGORITHMS:
        prices = price_algorithm(row.collective, row.name, fabric, [0.0, 1000.0, 1e8])
        assert prices.seconds.tolist() == [0, 0, 0]
