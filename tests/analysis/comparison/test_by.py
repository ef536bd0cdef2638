"""One value of an axis against the others of the same run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ccbench.analysis.comparison import compare_by
from ccbench.analysis.verdicts import Verdict
from ccbench.cases.axes import AXIS
from ccbench.errors import UsageError
from ccbench.results import Run

from .synthetic import MANIFEST, case, measured, run_of

VARIANT = AXIS["variant"]


def run_with(seconds: Mapping[str, float], **suite: object) -> Run:
    """Points of two sizes; each variant takes so long, its rounds differ by a permille."""
    every = [
        measured(
            case(place, algorithm="default", variant=name),
            [[each * (1 + 1e-3 * step)] for step in range(6)],
            backend_version=f"library of {name}",
        )
        for name, each in seconds.items()
        for place in (0, 1)
    ]
    return run_of(every, manifest={**MANIFEST, "suite": suite})


def test_the_base_may_be_named() -> None:
    run = run_with({"a": 1e-5, "b": 1e-5})
    assert compare_by(run, VARIANT, "b").base == "run, variant b"
    assert {point.verdict for point in compare_by(run, VARIANT, "b").points} == {Verdict.SAME}
    with pytest.raises(
        UsageError, match="--base: 'c' is no value of variants there; write one of a, b"
    ):
        compare_by(run, VARIANT, "c")


def test_an_axis_with_one_value_has_nothing_to_compare() -> None:
    with pytest.raises(
        UsageError, match="--by variants: run has 'a'; name an axis with several values there"
    ):
        compare_by(run_with({"a": 1e-5}), VARIANT)
