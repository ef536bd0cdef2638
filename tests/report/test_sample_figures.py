"""Maps of ranks against samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ccbench.cases import Measurement
from ccbench.report.maps import DARKEST, MOST_COLUMNS, MOST_MAPS, sample_figures, spike_text
from ccbench.report.matplotlib_renderer import render
from tests.report.synthetic import flagged, grid_of, sweep, write_run


def test_one_case_of_a_kind_gets_a_map_with_a_row_for_each_rank(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [*sweep("all_reduce"), *sweep("all_gather")])
    found = sample_figures(run.points)
    assert len(found) == 2
    for figure in found:
        assert len(grid_of(figure).values) == 4
        assert {len(row) for row in grid_of(figure).values} == {30}
        assert render(figure, "svg").startswith(b"<?xml")


def test_no_spike_is_lost_where_columns_stand_for_several_samples(tmp_path: Path) -> None:
    def long(one: Measurement) -> Measurement:
        samples = [1e-5] * 1000
        samples[777] = 3e-5
        ranks = (tuple(samples),) * one.case.ranks
        return replace(
            one, samples_seconds=tuple(samples), rank_samples_seconds=ranks, round_samples=(200,) * 5
        )

    run = write_run(tmp_path / "run", sweep(last=10), {0: long})
    (figure,) = sample_figures(run.points)
    assert len(grid_of(figure).values[0]) <= MOST_COLUMNS
    assert max(value or 0.0 for value in grid_of(figure).values[0]) == pytest.approx(3.0)
    assert "1 beyond 1.5 times the median, 1 in most ranks at once" in figure.subtitle


def test_one_huge_outlier_leaves_the_rest_its_shades(tmp_path: Path) -> None:
    def spiked(one: Measurement) -> Measurement:
        rows = [list(row) for row in one.rank_samples_seconds]
        rows[1][3] *= 5000
        return replace(one, rank_samples_seconds=tuple(tuple(row) for row in rows))

    run = write_run(tmp_path / "run", sweep(last=10), {0: spiked})
    (figure,) = sample_figures(run.points)
    assert grid_of(figure).values[1][3] == DARKEST
    assert any("are alike, up to 5" in note and note.endswith("x") for note in figure.footnote)


def test_emulated_cases_and_empty_runs_have_none(tmp_path: Path) -> None:
    edits = dict.fromkeys(range(9), lambda one: flagged(one, "emulation"))
    for run in (write_run(tmp_path / "one", sweep(), edits), write_run(tmp_path / "two", [])):
        assert sample_figures(run.points) == []


def test_there_are_never_more_maps_than_people_look_at(tmp_path: Path) -> None:
    names = ("all_reduce", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter")
    run = write_run(tmp_path / "run", [one for name in names for one in sweep(name, last=12)])
    assert len(sample_figures(run.points)) == MOST_MAPS


def test_spikes_of_all_ranks_are_told_from_those_of_one() -> None:
    ratios = np.ones((4, 10))
    assert spike_text(ratios) == "no sample beyond 1.5 times the median"
    ratios[:, 2] = 3
    ratios[1, 5] = 3
    assert spike_text(ratios) == "2 beyond 1.5 times the median, 1 in most ranks at once, 1 in few ranks"
