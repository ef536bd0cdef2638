from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from defusedxml import ElementTree  # type: ignore[import-untyped]  # ships no types

from ccbench.flags import Flag
from ccbench.model import Prediction
from ccbench.results import RunFolder
from tests.analysis.comparison.synthetic import MANIFEST, case, measured
from tests.cli.conftest import Command

POINTS = 4


def write(path: Path, seconds: Sequence[float], noise: float = 0.005) -> Path:
    """A run folder with a point for each of ``seconds``, six rounds each."""
    random = np.random.default_rng([7, len(path.name)])
    with RunFolder.create(path, MANIFEST) as folder:
        for place, centre in enumerate(seconds):
            rounds = [(centre * np.exp(random.normal(0, noise, 5))).tolist() for _ in range(6)]
            folder.write(
                measured(case(place), rounds), Prediction(5e-6, 1e-5, 1e-6, 9e-6, "link 0-1")
            )
    return path


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(write(tmp_path / "base", [1e-5] * POINTS))


@pytest.fixture
def slow(tmp_path: Path) -> str:
    return str(write(tmp_path / "slow", [2e-5] + [1e-5] * (POINTS - 1)))


def test_nothing_slower_is_0_and_something_slower_1(
    ccbench: Command, base: str, slow: str
) -> None:
    same = ccbench("compare", base, base).done
    assert same.out.splitlines()[-1].startswith("no regression: 0 faster, 0 slower, 4 same")
    ended = ccbench("compare", base, slow)
    assert ended.code == 1
    assert "Slower: 1" in ended.out
    assert ccbench("compare", slow, base).code == 0


def test_a_missing_base_a_missing_point_and_an_empty_run_are_3(
    ccbench: Command, base: str, tmp_path: Path
) -> None:
    ended = ccbench("compare", "nowhere", base)
    assert ended.code == 3
    assert "nothing to compare with" in ended.err
    assert len(ended.err.splitlines()) == 1
    fewer = str(write(tmp_path / "fewer", [1e-5]))
    assert ccbench("compare", base, fewer).code == 3
    empty = str(write(tmp_path / "empty", []))
    assert ccbench("compare", empty, empty).code == 3


def test_a_missing_new_run_and_a_wrong_option_are_2(
    ccbench: Command, base: str, tmp_path: Path
) -> None:
    for arguments in (
        (base, "nowhere"),
        (base,),
        ("model", base, base),
        ("model", base, base),
        (base, base, "--threshold", "0%"),
        (base, base, "--confidence", "100%"),
        (base, base, "--threshold", "5 MiB"),
        ("published:hgx-h1000", base),
        (base, base, "-o", str(tmp_path / "no" / "file")),
    ):
        assert ccbench("compare", *arguments).refused


def test_only_flags_that_a_row_can_have_are_accepted(ccbench: Command, base: str) -> None:
    assert ccbench("compare", base, base, "--accept-flags", "steal, other_load").code == 0
    near = ccbench("compare", base, base, "--accept-flags", "steal,throtled").refused
    assert "--accept-flags: 'throtled' is no flag; did you mean 'throttled'?" in near.err
    assert all(
        flag in ccbench("compare", base, base, "--accept-flags", "bogus").refused.err
        for flag in Flag
    )


def test_every_format_goes_to_a_file_and_leaves_the_verdict_here(
    ccbench: Command, base: str, slow: str, tmp_path: Path
) -> None:
    texts = {}
    for form in ("table", "json", "md", "junit"):
        file = tmp_path / form
        ended = ccbench("compare", base, slow, "--format", form, "-o", str(file))
        assert ended.code == 1
        assert ended.out.startswith("REGRESSION: 0 faster, 1 slower")
        texts[form] = file.read_text()
        assert ccbench("compare", base, slow, "--format", form).out == texts[form]
    assert json.loads(texts["json"])["exit_code"] == 1
    assert ElementTree.fromstring(texts["junit"]).get("failures") == "1"
    assert texts["md"].startswith("**")


def test_a_run_is_laid_beside_its_predictions(ccbench: Command, base: str, slow: str) -> None:
    assert ccbench("compare", "model", base).code == 0
    ended = ccbench("compare", "model", slow)
    assert ended.code == 1
    assert "model -> " in ended.out
    assert ccbench("compare", "model", base, "--threshold", "0.01%").code == 3


def test_a_run_is_laid_beside_published_figures(ccbench: Command, base: str) -> None:
    ended = ccbench("compare", "published:hgx-h100", base, "--format", "json")
    assert ended.code == 3
    assert ended.json["causes"] == {"missing in base": POINTS}


def test_several_runs_stand_side_by_side_beside_the_first(
    ccbench: Command, base: str, slow: str
) -> None:
    ended = ccbench("compare", base, base, slow)
    assert ended.code == 1
    _, heading, first_row, *_ = ended.out.splitlines()
    assert heading.split() == ["size", "base", "base", "slow"]
    assert first_row.endswith("slower")
    assert "\nbase: no regression: 0 faster, 0 slower, 4 same" in ended.out
    assert "\nslow: REGRESSION: 0 faster, 1 slower, 3 same" in ended.out
    documents = ccbench("compare", base, base, slow, "--json").json
    assert documents["exit_code"] == 1
    assert ccbench("compare", "nowhere", base, slow).code == 3
    same_name = [str(write(Path(name) / "run", [1e-5] * POINTS)) for name in ("a", "b")]
    out = ccbench("compare", base, *same_name).out
    assert [line.partition(":")[0] for line in out.splitlines()[-2:]] == ["a/run", "b/run"]
    assert "threshold 5.0 %" in " ".join(out.split())
    assert documents["runs"][1] == ccbench("compare", base, slow, "--json").json
    for more in (("--format", "junit"), ("--by", "variant")):
        assert ccbench("compare", base, base, slow, *more).refused


def test_an_output_that_ends_as_a_page_is_refused(ccbench: Command, base: str) -> None:
    assert "end it in .json" in ccbench("compare", base, base, "-o", "x.html").refused.err


def test_what_a_run_does_not_have_stays_empty_in_the_table(
    ccbench: Command, base: str, tmp_path: Path
) -> None:
    fewer = str(write(tmp_path / "fewer", [1e-5]))
    ended = ccbench("compare", base, fewer, base)
    assert ended.code == 3
    assert re.search(r" 8 B +10\.\d+ us +- [?] +10\.", ended.out)


def test_json_is_asked_for_as_elsewhere(ccbench: Command, base: str, slow: str) -> None:
    asked = ccbench("compare", base, slow, "--json")
    assert asked.json == ccbench("compare", base, slow, "--format", "json").json
    assert asked.json["points"]


@pytest.mark.parametrize(
    ("name", "begin"), [("x.json", "{"), ("x.md", "**"), ("x.XML", "<?xml"), ("x.txt", "/")]
)
def test_the_ending_of_the_file_names_the_format(
    ccbench: Command, tmp_path: Path, name: str, begin: str
) -> None:
    base, new = (
        str(write(tmp_path / word, seconds))
        for word, seconds in (("base", [1e-5] * 2), ("new", [3e-5, 1e-5]))
    )
    assert ccbench("compare", base, new, "-o", name).code == 1
    assert Path(name).read_text().lstrip().startswith(begin)
    assert ccbench("compare", base, new, "--format", "json", "-o", name).code == 1
    assert Path(name).read_text().startswith("{")
