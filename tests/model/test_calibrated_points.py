"""Calibrated predictions: never below the bound, and labelled where nothing was measured."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model.calibrated import (
    Asked,
    CalibratedCluster,
    Correction,
    MeasuredCollective,
    as_measured,
    calibrated_points,
)
from ccbench.model.library.system import LibraryRequest
from tests.model.planted import calibrated

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv")
MACHINES = (
    ("dgx-a100", 1, "", 8), ("dgx-a100", 4, "ib-hdr-200x8", 32), ("hgx-h100", 1, "", 8),
    ("hgx-h100", 2, "ib-ndr-400x8", 16), ("pcie4-x16", 1, "", 8), ("mi300x", 1, "", 8), ("dgx-1v", 1, "", 8),
)  # fmt: skip


@functools.lru_cache(maxsize=64)
def machine_like(place: int, factor: float, collective: str) -> CalibratedCluster:
    """A machine on which ``collective`` takes the model's time times ``factor`` at every size."""
    name, nodes, network, ranks = MACHINES[place]
    corrections = tuple(Correction(1 << power, factor) for power in (3, 20, 30))
    seen = MeasuredCollective(collective, False, 3, (Asked("default", "default"),), corrections)
    return replace(calibrated(), machine=name, nodes=nodes, network=network, ranks=ranks, measured=(seen,))


@given(
    place=st.integers(0, len(MACHINES) - 1),
    factor=st.sampled_from([1e-6, 0.01, 0.3, 0.7, 1.0, 3.0]),
    measured=st.sampled_from(["all_reduce", "all_to_all"]),
    collective=st.sampled_from(COLLECTIVES),
    sizes=st.lists(st.integers(1, 1 << 36), min_size=1, max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_calibrated_is_never_below_the_bound(
    place: int, factor: float, measured: str, collective: str, sizes: list[int]
) -> None:
    machine = machine_like(place, factor, measured)
    for point in calibrated_points(machine, LibraryRequest(collective, tuple(sizes))):
        assert point.calibrated_seconds >= point.point.prediction.bound_seconds
        assert math.isfinite(point.calibrated_seconds)
        assert point.label in ("calibrated", "extrapolated")
        assert point.label == "extrapolated" or collective == measured


def test_twice_beyond_the_sizes_measured_is_extrapolated() -> None:
    machine = calibrated()
    sizes = (2, 4, 8, 1 << 20, 1 << 32, 1 << 33, 1 << 34)
    labels = [point.label for point in calibrated_points(machine, LibraryRequest("all_reduce", sizes))]
    assert labels == ["extrapolated", *["calibrated"] * 5, "extrapolated"]


def test_a_collective_that_was_not_measured_is_extrapolated_with_the_same_scales() -> None:
    machine = calibrated(collectives=("all_reduce",))
    points = calibrated_points(machine, LibraryRequest("all_gather", (1 << 30,)))
    (other,) = calibrated_points(calibrated(), LibraryRequest("all_gather", (1 << 30,)))
    assert [point.label for point in points] == ["extrapolated"]
    assert points[0].calibrated_seconds == pytest.approx(other.calibrated_seconds, rel=0.05)


def test_an_algorithm_that_was_not_asked_for_is_calibrated_only_where_the_library_chooses_it() -> None:
    machine = calibrated()
    sizes = (1 << 10, 1 << 32)
    chosen = calibrated_points(machine, LibraryRequest("all_reduce", sizes))
    forced = calibrated_points(machine, LibraryRequest("all_reduce", sizes, algorithm="ring"))
    assert chosen[0].point.algorithm == "tree"
    assert [point.label for point in forced] == ["extrapolated", "calibrated"]
    assert forced[1].calibrated_seconds == chosen[1].calibrated_seconds


def test_only_what_was_forced_is_calibrated_where_everything_was_forced() -> None:
    (seen,) = calibrated(collectives=("all_reduce",)).measured
    forced = replace(seen, asked=(Asked("ring", "simple"),))
    machine = replace(calibrated(collectives=("all_reduce",)), measured=(forced,))
    request = LibraryRequest("all_reduce", (1 << 20,))
    (default,) = calibrated_points(machine, request)
    (same,) = calibrated_points(machine, replace(request, algorithm="ring", protocol="simple"))
    assert (default.label, same.label) == ("extrapolated", "calibrated")


def test_the_placement_that_was_measured_stands_for_the_other() -> None:
    machine = calibrated(collectives=("all_reduce",))
    assert as_measured(machine, LibraryRequest("all_reduce", (8,), in_place=True)).in_place is False
    assert as_measured(machine, LibraryRequest("broadcast", (8,), in_place=True)).in_place is True


def test_points_are_launched_as_the_machine_was_measured() -> None:
    machine = calibrated(nodes=1)
    slow = replace(machine, measured_as=replace(machine.measured_as, gpus_per_process=8))
    request = LibraryRequest("all_reduce", (8,))
    (alone,), (together,) = calibrated_points(machine, request), calibrated_points(slow, request)
    assert together.calibrated_seconds > alone.calibrated_seconds
    assert together.point.prediction.predicted_seconds > alone.point.prediction.predicted_seconds


def test_links_that_gpus_share_slow_a_collective_that_was_not_measured() -> None:
    machine = machine_like(4, 1.0, "all_reduce")
    (point,) = calibrated_points(machine, LibraryRequest("all_to_all", (1 << 30,)))
    plain = machine.calibrated.seconds(LibraryRequest("all_to_all", (1 << 30,)))
    assert point.calibrated_seconds > float(plain[0])


def test_what_the_library_does_not_have_is_refused() -> None:
    with pytest.raises(MachineError, match="there are"):
        calibrated_points(calibrated(nodes=1), LibraryRequest("all_reduce", (8,), algorithm="nvlstree"))
