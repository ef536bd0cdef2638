from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model import Prediction
from ccbench.model.cluster import library_points, open_cluster
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.intervals import (
    ALARM,
    FEWEST_SYSTEMS,
    GAPS,
    RESIDUALS_FILE,
    LearnedSystem,
    Residuals,
    false_alarms,
    intervals,
    kind_of,
    residuals,
    typicality,
)
from tests.model.library.systems import (
    A100,
    H100,
    HDR,
    MI300X,
    NDR,
    V100_CUBE,
    clustered,
    lone,
    systems,
)

KIND = kind_of(H100)


def learned(*levels: float, kind: tuple[str, ...] = KIND, spread: float = 0.1) -> Residuals:
    """Systems of these levels, whose rows lie evenly around them at every share of the transfer."""
    rows = [
        (share, off) for share in (0.0, 0.5, 1.0) for off in np.linspace(-spread, spread, 5)
    ]
    return Residuals(
        tuple(
            LearnedSystem(
                f"system {place}",
                kind,
                tuple(share for share, _ in rows),
                tuple(level + off for _, off in rows),
                tuple((regime, level) for regime in GAPS),
            )
            for place, level in enumerate(levels)
        ),
        (0.1,) * 3,
        (0.025,) * 3,
    )


def prediction(seconds: float = 1.0, share: float = 0.5, bound: float = 0.0) -> Prediction:
    return Prediction(bound, seconds, seconds * (1 - share), seconds * share, "")


def test_every_prediction_of_a_library_carries_an_interval_and_says_what_it_is_from() -> None:
    cluster = open_cluster("hgx-h100", 2, "ib-ndr-400x8")
    for point in library_points(cluster, LibraryRequest("all_reduce", (8, 1 << 20, 1 << 30))):
        found = point.prediction.interval
        assert found is not None
        assert (
            found.low_95_seconds
            <= found.low_80_seconds
            <= found.high_80_seconds
            <= found.high_95_seconds
        )
        assert "systems" in found.origin
        assert "RDMA, NVSwitch" in found.origin


@given(systems(), st.floats(1e-6, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_edges_are_in_order_positive_and_never_below_the_bound(
    system: LibrarySystem, seconds: float, share: float, bound_share: float
) -> None:
    (interval,) = intervals(system, [prediction(seconds, share, seconds * bound_share)])
    times = (
        interval.low_95_seconds,
        interval.low_80_seconds,
        interval.high_80_seconds,
        interval.high_95_seconds,
    )
    assert list(times) == sorted(times)
    assert all(np.isfinite(time) and time >= seconds * bound_share for time in times)


def test_systems_like_the_one_at_hand_weigh_more() -> None:
    own, residuals = learned(0.5, 0.5), learned(-0.5, -0.5, kind=kind_of(clustered(A100, 2)))
    both = replace(own, systems=own.systems + residuals.systems, tail_80=(0.4,) * 3)
    (interval,) = intervals(H100, [prediction()], both)
    assert interval.low_80_seconds == 1.0, "the others alone would be below"
    assert interval.high_80_seconds > 1.6
    assert "4 systems, 2 of them like this one" in interval.origin


@pytest.mark.parametrize(
    ("system", "kind"),
    [
        (H100, ("one node", "no network", "NVSwitch", "Hopper", "up to 16 GPUs")),
        (
            clustered(A100, 4, HDR),
            ("several nodes", "RDMA", "NVSwitch", "Ampere", "more than 16 GPUs"),
        ),
        (
            clustered(MI300X, 2, replace(NDR, word="efa")),
            ("several nodes", "EFA", "direct links", "CDNA3", "up to 16 GPUs"),
        ),
        (lone(2), ("several nodes", "RDMA", "one GPU a node", "Hopper", "up to 16 GPUs")),
        (
            clustered(V100_CUBE, 2, replace(NDR, word="tcp")),
            ("several nodes", "sockets", "direct links", "Volta", "up to 16 GPUs"),
        ),
    ],
)
def test_a_kind_names_what_systems_have_in_common(
    system: LibrarySystem, kind: tuple[str, ...]
) -> None:
    assert kind_of(system) == kind


def test_a_system_much_slower_than_all_is_slow_and_one_like_them_is_not() -> None:
    residuals = learned(*np.linspace(-0.2, 0.2, 31))
    sizes, predicted = (1 << 30, 1 << 31), (1.0, 2.0)
    slow = typicality(H100, sizes, predicted, (5.0, 10.0), residuals)["large"]
    usual = typicality(H100, sizes, predicted, (1.0, 2.0), residuals)["large"]
    fast = typicality(H100, sizes, predicted, (0.2, 0.4), residuals)["large"]
    assert (slow.slow, slow.fast) == (True, False)
    assert slow.p_slow == pytest.approx(1 / 32)
    assert (usual.slow, usual.fast) == (False, False)
    assert (fast.slow, fast.fast) == (False, True)
    assert slow.ratio == pytest.approx(5.0)


def test_a_factor_that_healthy_systems_show_is_not_called_slow_however_rare() -> None:
    residuals = learned(*np.linspace(-0.01, 0.01, 31))
    found = typicality(H100, (1 << 30,), (1.0,), (GAPS["large"] * 0.99,), residuals)["large"]
    assert found.p_slow <= ALARM
    assert not found.slow


def test_of_too_few_systems_nothing_is_said() -> None:
    residuals = learned(*np.linspace(-0.2, 0.2, FEWEST_SYSTEMS - 1))
    assert typicality(H100, (1 << 30,), (1.0,), (5.0,), residuals) == {}


def test_what_ships_calls_few_of_its_own_systems_slow() -> None:
    flagged, count = false_alarms()
    assert count == len(residuals().systems)
    assert flagged <= 0.05 * count


@pytest.mark.parametrize(
    ("original", "instead"),
    [
        ("tail_80", "tail"),
        ("tail_80: [", "tail_80: [0.1, "),
        ("systems:", "systems: []\nothers:"),
        ("kind: [several nodes, ", "kind: ["),
        ("transfer_shares: [0.0, ", "transfer_shares: ["),
        ("log_ratios: [", "log_ratios: [fast, "),
        ("medians: {", "medians: ["),
    ],
)
def test_damaged_residuals_are_refused_in_one_line(
    tmp_path: Path, original: str, instead: str
) -> None:
    file = tmp_path / "residuals.yaml"
    file.write_text(RESIDUALS_FILE.read_text().replace(original, instead, 1))
    with pytest.raises(
        MachineError, match=r"missing or damaged .*; reinstall ccbench"
    ) as caught:
        residuals(file)
    assert "\n" not in str(caught.value)


def test_a_cut_or_missing_file_of_residuals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="damaged"):
        residuals(tmp_path / "residuals.yaml")
    for size in (0, 100, 5000):
        cut = tmp_path / f"{size}.yaml"  # what was read from a path is kept
        cut.write_bytes(RESIDUALS_FILE.read_bytes()[:size])
        with pytest.raises(MachineError, match="damaged"):
            residuals(cut)
