"""Groups of ranks on emulated devices: each group a world of its own, at once or alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.cuda.single_process import CudaEndpoint, runs
from ccbench.backends.kernels.layout import device_of_rank, ranks_of_devices
from ccbench.cases.axes import Case
from ccbench.cases.measurement import CaseFacts
from tests.backends.measuring import (
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
