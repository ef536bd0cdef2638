"""Counts of verdicts on the logs of a manifest."""

from __future__ import annotations

import pytest

from benchmarks.score.verdicts import words_of
from ccbench.analysis.speed_verdict import SpeedWord
from ccbench.model.library import LibraryRequest
from ccbench.model.library.calibration import Observation
from ccbench.model.library.constants import shipped
from ccbench.model.library.predictor import seconds_of
from tests.model.planted import base
from tests.score.library_runs import SIZES


@pytest.mark.parametrize(
    ("factor", "word"), [(1.0, SpeedWord.NORMAL), (20.0, SpeedWord.SLOW), (0.1, SpeedWord.FAST)]
)
def test_the_word_is_that_of_times_over_predictions(factor: float, word: SpeedWord) -> None:
    system, request = base("hgx-h100", 1).cluster.system, LibraryRequest("all_reduce", SIZES)
    seconds = factor * seconds_of(system, request, shipped().table)
    assert (
        words_of(system, "all_reduce", [Observation(system, request, tuple(seconds.tolist()))])
        is word
    )
