"""The sentence on configurations that a run measured in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ccbench.analysis.verdicts import Verdict
from ccbench.analysis.winner import bands, compared_values, winner_sentence
from ccbench.cases.axes import AXIS, Case
from ccbench.cases.measurement import Measurement
from ccbench.results import Run
from tests.report.synthetic import MANIFEST, case, write_run

SIZES = tuple(4**power * 1024 for power in range(6))


def varied_run(
    path: Path,
    factors: dict[str, list[float]],
    noise: float = 0.01,
    flags: tuple[str, ...] = (),
    seed: int = 7,
) -> Run:
    """Eight rounds of each size under every algorithm; ``factors`` on 10 us by size, with a spread of ``noise``."""
    random = np.random.default_rng(seed)
    cases: list[Case] = []
    edits: dict[int, Callable[[Measurement], Measurement]] = {}
    for algorithm, by_size in factors.items():
        for size, factor in zip(SIZES, by_size, strict=True):

            def edit(measurement: Measurement, factor: float = factor) -> Measurement:
                rounds = 1e-5 * factor * np.exp(random.normal(0, noise, 8))
                return replace(
                    measurement,
                    samples_seconds=tuple(np.repeat(rounds, 5)),
                    round_samples=(5,) * 8,
                    conditions=replace(measurement.conditions, flags=flags),
                )

            edits[len(cases)] = edit
            cases.append(case("all_reduce", algorithm, size))
    manifest = {**MANIFEST, "options": {"vary": f"algorithm={next(iter(factors))}"}}
    return write_run(path / "run", cases, edits, manifest=manifest, priced=False)


def test_a_size_is_decided_where_one_placement_is(tmp_path: Path) -> None:
    run = varied_run(tmp_path, {"ring": [1.0] * 6, "tree": [0.7] * 6})
    tree = [
        each
        for each in compared_values(run, AXIS["algorithm"], "ring").points
        if each.ratio != 1
    ]
    open_ones = [replace(each, verdict=Verdict.NONE) for each in tree]
    (said,) = bands([*tree, *open_ones], "tree", "ring")
    assert said.startswith("tree is 1.4")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("number", range(20))
def test_twenty_runs_of_equals_have_no_winner(tmp_path: Path, number: int) -> None:
    factors = dict.fromkeys(("ring", "tree"), [1.0] * 6)
    run = varied_run(tmp_path, factors, 0.02 * (1 + number % 4), seed=number)
    assert "times as fast" not in winner_sentence(run)


def test_where_sizes_differ_the_sentence_has_the_least_and_the_greatest(tmp_path: Path) -> None:
    run = varied_run(tmp_path, {"ring": [1.0] * 6, "tree": [0.8] + [0.5] * 5})
    assert "(" not in winner_sentence(run)
