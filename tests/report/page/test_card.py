"""The card at the top of a run's page: words, three sizes, and the figure that shows the gravest row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.representative import representative_sizes
from ccbench.analysis.speed_verdict import SpeedWord, speed_verdicts
from ccbench.cases.measurement import Status
from ccbench.report.page import RunPart, page_content, render_page
from ccbench.report.page_card import card_rows
from ccbench.report.wording import points_of
from ccbench.results import Run
from tests.analysis.test_speed_verdict import sweep, write_run
from tests.report import synthetic

GIB = 2**30


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), ()),
        ((0,), (0,)),
        ((0, 64), (64,)),
        ((8, 64, 8), (8, 64)),
        ((64, 512, 4096, 2**15, 2**18, 2**21, 2**24), (64, 2**15, 2**24)),
    ],
)
def test_three_sizes_are_the_ends_and_the_middle_of_a_logarithmic_axis(
    sizes: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert representative_sizes(sizes) == expected


@given(st.lists(st.integers(0, 2**40)))
def test_representative_sizes_are_measured_ones_in_order(sizes: list[int]) -> None:
    chosen = representative_sizes(sizes)
    assert list(chosen) == sorted({*chosen} & {*sizes})
    assert len(chosen) == min(3, len({*sizes} - {0}) or len({*sizes}))


def part_of(run: Run) -> RunPart:
    (part,) = page_content([run], [points_of(run)]).runs
    return part


def test_a_card_begins_with_the_gravest_collective_and_its_figure_stands_beside(
    tmp_path: Path,
) -> None:
    cases = [*sweep(), *sweep(name="all_gather")]
    run = write_run(
        tmp_path / "run", cases, lambda case: 18.0 if case.collective == "all_gather" else 1.0
    )
    content = page_content([run], [points_of(run)])
    (part,) = content.runs
    assert [(row.subject.split(",")[0], row.word) for row in part.card] == [
        ("nccl all_gather", SpeedWord.SLOW),
        ("nccl all_reduce", SpeedWord.NORMAL),
    ]
    assert part.sentences[0] == (
        "SLOW: 1 of 2 collectives: nccl all_gather, 16 ranks on 2 nodes; 1 NORMAL"
    )
    small, middle, large = part.card[1].cells
    assert (small[0], middle[0], large[0]) == ("8 B", "128 KiB", "4 GiB")
    assert small[1].endswith(" us")
    assert large[1].endswith(" GB/s")
    assert all(expected.startswith("expected ") for _, _, expected in part.card[1].cells)
    assert content.lead is not None
    name, figure = content.lead
    assert figure.title.startswith("all_gather: bus bandwidth")
    assert any(series.low for series in figure.series if series.kind.value == "predicted")
    assert name not in {entry for section in content.sections for entry, _ in section.figures}
    assert {figure.title for section in content.sections for _, figure in section.figures} >= {
        "all_reduce: bus bandwidth against size",
        "all_gather: time against size",
    }
    assert "machine 2 x hgx-h100" in part.facts
    assert part.picture is not None
    assert part.picture[1].startswith("2 x hgx-h100: 8 GPUs")
    assert "machine 2 x hgx-h100" in figure.footnote[0]


def test_slow_small_messages_are_shown_by_their_times(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", sweep(), lambda case: 40.0 if case.size_bytes <= 2**15 else 1.0
    )
    content = page_content([run], [points_of(run)])
    assert content.runs[0].card[0].word is SpeedWord.SLOW
    assert content.lead is not None
    assert content.lead[1].topic == "time"


def test_one_collective_is_judged_in_the_words_of_the_screen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep())
    (verdict,) = speed_verdicts(run)
    assert part_of(run).sentences[0] == verdict.sentence
    assert part_of(run).sentences[0].startswith("NORMAL: ")


def test_what_nobody_knows_of_healthy_systems_is_not_called_normal(tmp_path: Path) -> None:
    run = synthetic.write_run(tmp_path / "run", synthetic.sweep("all_reduce", ("ring", "tree")))
    part = part_of(run)
    assert {row.word for row in part.card} == {None}
    assert len(part.card) == 2
    assert "cases correct; all_reduce ring over 4 ranks on cpu" in part.sentences[0]
    assert part.card[0].cells[0][2].startswith("predicted ")


def test_the_default_stands_for_algorithms_that_were_forced_beside_it(tmp_path: Path) -> None:
    cases = synthetic.sweep("all_reduce", ("ring", "default"))
    (row,) = part_of(synthetic.write_run(tmp_path / "run", cases)).card
    assert row.subject == "cpu all_reduce, 4 ranks"


def test_wrong_results_are_the_first_word_of_the_page(tmp_path: Path) -> None:
    run = synthetic.write_run(
        tmp_path / "run",
        [*synthetic.sweep("all_gather"), *synthetic.sweep("all_reduce")],
        {-1: lambda measurement: measurement}
        | {12: lambda measurement: replace(measurement, status=Status.WRONG, wrong_elements=7)},
    )
    part = part_of(run)
    assert part.card[0].word is SpeedWord.WRONG
    assert part.sentences[0].startswith("WRONG: ")
    page = render_page(page_content([run], [points_of(run)]))
    assert 'class="word wrong"' in page


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
