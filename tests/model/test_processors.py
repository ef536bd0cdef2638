"""The price of a launch: the longest path through compiled programs, at costs that ranks measure meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ccbench.backends.cpu.execution import Call
from ccbench.backends.cpu.price import LaunchWork, Probe, launch_of, longest_path
from ccbench.backends.cpu.program import compile_case
from ccbench.backends.launch_price import (
    COPIED,
    HIGH,
    LOW,
    REDUCED,
    Floats,
    prediction_of,
)
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.model.rank_subset import schedule_of
from ccbench.results import load_run
from ccbench.runner.planning import RunOptions
from ccbench.runner.progress import Progress
from ccbench.runner.run import run_suite
from ccbench.schedules.placement import SlotLayout
from ccbench.suite.model import read_suite
from ccbench.verification import Array
from tests.backends import measuring

COSTS = np.array([2e-7, 1e-7, 3e-7, 1e-10, 2e-10])


def case_of(name: str, algorithm: str, ranks: int, count: int) -> Case:
    return measuring.case_of("cpu", name, algorithm, ranks, count)


def launch(case: Case) -> LaunchWork:
    layout = SlotLayout(schedule_of(case, case.algorithm), case.count, case.in_place)
    return launch_of(compile_case(layout), case)


def test_the_price_takes_lower_quartiles_and_names_what_costs_most() -> None:
    case = case_of("all_reduce", "ring", 2, 1 << 20)
    windows = tuple((cost, cost, cost, 9 * cost, 99 * cost) for cost in COSTS.tolist())
    counts = (2.0, 2.0, 2.0, 1e6, 3e6)
    measured = Measurement(case, Status.OK, path_counts=counts, path_costs_seconds=windows)
    prediction = prediction_of(measured)
    assert prediction is not None
    seconds = float(np.array(counts) @ COSTS)
    assert prediction.predicted_seconds == pytest.approx(seconds)
    assert prediction.interval is not None
    assert prediction.interval.low_80_seconds == pytest.approx(LOW * seconds)
    assert prediction.interval.high_80_seconds == pytest.approx(HIGH * seconds)
    assert prediction.bottleneck.startswith("reducing: ")
    assert prediction_of(replace(measured, path_counts=(), path_costs_seconds=())) is None


class PlantedProbe(Probe):
    """One rank whose clock goes on by what is done: so much for each wait and each byte."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, copy_seconds: float) -> None:
        super().__init__(1)
        self.rank, self.now = 0, 0.0
        monkeypatch.setattr(self._waiter, "until", lambda *_: self.spend(1e-7))
        monkeypatch.setattr("ccbench.backends.cpu.price.time.perf_counter", lambda: self.now)

        def timed(kind: str, op: str, sources: object, target: Array, ranks: int) -> list[Call]:
            seconds = copy_seconds if kind == "copy" else 1e-9
            return [(self.spend, (seconds * target.nbytes,))]

        monkeypatch.setattr("ccbench.backends.cpu.price.calls_of", timed)

    def spend(self, seconds: float) -> None:
        self.now += seconds


def test_a_copy_that_is_slow_raises_the_price() -> None:
    case = case_of("all_reduce", "ring", 1, 1 << 16)
    both = launch(case_of("all_reduce", "ring", 2, 1 << 16))
    alone = replace(both, working=(0,))

    def costs(copy_seconds: float) -> Floats:
        with pytest.MonkeyPatch.context() as patched:
            return np.array(PlantedProbe(patched, copy_seconds).costs(case, alone, False))

    usual, slow = costs(1e-9), costs(4e-9)
    assert slow[COPIED] == pytest.approx(4 * usual[COPIED], rel=0.1)
    assert slow[REDUCED] == pytest.approx(usual[REDUCED], rel=0.1)
    prices = [float(longest_path(both, each) @ each) for each in (usual, slow)]
    assert prices[1] > 2 * prices[0]


SUITE = """
question: what does it cost?
backends: [cpu]
sampling: {rounds: 2, budget: 10ms, warmup: 1ms, minimum_samples: 2, maximum_samples: 4}
sweep:
  - {collective: all_reduce, size: [64, 64KiB], dtype: float32, op: sum}
  - {collective: all_reduce, size: 64, dtype: int32, op: avg}
  - {collective: all_reduce, size: 64, dtype: float32, op: avg}
  - {collective: barrier}
"""


def test_a_run_has_ranges_for_what_the_costs_make_and_no_bound(tmp_path: Path) -> None:
    run_suite(read_suite(SUITE), RunOptions(ranks=2, output=tmp_path / "out"), Progress())
    points = load_run(tmp_path / "out").points
    assert len(points) == 5
    for point in points:
        assert point.status is Status.OK
        assert (point.bound_seconds, point.bound_share, point.beats_bound) == (
            None,
            None,
            False,
        )
        assert point.predicted_low_95_seconds is None
        if point.dtype == "int32":
            assert point.predicted_seconds is None is point.predicted_low_80_seconds
            continue
        assert point.predicted_seconds is not None
        edges = point.predicted_low_80_seconds, point.predicted_high_80_seconds
        assert edges == pytest.approx(
            (LOW * point.predicted_seconds, HIGH * point.predicted_seconds)
        )
