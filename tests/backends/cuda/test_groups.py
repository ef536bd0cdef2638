"""Groups of ranks on emulated devices: each group a world of its own, at once or alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.base import CannotRun
from ccbench.backends.cuda.context import NotCoResident
from ccbench.backends.cuda.endpoint import CollectiveFailed
from ccbench.backends.cuda.single_process import CudaEndpoint, runs
from ccbench.backends.kernels.layout import device_of_rank, ranks_of_devices
from ccbench.cases.axes import Case
from ccbench.cases.measurement import CaseFacts
from tests.backends.measuring import (
    launch_without_last_rank,
    measured,
    wrong_elements,
)

from .cases import POINTS, Opened, case_of, close_clean


def grouped(
    collective: str,
    algorithm: str,
    groups: str,
    count: int = 777,
    ranks: int = 4,
    **changes: Any,
) -> Case:
    return case_of(collective, algorithm, ranks, count, groups=groups, **changes)


def facts_of(endpoint: CudaEndpoint, case: Case) -> CaseFacts:
    """What a round records besides samples; its data must be right."""
    result, facts = measured(endpoint, case)
    assert result.mismatch is None
    return facts


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("collective", "algorithm"), POINTS)
def test_every_kernel_is_right_in_groups_across_devices_and_on_one(
    opened: Opened, collective: str, algorithm: str
) -> None:
    for devices, groups in ((4, "rank % 2"), (1, "rank // 2")):
        endpoint, _ = opened(4, devices=devices)
        assert wrong_elements(endpoint, grouped(collective, algorithm, groups)) == 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mode", ["streaming", "isolated", "graph", "cold"])
@pytest.mark.parametrize("transport", ["default", "host"])
def test_groups_are_right_in_every_mode_and_over_every_transport(
    opened: Opened, mode: str, transport: str
) -> None:
    endpoint, runtime = opened(4, devices=2)
    case = grouped("all_reduce", "ring", "rank % 2", mode=mode, transport=transport)
    for alone in (-1, 0, 1):
        assert wrong_elements(endpoint, replace(case, active_group=alone)) == 0
    close_clean(endpoint, runtime)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "groups", ["[[0, 3], [2, 1]]", "[[3, 1]]", "rank % 4", "tp of tp2-cp1-ep1-dp2-pp1"]
)
def test_any_groups_and_then_all_ranks_again(opened: Opened, groups: str) -> None:
    endpoint, runtime = opened(4, devices=2)
    case = grouped("all_reduce", "tree", groups)
    later = case_of("all_reduce", "ring", 4), grouped("all_gather", "ll", "rank // 2", 31)
    for each_case in (case, *later, case):
        assert wrong_elements(endpoint, each_case) == 0
    close_clean(endpoint, runtime)


def test_groups_really_run_at_once_and_one_alone_leaves_the_others_streams_empty(
    opened: Opened,
) -> None:
    endpoint, runtime = opened(4, devices=2)
    case = grouped("all_reduce", "ring", "rank % 2")
    for alone, streams in ((-1, 4), (1, 2)):
        endpoint.prepare(replace(case, active_group=alone))
        endpoint.refill(1)
        before = len(runtime.at_once)
        endpoint.launch(2)
        assert set(runtime.at_once[before:]) == {
            streams
        }  # a kernel of each, in one launch of the engine
        endpoint.finish()


def test_every_group_has_its_own_figures(opened: Opened) -> None:
    endpoint, _ = opened(4, devices=4)
    facts = facts_of(endpoint, grouped("all_reduce", "ring", "rank % 2"))
    assert facts.parts == ("ranks 0, 2", "ranks 1, 3")
    assert len(facts.group_samples_seconds) == 2
    assert all(
        second > 0
        for group_samples_second in facts.group_samples_seconds
        for second in group_samples_second
    )
    assert facts.channels_used >= 1
    alone = facts_of(endpoint, grouped("all_reduce", "ring", "rank % 2", active_group=1))
    assert (alone.parts, alone.group_samples_seconds) == ((), ())
    assert facts_of(endpoint, case_of("all_reduce", "ring", 4)).parts == ()


def test_a_kernel_is_told_of_its_own_groups_memory_alone(opened: Opened) -> None:
    endpoint, runtime = opened(4, devices=2)
    assert wrong_elements(endpoint, case_of("all_reduce", "ring", 4)) == 0
    runtime.views.clear()
    endpoint.prepare(grouped("all_reduce", "ring", "rank % 2"))
    endpoint.launch(1)
    flag_views = {tuple(int(view) for view in views["flags"]) for _, _, views in runtime.views}
    assert sorted(map(len, flag_views)) == [
        2,
        2,
    ]  # two groups of two, whichever device the kernel is on
    assert len({address for group in flag_views for address in group}) == 4
    of_all = {endpoint._communicators["default"].places(rank)["flags"] for rank in range(4)}
    assert not of_all & {address for group in flag_views for address in group}


def test_a_rank_that_does_not_come_is_named_by_its_number_in_the_team(opened: Opened) -> None:
    endpoint, _ = opened(4, limit_seconds=1e-6, devices=2)
    endpoint.prepare(grouped("all_reduce", "ring", "[[0, 1], [3, 2]]"))
    endpoint.refill(1)
    second = endpoint._active[1]
    for group in second.contexts:
        launch_without_last_rank(group)
        group.synchronize()
    with pytest.raises(
        CollectiveFailed, match=r"rank 3, channel \d: waited too long for .*rank 2"
    ):
        endpoint.begin_sample(0)
    assert endpoint.given_up() == []
    endpoint.refill(2)
    endpoint.launch(1)
    assert endpoint.check(2, 1) is None


def test_groups_share_a_devices_multiprocessors_or_are_refused(opened: Opened) -> None:
    endpoint, _ = opened(4, devices=1, processors=8)
    endpoint.prepare(grouped("all_reduce", "ring", "rank // 2", 1 << 16))
    blocks = [group._grid for group in endpoint.launched]
    assert sum(blocks) <= 8
    few, _ = opened(4, devices=1, processors=3)
    with pytest.raises(NotCoResident, match="take fewer ranks"):
        few.prepare(grouped("all_reduce", "ring", "rank // 2"))
    assert issubclass(NotCoResident, CannotRun)


@given(st.permutations(range(8)), st.integers(1, 8), st.sampled_from([1, 2, 4, 8]))
def test_runs_hold_every_member_once_on_its_device(
    order: list[int], devices: int, size: int
) -> None:
    shares = ranks_of_devices(8, devices)
    for first in range(0, 8, size):
        members = order[first : first + size]
        device_runs = runs(members, shares)
        assert [place for _, places in device_runs for place in places] == list(range(size))
        for device, places in device_runs:
            assert all(device_of_rank(shares, members[place]) == device for place in places)
