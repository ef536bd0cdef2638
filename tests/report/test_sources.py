from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ccbench.cases.measurement import Measurement, Status
from ccbench.report.figures import figures_of
from ccbench.report.wording import (
    imported_from,
    points_of,
    verdict_lines,
)
from ccbench.results import Origin, Point, Run, RunFolder, load_run

from .synthetic import sweep, write_run

ORIGIN = Origin("a.txt", 1, 1, "nccl-tests", "2.13.8", "NVIDIA H100", "complete", "mean", 1e-5)


def _run(path: Path, *origins: Origin) -> Run:
    with RunFolder.create(path, {"suite": {"name": "a.txt"}}) as folder:
        for origin in origins:
            for line, one in enumerate(sweep()):
                timed = replace(origin, line=line + 1, seconds=1e-6 + one.size_bytes / 1e9)
                folder.write(Measurement(one, Status.OK), None, origin=timed)
    return load_run(path)


def test_an_imported_run_says_so_and_draws_no_interval(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", ORIGIN)
    points = points_of(run)
    assert imported_from(points) == "imported from a.txt (nccl-tests 2.13.8)"
    assert {point.machine for point in points} == {"NVIDIA H100"}
    for figure in figures_of(points):
        assert "imported from a.txt (nccl-tests 2.13.8)" in figure.subtitle
        assert all(series.low == () for series in figure.series)
        assert any(
            "times as printed (mean), without samples or interval" in note
            for note in figure.footnote
        )
    assert (
        "imported from a.txt (nccl-tests 2.13.8); all_reduce ring over 4 ranks"
        in verdict_lines(run)[0]
    )


def test_several_sources_are_counted_and_measured_points_are_not_called_imported(
    tmp_path: Path,
) -> None:
    run = _run(tmp_path / "run", ORIGIN, replace(ORIGIN, source="b.txt", tool_version="2.14"))
    assert imported_from(points_of(run)) == "imported from 2 sources (nccl-tests)"
    measured: tuple[Point, ...] = points_of(write_run(tmp_path / "measured", sweep()))
    assert imported_from(measured) == ""
    assert all(
        series.low
        for series in figures_of(measured)[0].series
        if series.kind.value == "measured"
    )
