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
    pairs_table,
)
from ccbench.report.curves import MOST_BASELINES
from ccbench.report.figure import SeriesKind
from ccbench.report.figures import figures_of
from ccbench.report.wording import points_of
from ccbench.results import Point, Run
from ccbench.results.loading import load_published
from tests.results.samples import edited

from .synthetic import case, sweep, write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", sweep())


def pairs_of(points: Sequence[Point], baseline: Run) -> tuple[BaselinePair, ...]:
    return beside(points, comparable_points(points, baseline))


@pytest.fixture
def slow(tmp_path: Path) -> Run:
    """The same work at half the speed."""
    return write_run(tmp_path / "slow", sweep(), slowdown=2.0)


def test_only_the_same_work_is_laid_beside(run: Run, tmp_path: Path) -> None:
    others = [
        case("all_gather", "ring", 4096),
        case("all_reduce", "ring", 4096, ranks=8),
        replace(case("all_reduce", "ring", 4096), in_place=True),
        replace(case("all_reduce", "ring", 4096), dtype="float64"),
        replace(case("all_reduce", "ring", 4096), op="max"),
        replace(case("all_reduce", "ring", 4096), nodes=2),
    ]
    baseline = write_run(tmp_path / "others", others)
    assert comparable_points(points_of(run), baseline) == ()
    (line,) = baseline_lines(points_of(run), baseline)
    assert line == (
        "others: nothing like this run's points; it has cpu all_reduce float32 4 ranks on 2 nodes at 4 KiB; "
        "cpu all_reduce float32 4 ranks, in place at 4 KiB; cpu all_reduce float32 max 4 ranks at 4 KiB; "
        "cpu all_reduce float64 4 ranks at 4 KiB; cpu all_reduce float32 8 ranks at 4 KiB"
    )


def test_collectives_that_no_source_named_are_never_alike(run: Run) -> None:
    nameless = edited(run, collective="unknown")
    assert len(comparable_points(points_of(run), run)) == len(run.points)
    assert comparable_points(points_of(nameless), nameless) == ()


def test_what_a_source_does_not_say_tells_nothing_apart(run: Run, tmp_path: Path) -> None:
    open_ends = [replace(measurement, nodes=0, dtype="", op="none") for measurement in sweep()]
    baseline = write_run(tmp_path / "open", open_ends)
    points = points_of(run)
    behind = comparable_points(points, baseline)
    assert len(behind) == len(points)
    assert {(one.nodes, one.dtype, one.op) for one in behind} == {(1, "float32", "sum")}


def test_the_same_algorithm_is_preferred_then_the_library_s_own_choice(
    run: Run, tmp_path: Path
) -> None:
    fast = [replace(measurement, algorithm="tree", backend="nccl") for measurement in sweep()]
    left = [
        replace(measurement, algorithm="default", backend="nccl") for measurement in sweep()
    ]
    points = points_of(run)
    without = write_run(tmp_path / "without", [*fast, *left])
    assert {one.baseline.algorithm for one in pairs_of(points, without)} == {"default"}
    same = write_run(tmp_path / "with", [*fast, *left, *sweep()])
    assert {one.baseline.algorithm for one in pairs_of(points, same)} == {"ring"}


def test_every_form_names_the_baseline_and_the_ratio(run: Run, slow: Run) -> None:
    points = points_of(run)
    pairs = pairs_of(points, slow)
    lines = pairs_csv(pairs).splitlines()
    assert len(lines) == 1 + len(points)
    assert float(lines[1].rsplit(",", 1)[1]) == pytest.approx(2.0)
    assert sum(
        row[0].startswith("cpu all_reduce ring") for row in pairs_table(pairs).rows
    ) == len(pairs)
    assert any("x2 " in line and "[1]" in line for line in baseline_lines(points, slow))


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


def test_a_run_beside_itself_is_told(run: Run, slow: Run) -> None:
    own = "has this run's very figures: the run is compared with itself"
    assert any(own in line for line in baseline_lines(points_of(run), run))
    assert not any(own in line for line in baseline_lines(points_of(run), slow))


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


def test_published_figures_over_another_network_are_not_laid_beside(tmp_path: Path) -> None:
    points = points_of(of_gpus(tmp_path / "run", "ib-hdr-200x8", 16, 2))
    behind = comparable_points(points, load_published("dgx-a100"))
    assert {one.network for one in behind} == {"ib-hdr-200x8"}
    lines = baseline_lines(points, load_published("dgx-a100"))
    assert any("over ib-hdr-200x8" in line for line in lines if line.startswith("  ["))
    assert not any("tcp" in line or "efa-" in line for line in lines)


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


def test_without_a_declared_network_every_published_one_is_named(tmp_path: Path) -> None:
    points = points_of(of_gpus(tmp_path / "run", "", 16, 2))
    networks = {
        point.network for point in comparable_points(points, load_published("dgx-a100"))
    }
    assert {"ib-hdr-200x8", "efa-100x4"} <= networks


def test_another_element_type_stands_in_where_bytes_are_all_that_counts(tmp_path: Path) -> None:
    points = points_of(of_gpus(tmp_path / "run", "", 8, 1, dtype="bfloat16"))
    pairs = pairs_of(points, load_published("hgx-h100"))
    assert pairs
    assert all("measured with float32" in pair.legend for pair in pairs)
    lines = baseline_lines(points, load_published("hgx-h100"))
    assert any("measured with float32" in line for line in lines if line.startswith("  ["))


def test_a_choice_of_the_baseline_is_not_read_as_a_part_of_its_version(
    run: Run, tmp_path: Path
) -> None:
    edits = dict.fromkeys(
        range(20), lambda one: replace(one, backend_version="NCCL 2.30.4, CuPy 14.2")
    )
    points = points_of(run)
    assert (
        pairs_of(points, write_run(tmp_path / "base", sweep(), edits))[0].legend
        == "NCCL 2.30.4, CuPy 14.2, ring, base"
    )


def test_the_same_element_type_comes_before_others(tmp_path: Path) -> None:
    points = points_of(of_gpus(tmp_path / "run", "", 8, 1, dtype="bfloat16"))
    own = of_gpus(tmp_path / "own", "", 8, 1, dtype="bfloat16")
    other = of_gpus(tmp_path / "other", "", 8, 1)
    both = replace(own, table=pa.concat_tables([other.table, own.table]))
    behind = comparable_points(points, both)
    assert len(behind) == len(points)
    assert not any("measured with" in pair.legend for pair in beside(points, behind))


def test_sums_of_another_type_on_processors_are_not_alike(run: Run, tmp_path: Path) -> None:
    halves = write_run(
        tmp_path / "halves", [replace(measurement, dtype="float16") for measurement in sweep()]
    )
    assert comparable_points(points_of(run), halves) == ()
    moved = write_run(tmp_path / "moved", sweep("all_gather"))
    others = write_run(
        tmp_path / "others",
        [replace(measurement, dtype="float16") for measurement in sweep("all_gather")],
    )
    assert len(comparable_points(points_of(moved), others)) == len(others.points)
