"""Modules are loaded once and not kept for ever; what calls that fail leave behind is given back."""

from __future__ import annotations

import pytest

from ccbench.backends.base import OutOfMemory
from ccbench.backends.cuda.runtime import Cuda, Modules
from ccbench.backends.kernels.sources import Program
from tests.backends.measuring import launched

from .cases import Opened, case_of
from .emulated import BLOCKING, CudaError, EmulatedRuntime


def text(name: str) -> Program:
    return Program(f"CCB_GLOBAL({name})", {}, ())


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


def test_the_module_used_longest_ago_is_unloaded_first(runtime: EmulatedRuntime) -> None:
    cuda = Cuda(runtime, runtime)
    loaded = Modules(cuda, cuda.facts(0), most=2)
    for name in ("a", "b", "a", "c"):
        loaded.kernel(text(name), 64)
    assert sorted(runtime.modules.values()) == ["a", "c"]
    assert runtime.loads == ["a", "b", "c"]
    loaded.kernel(text("b"), 64)
    assert sorted(runtime.modules.values()) == ["b", "c"]
    loaded.unload()
    assert not runtime.modules


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
    with pytest.raises(RuntimeError, match="first") as raised:
        endpoint.contexts[0].graph(4)
    assert str(raised.value.__context__) == "second"
    runtime.captured.clear()
    runtime.capturing.clear()
    endpoint.launch(3)
    assert endpoint.check(1, 3) is None


def test_a_graph_that_cannot_be_made_executable_is_given_back(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, mode="graph"))
    runtime.failing["graphInstantiate"] = [RuntimeError("no room")]
    with pytest.raises(RuntimeError, match="no room"):
        endpoint.contexts[0].graph(4)
    assert not runtime.graphs


def test_closing_gives_back_all_it_can_and_raises_the_first_error(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    launched(endpoint, case_of("all_reduce", "ring", 2, mode="graph"), 2)
    endpoint.contexts[0].graph(2)
    before = len(runtime.allocated)
    runtime.failing["graphExecDestroy"] = [RuntimeError("first")]
    runtime.failing["eventDestroy"] = [RuntimeError("second")]
    with pytest.raises(RuntimeError, match="first") as raised:
        endpoint.close()
    assert str(raised.value.__context__) == "second"
    assert before > 0
    assert not any((runtime.allocated, runtime.pinned, runtime.modules, runtime.graphs))
