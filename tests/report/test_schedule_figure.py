from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from ccbench.errors import UsageError
from ccbench.report.schedule_figure import LOOKS, draw_schedule, picture
from ccbench.schedules import ALGORITHMS, Algorithm, schedule_for
from tests.report.pictures import nothing_overlaps

ROWS = [pytest.param(row, id=f"{row.collective}-{row.name}") for row in ALGORITHMS]


def arrows(figure: Figure) -> list[tuple[tuple[float, float], tuple[float, float], str]]:
    """Begin, end and colour of every arrow."""
    return [
        (text.xyann, text.xy, to_hex(text.arrow_patch.get_edgecolor()).upper())
        for text in figure.axes[0].texts
        if isinstance(text, Annotation) and text.arrow_patch is not None
    ]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.thinned(10)
@pytest.mark.parametrize("row", ROWS)
def test_every_flow_is_an_arrow_from_its_source_to_its_target(row: Algorithm) -> None:
    schedule = schedule_for(row.collective, row.name, 5)
    expected = [
        ((step.index, int(source)), (step.index + 1, int(target)), step.phase.reduces)
        for step in schedule.expanded()
        for source, target in zip(step.source, step.target, strict=True)
        if source != target
    ]
    colours = {look[1]: reduces for reduces, look in LOOKS.items()}
    drawn = [
        (begin, end, colours[colour])
        for begin, end, colour in arrows(picture(schedule))
        if begin[1] != end[1]
    ]
    assert sorted(drawn) == sorted(expected)


def test_long_schedules_are_cut_in_the_middle() -> None:
    schedule = schedule_for("all_reduce", "ring", 16)
    figure = picture(schedule)
    heads = [text for text in texts(figure) if "step" in text or "more" in text]
    first, last = range(1, 13), range(25, 31)
    assert heads == [*(f"step {n}" for n in first), "12 more", *(f"step {n}" for n in last)]
    assert len(arrows(figure)) == 18 * 16


def test_steps_of_more_flows_than_can_be_told_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="552 flows in one step cannot be told apart, 250 can; draw fewer"
    ):
        draw_schedule(schedule_for("all_reduce", "two_shot", 24), tmp_path / "shot.svg")
    assert not list(tmp_path.iterdir())
    draw_schedule(schedule_for("all_reduce", "two_shot", 16), tmp_path / "shot.svg")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("ranks", [4, 17])
@pytest.mark.parametrize("row", ROWS)
def test_no_text_covers_another_and_none_leaves_the_paper(row: Algorithm, ranks: int) -> None:
    if row.unsupported(ranks, row.default_parameter(ranks, 0)):
        pytest.skip("cannot run on so many ranks")
    nothing_overlaps(picture(schedule_for(row.collective, row.name, ranks)))


def test_one_rank_alone_has_nothing_to_move(tmp_path: Path) -> None:
    schedule = schedule_for("all_reduce", "ring", 1)
    assert "nothing to move" in texts(picture(schedule))
    draw_schedule(schedule, str(tmp_path / "one.svg"))
    assert (tmp_path / "one.svg").is_file()
