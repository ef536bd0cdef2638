from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.score.predictors import (
    ALPHA_BETA,
    NCCL_CONSTANTS,
    calibrated,
    first_principles,
    learned,
    rivals,
)
from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest
from ccbench.model.library.calibration import Observation
from tests.score.observations import system

SIZES = tuple(1 << power for power in range(10, 31, 2))
REQUEST = LibraryRequest("all_reduce", SIZES)


def test_every_predictor_answers_every_size_with_a_time() -> None:
    for predict in (first_principles, *rivals().values()):
        found = predict(system(), REQUEST)
        assert len(found) == len(SIZES)
        assert all(seconds > 0 for seconds in found)


def test_the_rivals_have_the_names_of_the_table() -> None:
    assert tuple(rivals()) == (ALPHA_BETA, NCCL_CONSTANTS)


def test_an_algorithm_that_is_not_there_is_refused() -> None:
    with pytest.raises(MachineError):
        first_principles(system(), LibraryRequest("all_reduce", SIZES, algorithm="nvls"))


def distance(predicted: Sequence[float], measured: Sequence[float]) -> float:
    return sum(abs(one / other - 1) for one, other in zip(predicted, measured, strict=True))


def test_a_calibration_is_near_what_it_saw() -> None:
    plain = first_principles(system(), REQUEST)
    slow = tuple(1.4 * seconds for seconds in plain)
    found = calibrated([Observation(system(), REQUEST, slow)])(system(), REQUEST)
    assert distance(found, slow) < distance(plain, slow) / 2


def test_learning_moves_towards_what_it_saw() -> None:
    plain = learned([])(system(), REQUEST)
    slow = tuple(1.4 * seconds for seconds in plain)
    found = learned([Observation(system(), REQUEST, slow)])(system(), REQUEST)
    assert distance(found, slow) < distance(plain, slow)
