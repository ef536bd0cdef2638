from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

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
    MARKERS,
    check_ending,
    render,
    save_picture,
)
from ccbench.report.figure import Figure
from ccbench.report.figures import figures_of
from ccbench.report.wording import points_of

from .synthetic import MANIFEST, case, failed, flagged, sweep, write_run


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
