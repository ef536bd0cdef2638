"""Groups that run one schedule at once: who sends to whom, and what it costs on links."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from ccbench.cases.axes import UNEVEN, Case
from ccbench.collectives import COLLECTIVES
from ccbench.errors import ScheduleError
from ccbench.model.cluster import open_cluster
from ccbench.model.context import predict_case, schedule_prediction
from ccbench.model.library.constants import shipped
from ccbench.model.rank_subset import RankSubset, schedule_of, subset_flows, takes_all_alike
from ccbench.model.subset_points import subset_points
from ccbench.schedules import algorithms_of, schedule_for
from tests.report.synthetic import case as case_with

H100S = open_cluster("hgx-h100", 2, "ib-ndr-400x4")
TABLE = shipped().table
TRAFFICS = ("", "zipf:1.3", "hot:0.8")


def case_of(
    name: str = "all_reduce", ranks: int = 4, size: int = 1 << 20, **asked: object
) -> Case:
    found = case_with(name, "default", size, ranks, **{"backend": "simulated", **asked})
    part = case_with(name, "default", size, found.group_ranks)
    return replace(found, count=part.count, size_bytes=part.size_bytes)


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
    flows = subset_flows(schedule, RankSubset(groups), len(ranks))
    turns = [steps for steps in flows.patterns for _ in range(steps.turns)]
    for step, steps in zip(schedule.expanded(), turns, strict=True):
        expected: Counter[tuple[int, int]] = Counter()
        for group in groups:
            for source, target, width in zip(
                step.source, step.target, step.phase.width, strict=True
            ):
                expected[group[source], group[target]] += width
        columns = steps.source.tolist(), steps.target.tolist(), steps.width.tolist()
        assert expected == {
            (source, target): width for source, target, width in zip(*columns, strict=True)
        }


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


@given(parties(), some.data())
def test_all_groups_take_between_one_and_all_of_them(case: Case, data: some.DataObject) -> None:
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


def test_uneven_flows_on_links_are_as_wide_as_what_they_carry() -> None:
    subset = RankSubset(((0, 8), (1, 9)), "hot:1")
    schedule = schedule_for(UNEVEN, "direct", 2)
    # Seats 0 and 1 both send all they have to seat 0: one buffer of each group crosses, the same NIC of four.
    (point,) = subset_points(H100S, schedule, subset, (1 << 30,), "direct")
    assert point.prediction.bandwidth_seconds == pytest.approx(
        2 * (1 << 30) / (50e9 * TABLE["efficiency.fabric"])
    )
    assert point.prediction.bound_seconds <= point.prediction.predicted_seconds


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


def test_a_pair_and_a_group_alone_are_not_everybody() -> None:
    assert takes_all_alike(case_of())
    for asked in ({"groups": "rank // 2"}, {"groups": "rank // 2", "active_group": 1}):
        assert not takes_all_alike(case_of(**asked))
    assert not takes_all_alike(case_of("send_recv", pair="3>1"))
    assert not takes_all_alike(case_of(UNEVEN, traffic="hot:1"))
