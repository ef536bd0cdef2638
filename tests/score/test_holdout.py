from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score.holdout import FEWEST_SIZES, on_other_sizes, system_key
from benchmarks.score.scores import Predictor
from ccbench.errors import MachineError
from ccbench.model.library import HostProcessor
from ccbench.model.library.calibration import Observation
from tests.model.library.systems import NDR
from tests.score.corpora import log_points, system, twice_as_slow


class Fitter:
    """Remembers what it was fitted to; predicts twice the time."""

    def __init__(self) -> None:
        self.seen: list[list[Observation]] = []

    def __call__(self, observations: Sequence[Observation]) -> Predictor:
        self.seen.append(list(observations))
        return twice_as_slow


def quiet(_: str) -> None:
    return


SIZES = (8, 16, 32, 64, 128)


def test_a_calibration_sees_every_other_size_and_is_tested_on_the_rest() -> None:
    fitter = Fitter()
    found = on_other_sizes([log_points("a.txt", SIZES)], fitter, quiet)
    assert [one.request.size_bytes for one in fitter.seen[0]] == [(8, 32, 128)]
    assert fitter.seen[0][0].seconds == pytest.approx((8e-9, 32e-9, 128e-9))
    assert found.total.overall.points == 2
    assert found.total.overall.mape == pytest.approx(1.0)


def test_logs_of_one_machine_are_calibrated_together_on_sizes_that_none_of_them_is_tested_at() -> (
    None
):
    fitter = Fitter()
    on_other_sizes([log_points("a.txt", SIZES), log_points("b.txt", SIZES[1:])], fitter, quiet)
    (seen,) = fitter.seen
    assert [one.request.size_bytes for one in seen] == [(8, 32, 128), (32, 128)]


def test_a_log_of_few_sizes_is_not_tested_and_says_so() -> None:
    found = on_other_sizes([log_points("a.txt", SIZES[: FEWEST_SIZES - 1])], Fitter(), quiet)
    assert found.total.overall.points == 0
    assert "are needed" in found.groups[0].reason


def test_a_calibration_that_fails_says_so_and_the_others_go_on() -> None:
    def fails_once(observations: Sequence[Observation]) -> Predictor:
        if observations[0].system.nodes == 1:
            raise MachineError("too little to fit")
        return twice_as_slow

    network = {"nodes": 2, "network": NDR}
    found = on_other_sizes(
        [log_points("a.txt", SIZES), log_points("b.txt", SIZES, **network)], fails_once, quiet
    )
    assert [group.reason for group in found.groups] == ["too little to fit", ""]
    assert found.total.overall.points == 2


def test_progress_names_every_group() -> None:
    told: list[str] = []
    logs = [log_points("a.txt", SIZES), log_points("b.txt", SIZES, nodes=2, network=NDR)]
    on_other_sizes(logs, Fitter(), told.append)
    assert [text.split(":")[0] for text in told] == ["calibrating 1 of 2", "calibrating 2 of 2"]


def test_a_system_is_told_by_its_figures_and_not_by_its_name() -> None:
    assert system_key(
        system(name="x", origins={"a": "b"}, host=HostProcessor.AMD)
    ) == system_key(system())
    assert system_key(system(intra_bytes_per_second=200e9)) != system_key(system())


@given(st.lists(st.integers(1, 1 << 40), min_size=FEWEST_SIZES, max_size=12, unique=True))
def test_no_size_is_both_fitted_and_tested(sizes: list[int]) -> None:
    fitter = Fitter()
    found = on_other_sizes([log_points("a.txt", sizes)], fitter, quiet)
    fitted = {size for one in fitter.seen[0] for size in one.request.size_bytes}
    assert found.total.overall.points == len(sizes) - len(fitted)
    assert abs(len(sizes) - 2 * len(fitted)) <= 1
