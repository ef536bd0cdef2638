from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure as Canvas

from ccbench.cases.measurement import Status
from ccbench.collectives import COLLECTIVES
from ccbench.errors import UsageError
from ccbench.report.curves import MOST_SERIES
from ccbench.report.drawing import (
    COLOURS,
    DASHES,
    ENDINGS,
    LEGEND_COLUMNS,
    LEGEND_LINES,
    MARKERS,
    check_ending,
    drawing_settings,
    legend_text,
    render,
    render_pages,
    save_picture,
)
from ccbench.report.figure import Figure
from ccbench.report.figures import figures_of
from ccbench.report.wording import points_of

from .synthetic import MANIFEST, case, failed, flagged, sweep, write_run


@pytest.mark.thinned(2)
@pytest.mark.parametrize("ending", [*ENDINGS, ".PNG"])
def test_known_endings_are_written(ending: str, tmp_path: Path) -> None:
    save_picture(Canvas, tmp_path / f"one{ending}")
    assert (tmp_path / f"one{ending}").stat().st_size > 200


@pytest.mark.parametrize("name", ["one.gif", "one", ".png", "one.png.txt"])
def test_other_endings_are_refused_before_anything_is_drawn(name: str) -> None:
    def draw() -> Canvas:
        raise AssertionError("drawn")

    with pytest.raises(
        UsageError, match=r"is not a picture format; end in one of \.svg, \.png, \.pdf"
    ):
        save_picture(draw, Path(name))
    with pytest.raises(UsageError):
        check_ending(Path(name))


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        save_picture(Canvas, tmp_path / "nowhere" / "one.svg")


def test_settings_hold_for_one_drawing_only() -> None:
    before = mpl.rcParams["svg.hashsalt"]
    with drawing_settings():
        assert mpl.rcParams["svg.hashsalt"] == "ccbench"
    assert mpl.rcParams["svg.hashsalt"] == before


HOSTILE = [
    "$x$",
    "$\\frac{1}{",
    "<b>&amp;</b>",
    "a|b",
    "two\nlines",
    "_hidden",
    "\x00\x1b[31m",
    "日本語",
    "",
]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Figure, ...]:
    cases = sweep(algorithms=("ring", "tree"))
    edits = {
        1: lambda measurement: flagged(measurement, "clock fell"),
        4: lambda measurement: failed(measurement, Status.TIMED_OUT, "rank 2 hung"),
    }
    run = write_run(tmp_path_factory.mktemp("runs") / "run", cases, edits)
    return figures_of(points_of(run))


def test_the_same_figure_gives_the_same_bytes(figures: tuple[Figure, ...]) -> None:
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        first = render(figures[0], form)
        assert first.startswith(start)
        assert first == render(figures[0], form)


def test_all_figures_make_one_document(figures: tuple[Figure, ...]) -> None:
    assert render_pages(figures).count(b"/Type /Page ") == len(figures)


def test_text_lies_inside_the_image_and_does_not_overlap(figures: tuple[Figure, ...]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    from ccbench.report.drawing import canvas_of

    for figure in figures:
        with drawing_settings():
            canvas = canvas_of(figure)
            agg = canvas.canvas
            assert isinstance(agg, FigureCanvasAgg)
            agg.draw()  # type: ignore[no-untyped-call]  # matplotlib's types leave it out
            texts = [
                one
                for one in canvas.findobj(Text)
                if isinstance(one, Text) and one.get_text().strip()
            ]
            boxes = [
                (text.get_text(), text.get_window_extent())
                for text in texts
                if text.get_visible()
            ]
        width, height = canvas.bbox.width, canvas.bbox.height
        for index, (text, box) in enumerate(boxes):
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= width, text
            assert box.y1 <= height, text
            for other, second in boxes[index + 1 :]:
                assert not box.overlaps(second), (figure.key, text, other)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_drawn_as_they_are(tmp_path: Path, text: str) -> None:
    cases = [
        replace(measurement, algorithm=text, backend=text) for measurement in sweep(last=18)
    ]
    manifest = {**MANIFEST, "machine": {"name": text}, "environment": {"host": {"name": text}}}
    run = write_run(
        tmp_path / "run", cases, {0: lambda measurement: flagged(measurement, text)}, manifest
    )
    for figure in figures_of(points_of(run)):
        assert render(figure, "png").startswith(b"\x89PNG")
        ElementTree.fromstring(render(figure, "svg"))


@pytest.mark.exhaustive
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=80))
def test_any_title_is_drawn(text: str, figures: tuple[Figure, ...]) -> None:
    from ccbench.units import plain

    figure = replace(figures[0], title=plain(text), footnote=(plain(text, 400),))
    ElementTree.fromstring(render(figure, "svg"))


