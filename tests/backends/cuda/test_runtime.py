"""Calls of CUDA: modules are loaded once and not kept for ever, what calls that fail leave is given back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ccbench.backends.base import OutOfMemory
from ccbench.backends.cuda.blocking_kernel import capture_graphs
from ccbench.backends.cuda.runtime import Cuda, Modules, do_all
from ccbench.backends.kernels.sources import CompilerInput

from .cases import Opened, case_of
from .emulated import CudaError, EmulatedRuntime


def text(name: str) -> CompilerInput:
    return CompilerInput(f"CCB_GLOBAL({name})", {}, ())


@pytest.fixture
def runtime() -> EmulatedRuntime:
    return EmulatedRuntime()


@pytest.mark.parametrize(("status", "kind"), [(2, OutOfMemory), (200, CudaError)])
def test_a_kernel_that_has_no_room_on_the_device_is_out_of_memory(
    runtime: EmulatedRuntime, status: int, kind: type[Exception]
) -> None:
    cuda = Cuda(runtime, runtime)
    runtime.failing["moduleLoadData"] = [CudaError(status)]
    with pytest.raises(kind):
        Modules(cuda, cuda.facts(0)).kernel(text("a"), 64)


def test_a_graph_that_cannot_be_made_executable_is_given_back(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    endpoint.prepare(case_of("all_reduce", "ring", 2, mode="graph"))
    runtime.failing["graphInstantiate"] = [RuntimeError("no room")]
    with pytest.raises(RuntimeError, match="no room"):
        capture_graphs(endpoint.contexts[:1], 4, endpoint.contexts[0].launch)
    assert not runtime.graphs


def test_every_device_may_address_every_other_one_and_enabling_it_twice_is_fine() -> None:
    runtime = EmulatedRuntime(devices=3)
    for _ in range(2):
        assert Cuda(runtime, runtime).enable_peers(range(3)) is None
    assert runtime.enabled == {
        (device, peer) for device in range(3) for peer in range(3) if device != peer
    }


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
