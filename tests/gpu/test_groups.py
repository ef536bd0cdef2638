"""Groups of ranks on one real GPU: right at once and alone, and the same bits as the emulation."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.cases.axes import Case
from tests.backends.measuring import measured

from .cases import POINTS, SAMPLING, case_of, emulated, results
from .conftest import Opened

RANKS = 4


def grouped(collective: str, algorithm: str, groups: str, alone: int = -1) -> Case:
    return case_of(collective, algorithm, RANKS, groups=groups, active_group=alone)


@pytest.mark.parametrize("groups", ["rank // 2", "rank % 2"])
@pytest.mark.parametrize(("collective", "algorithm"), POINTS)
def test_every_kernel_is_right_in_groups(
    opened: Opened, collective: str, algorithm: str, groups: str
) -> None:
    endpoint = opened(RANKS)
    for alone in (-1, 1):
        case = grouped(collective, algorithm, groups, alone)
        result, facts = measured(endpoint, case, SAMPLING)
        assert result.mismatch is None
        assert len(facts.parts) == (2 if alone < 0 else 0)
        assert all(
            second > 0
            for group_samples_second in facts.group_samples_seconds
            for second in group_samples_second
        )


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_groups_leave_the_bits_that_the_emulation_leaves(
    opened: Opened, algorithm: str
) -> None:
    case = grouped("all_reduce", algorithm, "rank % 2")
    on_host = results(emulated(RANKS), case, 3)
    on_device = results(opened(RANKS), case, 3)
    assert len(on_device) == len(on_host) == RANKS
    assert all(
        np.array_equal(one, other) for one, other in zip(on_device, on_host, strict=True)
    )
