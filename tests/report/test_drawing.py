from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from ccbench.errors import UsageError
from ccbench.report.drawing import ENDINGS, check_ending, drawing_settings, save_picture


@pytest.mark.parametrize("ending", [*ENDINGS, ".PNG"])
def test_known_endings_are_written(ending: str, tmp_path: Path) -> None:
    save_picture(Figure, tmp_path / f"one{ending}")
    assert (tmp_path / f"one{ending}").stat().st_size > 200


@pytest.mark.parametrize("name", ["one.gif", "one", ".png", "one.png.txt"])
def test_other_endings_are_refused_before_anything_is_drawn(name: str) -> None:
    def draw() -> Figure:
        raise AssertionError("drawn")

    with pytest.raises(UsageError, match=r"is not a picture format; end in one of \.svg, \.png, \.pdf"):
        save_picture(draw, Path(name))
    with pytest.raises(UsageError):
        check_ending(Path(name))


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        save_picture(Figure, tmp_path / "nowhere" / "one.svg")


def test_settings_hold_for_one_drawing_only() -> None:
    before = mpl.rcParams["svg.hashsalt"]
    with drawing_settings():
        assert mpl.rcParams["svg.hashsalt"] == "ccbench"
    assert mpl.rcParams["svg.hashsalt"] == before
