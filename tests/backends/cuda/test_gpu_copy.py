"""The copy that ceilings come from is timed as kernels are: events see the device alone."""

from __future__ import annotations

import pytest

from benchmarks.gpu_copy import CudaCopies
from ccbench.backends.cuda.blocking_kernel import MOST_BLOCKED
from ccbench.backends.cuda.runtime import Cuda

from .emulated import BLOCKING, CALL_SECONDS, EmulatedRuntime


@pytest.mark.parametrize("times", [1, 3, MOST_BLOCKED, 3 * MOST_BLOCKED])
def test_copies_are_right_and_their_time_has_no_call_of_the_hosts_in_it(times: int) -> None:
    runtime = EmulatedRuntime()
    copies = CudaCopies(4096, Cuda(runtime, runtime))
    copies.fill(7)
    copies.poison()
    seconds = copies.copy(times)
    late = max(0, times - MOST_BLOCKED)  # asked for after the release
    assert seconds <= late * 4 * CALL_SECONDS
    assert copies.wrong_bytes(7) == 0
    assert BLOCKING in runtime.loads


def test_without_a_blocking_kernel_they_are_timed_as_far_as_that_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CCBENCH_BLOCKING_KERNEL", "off")
    runtime = EmulatedRuntime()
    copies = CudaCopies(4096, Cuda(runtime, runtime))
    copies.fill(7)
    assert copies.copy(2) >= CALL_SECONDS
    assert copies.wrong_bytes(7) == 0
    assert BLOCKING not in runtime.loads
