"""Long runs, and launches that cannot end."""

from __future__ import annotations

import time

import pytest

from ccbench.backends.cuda.blocking_kernel import (
    BlockingKernel,
    BlockingKernelTimedOut,
    SharedWords,
)
from ccbench.backends.cuda.endpoint import CollectiveFailed
from ccbench.backends.cuda.runtime import Cuda
from tests.backends.measuring import launch_without_last_rank, launched

from .cases import case_of
from .conftest import Opened

ITERATIONS = 10_000
LIMIT_SECONDS = 0.5


@pytest.mark.parametrize(
    ("algorithm", "transport"),
    [
        ("ring", "default"),
        ("ring", "host"),
        ("tree", "default"),
        ("mesh_one_shot", "default"),
        ("mesh_two_shot", "default"),
        ("ll", "default"),
        ("ll", "host"),
        ("schedule:ring", "default"),
    ],
)
def test_ten_thousand_launches_leave_the_right_result(
    opened: Opened, algorithm: str, transport: str
) -> None:
    endpoint = opened(4)
    case = case_of("all_reduce", algorithm, 4, 4099, mode="graph", transport=transport)
    endpoint.prepare(case)
    endpoint.refill(1)
    for _ in range(10):
        endpoint.launch(ITERATIONS // 10)
        endpoint.begin_sample(0)  # raises where a wait was given up
    endpoint.poison()
    endpoint.refill(2)
    endpoint.launch(1)
    assert endpoint.check(2, 1) is None


def test_collectives_of_all_kinds_follow_each_other_without_a_pause(opened: Opened) -> None:
    endpoint = opened(4)
    for turn in range(50):
        for collective, algorithm in (
            ("all_reduce", "ring"),
            ("all_gather", "ring"),
            ("send_recv", "put"),
            ("reduce_scatter", "ring"),
            ("broadcast", "ring"),
            ("reduce", "ring"),
            ("send_recv", "ring"),
        ):
            launched(endpoint, case_of(collective, algorithm, 4, 1000 + 37 * turn), 3, turn)
            assert endpoint.check(turn, 3) is None
            endpoint.finish()


@pytest.mark.parametrize("transport", ["default", "host"])
@pytest.mark.parametrize(
    "algorithm",
    ["ring", "tree", "mesh_one_shot", "mesh_two_shot", "ll", "ll_two_shot", "schedule:ring"],
)
def test_a_rank_that_never_comes_ends_by_the_limit_and_is_named(
    opened: Opened, algorithm: str, transport: str
) -> None:
    endpoint = opened(4, limit_seconds=LIMIT_SECONDS)
    case = case_of("all_reduce", algorithm, 4, transport=transport)
    endpoint.prepare(case)
    (group,) = endpoint.contexts
    began = time.perf_counter()
    launch_without_last_rank(group)
    group.synchronize()
    with pytest.raises(CollectiveFailed, match=r"rank \d, channel \d+: waited too long for"):
        endpoint.begin_sample(0)
    assert LIMIT_SECONDS <= time.perf_counter() - began < 20 * LIMIT_SECONDS
    endpoint.refill(1)  # the memory is clean again
    endpoint.launch(1)
    assert endpoint.check(1, 1) is None


@pytest.mark.parametrize("shared", [False, True], ids=["own", "of several processes"])
def test_a_blocking_kernel_that_nobody_releases_lets_the_device_go_and_is_an_error(
    opened: Opened, cuda: Cuda, shared: bool
) -> None:
    endpoint = opened(2)
    endpoint.prepare(case_of("all_reduce", "ring", 2))
    endpoint.refill(1)
    (group,) = endpoint.contexts
    blocking = BlockingKernel(
        cuda, limit_seconds=LIMIT_SECONDS, words=SharedWords(1) if shared else None
    )
    blocking.load(group)
    began = time.perf_counter()
    blocking.block([group])
    group.launch()
    group.synchronize()
    assert LIMIT_SECONDS <= time.perf_counter() - began < 20 * LIMIT_SECONDS
    with pytest.raises(BlockingKernelTimedOut, match=r"waited longer than 0\.5 s"):
        blocking.raise_if_timed_out()
    assert endpoint.check(1, 1) is None
    blocking.block([group])
    blocking.release()
    group.synchronize()
    blocking.raise_if_timed_out()
    blocking.free()


def test_no_more_channels_are_taken_than_fit(opened: Opened) -> None:
    endpoint = opened(2)
    group = endpoint.contexts[0]
    case = case_of("all_reduce", "ring", 2)
    endpoint.prepare(case)
    kernel = group.loaded
    too_many = kernel.blocks_per_processor * group.facts.processors // 2 + 1
    assert group.channels(kernel, too_many) == too_many - 1
