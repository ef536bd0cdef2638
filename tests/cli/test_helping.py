"""``ccbench help``: pages as text, offline."""

from __future__ import annotations

import os

import pytest

from ccbench.cli import commands
from tests.cli.conftest import Command
from tests.pages import CHECKOUT

PAGES = {page.stem: page for page in CHECKOUT.glob("docs/*.md") if page.stem != "README"}


@pytest.fixture
def _on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ccbench.cli.output.WatchedStream.isatty", lambda _: True, raising=False
    )
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((60, 24)))


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr("click.echo_via_pager", texts.append)
    return texts


def test_every_page_is_listed_with_its_heading(ccbench: Command) -> None:
    listed = dict(
        line.split("  ", 1)
        for line in ccbench("help").done.out.partition("\n\n")[0].splitlines()
    )
    assert {name.strip(): text.strip() for name, text in listed.items()} == {
        name: page.read_text().partition("\n")[0].removeprefix("# ")
        for name, page in PAGES.items()
    }


def test_every_topic_is_a_page_or_a_command_in_the_list(ccbench: Command) -> None:
    listed = ccbench("help").done.out.split("\n\n")[1]
    assert listed.startswith("Commands, whose options are shown:\n")
    names = " ".join(listed.splitlines()[1:]).split(", ")
    assert set(names) == commands.commands.keys() - PAGES.keys()


@pytest.mark.parametrize("topic", ["replay", "docs/replay.md", "replay.md#jobs-that-hang"])
def test_a_page_in_a_pipe_is_its_markdown(ccbench: Command, topic: str) -> None:
    assert ccbench("help", topic).done.out == PAGES["replay"].read_text()


@pytest.mark.usefixtures("_on_a_terminal")
@pytest.mark.parametrize("topic", PAGES)
def test_a_page_on_a_terminal_keeps_to_its_width_and_goes_through_a_pager(
    ccbench: Command, paged: list[str], topic: str
) -> None:
    assert ccbench("help", topic).done.out == ""
    (text,) = paged
    assert "```" not in text
    assert "<!--" not in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.usefixtures("_on_a_terminal")
def test_a_page_is_printed_at_once_where_no_pager_is_wanted(
    ccbench: Command, paged: list[str]
) -> None:
    printed = ccbench("help", "--no-pager", "tour").done.out
    assert "From a run to a decision" in printed
    assert (paged, printed.count("# From")) == ([], 0)


def test_a_command_without_a_page_shows_its_options(ccbench: Command) -> None:
    for name in commands.commands.keys() - PAGES.keys():
        assert ccbench("help", name).done.out == ccbench(name, "--help").done.out


def test_a_misspelt_topic_is_refused_with_the_nearest(ccbench: Command) -> None:
    ended = ccbench("help", "repaly").refused
    assert ended.err == "ccbench: error: repaly: no such page; did you mean 'replay'?\n"


def test_ccbench_alone_prints_its_help(ccbench: Command) -> None:
    alone = ccbench()
    assert (alone.code, alone.err) == (0, "")
    assert alone.out == ccbench("--help").done.out
