from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest

from ccbench.report.baselines import (
    BaselinePair,
    baseline_lines,
    beside,
    comparable_points,
    pairs_csv,
)
from ccbench.report.curves import MOST_BASELINES
from ccbench.report.figure import SeriesKind
from ccbench.report.figures import figures_of
from ccbench.report.wording import points_of
from ccbench.results import Point, Run
from ccbench.results.loading import load_published
from tests.results.samples import edited

from .synthetic import sweep, write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", sweep())


def pairs_of(points: Sequence[Point], baseline: Run) -> tuple[BaselinePair, ...]:
    return beside(points, comparable_points(points, baseline))


def test_figures_hold_no_more_grey_lines_than_can_be_read(run: Run, tmp_path: Path) -> None:
    many = [
        replace(measurement, algorithm=f"a{number}")
        for number in range(MOST_BASELINES + 3)
        for measurement in sweep(last=14)
    ]
    points = points_of(run)
    behind = comparable_points(points, write_run(tmp_path / "many", many))
    figure = figures_of([*points, *behind])[0]
    assert sum(series.kind == SeriesKind.BASELINE for series in figure.series) == MOST_BASELINES
    assert any("3 lines of the baseline" in note for note in figure.footnote)


def test_nodes_that_nobody_stated_are_marked(run: Run, tmp_path: Path) -> None:
    baseline = write_run(
        tmp_path / "open", [replace(measurement, nodes=0) for measurement in sweep()]
    )
    points = points_of(run)
    assert any("(nodes not stated)" in line for line in baseline_lines(points, baseline))
    pairs = pairs_of(points, baseline)
    assert "nodes not stated" in pairs_csv(pairs)
    assert not any("stated" in line for line in baseline_lines(points, run))
    unsaid = [replace(point, nodes=0) for point in points]
    assert any(
        "of 1 node, this run's are not stated" in line for line in baseline_lines(unsaid, run)
    )


def test_other_gpus_are_told_where_they_surely_differ(run: Run) -> None:
    points = [replace(point, machine="hgx-h100") for point in points_of(run)]

    def lines(model: str) -> str:
        return "\n".join(baseline_lines(points, edited(run, device_model=model)))

    assert "this run is of NVIDIA H100 80GB HBM3, the baseline of NVIDIA H200" in lines(
        "NVIDIA H200"
    )
    assert "this run is of" not in lines("NVIDIA H100")
    assert "this run is of" not in lines("node 17")


def of_gpus(folder: Path, network: str, ranks: int, nodes: int, **changes: str) -> Run:
    cases = [
        replace(measurement, backend="nccl", algorithm="default", nodes=nodes, **changes)  # type: ignore[arg-type]  # texts
        for measurement in sweep(ranks=ranks)
    ]
    return write_run(
        folder, cases, manifest={"machine": {"name": "x"}, "options": {"network": network}}
    )


def test_where_no_published_network_fits_that_is_said_with_what_there_is(
    tmp_path: Path,
) -> None:
    points = points_of(of_gpus(tmp_path / "run", "ib-ndr-400x8", 16, 2))
    (line,) = baseline_lines(points, load_published("dgx-a100"))
    assert "nothing like this run's points over ib-ndr-400x8; it has " in line
    assert "nccl all_reduce float32 16 ranks on 2 nodes over efa-100x4" in line
    # Other published results do have such points, and their name can be typed.
    name = re.search(r"; try published:(\S+), which has \d+ points? like it$", line)
    assert name is not None
    assert pairs_of(points, load_published(name[1]))


def test_another_element_type_stands_in_where_bytes_are_all_that_counts(tmp_path: Path) -> None:
    points = points_of(of_gpus(tmp_path / "run", "", 8, 1, dtype="bfloat16"))
    pairs = pairs_of(points, load_published("hgx-h100"))
    assert pairs
    assert all("measured with " in pair.legend for pair in pairs)
    lines = baseline_lines(points, load_published("hgx-h100"))
    assert any("measured with " in line for line in lines if line.startswith("  ["))


def test_the_same_element_type_comes_before_others(tmp_path: Path) -> None:
    points = points_of(of_gpus(tmp_path / "run", "", 8, 1, dtype="bfloat16"))
    own = of_gpus(tmp_path / "own", "", 8, 1, dtype="bfloat16")
    other = of_gpus(tmp_path / "other", "", 8, 1)
    both = replace(own, table=pa.concat_tables([other.table, own.table]))
    behind = comparable_points(points, both)
    assert len(behind) == len(points)
    assert not any("measured with" in pair.legend for pair in beside(points, behind))
