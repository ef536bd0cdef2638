from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest
from ccbench.model.library.calibration import (
    FADING,
    Observation,
    calibrate,
    floor_seconds,
    interpolated,
)
from ccbench.model.library.constants import scaled, shipped
from ccbench.model.library.predictor import seconds_of
from tests.model.library.systems import A100, COLLECTIVES, H100, HDR, clustered

SIZES = tuple(1 << power for power in range(3, 34))
CLUSTER = clustered(A100, 2, HDR)


def measured(factors: list[float] | None = None, collective: str = "all_reduce") -> Observation:
    """A cluster whose latencies and rates are not the usual ones, times ``factors``."""
    scales = {"latency": 1.4, "latency of Simple": 1.2, "rate inside": 0.95, "rate across": 0.9}
    request = LibraryRequest(collective, SIZES)
    seconds = seconds_of(CLUSTER, request, scaled(shipped().table, scales))
    return Observation(CLUSTER, request, tuple((seconds * (factors or 1.0)).tolist()))


@settings(max_examples=10)
@given(st.lists(st.floats(0.01, 3.0), min_size=len(SIZES), max_size=len(SIZES)))
def test_a_calibrated_time_is_never_below_the_links_nominal_rates(factors: list[float]) -> None:
    calibration = calibrate([measured(factors)])
    for collective in COLLECTIVES:
        request = LibraryRequest(collective, (0, *SIZES, 1 << 40))
        assert np.all(calibration.seconds(request) >= floor_seconds(CLUSTER, request))


def test_no_points_are_refused() -> None:
    with pytest.raises(MachineError, match="no points; give at least one size"):
        calibrate([measured().taking([])])


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.floats(-2, 2)),
        min_size=1,
        max_size=8,
        unique_by=lambda at: at[0],
    ),
    st.floats(-10, 50),
)
def test_corrections_are_kept_where_they_were_measured_and_fade_between_and_beyond(
    known: list[tuple[int, float]], asked: float
) -> None:
    places, values = (
        np.array(column, dtype=np.float64) for column in zip(*sorted(known), strict=True)
    )
    assert interpolated(places, places, values) == pytest.approx(values, abs=1e-9)
    (value,) = interpolated(np.array([asked]), places, values)
    assert abs(value) <= np.abs(values).max() + 1e-9
    # A single one halves for every factor of FADING, on both sides.
    far = interpolated(
        places[:1] + np.log(FADING) * np.array([-1.0, 1.0, 2.0]), places[:1], values[:1]
    )
    assert far == pytest.approx(values[0] * np.array([0.5, 0.5, 0.25]))


def test_several_systems_are_refused() -> None:
    other = replace(measured(), system=H100)
    with pytest.raises(MachineError, match="one at a time"):
        calibrate([measured(), other])


def test_one_rank_has_no_floor() -> None:
    request = LibraryRequest("all_reduce", (8, 1 << 30))
    assert floor_seconds(replace(A100, ranks_per_node=1), request).tolist() == [0.0, 0.0]
