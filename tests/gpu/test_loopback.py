"""All ranks on one GPU: right by the exact check, and equal to the emulation bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends.kernels.sources import unsupported
from ccbench.cases.axes import InexactData
from ccbench.dtypes import ITEM_BYTES
from ccbench.runner.bits import rounding_of_ranks
from ccbench.runner.measure import measure
from tests.backends.measuring import measured, wrong_elements

from .cases import OPS, POINTS, SAMPLING, STAGED, case_of, emulated, reducing_share, results
from .conftest import Opened

RANKS = (2, 4, 8)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("collective", "algorithm"), POINTS)
def test_every_kernel_measures_and_checks_right(
    opened: Opened, collective: str, algorithm: str, ranks: int
) -> None:
    endpoint = opened(ranks)
    for count in (0, 1, ranks - 1, 257, 200_001):
        case = case_of(collective, algorithm, ranks, count)
        if unsupported(case):
            continue
        endpoint.prepare(case)
        result = measure(endpoint, case, SAMPLING, endpoint.next_seed())
        endpoint.finish()
        assert result.mismatch is None, f"count {count}: {result.mismatch}"
        assert np.all(np.diff(result.stamps, axis=2) > 0)
    assert endpoint.flags == ("loopback",)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("collective", "algorithm", "transport"),
    [*((*point, "default") for point in POINTS), *((*point, "host") for point in STAGED)],
)
def test_a_device_and_its_emulation_agree_bit_for_bit(
    opened: Opened, collective: str, algorithm: str, transport: str, ranks: int
) -> None:
    """Through the host's memory, too."""
    case = case_of(collective, algorithm, ranks, transport=transport)
    if unsupported(case):
        pytest.skip(f"no such schedule: {unsupported(case)}")
    expected = results(emulated(ranks), case, 3)
    pairs = zip(results(opened(ranks), case, 3), expected, strict=True)
    assert all(np.array_equal(device, host) for device, host in pairs)


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("op", OPS)
def test_every_type_and_op_agrees_with_the_emulation(
    opened: Opened, dtype: str, op: str
) -> None:
    host, endpoint = emulated(4), opened(4)
    for collective, algorithm in reducing_share(dtype, op):
        case = case_of(collective, algorithm, 4, 1003, dtype, op)
        if unsupported(case):
            continue
        pairs = zip(results(endpoint, case, 5), results(host, case, 5), strict=True)
        assert all(np.array_equal(device, other) for device, other in pairs), case.label


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "mesh_one_shot", "mesh_two_shot", "ll"])
def test_rounding_on_a_device_is_that_of_the_emulation(
    opened: Opened, algorithm: str, dtype: str
) -> None:
    """Bit for bit where all add in the order of ranks; elsewhere a device has channels of its own."""
    case = case_of("all_reduce", algorithm, 4, 20_011, dtype, inexact=InexactData())
    device, host = (
        rounding_of_ranks(case, measured(endpoint, case, SAMPLING)[0].bits)
        for endpoint in (opened(4), emulated(4))
    )
    assert device.differing_over_launches == device.differing_over_ranks == 0
    if algorithm not in ("ring", "tree"):
        assert device.accumulation == host.accumulation
        assert device.result_bits == host.result_bits


@pytest.mark.parametrize("mode", ["streaming", "graph", "cold", "isolated"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "transport"),
    [
        *(
            (name, "default")
            for name in (
                "ring",
                "tree",
                "mesh_one_shot",
                "mesh_pull",
                "mesh_two_shot",
                "ll",
                "ll_two_shot",
            )
        ),
        ("schedule:ring", "default"),
        *((name, "host") for name in ("ring", "mesh_two_shot")),
    ],
)
def test_every_mode_checks_right(
    opened: Opened, algorithm: str, transport: str, mode: str, in_place: bool
) -> None:
    endpoint = opened(4)
    case = case_of(
        "all_reduce", algorithm, 4, 100_003, in_place=in_place, mode=mode, transport=transport
    )
    if not unsupported(case):  # mesh_pull in place
        assert wrong_elements(endpoint, case, SAMPLING) == 0
    assert endpoint.flags == ("loopback",)
