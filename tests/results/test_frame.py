"""A run as one frame: its files' columns, what follows from them, and the keys of its cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.results import Run, RunFolder, load_run
from ccbench.results.frame import KEYS
from ccbench.results.keys import CURVE, POINT, WORK, grouped
from ccbench.results.loading import load_published, published_names

from .samples import PREDICTION, failed, measured


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two sizes of two algorithms, and a case that failed."""
    with RunFolder.create(tmp_path / "run", {"suite": "smoke"}) as folder:
        for size in (64, 4096):
            measurement = measured(size)
            folder.write(measurement, PREDICTION)
            other = replace(measurement.case, algorithm="default")
            folder.write(replace(measurement, case=other), PREDICTION)
        folder.write(failed(128), None)
    return load_run(tmp_path / "run")


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", published_names())
def test_keys_number_what_their_columns_tell_apart(name: str) -> None:
    run = load_published(name)
    for column, key in KEYS.items():
        assert len(grouped(run.points, key)) == run.cases[column].nunique()
        assert (
            run.cases.groupby(list(key.columns), dropna=False).ngroups
            == run.cases[column].nunique()
        )


def test_a_key_may_look_across_columns_and_at_further_ones(run: Run) -> None:
    point = run.points[0]
    assert set(POINT.columns) - set(CURVE.columns) == {"size_bytes"}
    assert "algorithm" not in WORK.columns
    assert CURVE.without("algorithm").beside("run")(point)[0] == point.run
    assert len(CURVE.without("algorithm").columns) == len(CURVE.columns) - 1
