"""Groups that run one schedule at once: who sends to whom, and what it costs on hosts and on links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from ccbench.cases.axes import UNEVEN, Case
from ccbench.collectives import COLLECTIVES
from ccbench.errors import ScheduleError
from ccbench.groups import parse_groups
from ccbench.model.cluster import open_cluster
from ccbench.model.concurrent import cheapest, schedules_at_once
from ccbench.model.context import predict_case, schedule_prediction
from ccbench.model.library.constants import shipped
from ccbench.model.machine import Machine, load_machine
from ccbench.model.pricing import case_prices, predict
from ccbench.model.rank_subset import ALL_RANKS, RankSubset, placed, schedule_of, subset_of
from ccbench.model.subset_points import link_seconds, subset_points, subset_prices
from ccbench.schedules import algorithms_of, schedule_for
from ccbench.schedules.schedule import Step
from tests.model.machines import machines, toy
from tests.report.synthetic import case as case_with

MACHINE = toy(cores=4)
H100S = open_cluster("hgx-h100", 2, "ib-ndr-400x4")
TABLE = shipped().table
TRAFFICS = ("", "zipf:1.3", "hot:0.8")


def case_of(
    name: str = "all_reduce", ranks: int = 4, size: int = 1 << 20, **asked: object
) -> Case:
    found = case_with(name, "default", size, ranks, **{"backend": "simulated", **asked})
    part = case_with(name, "default", size, found.group_ranks)
    return replace(found, count=part.count, size_bytes=part.size_bytes)


def test_placed_groups_take_each_step_together_with_their_own_members_only() -> None:
    schedule = schedule_for("all_reduce", "ring", 2)
    both = placed(schedule, ((0, 2), (1, 3)), 4)
    assert both is placed(schedule, ((0, 2), (1, 3)), 4)
    assert both.steps == schedule.steps
    for step in both.expanded():
        assert sorted(flow[:2] for flow in sent(step)) == [(0, 2), (1, 3), (2, 0), (3, 1)]


def sent(step: Step) -> list[tuple[int, ...]]:
    """(source, target, slot read, slot written, width) of each flow."""
    columns = (step.source, step.target, step.source_slot, step.target_slot, step.phase.width)
    return [*zip(*(column.tolist() for column in columns), strict=True)]


@given(
    some.sampled_from(
        [(name, algorithm) for name in COLLECTIVES for algorithm in algorithms_of(name)]
    ),
    some.integers(2, 5),
    some.integers(1, 3),
    some.randoms(use_true_random=False),
)
def test_every_group_sends_what_the_schedule_says_seat_by_seat(
    what: tuple[str, str], size: int, count: int, random: object
) -> None:
    try:
        schedule = schedule_for(what[0], what[1], size)
    except ScheduleError:
        assume(False)
    ranks = list(range(size * count + 2))
    random.shuffle(ranks)  # type: ignore[attr-defined]  # a random.Random
    groups = tuple(tuple(ranks[start : start + size]) for start in range(0, size * count, size))
    for step, all_of_it in zip(
        schedule.expanded(), placed(schedule, groups, len(ranks)).expanded(), strict=True
    ):
        expected = [
            (group[source], group[target], *rest)
            for group in groups
            for source, target, *rest in sent(step)
        ]
        assert sorted(expected) == sorted(sent(all_of_it))


def test_on_cores_that_do_not_disturb_each_other_groups_cost_what_one_does() -> None:
    together, alone = case_of(groups="rank // 2"), case_of(groups="rank // 2", active_group=0)
    schedule = schedule_of(together, "ring")
    seconds = [
        float(case_prices(case, MACHINE, schedule).seconds[0]) for case in (together, alone)
    ]
    assert seconds[0] == pytest.approx(seconds[1])
    # E + a + 2 o + n/2 (b + c) of two ranks, as docs/model-memory.md has it.
    edges = 2 * 1e-6
    expected = edges + 1e-6 + 2 * 2e-6 + (1 << 19) * (1 / 1e9 + 1 / 5e8)
    assert seconds[1] == pytest.approx(expected)


def test_groups_that_share_cores_take_twice_the_work() -> None:
    machine = toy(cores=2)
    together = case_of("all_gather", 4, 1 << 24, groups="rank // 2")
    schedule = schedule_of(together, "direct")
    both, one = (
        case_prices(case, machine, schedule).bandwidth[0]
        for case in (together, replace(together, active_group=0))
    )
    assert both == pytest.approx(2 * one)


def test_a_pair_one_way_is_half_of_what_both_ways_move() -> None:
    one, both = (case_of("send_recv", pair=pair) for pair in ("0>3", "0<>3"))
    prices = [case_prices(case, MACHINE, schedule_of(case, "shift")) for case in (one, both)]
    assert prices[0].bound[0] == pytest.approx(prices[1].bound[0] / 2)
    assert prices[0].seconds[0] <= prices[1].seconds[0]


def test_uneven_blocks_are_weighed_by_what_is_in_them() -> None:
    matrix = "[[0, 3, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]]"
    case = case_of(UNEVEN, traffic=matrix)
    prices = case_prices(case, MACHINE, schedule_of(case, "direct"))
    # The source pushes: rank 0 copies three times as much as any other, which is all of the size.
    assert prices.copying[0] == pytest.approx(case.size_bytes / 1e9)
    flat = case_of(UNEVEN)
    even = case_prices(flat, MACHINE, schedule_of(flat, "direct"))
    same = case_prices(
        replace(flat, traffic=str([[1] * 4] * 4)), MACHINE, schedule_of(flat, "direct")
    )
    assert same.seconds[0] == pytest.approx(even.seconds[0])
    assert same.bound[0] == pytest.approx(even.bound[0])


@some.composite
def parties(draw: some.DrawFn) -> Case:
    name = draw(some.sampled_from(sorted(COLLECTIVES)))
    traffic = draw(some.sampled_from(TRAFFICS)) if name == UNEVEN else ""
    groups = draw(
        some.sampled_from(
            ("", "rank // 2", "rank % 2", "rank // 4", "[[0, 3], [5, 1], [2, 4]]")
        )
    )
    size = draw(some.sampled_from((64, 1 << 12, 1 << 20, 1 << 27)))
    return case_of(name, 8, size, groups=groups, traffic=traffic)


def _no_core_gains_from_others(machine: Machine) -> bool:
    """Not so of all random machines: of some, a core's share of the rate of all is more than it has alone."""
    fabric = machine.fabric
    return all(
        every.bytes_per_second <= fabric.cores * one.bytes_per_second
        for rates in (fabric.copy, fabric.reduce)
        for one, every in zip(rates.one_process, rates.all_cores, strict=True)
    )


