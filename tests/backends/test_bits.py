"""Bits of results on endpoints that run without ccbench's leader: libraries, and doubles of GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccbench.backends.gloo import BACKEND as GLOO
from ccbench.cases.axes import Case, InexactData
from ccbench.cases.measurement import Rounding
from ccbench.runner.bits import rounding_of_ranks
from tests.backends.gloo import team
from tests.backends.measuring import case_of, measured
from tests.backends.nccl.measuring import opened as opened_nccl

DATA = InexactData()
REDUCING = ("all_reduce", "reduce", "reduce_scatter")


def rounding_on(endpoint: Any, case: Case) -> Rounding:
    result, _ = measured(endpoint, case)
    assert result.mismatch is None
    return rounding_of_ranks(case, result.bits)


def differing(short: Rounding, long: Rounding) -> float:
    bits = [np.array(each.result_bits) for each in (short, long)]
    common = min(map(len, bits))
    return float(np.mean(bits[0][:common] != bits[1][:common]))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3"])
@pytest.mark.parametrize("collective", REDUCING)
def test_the_double_of_nccl_adds_in_the_order_of_ranks(collective: str, dtype: str) -> None:
    endpoint, _ = opened_nccl()
    case = case_of("nccl", collective, "default", 4, 3000, dtype=dtype, inexact=DATA)
    rounding = rounding_on(endpoint, case)
    assert rounding.inexact_data == "normal"
    assert rounding.differing_over_launches == 0
    assert rounding.differing_over_ranks == (0 if collective == "all_reduce" else None)
    assert (rounding.correctly_rounded_share or 0) > 0.5
    assert rounding.accumulation not in ("", "unknown")


@pytest.mark.skipif(GLOO.unavailable() is not None, reason=str(GLOO.unavailable()))
@pytest.mark.parametrize("seed", range(1, 6))
def test_gloo_gives_other_bits_when_only_the_size_changes(seed: int) -> None:
    cases = [
        case_of("gloo", "all_reduce", "default", 4, count, inexact=InexactData(seed=seed))
        for count in (256, 1024, 4096)
    ]
    by_case = team.measured(4, cases)
    roundings = [
        rounding_of_ranks(case, [bits for result in results for bits in result.bits])
        for case, results in zip(cases, by_case, strict=True)
    ]
    for rounding in roundings:
        assert rounding.differing_over_launches == rounding.differing_over_ranks == 0
        assert rounding.accumulation.startswith("float32, chain")
    assert 0.1 < differing(*roundings[:2]) < 0.6
    assert 0.1 < differing(*roundings[1:]) < 0.6
