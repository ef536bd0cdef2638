"""``transport: host`` on real devices: in turn with the usual one, and between several devices."""

from __future__ import annotations

import pytest

from ccbench.backends.control_block import Control
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.cuda.single_process import CudaEndpoint
from ccbench.backends.kernels.sources import unsupported
from tests.backends.measuring import launched, wrong_elements

from .cases import SAMPLING, STAGED, case_of
from .conftest import Opened


def test_transports_take_turns(opened: Opened) -> None:
    endpoint = opened(4)
    for seed, transport in enumerate(3 * ("default", "host")):
        launched(endpoint, case_of("all_reduce", "ring", 4, 5003, transport=transport), 5, seed)
        assert endpoint.check(seed, 5) is None
        endpoint.finish()


@pytest.mark.parametrize(("collective", "algorithm"), STAGED)
def test_several_devices_meet_in_the_hosts_memory(
    cuda: Cuda, collective: str, algorithm: str
) -> None:
    devices = cuda.runtime.getDeviceCount()
    if devices < 2:
        pytest.skip("one GPU here: what several do through the host cannot be seen")
    endpoint = CudaEndpoint(Control(1, 4096), devices, cuda)
    case = case_of(collective, algorithm, devices, 100_003, transport="host")
    if unsupported(case):
        pytest.skip(f"no such schedule: {unsupported(case)}")
    try:
        assert wrong_elements(endpoint, case, SAMPLING) == 0
        assert endpoint.flags == ()
    finally:
        endpoint.close()
