from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.analysis.history import History, Level, Seen, Series, history_of, history_page, run_folders
from ccbench.analysis.history.page import MOST_PICTURES
from ccbench.analysis.history.picture import HEIGHT, WIDTH, series_svg
from tests.analysis.history.made import write_history

HOSTILE = "</title></text><script>window.marker = 1</script><img src=x onerror=alert(1)>\"'&"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def made(medians: list[float], text: str = "run", levels: tuple[Level, ...] | None = None) -> Series:
    seen = tuple(
        Seen(text, f"2026-01-{1 + n % 28:02d}T05:00:00", value, value * 0.9, value * 1.2, text, (text,))
        for n, value in enumerate(medians)
    )
    return Series(text, text, seen, levels or (Level(0, len(seen), medians[0]),), {})


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    root = tmp_path_factory.mktemp("page")
    write_history(root, [1.0] * 7 + [1.25] * 4, {7: {"kernel": "6.8"}})
    return history_of(run_folders([root]))


def test_the_page_needs_no_network_and_no_script(history: History) -> None:
    page = history_page(history)
    tags = parsed(page)
    assert not {"script", "link", "img", "iframe", "object", "use"} & set(tags.names)
    assert not [name for name, _ in tags.attributes if name.startswith("on") or name == "src"]
    assert all(
        value is not None and value.startswith("#") for name, value in tags.attributes if name == "href"
    )
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_steps_marks_and_levels_are_in_the_picture(history: History) -> None:
    for one in history.series:
        root = ElementTree.fromstring(series_svg(one))
        kinds = [element.get("class") for element in root.iter()]
        assert kinds.count("level") == 2
        assert kinds.count("moved") == 1
        assert kinds.count("slower") == 2  # its line and its label
        assert sum(element.tag == "circle" for element in root.iter()) == 11


def test_every_step_links_to_its_picture(history: History) -> None:
    page = history_page(history)
    targets = re.findall(r'href="#(series-\d+)"', page)
    assert len(targets) == 2
    assert all(f'id="{target}"' in page for target in targets)


def test_no_text_of_a_run_becomes_markup() -> None:
    one = made([1.0, 2.0], HOSTILE, (Level(0, 1, 1.0), Level(1, 2, 2.0)))
    one = replace(one, moved={1: (HOSTILE,)})
    tags = parsed(history_page(History(2, (one,), (HOSTILE,)), HOSTILE))
    assert not {"script", "img"} & set(tags.names)
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    ElementTree.fromstring(series_svg(one))


def test_more_series_than_a_page_bears_are_counted_not_drawn() -> None:
    many = History(1, tuple(made([1.0]) for _ in range(MOST_PICTURES + 3)), ())
    page = history_page(many)
    assert page.count("<svg") == MOST_PICTURES
    assert "3 more series" in page


def test_an_empty_history_is_still_a_page() -> None:
    assert "No step was found" in history_page(History(0, (), ()))


@settings(max_examples=50)
@given(st.lists(st.floats(1e-9, 1e4), min_size=1, max_size=30))
def test_everything_is_drawn_inside_the_picture(medians: list[float]) -> None:
    for element in ElementTree.fromstring(series_svg(made(medians))).iter():
        for name, most in (
            ("x1", WIDTH),
            ("x2", WIDTH),
            ("cx", WIDTH),
            ("y1", HEIGHT),
            ("y2", HEIGHT),
            ("cy", HEIGHT),
        ):
            value = element.get(name)
            assert value is None or 0 <= float(value) <= most


def test_a_page_of_many_series_stays_small(tmp_path: Path) -> None:
    many = History(100, tuple(made([1.0 + n / 1000 for n in range(100)]) for _ in range(100)), ())
    assert len(history_page(many).encode()) < 8e6
