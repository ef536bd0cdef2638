"""Events see the device alone: a blocking kernel holds it until all is enqueued, and never for long."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gpu_copy import CudaCopies
from ccbench.backends.cuda.blocking_kernel import (
    GRAPH_LAUNCHES,
    MOST_BLOCKED,
    MOST_ITEMS_BLOCKED,
    BlockingKernel,
    BlockingKernelTimedOut,
    graph_sizes,
    most_blocked,
    open_blocking_kernel,
    sample_launches,
)
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.kernels.sources import beside
from ccbench.errors import BackendUnavailable
from tests.backends.kernels.nvrtc import compiled
from tests.backends.measuring import launched

from . import emulated
from .cases import Opened, case_of
from .emulated import BLOCKING, CALL_SECONDS, LAUNCH_SECONDS, CudaError, EmulatedRuntime


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("mode", "launches"),
    [
        ("isolated", 3),
        ("cold", 3),
        ("streaming", 2 * MOST_BLOCKED),
        ("graph", 2 * MOST_BLOCKED),
    ],
)
def test_launches_take_what_the_device_takes_and_the_first_of_a_row_waits_for_nobody(
    opened: Opened, mode: str, launches: int, devices: int
) -> None:
    endpoint, _ = opened(2, devices=devices)
    launched(endpoint, case_of("all_reduce", "ring", 2, mode=mode), launches)
    assert endpoint.device_seconds() == pytest.approx(launches * LAUNCH_SECONDS, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "value"), [("CCBENCH_BLOCKING_KERNEL", "off"), ("CUDA_LAUNCH_BLOCKING", "1")]
)
def test_there_is_no_blocking_kernel_where_launches_wait_for_their_end_and_the_detail_says_so(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    endpoint, runtime = opened(2)
    launched(endpoint, case_of("all_reduce", "ring", 2, mode="isolated"))
    assert BLOCKING not in runtime.loads
    assert endpoint.device_seconds() >= LAUNCH_SECONDS + CALL_SECONDS
    assert endpoint.remark().endswith(f"because nothing holds devices back ({name}={value})")


def test_one_process_does_not_launch_on_several_devices_where_launches_wait_for_their_end(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(
        BackendUnavailable, match=r"of 2 GPUs .* unset it, or take `processes: per_gpu`"
    ):
        opened(4, devices=2)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    opened(4, devices=2)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_streaming_has_the_hosts_share_and_a_graph_has_none_at_any_number_of_devices(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, devices: int
) -> None:
    """A device that is done before the host has launched again."""
    monkeypatch.setattr(emulated, "LAUNCH_SECONDS", CALL_SECONDS / 10)
    endpoint, _ = opened(devices, devices=devices)
    took, behind = {}, {}
    for mode in ("streaming", "graph"):
        launched(endpoint, case_of("all_reduce", "ring", devices, mode=mode), 64)
        took[mode] = endpoint.device_seconds() / 64
        behind[mode] = endpoint.facts().blocked_launches
    assert took["graph"] == pytest.approx(emulated.LAUNCH_SECONDS)
    assert took["streaming"] >= 0.9 * devices * CALL_SECONDS
    assert behind == {"streaming": 1, "graph": 64}


@pytest.mark.parametrize(("mode", "behind"), [("streaming", 1), ("graph", MOST_ITEMS_BLOCKED)])
def test_no_more_is_enqueued_behind_a_blocking_kernel_than_a_queue_holds(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, mode: str, behind: int
) -> None:
    endpoint, runtime = opened(2, devices=2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, 4, mode=mode))
    endpoint.refill(1)
    queued: list[int] = []
    let_go = BlockingKernel.release

    def counted(kernel: BlockingKernel) -> None:
        queued.append(sum(item.kind == "kernel" for item in runtime.queue))
        let_go(kernel)

    monkeypatch.setattr(BlockingKernel, "release", counted)
    endpoint.launch(MOST_ITEMS_BLOCKED + 64)
    assert queued == [2 * behind, 2 * (MOST_ITEMS_BLOCKED + 64)]


@pytest.mark.parametrize(
    ("items", "launches"), [(1, MOST_BLOCKED), (17, 30), (129, 3), (MOST_ITEMS_BLOCKED, 1)]
)
def test_launches_with_copies_take_more_places_of_the_queue(items: int, launches: int) -> None:
    assert most_blocked(items) == launches
    assert most_blocked(10 * MOST_ITEMS_BLOCKED) == 1


@pytest.mark.parametrize(
    ("launches", "sample"),
    [(1, 1), (2, 2), (3, 4), (17, 32), (32, 32), (33, 64), (10_000, 512)],
)
def test_a_sample_of_graphs_needs_none_that_the_warm_up_has_not_made(
    launches: int, sample: int
) -> None:
    assert sample_launches("graph", launches, 1e-6, 1) == sample
    assert set(graph_sizes(sample)) <= {1, 2, 4, 8, 16, GRAPH_LAUNCHES}


def test_a_kernel_that_is_not_released_in_time_ends_in_an_error_and_the_next_one_works(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = opened(2, devices=2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, mode="isolated"))
    endpoint.refill(1)
    with monkeypatch.context() as held_up:
        held_up.setattr(BlockingKernel, "release", lambda kernel: None)
        with pytest.raises(
            BlockingKernelTimedOut, match="a GPU waited longer than 2 s for this process"
        ):
            endpoint.launch(1)
    endpoint.launch(1)
    assert endpoint.device_seconds() == pytest.approx(LAUNCH_SECONDS)
    assert endpoint.check(1, 1) is None


def test_a_launch_that_fails_releases_the_devices(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    endpoint.prepare(case_of("all_reduce", "ring", 2))
    endpoint.refill(1)
    runtime.failing["eventRecord"] = [RuntimeError("the device fell off the bus")]
    with pytest.raises(RuntimeError, match="fell off the bus"):
        endpoint.launch(1)
    runtime.flush()
    assert endpoint._blocking is not None
    endpoint._blocking.raise_if_timed_out()


def test_every_device_loads_the_blocking_kernel_once_and_none_keeps_its_word(
    opened: Opened,
) -> None:
    endpoint, runtime = opened(4, devices=2)
    for count in (1, 3000):
        launched(endpoint, case_of("all_reduce", "ring", 4, count), 2)
        endpoint.finish()
    assert runtime.loads.count(BLOCKING) == 2
    endpoint.close()
    assert not runtime.pinned
    assert not runtime.modules


@pytest.mark.parametrize("call", ["moduleLoadData", "hostAlloc"])
@pytest.mark.parametrize(
    ("error", "words"), [(RuntimeError("unknown"), "unknown"), (CudaError(2), "left")]
)
def test_what_the_driver_refuses_leaves_times_without_a_blocking_kernel(
    opened: Opened, call: str, error: RuntimeError, words: str
) -> None:
    endpoint, runtime = opened(1)
    runtime.failing[call] = [error]
    numbers: list[int] = []

    def least(number: int) -> int:
        numbers.append(number)
        return number

    blocking, reason = open_blocking_kernel(
        endpoint.contexts[0].cuda, endpoint.contexts, least=least
    )
    assert (blocking, numbers) == (None, [0])
    assert words in reason
    assert not runtime.failing[call]


def test_every_wait_of_a_blocking_kernel_has_a_limit(opened: Opened) -> None:
    endpoint, _ = opened(1)
    blocking = BlockingKernel(endpoint.contexts[0].cuda, 0.0)
    assert np.all(blocking._arguments["limit_nanoseconds"] > 0)
    blocking.free()


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_the_blocking_kernel_compiles_and_spills_nothing(architecture: int) -> None:
    resources = compiled(beside("blocking.cu"), architecture)
    assert resources.spill_bytes == 0
    assert resources.registers <= 64
    assert "asm" not in beside("blocking.cu").text


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
