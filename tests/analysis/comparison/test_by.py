"""One value of an axis against the others of the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ccbench.analysis.comparison import compare, compare_by
from ccbench.analysis.verdicts import NoVerdict, Verdict
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


def test_each_other_value_is_judged_against_the_first_that_the_suite_lists() -> None:
    run = run_with(
        {"new": 1.2e-5, "fast": 0.8e-5, "old": 1e-5},
        variants={"old": {}, "new": {}, "fast": {}},
    )
    compared = compare_by(run, VARIANT)
    verdicts = {(point.point.variant, point.verdict) for point in compared.points}
    assert verdicts == {("new", Verdict.SLOWER), ("fast", Verdict.FASTER)}
    assert compared.exit_code == 1
    assert (compared.base, compared.new) == ("run, variant old", "fast, new")
    assert "variant fast: library of fast" in compared.notes


def test_the_base_may_be_named() -> None:
    run = run_with({"a": 1e-5, "b": 1e-5})
    assert compare_by(run, VARIANT, "b").base == "run, variant b"
    assert {point.verdict for point in compare_by(run, VARIANT, "b").points} == {Verdict.SAME}
    with pytest.raises(
        UsageError, match="--base: 'c' is no value of variants there; write one of a, b"
    ):
        compare_by(run, VARIANT, "c")


def test_any_axis_will_do_and_its_default_is_the_base() -> None:
    points = [
        measured(case(0, protocol=protocol), [[1e-5]] * 6)
        for protocol in ("ll", "default", "simple")
    ]
    assert compare_by(run_of(points), AXIS["protocol"]).base == "run, protocol default"


def test_a_point_that_one_value_lacks_is_told() -> None:
    points = [
        measured(case(place, variant="a", algorithm="x"), [[1e-5]] * 6) for place in (0, 1)
    ]
    points += [measured(case(0, variant="b", algorithm="x"), [[1e-5]] * 6)]
    assert [point.cause for point in compare_by(run_of(points), VARIANT).points] == [
        None,
        NoVerdict.MISSING_IN_NEW,
    ]


def run_of_rounds(start_ranks: str, **seconds: Sequence[float]) -> Run:
    """Each variant of one point has so many rounds of these times."""
    points = [
        measured(case(0, variant=name), [[sample] for sample in each])
        for name, each in seconds.items()
    ]
    return run_of(
        points, manifest={**MANIFEST, "suite": {"sampling": {"start_ranks": start_ranks}}}
    )


def test_what_holds_up_the_machine_for_some_rounds_hides_no_variant() -> None:
    """Variants are measured in turn: their rounds are compared one by one, those of other axes are not."""
    usual = [1e-5, 1.1e-5, 5e-5, 4e-5, 1e-5, 1.3e-5, 1e-5, 2e-5, 1.2e-5, 1e-5]
    run = run_of_rounds("each_round", a=usual, b=[1.05 * seconds for seconds in usual])
    (point,) = compare_by(run, VARIANT).points
    assert (point.verdict, point.in_pairs) == (Verdict.SLOWER, True)
    assert (point.low, point.ratio, point.high) == pytest.approx((1.05, 1.05, 1.05))
    (point,) = compare(
        run_of_rounds("once", a=usual), run_of_rounds("once", a=usual[::-1])
    ).points
    assert (point.verdict, point.in_pairs) == (Verdict.NONE, False)


def test_rounds_that_have_no_partner_are_compared_as_those_of_two_runs() -> None:
    uneven = compare_by(run_of_rounds("once", a=[1e-5] * 7, b=[1.2e-5] * 8), VARIANT).points
    few = compare_by(run_of_rounds("once", a=[1e-5] * 5, b=[1.2e-5] * 5), VARIANT).points
    assert {(point.in_pairs, point.verdict) for point in (*uneven, *few)} == {
        (False, Verdict.SLOWER)
    }


def test_ranks_that_were_started_once_are_told() -> None:
    for kind, named in (("once", True), ("each_round", False)):
        notes = compare_by(run_of_rounds(kind, a=[1e-5] * 6, b=[1e-5] * 6), VARIANT).notes
        assert any("started once" in note for note in notes) is named


def test_an_axis_with_one_value_has_nothing_to_compare() -> None:
    with pytest.raises(
        UsageError, match="--by variants: run has 'a'; name an axis with several values there"
    ):
        compare_by(run_with({"a": 1e-5}), VARIANT)
