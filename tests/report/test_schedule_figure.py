from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from ccbench.errors import UsageError
from ccbench.report.schedule_figure import COMBINE, COPY, draw_schedule, picture
from ccbench.schedules import ALGORITHMS, Algorithm, schedule_for

ROWS = [pytest.param(row, id=f"{row.collective}-{row.name}") for row in ALGORITHMS]


def arrows(figure: Figure) -> list[FancyArrowPatch]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_more_ranks_than_lanes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="65 ranks have no room in one picture; draw 64 or fewer"
    ):
        draw_schedule(schedule_for("all_reduce", "ring", 65), tmp_path / "ring.svg")


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
    drawn = []
    for arrow in arrows(picture(schedule)):
        begin, end = arrow._posA_posB  # type: ignore[attr-defined]  # matplotlib tells the ends nowhere else
        colour = to_hex(arrow.get_edgecolor()).upper()
        if begin[1] != end[1]:
            assert colour in (COMBINE, COPY)
            assert (arrow.get_linestyle() in ("solid", "-")) == (colour == COMBINE)
            drawn.append((begin, end, colour == COMBINE))
    assert sorted(drawn) == sorted(expected)


def test_labels_name_the_slots_where_there_is_room() -> None:
    ring = texts(picture(schedule_for("all_reduce", "ring", 4)))
    assert ring == [
        "step 1",
        "3",
        "0",
        "1",
        "2",
        "step 2",
        "2",
        "3",
        "0",
        "1",
        "step 3",
        "1",
        "2",
        "3",
        "0",
        "step 4",
        "0",
        "1",
        "2",
        "3",
        "step 5",
        "3",
        "0",
        "1",
        "2",
        "step 6",
        "2",
        "3",
        "0",
        "1",
    ]
    halving = texts(picture(schedule_for("all_reduce", "halving_doubling", 4)))
    assert halving[:5] == ["step 1", "2-3", "2-3", "0-1", "0-1"]
    assert texts(picture(schedule_for("all_reduce", "ring", 32)))[:2] == ["step 1", "step 2"]


def test_title_and_legend_say_what_is_seen() -> None:
    figure = picture(schedule_for("all_to_all", "bruck", 4))
    title, subtitle, source = (text.get_text() for text in figure.texts)
    assert title == "all_to_all bruck, 4 ranks"
    assert (
        subtitle
        == "2 steps (+ 2 of local moves); each rank sends 4 pieces = 1 x the size; labels are slots"
    )
    assert source.startswith("After Bruck et al.")
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["copied", "moved inside the rank", "wider: more pieces"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [
        f"rank {r}" for r in range(4)
    ]


def test_long_schedules_are_cut_in_the_middle() -> None:
    schedule = schedule_for("all_reduce", "ring", 16)
    figure = picture(schedule)
    heads = [text for text in texts(figure) if "step" in text]
    first, last = range(1, 13), range(25, 31)
    assert heads == [
        *(f"step {n}" for n in first),
        "12 more steps",
        *(f"step {n}" for n in last),
    ]
    assert len(arrows(figure)) == 18 * 16


def test_steps_of_more_flows_than_can_be_told_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="552 flows in one step cannot be told apart, 250 can; draw fewer"
    ):
        draw_schedule(schedule_for("all_reduce", "two_shot", 24), tmp_path / "shot.svg")
    assert not list(tmp_path.iterdir())
    draw_schedule(schedule_for("all_reduce", "two_shot", 16), tmp_path / "shot.svg")


@pytest.mark.thinned(10)
@pytest.mark.parametrize("ranks", [4, 6, 17])
@pytest.mark.parametrize("row", ROWS)
def test_no_label_covers_another(row: Algorithm, ranks: int) -> None:
    if row.unsupported(ranks, row.default_parameter(ranks, 0)):
        pytest.skip("cannot run on so many ranks")
    figure = picture(schedule_for(row.collective, row.name, ranks))
    width, height = figure.bbox.width, figure.bbox.height
    renderer = RendererAgg(width, height, figure.dpi)  # type: ignore[no-untyped-call]  # matplotlib's
    labels = [text for text in figure.axes[0].texts if text.get_fontsize() == 7]
    boxes = [text.get_window_extent(renderer) for text in labels]
    covering = [
        (one.get_text(), other.get_text())
        for (one, left), (other, right) in combinations(zip(labels, boxes, strict=True), 2)
        if left.x0 < right.x1
        and right.x0 < left.x1
        and left.y0 < right.y1
        and right.y0 < left.y1
    ]
    assert covering == []


def test_slots_of_one_region_name_it_once() -> None:
    labels = texts(picture(schedule_for("all_to_all", "bruck", 6)))
    assert labels.count("work 1,3,5") == 6


def test_one_rank_alone_has_nothing_to_move(tmp_path: Path) -> None:
    schedule = schedule_for("all_reduce", "ring", 1)
    assert texts(picture(schedule)) == ["nothing to move"]
    draw_schedule(schedule, str(tmp_path / "one.svg"))
    assert (tmp_path / "one.svg").is_file()
