"""Measuring, on endpoints whose clock and ranks are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ccbench.backends.endpoint import Result
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Sampling
from ccbench.runner.measure import (
    ADVERSARIAL_LAUNCHES,
    SEEDS_PER_ROUND,
    RankResult,
    measure,
    takes_fastest_rank,
)
from ccbench.stats import OVERTIME_FACTOR, stop_reason
from ccbench.verification import Array, Mismatch, check, fill

CASE = Case("s", "fake", "all_reduce", "ring", "float32", "sum", 4096, 1024, 2)
RULE = Sampling(
    rounds=1,
    budget_seconds=0.01,
    warmup_seconds=0.0005,
    minimum_sample_seconds=0.0001,
    minimum_samples=5,
)


# -- when to stop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "elapsed_seconds", "why"),
    [
        ([1.0] * 9, 0.0, ""),
        ([1.0] * 10, 0.0, "interval"),
        ([1.0, 2.0] * 10, 0.99, ""),
        ([1.0, 2.0] * 10, 1.0, "budget"),
        ([1.0] * 3, OVERTIME_FACTOR - 0.01, ""),  # too few have some overtime
        ([1.0] * 3, OVERTIME_FACTOR, "budget"),
        ([1.0, 2.0] * 25, 0.0, "maximum of samples"),
    ],
)
def test_samples_are_taken_until_their_interval_is_narrow_or_the_budget_spent(
    samples: list[float], elapsed_seconds: float, why: str
) -> None:
    rule = Sampling(budget_seconds=1.0, minimum_samples=10, maximum_samples=50)
    assert stop_reason(rule, np.array(samples), elapsed_seconds) == why


@given(
    st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=80),
    st.floats(0, 10),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_it_always_ends(
    samples: list[float], elapsed: float, minimum: int, maximum: int
) -> None:
    rule = Sampling(minimum_samples=minimum, maximum_samples=maximum, budget_seconds=1.0)
    why = stop_reason(rule, np.array(samples), elapsed)
    if len(samples) >= maximum or elapsed >= OVERTIME_FACTOR:
        assert why
    assert why in ("", "interval", "budget", "maximum of samples")


@pytest.mark.parametrize(
    ("nodes", "collective", "least"),
    [
        (1, "all_reduce", False),
        (2, "all_reduce", True),
        (2, "broadcast", False),
    ],
)
def test_the_least_time_counts_only_where_hosts_start_their_devices_each_by_itself(
    nodes: int, collective: str, least: bool
) -> None:
    case = Case(
        "s", "nccl", collective, "tree", "float32", "sum", 8, 2, 4, mode="isolated", nodes=nodes
    )
    assert takes_fastest_rank(case) is least


# -- measuring ---------------------------------------------------------------------------------------------


@dataclass
class Shared:
    """What the ranks of a fake team share."""

    ranks: int
    stamps: NDArray[np.float64]
    meeting: threading.Barrier
    decision: int = 0


@dataclass
class FakeEndpoint:
    """One rank in a thread; notes what was done to it."""

    rank: int
    shared: Shared
    mismatch: Mismatch | None = None
    ranks: int = 2
    done: list[str] = field(default_factory=list)
    launched: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    filled_for: list[int] = field(default_factory=list)

    stamps: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.stamps = self.shared.stamps

    def refill(self, seed: int, launches: int = 1) -> None:
        self.done.append("refill")
        self.seeds.append(seed)
        self.filled_for.append(launches)

    def poison(self) -> None:
        self.done.append("poison")

    def launch(self, times: int) -> None:
        self.done.append("launch")
        self.launched.append(times)

    def launch_and_time_waits(self, times: int) -> float:
        self.launch(times)
        return 0.25 * times * (1 + self.rank)

    def barrier(self) -> None:
        self.shared.meeting.wait(20)

    def agree(self, value: int) -> int:
        if self.rank == 0:
            self.shared.decision = value
        self.barrier()
        agreed = self.shared.decision
        self.barrier()
        return agreed

    def check(self, seed: int, launches: int) -> Mismatch | None:
        self.done.append(f"check {seed} {launches}")
        return self.mismatch

    def results(self) -> Iterable[Result]:
        return ()

    def begin_sample(self, sample: int) -> None:
        self.done.append(f"watch {sample}")

    def share_stamps(self, count: int) -> None:
        """Nothing: they are shared."""


@dataclass
class OverlappingEndpoint(FakeEndpoint):
    """One that computes: a repetition takes 1 ms, a launch 20 ms alone; both at once 20 % longer.

    Its device's clock is the test's, so that nothing depends on the machine.
    """

    seconds: float = 0.0
    kinds: list[str] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)

    def sample_launches(self, launches: int, seconds: float) -> int:
        return launches

    def device_seconds(self) -> float:
        return self.seconds

    def launch(self, times: int) -> None:
        super().launch(times)
        self.seconds = 0.020 * times

    def prepare_computing(self, kind: str) -> None:
        self.kinds.append(kind)

    def compute(self, repetitions: int) -> None:
        self.done.append("compute")
        self.computed.append(repetitions)
        self.seconds = 0.001 * repetitions

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        self.done.append("both")
        self.launched.append(launches)
        self.computed.append(repetitions)
        return 0.0012 * repetitions, 0.024 * launches


@dataclass
class IdleEndpoint(FakeEndpoint):
    """One with data in place, whose launches do nothing."""

    case: Case = field(default=CASE)
    buffer: Array = field(default_factory=lambda: np.zeros(2 * 512, np.float32))

    def refill(self, seed: int, launches: int = 1) -> None:
        fill(self.case, self.rank, self.buffer, seed, launches)

    def check(self, seed: int, launches: int) -> Mismatch | None:
        output = self.buffer[: self.case.output_count(self.rank)]
        return check(self.case, self.rank, output, seed, launches)


def measured(
    sampling: Sampling = RULE,
    case: Case = CASE,
    capacity: int = 500,
    mismatch: Mismatch | None = None,
    kind: Callable[..., FakeEndpoint] = FakeEndpoint,
) -> tuple[list[FakeEndpoint], list[RankResult]]:
    """Two ranks in two threads."""
    shared = Shared(2, np.zeros((2, capacity, 2)), threading.Barrier(2))
    endpoints = [kind(rank, shared, mismatch if rank else None) for rank in range(2)]
    results: list[RankResult | None] = [None, None]

    def work(rank: int) -> None:
        try:
            results[rank] = measure(endpoints[rank], case, sampling, 3)
        except BaseException:
            shared.meeting.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = [result for result in results if result is not None]
    assert len(whole) == 2
    return endpoints, whole


def test_adversarial_launches_follow_each_with_data_of_its_own() -> None:
    (endpoint, _), _ = measured()
    steps_of_launch = ["poison", "refill", "launch"]
    first = SEEDS_PER_ROUND * 3 + 2
    expected = [
        [*steps_of_launch, f"check {seed} 1"]
        for seed in range(first, first + ADVERSARIAL_LAUNCHES)
    ]
    assert endpoint.done[-4 * ADVERSARIAL_LAUNCHES :] == [
        step for steps in expected for step in steps
    ]
    assert endpoint.seeds == sorted(endpoint.seeds)


def test_a_mismatch_belongs_to_the_rank_that_saw_it() -> None:
    mismatch = Mismatch(1, 2, 3, "4", "5")
    _, (first, second) = measured(mismatch=mismatch)
    assert (first.mismatch, second.mismatch) == (None, mismatch)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
@pytest.mark.parametrize(("name", "count"), [("all_reduce", 1024), ("reduce_scatter", 512)])
def test_launches_in_place_that_do_nothing_are_found(name: str, count: int, op: str) -> None:
    case = replace(CASE, collective=name, op=op, count=count, in_place=True)
    _, results = measured(RULE.of_one_round(17), case, kind=partial(IdleEndpoint, case=case))
    assert all(result.mismatch for result in results)


@given(minimum=st.integers(1, 12), maximum=st.integers(1, 30))
@settings(max_examples=25)
def test_numbers_of_samples_are_within_the_rules(minimum: int, maximum: int) -> None:
    sampling = Sampling(
        rounds=1,
        budget_seconds=0.002,
        warmup_seconds=0.0001,
        minimum_sample_seconds=0.00001,
        minimum_samples=minimum,
        maximum_samples=maximum,
    )
    (endpoint, _), (result, _) = measured(sampling)
    samples = result.stamps.shape[1]
    assert 1 <= samples <= maximum
    assert samples >= min(minimum, maximum) or result.stop_reason == "budget"
    assert np.all(result.stamps[:, :, 1] >= result.stamps[:, :, 0])
    beside = (
        1 + ADVERSARIAL_LAUNCHES
    )  # the warm launch before the checked one, and the adversarial ones
    assert len(result.warmup_seconds) + samples + beside == len(endpoint.launched)
    assert result.launching_seconds > 0


# -- computing meanwhile -----------------------------------------------------------------------------------

OVERLAPPED = replace(CASE, mode="overlap", overlap_with="matmul")
THREE_LAUNCHES = replace(RULE, launches=3, minimum_samples=4, maximum_samples=6)


def overlapped(
    case: Case = OVERLAPPED, capacity: int = 500
) -> tuple[list[OverlappingEndpoint], list[RankResult]]:
    endpoints, results = measured(THREE_LAUNCHES, case, capacity, kind=OverlappingEndpoint)
    return [
        endpoint for endpoint in endpoints if isinstance(endpoint, OverlappingEndpoint)
    ], results


def test_what_ran_while_computing_is_what_is_checked() -> None:
    (endpoint, _), (result, _) = overlapped()
    end = endpoint.done.index(f"check {SEEDS_PER_ROUND * 3 + 1} {result.launches}")
    last = result.stamps.shape[1] - 1
    assert endpoint.done[end - 8 : end] == [
        f"watch {last}",
        "compute",
        "launch",
        "poison",
        "refill",
        "launch",
        "poison",
        "both",
    ]
    assert "launch" not in endpoint.done[end:]  # adversarial ones compute too
    assert endpoint.done[end:].count("both") == ADVERSARIAL_LAUNCHES


def test_there_is_room_for_fewer_samples_of_five_stamps() -> None:
    _, (result, _) = overlapped(capacity=14)
    assert result.stamps.shape[1] == 2
