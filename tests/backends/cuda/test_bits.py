"""Bits of own kernels' results on the double of a GPU."""

from __future__ import annotations

import pytest

from ccbench.cases.axes import InexactData
from tests.backends.test_bits import rounding_on

from .cases import Opened, case_of


@pytest.mark.thinned(1)
@pytest.mark.parametrize("groups", ["", "rank // 2"])
def test_own_kernels_on_the_double_of_a_gpu_round_bfloat16_once(
    opened: Opened, groups: str
) -> None:
    endpoint, _ = opened(4)
    case = case_of(
        "all_reduce", "default", 4, dtype="bfloat16", inexact=InexactData(), groups=groups
    )
    rounding = rounding_on(endpoint, case)
    assert rounding.correctly_rounded_share == 1
    assert rounding.accumulation.startswith("float32" if not groups else "bfloat16 or wider")
    assert len(rounding.result_digests) == 4
