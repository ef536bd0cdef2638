"""Events see the device alone: a blocking kernel holds it until all is enqueued, and never for long."""

from __future__ import annotations

from itertools import chain

import pytest

from ccbench.backends.cuda.blocking_kernel import (
    GRAPH_LAUNCHES,
    MOST_ITEMS_BLOCKED,
    BlockingKernel,
    graph_sizes,
    sample_launches,
)
from ccbench.backends.cuda.context import MAIN_STREAM
from ccbench.backends.kernels.sources import beside
from ccbench.errors import BackendUnavailable
from tests.backends.kernels.nvrtc import compiled

from .cases import Opened, case_of


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
        tasks = chain(*(stream.queue for stream in runtime.world.streams.values()))
        queued.append(sum(task.kind == "kernel" for task in tasks))
        let_go(kernel)

    monkeypatch.setattr(BlockingKernel, "release", counted)
    endpoint.launch(MOST_ITEMS_BLOCKED + 64)
    assert queued == [2 * behind, 2 * (MOST_ITEMS_BLOCKED + 64)]


@pytest.mark.parametrize(
    ("launches", "sample"),
    [(1, 1), (2, 2), (3, 4), (17, 32), (32, 32), (33, 64), (10_000, 512)],
)
def test_a_sample_of_graphs_needs_none_that_the_warm_up_has_not_made(
    launches: int, sample: int
) -> None:
    assert sample_launches("graph", launches, 1e-6, 1) == sample
    assert set(graph_sizes(sample)) <= {1, 2, 4, 8, 16, GRAPH_LAUNCHES}


def test_a_launch_that_fails_releases_the_devices(opened: Opened) -> None:
    endpoint, runtime = opened(2)
    endpoint.prepare(case_of("all_reduce", "ring", 2))
    endpoint.refill(1)
    runtime.failing["eventRecord"] = [RuntimeError("the device fell off the bus")]
    with pytest.raises(RuntimeError, match="fell off the bus"):
        endpoint.launch(1)
    runtime.streamSynchronize(endpoint.contexts[0].on(MAIN_STREAM).handle)
    assert endpoint._blocking is not None
    endpoint._blocking.raise_if_timed_out()


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_the_blocking_kernel_compiles_and_spills_nothing(architecture: int) -> None:
    resources = compiled(beside("blocking.cu"), architecture)
    assert resources.spill_bytes == 0
    assert resources.registers <= 64
    assert "asm" not in beside("blocking.cu").text
