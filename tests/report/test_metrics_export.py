"""Feeds are read back by the programs they are for, as far as their parsers are Python."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ccbench.cases import Status
from ccbench.report.exports import SUMMARY_VERSION, json_summary, prometheus_text
from ccbench.results import Manifest, Run, RunFolder, load_run
from tests.report.synthetic import MANIFEST, case, failed, flagged, sweep, write_run


def samples(run: Run) -> dict[str, list[Any]]:
    """Metric name -> samples, as Prometheus' own parser reads them."""
    text = prometheus_text(run)
    assert text.endswith("\n")
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge", family.name
        assert family.documentation
        assert family.name not in found
        found[family.name] = family.samples
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    edits = {
        0: lambda one: failed(one, Status.TIMED_OUT, "rank 2 did not come back"),
        1: lambda one: flagged(one, "busy"),
    }
    return write_run(tmp_path_factory.mktemp("feeds") / "run", sweep(algorithms=("ring", "tree")), edits)


def test_every_figure_of_every_case_is_there_in_base_units(run: Run) -> None:
    found = samples(run)
    for metric, column, scale in (
        ("ccbench_median_seconds", "median_seconds", 1.0),
        ("ccbench_high_seconds", "high_seconds", 1.0),
        ("ccbench_busbw_bytes_per_second", "busbw_GB_s", 1e9),
    ):
        by_case = {one.labels["case_id"]: one.value for one in found[metric]}
        known = run.cases[run.cases[column].notna()]
        assert by_case == pytest.approx(dict(zip(known.case_id, known[column] * scale, strict=True)))


def test_a_case_without_a_speed_has_no_sample_but_is_counted(run: Run) -> None:
    found = samples(run)
    counts = {one.labels["status"]: one.value for one in found["ccbench_run_cases"]}
    assert counts == {"ok": len(run.cases) - 1, "timed_out": 1}
    assert len(found["ccbench_median_seconds"]) == len(run.cases) - 1


def test_labels_tell_the_cases_apart_and_leave_defaults_out(run: Run) -> None:
    found = samples(run)["ccbench_median_seconds"]
    assert len({tuple(sorted(one.labels.items())) for one in found}) == len(found)
    labels = found[0].labels
    assert labels["host"] == "node7"
    assert labels["collective"] == "all_reduce"
    assert not {"transport", "pair", "simulated"} & labels.keys()


def test_no_sample_has_a_timestamp_for_the_textfile_collector_refuses_those(run: Run) -> None:
    assert all(one.timestamp is None for family in samples(run).values() for one in family)
    (created,) = samples(run)["ccbench_run_created_timestamp_seconds"]
    assert created.value > 1.7e9


def test_an_empty_run_is_still_a_valid_text(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}):
        pass
    found = samples(load_run(tmp_path / "run"))
    assert found["ccbench_run_unreadable_files"][0].value == 0


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_can_break_a_line_or_a_label(run: Run, host: str, version: str) -> None:
    manifest = {"environment": {"host": {"name": host}}, "versions": {"ccbench": version}}
    hostile = replace(run, manifest=Manifest(manifest))
    (information,) = samples(hostile)["ccbench_run_info"]
    assert information.labels.get("host", "").isprintable()
    assert len(samples(hostile)["ccbench_flags"]) == len(run.cases)
    json.dumps(json_summary(hostile), allow_nan=False)


def test_the_summary_has_a_version_counts_curves_failures_and_flags(run: Run) -> None:
    summary = json.loads(json.dumps(json_summary(run), allow_nan=False))
    assert (summary["format"], summary["version"]) == ("ccbench-summary", SUMMARY_VERSION)
    assert summary["cases"] == {"total": len(run.cases), "ok": len(run.cases) - 1, "timed_out": 1}
    assert {one["algorithm"] for one in summary["curves"]} == {"ring", "tree"}
    (failure,) = summary["failures"]
    assert failure["detail"] == "rank 2 did not come back"
    assert summary["flags"] == {"busy": 1}
    assert summary["run"]["host"] == "node7"


def test_a_curves_peak_is_its_largest_bandwidth(run: Run) -> None:
    for curve in json_summary(run)["curves"]:
        mine = run.cases[run.cases.algorithm == curve["algorithm"]]
        assert curve["peak"]["busbw_bytes_per_second"] == pytest.approx(1e9 * mine["busbw_GB_s"].max())
        assert curve["largest"]["size_bytes"] == mine["size_bytes"].max()
        assert math.isfinite(curve["smallest"]["median_seconds"])


def test_a_barrier_has_a_time_and_no_bandwidth(tmp_path: Path) -> None:
    one = write_run(tmp_path / "run", [case("barrier", "dissemination", 0)], manifest=MANIFEST)
    (curve,) = json_summary(one)["curves"]
    assert curve["peak"] is None
    assert "ccbench_busbw_bytes_per_second" not in samples(one)


def test_the_version_of_a_measured_run_is_among_its_libraries(run: Run) -> None:
    measured = {
        "environment": {"software": {"libraries": {"ccbench": "0.3.0"}}},
        "versions": {"cpu": "numpy"},
    }
    assert json_summary(replace(run, manifest=Manifest(measured)))["run"]["ccbench_version"] == "0.3.0"
    assert json_summary(run)["run"]["ccbench_version"] == "0.1.0"
