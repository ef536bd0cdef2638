"""The card at the top of a run's page: words, three sizes, and the figure that shows the gravest row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.representative import representative_sizes
from ccbench.analysis.speed_verdict import SpeedWord, speed_verdicts
from ccbench.cases.measurement import Status
from ccbench.report.page import run_part
from ccbench.report.page_card import card_rows
from ccbench.report.wording import points_of
from tests.report import synthetic
from tests.report.page.conftest import page_of


@given(st.lists(st.integers(0, 2**40)))
def test_representative_sizes_are_measured_ones_in_order(sizes: list[int]) -> None:
    chosen = representative_sizes(sizes)
    assert list(chosen) == sorted({*chosen} & {*sizes})
    assert len(chosen) == min(3, len({*sizes} - {0}) or len({*sizes}))


def test_the_default_stands_for_algorithms_that_were_forced_beside_it(tmp_path: Path) -> None:
    cases = synthetic.sweep("all_reduce", ("ring", "default"))
    run = synthetic.write_run(tmp_path / "run", cases)
    (row,) = run_part(run, points_of(run))["card"]
    assert row.subject == "cpu all_reduce, 4 ranks"


def test_wrong_results_are_the_first_word_of_the_page(tmp_path: Path) -> None:
    run = synthetic.write_run(
        tmp_path / "run",
        [*synthetic.sweep("all_gather"), *synthetic.sweep("all_reduce")],
        {-1: lambda measurement: measurement}
        | {12: lambda measurement: replace(measurement, status=Status.WRONG, wrong_elements=7)},
    )
    part = run_part(run, points_of(run))
    assert part["card"][0].word is SpeedWord.WRONG
    assert part["sentences"][0].startswith("WRONG: ")
    assert 'class="word wrong"' in page_of(run)


def test_a_collective_that_others_disturbed_says_so_and_points_to_no_prediction(
    tmp_path: Path,
) -> None:
    disturbed = dict.fromkeys(
        range(9),
        lambda measurement: synthetic.flagged(measurement, "other_load", "cpu_contention"),
    )
    run = synthetic.write_run(tmp_path / "run", synthetic.sweep(), disturbed, priced=False)
    (row,) = card_rows(points_of(run), speed_verdicts(run))
    assert row.reason == "other programs took the processors while it was measured"
