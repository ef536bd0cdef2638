"""Two streams of one device as two ranks: kernels that wait for each other, as those of two GPUs do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ccbench.backends.control_block import Control
from ccbench.backends.cuda.blocking_kernel import GRAPH_LAUNCHES, BlockingKernel, most_blocked
from ccbench.backends.cuda.endpoint import CollectiveFailed
from ccbench.backends.cuda.runtime import CAPTURE_THREAD, Cuda, DeviceFacts
from ccbench.backends.cuda.single_process import CudaEndpoint
from ccbench.backends.kernels.links import Links
from tests.backends.measuring import wrong_elements

from .cases import SAMPLING, case_of

LIMIT_SECONDS = 2.0
CAPTURE_REFUSES, CAPTURE_INVALIDATED = 900, 901
"""cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated."""

ALGORITHMS = (
    "ring",
    "tree",
    "mesh_one_shot",
    "mesh_two_shot",
    "ll",
    "ll_two_shot",
    "schedule:ring",
)


class Twice:
    """A runtime that counts its first device as two."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return (lambda: 2) if name == "getDeviceCount" else getattr(self._runtime, name)


class HalfAndHalf(Cuda):
    """The first device in the place of two, each with half of its multiprocessors."""

    def __init__(self, cuda: Cuda) -> None:
        super().__init__(Twice(cuda.runtime), cuda.driver)

    def facts(self, device: int) -> DeviceFacts:
        whole = super().facts(0)
        return replace(whole, processors=whole.processors // 2)

    def pair_without_access(self, devices: Sequence[int]) -> tuple[int, int] | None:
        return None

    def enable_peers(self, devices: Sequence[int]) -> tuple[int, int] | None:
        return None  # a device reaches its own memory


@pytest.fixture
def pair(cuda: Cuda) -> Iterator[CudaEndpoint]:
    """Two ranks, a stream each."""
    endpoint = CudaEndpoint(Control(1, 4096), 2, HalfAndHalf(cuda), limit_seconds=LIMIT_SECONDS)
    endpoint._links = Links()  # no links lie between a device and itself
    assert len({group.stream for group in endpoint.contexts}) == 2
    yield endpoint
    endpoint.close()


@pytest.mark.parametrize("mode", ["streaming", "graph", "isolated"])
@pytest.mark.parametrize("transport", ["default", "host"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kernels_of_two_streams_wait_for_each_other_behind_one_blocking_kernel(
    pair: CudaEndpoint, algorithm: str, transport: str, mode: str
) -> None:
    for count in (1, 4099):
        case = case_of("all_reduce", algorithm, 2, count, mode=mode, transport=transport)
        assert wrong_elements(pair, case, SAMPLING) == 0


@pytest.mark.parametrize("graphs", [2, most_blocked(GRAPH_LAUNCHES)])
def test_a_graph_is_launched_again_while_its_earlier_launch_waits_behind_the_blocking_kernel(
    pair: CudaEndpoint, graphs: int
) -> None:
    """Launches of one executable graph run in order; that cudaGraphLaunch itself never waits for the earlier
    one is not documented. Where it does, the blocking kernel gives up, and graph mode cannot hold devices."""
    pair.prepare(case_of("all_reduce", "ring", 2, mode="graph"))
    pair.poison()
    pair.refill(1)
    pair.launch(GRAPH_LAUNCHES)  # the graphs are there now
    blocking = BlockingKernel(pair.contexts[0].cuda, LIMIT_SECONDS)
    for group in pair.contexts:
        blocking.load(group)
    began = time.perf_counter()
    blocking.block(pair.contexts)
    for _ in range(graphs):
        for group in pair.contexts:
            group.launch_graph(GRAPH_LAUNCHES)
    seconds = time.perf_counter() - began
    blocking.release()
    for group in pair.contexts:
        group.synchronize()
    blocking.raise_if_timed_out()
    blocking.free()
    assert seconds < LIMIT_SECONDS
    assert pair.check(1, 1) is None


def test_a_stream_whose_peer_never_comes_is_let_go_and_the_peer_is_named(
    pair: CudaEndpoint,
) -> None:
    pair.prepare(case_of("all_reduce", "ring", 2))
    pair.contexts[0].launch()
    pair.contexts[0].synchronize()
    with pytest.raises(CollectiveFailed, match=r"rank 0, channel \d+: waited too long for"):
        pair.begin_sample(0)
    pair.refill(1)
    pair.launch(1)
    assert pair.check(1, 1) is None


def test_one_thread_captures_two_streams_and_ends_both_before_it_makes_graphs(
    pair: CudaEndpoint,
) -> None:
    pair.prepare(case_of("all_reduce", "ring", 2))
    pair.poison()
    pair.refill(1)
    runtime = pair.contexts[0].cuda.runtime
    for group in pair.contexts:
        runtime.streamBeginCapture(group.stream, CAPTURE_THREAD)
    for group in pair.contexts:
        group.launch()
    graphs = [runtime.streamEndCapture(group.stream) for group in pair.contexts]
    executables = [runtime.graphInstantiate(graph) for graph in graphs]
    for group, executable in zip(pair.contexts, executables, strict=True):
        runtime.graphUpload(executable, group.stream)
    for group, executable in zip(pair.contexts, executables, strict=True):
        runtime.graphLaunch(executable, group.stream)
    for group in pair.contexts:
        group.synchronize()
    assert pair.check(1, 1) is None
    for executable, graph in zip(executables, graphs, strict=True):
        runtime.graphExecDestroy(executable)
        runtime.graphDestroy(graph)


def test_a_thread_that_captures_may_not_free_memory(pair: CudaEndpoint) -> None:
    """What the doubles of CUDA take for granted, asked of CUDA."""
    pair.prepare(case_of("all_reduce", "ring", 2))
    group = pair.contexts[0]
    runtime = group.cuda.runtime
    runtime.streamBeginCapture(group.stream, CAPTURE_THREAD)
    with pytest.raises(Exception, match=r"(?i)capture|900") as refused:
        runtime.free(0)
    with pytest.raises(Exception, match=r"(?i)capture|90[01]") as ended:
        runtime.streamEndCapture(group.stream)
    assert refused.value.status == CAPTURE_REFUSES  # type: ignore[attr-defined]  # CuPy's errors have it
    assert ended.value.status in (CAPTURE_REFUSES, CAPTURE_INVALIDATED)  # type: ignore[attr-defined]