def test_runs_with_nothing_and_with_one_point_are_drawn(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty", [])
    single = write_run(tmp_path / "single", [case("all_reduce", "ring", 8, ranks=1)])
    for run in (empty, single):
        for figure in figures_of(points_of(run)):
            assert render(figure, "png").startswith(b"\x89PNG")


def test_every_style_of_a_figure_differs_in_colour_marker_and_dash() -> None:
    assert len(set(COLOURS)) == len(set(DASHES)) == MOST_SERIES
    # A figure of predictions has one style per collective, which is more than there are colours.
    looks = {
        (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i in range(len(COLLECTIVES))
    }
    assert len(looks) == len(COLLECTIVES)
    assert len(set(MARKERS)) >= len(COLLECTIVES)


@pytest.mark.exhaustive
def test_drawing_never_loads_pyplot_and_leaves_settings_alone(tmp_path: Path) -> None:
    program = (
        "import sys, matplotlib\n"
        "from pathlib import Path\n"
        "from ccbench.report.writing import write_report\n"
        "from ccbench.results import load_run\n"
        "matplotlib.rcParams['font.size'] = 3\n"
        "write_report([load_run(sys.argv[1])], None, ['png', 'pdf'])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert matplotlib.rcParams['font.size'] == 3\n"
    )
    run = write_run(tmp_path / "run", [case("all_reduce", "ring", 4096)])
    done = subprocess.run(
        [sys.executable, "-c", program, str(run.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("last", [14, 26])
def test_bound_and_prediction_of_several_runs_look_different_and_are_in_the_legend(
    tmp_path: Path, last: int
) -> None:
    from matplotlib.lines import Line2D

    from ccbench.report.drawing import canvas_of

    runs = [
        write_run(tmp_path / name, sweep(last=last), manifest=MANIFEST) for name in ("a", "b")
    ]
    points = [point for run in runs for point in points_of(run, name=run.path.name)]
    points = [
        replace(
            point,
            bound_seconds=(point.bound_seconds or 0.0) * (0.9 if point.run == "a" else 0.8),
        )
        for point in points
    ]
    figure = next(figure for figure in figures_of(points) if figure.topic == "time")
    with drawing_settings():
        (axes,) = canvas_of(figure).axes

    def look(line: object) -> tuple[str, str]:
        assert isinstance(line, Line2D)
        return str(line.get_marker()), str(line._dash_pattern)  # type: ignore[attr-defined]  # no public way

    drawn: dict[str, set[tuple[str, str]]] = {"predicted": set(), "bound": set()}
    for series in figure.series:
        if series.kind.value in drawn:
            lines = [
                line
                for line in axes.get_lines()
                if tuple(np.asarray(line.get_ydata(), float).tolist()) == series.y
            ]
            assert lines
            drawn[series.kind.value] |= {look(line) for line in lines}
    assert not drawn["predicted"] & drawn["bound"]
    legend = axes.get_legend()
    assert legend is not None
    handles = zip(legend.get_texts(), legend.legend_handles, strict=True)
    rows = {text.get_text(): look(one) for text, one in handles if isinstance(one, Line2D)}
    assert rows["predicted, same colour"] != rows["bound, same colour"]
    assert rows["bound, same colour"][0] in {marker for marker, _ in drawn["bound"]}
    assert rows["predicted, same colour"][0] in {marker for marker, _ in drawn["predicted"]}


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=300))
def test_a_legend_keeps_both_ends_of_a_name_on_lines_that_fit(name: str) -> None:
    lines = legend_text(name).split("\n")
    assert len(lines) <= LEGEND_LINES
    assert all(len(line) <= LEGEND_COLUMNS for line in lines)
    words = name.split()
    if words:
        assert lines[0].startswith(words[0][: LEGEND_COLUMNS - 4])
        assert lines[-1].endswith(words[-1][-LEGEND_COLUMNS:]) or words[-1].endswith(lines[-1])


def test_what_a_legend_leaves_out_is_marked() -> None:
    name = "baseline " + "a_very_long_name_of_a_run_" * 6 + " default in place"
    assert " ...\n" in legend_text(name)
    assert legend_text(name).endswith("default in place")
    assert "..." not in legend_text("baseline short default in place")
