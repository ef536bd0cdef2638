"""Scales that were planted are found again, with intervals that hold them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.model.calibrated import (
    calibrate_cluster,
    faster_than_bound,
    modelled,
    open_base,
)
from ccbench.model.library import LibraryRequest
from ccbench.model.library.calibration import TERMS, Observation, calibrate, scale_intervals
from ccbench.topology.catalog import load_catalog
from ccbench.topology.files import save_topology
from tests.model.planted import PROVENANCE, SCALES, SIZES, base, calibrated, measured


@pytest.mark.parametrize(("sweeps", "apart"), [(1, 0.04), (20, 0.003)])
def test_planted_scales_are_found_again(sweeps: int, apart: float) -> None:
    """The pull towards one is worth a point or so, and vanishes as points become many."""
    found = calibrated("hgx-h100", 2, sweeps=sweeps).scales
    assert [one.term for one in found] == list(TERMS)
    seen = {one.term: one.scale for one in found if one.points >= 10}
    assert len(seen) >= 4
    assert seen == pytest.approx({term: SCALES[term] for term in seen}, rel=apart)


def test_sizes_that_were_measured_are_predicted_exactly() -> None:
    machine = calibrated()
    for request, seconds in measured(machine.cluster.system, SCALES):
        assert machine.calibrated.seconds(request) == pytest.approx(seconds, rel=1e-9)


def test_intervals_hold_the_planted_scales_and_widen_with_noise() -> None:
    quiet, noisy = calibrated(), calibrated(noise=0.1)
    for still, loud in zip(quiet.scales, noisy.scales, strict=True):
        if still.points >= 10:
            assert loud.low < SCALES[loud.term] * 1.05, loud
            assert loud.high > SCALES[loud.term] * 0.95, loud
            assert loud.high / loud.low > still.high / still.low
    assert all(0 <= one.low <= one.scale <= one.high for one in (*quiet.scales, *noisy.scales))


def test_a_scale_that_no_point_depends_on_stays_one() -> None:
    machine = calibrated(nodes=1)
    across = next(one for one in machine.scales if one.term == "rate across")
    assert (across.scale, across.points) == (1.0, 0)
    assert across.low == across.high == 1.0


def test_the_held_out_error_is_small_where_the_model_is_right_and_large_without_calibration() -> None:
    held = calibrated().held_out
    assert held is not None
    assert held.points == len(SIZES)  # every other size of two collectives
    assert held.median < 0.01
    assert held.median_without > 0.05


def test_three_sizes_are_enough_but_leave_nothing_to_hold_out() -> None:
    on = base(nodes=1)
    few = measured(on.cluster.system, SCALES, sizes=(1 << 10, 1 << 20, 1 << 30))
    assert calibrate_cluster(on, few, PROVENANCE).held_out is None


@pytest.mark.parametrize("sizes", [(1 << 20,), (1 << 10, 1 << 20)])
def test_fewer_than_three_sizes_are_refused_with_what_is_missing(sizes: tuple[int, ...]) -> None:
    on = base(nodes=1)
    with pytest.raises(MachineError, match=r"a-run: [12] sizes .*1048576.*at least 3"):
        calibrate_cluster(on, measured(on.cluster.system, SCALES, sizes=sizes), PROVENANCE)


def test_what_most_points_were_launched_like_is_kept() -> None:
    on = base(nodes=1)
    plain = measured(on.cluster.system, SCALES, ("all_reduce",))
    grouped = [
        (replace(request, gpus_per_process=8, version=(2, 20, 5)), tuple(max(one, 4e-5) for one in seconds))
        for request, seconds in measured(on.cluster.system, SCALES, ("all_gather", "broadcast"))
    ]
    found = calibrate_cluster(on, [*plain, *grouped], PROVENANCE)
    assert (found.measured_as.gpus_per_process, found.measured_as.version) == (8, (2, 20, 5))


def test_what_the_machine_cannot_do_is_told_apart() -> None:
    on = base(nodes=1)
    possible = measured(on.cluster.system, SCALES)
    nvls = (LibraryRequest("all_reduce", (8, 16), algorithm="nvls"), (1e-5, 1e-5))  # asks for Hopper
    kept, reasons = modelled(on, [*possible, nvls])
    assert kept == possible
    (reason,) = reasons
    assert reason.startswith("2 rows: all_reduce with algorithm nvls")


def test_points_faster_than_the_bound_are_counted() -> None:
    on = base(nodes=1)
    possible = measured(on.cluster.system, SCALES)
    assert faster_than_bound(on, possible) == 0
    impossible = [(request, tuple(one / 100 for one in seconds)) for request, seconds in possible]
    large = sum(size >= 1 << 30 for request, _ in possible for size in request.size_bytes)
    assert large <= faster_than_bound(on, impossible) < 2 * len(SIZES)


@pytest.mark.parametrize("network", ["ib-ndr-400x8", "tcp-1234.567x1", "roce-9999.999x2", "efa-0.5x4"])
def test_a_network_is_written_so_that_it_reads_back_the_same(network: str) -> None:
    on = open_base("dgx-a100", 2, network)
    found = calibrate_cluster(on, measured(on.cluster.system, SCALES, ("all_reduce",)), PROVENANCE)
    assert found.network == network
    assert found.cluster.system == on.cluster.system


def test_a_catalog_machine_is_kept_by_name_and_any_other_whole(tmp_path: Path) -> None:
    assert open_base("DGX-A100").described == "dgx-a100"
    other = load_catalog("dgx-a100")
    file = str(tmp_path / "mine.yaml")
    save_topology(other, file)
    described = open_base(file).described
    assert isinstance(described, dict)
    assert described["name"] == "dgx-a100"


def observations(noise: float) -> list[Observation]:
    system = base("hgx-h100", 1).cluster.system
    times = measured(system, SCALES, ("all_reduce", "all_gather", "broadcast"), noise=noise)
    return [Observation(system, request, tuple(seconds)) for request, seconds in times]


def refitted(points: list[Observation], resamples: int) -> dict[str, NDArray[np.float64]]:
    """Every resample fitted with the real model: slow, and what the linearised ones stand for."""
    random = np.random.default_rng(1)
    where = [(one, place) for one in range(len(points)) for place in range(len(points[one].seconds))]
    found: dict[str, list[float]] = {}
    for _ in range(resamples):
        drawn = [where[index] for index in random.integers(0, len(where), len(where))]
        places = [[place for other, place in drawn if other == one] for one in range(len(points))]
        resample = [one.taking(wanted) for one, wanted in zip(points, places, strict=True) if wanted]
        for term, scale in calibrate(resample).scales:
            found.setdefault(term, []).append(scale)
    return {term: np.asarray(scales) for term, scales in found.items()}


def test_linearised_intervals_are_about_as_wide_as_those_of_refitted_resamples() -> None:
    points = observations(noise=0.05)
    estimates = scale_intervals(calibrate(points), points)
    real = refitted(points, 20)
    compared = 0
    for one in estimates:
        if one.points >= 20:
            width = np.log(one.high / one.low) / (2 * 1.96)
            spread = float(np.std(np.log(real[one.term])))
            assert 0.4 < width / spread < 2.5, one
            compared += 1
    assert compared >= 2


def test_a_rate_at_its_limit_still_has_points_and_an_interval() -> None:
    """Links faster than their nominal rate: the efficiency stops at one, whatever the scale."""
    system = base("dgx-a100", 4).cluster.system
    fast = measured(system, {**SCALES, "rate across": 1.1}, ("all_reduce", "all_gather"), noise=0.02)
    points = [Observation(system, request, tuple(s * 0.97 for s in seconds)) for request, seconds in fast]
    across = next(one for one in scale_intervals(calibrate(points), points) if one.term == "rate across")
    assert across.scale > 1.0
    assert across.points >= 10
    assert across.low < across.high


def test_the_same_points_give_the_same_intervals() -> None:
    points = observations(noise=0.05)
    found = calibrate(points)
    assert scale_intervals(found, points) == scale_intervals(found, points)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_scale_always_lies_in_its_interval(noise: float) -> None:
    points = observations(noise)
    found = calibrate(points)
    for estimate, (term, scale) in zip(scale_intervals(found, points), found.scales, strict=True):
        assert (estimate.term, estimate.scale) == (term, scale)
        assert 0 <= estimate.low <= scale <= estimate.high
