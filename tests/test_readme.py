"""Files, commands and options that README and docs name exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import pytest

from ccbench.cases.capabilities import backend_names
from ccbench.cli import commands
from tests.pages import CHECKOUT, PAGES

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
TEXTS = [page.read_text(encoding="utf-8") for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def in_sentences() -> set[str]:
    """Commands in code within sentences, which may leave out arguments."""
    prose = [
        re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE) for text in TEXTS
    ]
    return {
        " ".join(line.split())
        for text in prose
        for line in re.findall(r"`(ccbench [a-z][^`]*[^` ])`", text)
    }


def test_every_command_and_option_that_a_sentence_names_exists() -> None:
    for line in in_sentences():
        name, *words = shlex.split(line)[1:]
        known = {
            option for parameter in commands.commands[name].params for option in parameter.opts
        }
        assert {word for word in words if re.fullmatch(r"-[oG]|--[a-z-]+", word)} <= known, line


TOPS = (
    "ccbench",
    "kernels",
    "suites",
    "results",
    "tests",
    "benchmarks",
    "docs",
    ".ci",
    "constraints",
)
PLACES = "".join(
    f"/{place.relative_to(CHECKOUT).as_posix()}\n"
    for top in TOPS
    for place in (CHECKOUT / top).rglob("*")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_place_that_a_page_names_exists(page: Path) -> None:
    """Sources, and what begins with a folder of the checkout; both may leave out how their path begins."""
    for word in re.findall(r"`([\w./-]+)`", page.read_text(encoding="utf-8")):
        is_source = re.search(r"\w\.(py|cu|cuh|c|h)$", word)
        is_below = re.match(rf"({'|'.join(TOPS)})/(?!2)\w", word)
        if is_source or is_below:
            assert f"/{word.rstrip('/')}\n" in PLACES, word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_and_name_of_ccbench_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"python3? -m ((?:ccbench|tests|benchmarks)[\w.]*)", text):
        assert find_spec(name), name
    for name in re.findall(r"`(ccbench(?:\.\w+)+)[`(]", text):
        if not name.endswith((".prom", ".xml", ".json", ".def")):
            assert resolve_name(name), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_waits_to_be_filled_in(page: Path) -> None:
    assert (
        re.findall(r"@[A-Z]@|\bTODO\b|\bFIXME\b|\bXXX\b", page.read_text(encoding="utf-8"))
        == []
    )


def test_the_table_of_backends_is_complete() -> None:
    page = (CHECKOUT / "docs" / "backends.md").read_text(encoding="utf-8")
    needs = page.partition("| backend | runs | needs |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", needs, flags=re.MULTILINE)) == set(
        backend_names()
    )


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len(README) <= 6_000


@pytest.mark.exhaustive
def test_the_main_job_is_the_two_lines_that_the_readme_shows(tmp_path: Path) -> None:
    (lines,) = re.findall(r"```\n(ccbench run suites/\S+\nccbench report)\n```", README)
    (tmp_path / "suites").symlink_to(CHECKOUT / "suites")
    # The first sizes of every sweep are enough to see that the lines work.
    typed = lines.replace("ccbench", str(Path(sys.executable).with_name("ccbench")))
    limited = typed.replace(".yaml", ".yaml --time-limit 20s")
    ended = subprocess.run(limited, cwd=tmp_path, shell=True, capture_output=True, text=True)
    assert re.match(r"\d+ of \d+ cases correct; all_reduce over 2 ranks on cpu ", ended.stdout)
    assert "results/0001-allreduce/report/report.html" in ended.stdout


def test_ci_types_what_the_readme_says_and_asks_make_for_what_it_has() -> None:
    ci = (CHECKOUT / ".ci/run").read_text()
    patterns = re.findall(r"grep -E '(.*)' README.md", ci)
    assert [len(re.findall(pattern, README, flags=re.MULTILINE)) for pattern in patterns] == [
        1,
        1,
    ]
    targets = set(
        re.findall(r"^([\w-]+):", (CHECKOUT / "Makefile").read_text(), flags=re.MULTILINE)
    )
    (everything,) = re.findall(r"^targets=\((.*)\)", ci, flags=re.MULTILINE)
    assert {*everything.split(), "portable"} <= targets
