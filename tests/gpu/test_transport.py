"""``transport: host`` on real devices: the same results, bit for bit, through pinned memory of the host."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends.cpu.memory import Control
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.cuda.single_process import CudaEndpoint
from ccbench.backends.kernels.sources import unsupported
from ccbench.runner.measure import measure

from .cases import POINTS, SAMPLING, case_of, emulated, results
from .conftest import Opened

KERNELS = [(collective, algorithm) for collective, algorithm in POINTS if ":" not in algorithm]
STAGED = [*KERNELS, ("all_reduce", "schedule:ring"), ("all_to_all", "schedule:pairwise")]


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("collective", "algorithm"), STAGED)
def test_one_device_through_the_host_agrees_with_the_emulation(
    opened: Opened, collective: str, algorithm: str, ranks: int
) -> None:
    case = case_of(collective, algorithm, ranks, transport="host")
    if unsupported(case):
        pytest.skip(f"no such schedule: {unsupported(case)}")
    expected = results(emulated(ranks), case, 3)
    pairs = zip(results(opened(ranks), case, 3), expected, strict=True)
    assert all(np.array_equal(device, host) for device, host in pairs)


@pytest.mark.parametrize("mode", ["streaming", "graph", "cold", "isolated"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("algorithm", ["ring", "mesh_two_shot"])
def test_every_mode_checks_right(opened: Opened, algorithm: str, mode: str, in_place: bool) -> None:
    endpoint = opened(4)
    case = case_of("all_reduce", algorithm, 4, 100_003, in_place=in_place, mode=mode, transport="host")
    endpoint.prepare(case)
    result = measure(endpoint, case, SAMPLING, 1)
    assert result.mismatch is None
    assert endpoint.flags == ("loopback",)
    endpoint.finish()


def test_transports_take_turns(opened: Opened) -> None:
    endpoint = opened(4)
    for seed, transport in enumerate(3 * ("default", "host")):
        endpoint.prepare(case_of("all_reduce", "ring", 4, 5003, transport=transport))
        endpoint.poison()
        endpoint.refill(seed)
        endpoint.launch(5)
        assert endpoint.check(seed, 5) is None
        endpoint.finish()


@pytest.mark.parametrize(("collective", "algorithm"), STAGED)
def test_several_devices_meet_in_the_hosts_memory(cuda: Cuda, collective: str, algorithm: str) -> None:
    devices = cuda.runtime.getDeviceCount()
    if devices < 2:
        pytest.skip("one GPU here: what several do through the host cannot be seen")
    endpoint = CudaEndpoint(Control(1, 4096), devices, cuda)
    case = case_of(collective, algorithm, devices, 100_003, transport="host")
    if unsupported(case):
        pytest.skip(f"no such schedule: {unsupported(case)}")
    try:
        endpoint.prepare(case)
        result = measure(endpoint, case, SAMPLING, 1)
        assert result.mismatch is None
        assert endpoint.flags == ()
    finally:
        endpoint.close()
