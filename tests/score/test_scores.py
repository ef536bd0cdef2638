from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score.logs import LogPoints
from benchmarks.score.scores import errors_of, scored
from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation
from tests.score.corpora import entry
from tests.score.observations import log_points, observation, twice_as_slow


def exact(system: LibrarySystem, request: LibraryRequest) -> Sequence[float]:
    return [size * 1e-9 for size in request.size_bytes]


def none(system: LibrarySystem, request: LibraryRequest) -> Sequence[float]:
    raise MachineError("no such collective")


def test_errors_are_fractions_of_what_was_measured() -> None:
    found, reasons = errors_of([observation((1000, 2000), (1e-6, 1e-6))], exact)
    assert found.errors == pytest.approx((0.0, 1.0))
    assert reasons == ()


def test_what_a_predictor_has_no_answer_to_is_no_point_and_its_reason_is_told_once() -> None:
    found, reasons = errors_of([observation((8,), (1e-6,)), observation((16,), (1e-6,))], none)
    assert found.score.overall.points == 0
    assert reasons == ("no such collective",)


def test_only_healthy_logs_are_in_the_total() -> None:
    logs = [log_points("good.txt", (1000,)), log_points("bad.txt", (1000,)), log_points("dim.txt", (1000,))]
    logs[1] = replace(logs[1], entry=entry(file="bad.txt", healthy=False))
    logs[2] = replace(logs[2], entry=entry(file="dim.txt", healthy=None))
    found = scored(logs, exact, {})
    assert [log.counted for log in found.logs] == [True, False, False]
    assert [log.score.overall.points for log in found.logs] == [1, 1, 1]
    assert found.total.overall.points == 1


def test_a_log_that_the_model_cannot_answer_keeps_the_reason_and_no_figures() -> None:
    found = scored([log_points("a.txt", (1000,))], none, {"rival": exact})
    (log,) = found.not_modelled
    assert log.reason == "no such collective"
    assert log.score.overall.median_error is None
    assert not log.counted
    assert found.comparison["rival"].overall.points == 0


def test_a_log_without_observations_says_why() -> None:
    found = scored([LogPoints(entry(), (), ("the network is not known",))], exact, {})
    assert found.logs[0].reason == "the network is not known"


def test_rivals_are_scored_on_the_same_points() -> None:
    found = scored([log_points("a.txt", (1000, 2000))], exact, {"slow": twice_as_slow, "none": none})
    assert found.total.overall.mape == pytest.approx(0.0)
    assert found.comparison["slow"].overall.mape == pytest.approx(1.0)
    assert found.comparison["none"].overall.points == 0


@given(st.lists(st.lists(st.integers(1, 1 << 35), min_size=1, max_size=6), min_size=1, max_size=5))
def test_the_total_is_of_the_points_of_all_logs(sizes: list[list[int]]) -> None:
    logs = [log_points(f"{number}.txt", tuple(found)) for number, found in enumerate(sizes)]
    scores = scored(logs, twice_as_slow, {})
    assert scores.total.overall.points == sum(map(len, sizes))
    assert scores.total.overall.bias == pytest.approx(1.0)


def test_observations_of_one_log_keep_their_order() -> None:
    one = Observation(observation((8,), (1e-6,)).system, observation((8,), (1e-6,)).request, (1e-6,))
    assert errors_of([one, one], exact)[0].size_bytes == (8, 8)