PLAIN = some.sampled_from((toy(1), toy(2), toy(3), toy(8), load_machine("cpu-shared-memory")))


@given(machines() | PLAIN, parties(), some.data())
def test_no_bound_of_a_host_exceeds_a_price_and_all_groups_take_between_one_and_all_of_them(
    machine: Machine, case: Case, data: some.DataObject
) -> None:
    try:
        schedule = schedule_of(
            case, data.draw(some.sampled_from(algorithms_of(case.collective)))
        )
    except ScheduleError:
        assume(False)
    together = predict(case, machine, schedule)
    assert together.bound_seconds <= together.predicted_seconds * (1 + 1e-9)
    if not case.groups:
        return
    alone = [
        predict(replace(case, active_group=index), machine, schedule)
        for index in range(len(case.members))
    ]
    for one in alone:
        assert one.bound_seconds <= one.predicted_seconds * (1 + 1e-9)
        if _no_core_gains_from_others(machine):
            assert one.predicted_seconds <= together.predicted_seconds * (1 + 1e-9)


@given(parties(), some.data())
def test_the_same_on_links(case: Case, data: some.DataObject) -> None:
    case = replace(case, ranks=16)
    try:
        algorithm = data.draw(some.sampled_from(algorithms_of(case.collective)))
        schedule = schedule_of(case, algorithm)
    except ScheduleError:
        assume(False)
    together = schedule_prediction(case, H100S, algorithm)
    assert together.bound_seconds <= together.predicted_seconds
    if not case.groups:
        return
    alone = [
        schedule_prediction(replace(case, active_group=index), H100S, algorithm)
        for index in range(len(case.members))
    ]
    longest = max(one.predicted_seconds for one in alone)
    assert (
        longest * (1 - 1e-9) <= together.predicted_seconds <= len(alone) * longest * (1 + 1e-9)
    )
    assert all(one.bound_seconds <= one.predicted_seconds for one in alone)
    assert schedule.ranks == case.group_ranks


