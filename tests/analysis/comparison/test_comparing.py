"""Every reason for having no verdict, and every exit code, on runs made up without noise to speak of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ccbench.analysis.comparison import BY_RATIO_ALONE, compare, compare_with_model
from ccbench.analysis.verdicts import Compared, NoVerdict, Settings, Verdict
from ccbench.cases.axes import IDENTITY
from ccbench.cases.measurement import Measurement, Status
from ccbench.model import Prediction
from ccbench.results import Manifest, Run, RunFolder
from tests.report.synthetic import failed, sweep, write_run

from .synthetic import MANIFEST, case, measured, run_of

RANDOM = np.random.default_rng(1)


def rounds(seconds: float, noise: float = 0.005, count: int = 6) -> list[list[float]]:
    return [list(seconds * np.exp(RANDOM.normal(0, noise, 5))) for _ in range(count)]


def points(seconds: float = 1e-5, **changes: Any) -> list[Measurement]:
    return [measured(case(place), rounds(seconds), **changes) for place in range(4)]


BASE = run_of(points(), "base")


def one_more(extra: Measurement) -> Run:
    """A new run that is as fast as the base, with ``extra`` in the place of the first point."""
    return run_of([extra, *points()[1:]], "new")


def first(compared: Compared) -> Any:
    (first_point,) = [point for point in compared.points if point.point.size_bytes == 4]
    return first_point


def test_an_interval_that_is_too_wide_is_no_verdict_unless_it_is_let_pass() -> None:
    new = one_more(measured(case(0), rounds(1e-5, 0.5)))
    compared = compare(BASE, new)
    assert first(compared).cause is NoVerdict.TOO_WIDE
    assert compared.exit_code == 3
    assert compare(BASE, new, Settings(undecided=0.25)).exit_code == 0
    assert compare(BASE, new, Settings(undecided=0.24)).exit_code == 3


def manifest(**processor: Any) -> dict[str, Any]:
    environment = dict(MANIFEST["environment"])
    return {
        "environment": {**environment, "processor": {**environment["processor"], **processor}}
    }


def test_other_hardware_is_no_verdict_unless_asked_for() -> None:
    new = run_of(points(), "new", manifest(model="Xeon 8480"))
    compared = compare(BASE, new)
    assert compared.causes == {NoVerdict.OTHER_MACHINE.value: 4}
    assert "EPYC 7763 in base, Xeon 8480 in new" in compared.points[0].reason
    assert compared.exit_code == 3
    assert compare(BASE, new, Settings(across_machines=True)).exit_code == 0


def average(seconds: float, source: str = "log.txt", line: int = 1) -> dict[str, Any]:
    return {
        "samples_seconds": None,
        "round_samples": None,
        "median_seconds": seconds,
        "source": source,
        "tool": "nccl-tests",
        "time_statistic": "mean",
        "source_line": line,
    }


def printed(seconds: float, name: str = "run") -> Run:
    return run_of([measured(case(0), [[seconds]])], name, {}, **average(seconds))


@pytest.mark.parametrize(
    ("seconds", "verdict", "code"),
    [(1.04e-5, Verdict.SAME, 0), (1.06e-5, Verdict.SLOWER, 1), (0.9e-5, Verdict.FASTER, 0)],
)
def test_printed_averages_are_judged_by_their_ratio_alone_and_that_is_said(
    seconds: float, verdict: Verdict, code: int
) -> None:
    compared = compare(printed(1e-5), printed(seconds))
    (point,) = compared.points
    assert point.verdict is verdict
    assert point.reason == BY_RATIO_ALONE
    assert point.low is None
    assert compared.exit_code == code


SETTINGS_OF_A_POINT: dict[str, Any] = {
    "pair": "0>3",
    "groups": "rank // 2",
    "concurrent": "broadcast",
    "channels": 4,
    "transport": "host",
    "registration": "symmetric",
    "aggregation": 8,
    "misalignment_bytes": 4,
    "mode": "isolated",
    "active_group": 0,
    "traffic": "hot:0.5",
    "overlap_with": "matmul",
    "processes": "per_gpu",
    "memory": "device",
    "cta_policy": "zero",
    "variant": "new",
    "protocol": "ll",
    "in_place": True,
    "root": 1,
    "nodes": 2,
    "dtype": "float16",
    "ranks": 8,
    "op": "max",
    "backend": "gloo",
    "algorithm": "ring2",
    "collective": "reduce",
    "size_bytes": 12,
}


def test_every_axis_of_a_case_is_tried() -> None:
    assert {axis.name for axis in IDENTITY} == set(SETTINGS_OF_A_POINT)


PREDICTION = Prediction(5e-6, 1e-5, 1e-6, 9e-6, "link 0-1")


def test_a_prediction_of_a_case_that_could_not_be_read_never_passes(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, MANIFEST) as folder:
        for place in (0, 1):
            folder.write(measured(case(place), rounds(1e-5)), PREDICTION)
    assert compare_with_model(path).exit_code == 0
    (path / "cases.log").write_text("cut")
    assert compare_with_model(path).exit_code == 3


def test_published_figures_are_a_base_over_the_declared_network_alone_and_of_another_type(
    tmp_path: Path,
) -> None:
    cases = [
        replace(point_case, backend="nccl", algorithm="default", nodes=2, dtype="bfloat16")
        for point_case in sweep(ranks=16)
    ]
    options = {"options": {"network": "ib-hdr-200x8"}}
    run = write_run(tmp_path / "run", cases, manifest=options)
    reasons = [
        point.reason
        for point in compare("published:dgx-a100", run).points
        if point.base_seconds
    ]
    assert reasons
    assert all(
        "over ib-hdr-200x8" in text and "measured with float32" in text for text in reasons
    )
    elsewhere = replace(run, manifest=Manifest({"options": {"network": "ib-ndr-400x8"}}))
    assert not [
        point for point in compare("published:dgx-a100", elsewhere).points if point.base_seconds
    ]


@pytest.mark.parametrize("status", [Status.WRONG, Status.FAILED])
def test_small_points_that_did_not_end_well_are_not_left_out(
    tmp_path: Path, status: Status
) -> None:
    cases = [replace(case, backend="nccl", algorithm="default") for case in sweep(ranks=8)]
    ended = {0: lambda measurement: failed(measurement, status, "")}
    compared = compare("published:hgx-h100", write_run(tmp_path / "run", cases, ended))
    assert compared.exit_code != 0
    assert cases[0].size_bytes in {row.point.size_bytes for row in compared.points}
