from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from defusedxml import ElementTree  # type: ignore[import-untyped]  # ships no types

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