def test_all_ranks_as_one_group_cost_what_the_schedule_does() -> None:
    schedule = schedule_for("all_reduce", "ring", 16)
    whole = RankSubset((tuple(range(16)),))
    grouped = subset_prices(H100S, schedule, whole, (1 << 10, 1 << 30)).seconds
    (small, large) = subset_points(H100S, schedule, ALL_RANKS, (1 << 10, 1 << 30), "ring")
    assert grouped.tolist() == [
        small.prediction.predicted_seconds,
        large.prediction.predicted_seconds,
    ]


def test_uneven_flows_on_links_are_as_wide_as_what_they_carry() -> None:
    subset = RankSubset(((0, 8), (1, 9)), "hot:1")
    schedule = schedule_for(UNEVEN, "direct", 2)
    # Seats 0 and 1 both send all they have to seat 0: one buffer of each group crosses, the same NIC of four.
    (point,) = subset_points(H100S, schedule, subset, (1 << 30,), "direct")
    assert point.prediction.bandwidth_seconds == pytest.approx(
        2 * (1 << 30) / (50e9 * TABLE["efficiency.fabric"])
    )
    assert point.prediction.bound_seconds <= point.prediction.predicted_seconds


@given(
    machines(),
    parties(),
    some.sampled_from(("all_gather", "all_reduce on all", "broadcast on rank // 4")),
)
def test_two_at_once_take_at_least_the_longer_and_at_most_one_after_the_other(
    machine: Machine, case: Case, beside: str
) -> None:
    assume(COLLECTIVES[case.collective].moves_data and not case.groups.startswith("["))
    main = replace(case, concurrent=beside)
    other = main.concurrent_case
    assert other is not None
    schedules = [cheapest(one, machine) for one in (main, other)]
    alone = [
        predict(one, machine, its) for one, its in zip((main, other), schedules, strict=True)
    ]
    both = schedules_at_once(machine, (main, schedules[0]), (other, schedules[1]))
    longer = max(one.predicted_seconds for one in alone)
    whole = both.prediction.predicted_seconds
    assert longer <= whole <= sum(one.predicted_seconds for one in alone) * (1 + 1e-9)
    assert max(both.main_seconds, both.other_seconds) == pytest.approx(whole)
    assert both.prediction.bound_seconds <= whole * (1 + 1e-9)


@pytest.mark.parametrize("backend", ["nccl", "cuda"])
def test_what_shares_no_link_costs_nothing_beside(backend: str) -> None:
    """Tensor parallel groups inside nodes, data parallel ones across: NVSwitches and NICs."""
    case = case_of(backend=backend, ranks=16, size=1 << 28, groups="rank % 8", nodes=2)
    used = "" if backend == "nccl" else "ring"
    alone = predict_case(case, H100S, used)
    besides = predict_case(replace(case, concurrent="all_gather on rank // 8"), H100S, used)
    same = predict_case(replace(case, concurrent="all_gather on rank % 8"), H100S, used)
    assert alone is not None
    assert besides is not None
    assert same is not None
    assert besides.predicted_seconds == pytest.approx(alone.predicted_seconds, rel=0.02)
    assert same.predicted_seconds > 1.3 * alone.predicted_seconds
    assert same.bottleneck.endswith(
        "; concurrent with all_gather on rank % 8, which shares what both use"
    )


def test_links_are_busy_for_what_goes_through_them() -> None:
    schedule = schedule_for("all_gather", "ring", 2)
    busy = link_seconds(H100S, schedule, RankSubset(((0, 1), (2, 3))), 1 << 20)
    used = busy[busy > 0]
    # Each of four GPUs sends its half up once and gets one down once.
    assert len(used) == 8
    assert used == pytest.approx(
        np.full(8, (1 << 19) / (450e9 * TABLE["efficiency.nvlink_hopper"]))
    )


def test_a_case_without_groups_is_of_everybody() -> None:
    assert subset_of(case_of()) == ALL_RANKS
    assert subset_of(case_of(groups="rank // 2")).members == parse_groups("rank // 2", 4)
    assert subset_of(case_of(groups="rank // 2", active_group=1)).members == ((2, 3),)
    assert subset_of(case_of("send_recv", pair="3>1")) == RankSubset(((3, 1),), one_way=True)
