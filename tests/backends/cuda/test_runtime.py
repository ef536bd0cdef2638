"""Calls of CUDA: modules are loaded once and not kept for ever, what calls that fail leave is given back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ccbench.backends.base import OutOfMemory
from ccbench.backends.cuda.blocking_kernel import capture_graphs
from ccbench.backends.cuda.runtime import Cuda, Modules, do_all
from ccbench.backends.kernels.sources import CompilerInput
from tests.backends.measuring import launched

from .cases import Opened, case_of
from .emulated import BLOCKING, CudaError, EmulatedRuntime


def text(name: str) -> CompilerInput:
    return CompilerInput(f"CCB_GLOBAL({name})", {}, ())


@pytest.fixture
def runtime() -> EmulatedRuntime:
    return EmulatedRuntime()


def test_a_number_of_lanes_is_no_reason_to_load_a_module_again(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    lanes = set()
    for count in (1, 500, 1 << 20):
        endpoint.prepare(case_of("all_reduce", "ring", 2, count))
        lanes.add(endpoint.contexts[0].loaded.lanes)
        endpoint.finish()
    assert len(lanes) == 3
    assert [name for name in runtime.loads if name != BLOCKING] == ["ring_all_reduce"]


@pytest.mark.parametrize(("status", "kind"), [(2, OutOfMemory), (200, CudaError)])
def test_a_kernel_that_has_no_room_on_the_device_is_out_of_memory(
    runtime: EmulatedRuntime, status: int, kind: type[Exception]
) -> None:
    cuda = Cuda(runtime, runtime)
    runtime.failing["moduleLoadData"] = [CudaError(status)]
    with pytest.raises(kind):
        Modules(cuda, cuda.facts(0)).kernel(text("a"), 64)


def test_a_capture_that_fails_tells_why_and_leaves_the_stream_usable(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, mode="graph"))
    endpoint.refill(1)
    runtime.failing["launchKernel"] = [RuntimeError("first")]
    runtime.failing["streamEndCapture"] = [RuntimeError("second")]
    with pytest.raises(RuntimeError, match="first"):
        capture_graphs(endpoint.contexts[:1], 4, endpoint.contexts[0].launch)
    runtime.captured.clear()
    runtime.capturing.clear()
    endpoint.launch(3)
    assert endpoint.check(1, 3) is None


def test_a_graph_that_cannot_be_made_executable_is_given_back(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, mode="graph"))
    runtime.failing["graphInstantiate"] = [RuntimeError("no room")]
    with pytest.raises(RuntimeError, match="no room"):
        capture_graphs(endpoint.contexts[:1], 4, endpoint.contexts[0].launch)
    assert not runtime.graphs


@pytest.mark.parametrize("call", ["graphInstantiate", "graphUpload"])
def test_a_graph_of_one_device_goes_with_that_which_another_does_not_get(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    endpoint, runtime = opened(2, devices=2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, mode="graph"))
    endpoint.refill(1)
    works, calls = getattr(runtime, call), []

    def second_fails(*arguments: int) -> int | None:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("no room")
        made: int | None = works(*arguments)
        return made

    monkeypatch.setattr(runtime, call, second_fails)
    with pytest.raises(RuntimeError, match="no room"):
        endpoint.launch(2)
    assert not runtime.graphs
    endpoint.launch(2)
    assert endpoint.check(1, 2) is None
    endpoint.finish()
    assert not runtime.graphs


def test_closing_gives_back_all_it_can_and_raises_the_first_error(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    launched(endpoint, case_of("all_reduce", "ring", 2, mode="graph"), 2)
    before = len(runtime.allocated)
    runtime.failing["graphExecDestroy"] = [RuntimeError("first")]
    runtime.failing["eventDestroy"] = [RuntimeError("second")]
    with pytest.raises(RuntimeError, match="first"):
        endpoint.close()
    assert before > 0
    assert not any((runtime.allocated, runtime.pinned, runtime.modules, runtime.graphs))


def test_every_device_may_address_every_other_one_and_enabling_it_twice_is_fine() -> None:
    runtime = EmulatedRuntime(devices=3)
    for _ in range(2):
        assert Cuda(runtime, runtime).enable_peers(range(3)) is None
    assert runtime.enabled == {
        (device, peer) for device in range(3) for peer in range(3) if device != peer
    }


def test_allocations_are_whole_pages_and_other_errors_pass_through() -> None:
    runtime = EmulatedRuntime()
    cuda_calls = Cuda(runtime, runtime)
    at = cuda_calls.allocate(1)
    assert len(runtime.allocated[at]) >= 2 << 20
    cuda_calls.free(at)
    cuda_calls.free(0)
    assert not runtime.allocated

    def broken(size: int) -> int:
        raise CudaError(700)

    runtime.malloc = broken  # type: ignore[method-assign]  # a device that died
    with pytest.raises(CudaError, match="700"):
        cuda_calls.allocate(1)


def failing(name: str, done: list[str]) -> Callable[[], None]:
    def step() -> None:
        done.append(name)
        if name.isupper():
            raise ValueError(name)

    return step


def test_every_step_is_taken_and_the_first_error_is_the_one_that_is_raised() -> None:
    done: list[str] = []
    with pytest.raises(ValueError, match="B"):
        do_all([failing(name, done) for name in ("a", "B", "c", "D", "E")])
    assert done == ["a", "B", "c", "D", "E"]
