from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.report.curves import leads
from ccbench.stats import Interval


def _curve(alpha_seconds: float, beta: float, sizes: list[int], width: float = 0.01) -> dict[int, Interval]:
    times = {size: alpha_seconds + beta * size for size in sizes}
    return {s: Interval(t * (1 - width), t, t * (1 + width), 0.95) for s, t in times.items()}


SIZES = [2**power for power in range(8, 25, 2)]


def test_the_crossing_of_two_lines_is_found_between_its_neighbours() -> None:
    curves = {"tree": _curve(1e-6, 4e-10, SIZES), "ring": _curve(9e-6, 1e-10, SIZES)}
    found, (crossing,) = leads(curves)
    exact = 8e-6 / 3e-10
    assert crossing.low_bytes < exact < crossing.high_bytes
    assert crossing.size_bytes == pytest.approx(exact, rel=0.15)
    assert [one.name for one in found] == ["tree", "ring"]
    assert found[0].high_bytes == found[1].low_bytes == crossing.size_bytes


def test_power_laws_cross_exactly_because_lines_are_straight_on_log_log_axes() -> None:
    def curve(scale: float, power: float) -> dict[int, Interval]:
        return {size: Interval(t, t, t, 1.0) for size in SIZES if (t := scale * size**power)}

    _, (crossing,) = leads({"a": curve(1e-9, 1.0), "b": curve(3e-8, 0.7)})
    assert crossing.size_bytes == pytest.approx(30 ** (1 / 0.3), rel=1e-6)


def test_algorithms_that_cannot_be_told_apart_do_not_take_turns() -> None:
    def wobbly(sign: float) -> dict[int, Interval]:
        times = {size: 1e-6 * (1 + sign * 0.01 * (-1) ** i) for i, size in enumerate(SIZES)}
        return {size: Interval(0.97 * t, t, 1.03 * t, 0.95) for size, t in times.items()}

    found, crossings = leads({"a": wobbly(1.0), "b": wobbly(-1.0)})
    assert crossings == ()
    assert len(found) == 1


def test_a_twin_of_the_leader_hides_no_crossover() -> None:
    ring = _curve(9e-6, 1e-10, SIZES)
    _, crossings = leads({"tree": _curve(1e-6, 4e-10, SIZES), "ring": ring, "default": dict(ring)})
    assert len(crossings) == 1


def test_a_leader_that_was_not_measured_further_on_is_followed_without_a_crossover() -> None:
    ring, tree = _curve(1e-6, 1e-10, SIZES[:4]), _curve(2e-6, 2e-10, SIZES)
    other = _curve(3e-6, 3e-10, SIZES)
    found, crossings = leads({"ring": ring, "tree": tree, "other": other})
    assert [one.name for one in found] == ["ring", "tree"]
    assert crossings == ()
    assert found[1].low_bytes == SIZES[4]


def test_a_lead_is_broken_where_only_one_was_measured() -> None:
    gap = [*SIZES[:3], *SIZES[5:]]
    found, crossings = leads({"ring": _curve(1e-6, 1e-10, gap), "tree": _curve(2e-6, 2e-10, SIZES)})
    assert [(one.name, one.low_bytes, one.high_bytes) for one in found] == [
        ("ring", SIZES[0], SIZES[2]),
        ("ring", SIZES[5], SIZES[-1]),
    ]
    assert crossings == ()


def test_sizes_with_one_algorithm_decide_nothing() -> None:
    assert leads({"ring": _curve(1e-6, 1e-10, SIZES)}) == ((), ())
    assert leads({}) == ((), ())


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.dictionaries(
            st.sampled_from(SIZES),
            st.floats(1e-7, 1.0).map(lambda t: Interval(0.98 * t, t, 1.02 * t, 0.95)),
        ),
    )
)
def test_a_lead_covers_only_sizes_that_decide_and_crossings_lie_where_they_say(
    curves: dict[str, dict[int, Interval]],
) -> None:
    found, crossings = leads(curves)
    for earlier, later in pairwise(found):
        assert earlier.high_bytes <= later.low_bytes
    for lead in found:
        assert lead.low_bytes <= lead.high_bytes
        for size in {size for curve in curves.values() for size in curve}:
            if lead.low_bytes <= size <= lead.high_bytes:
                assert size in curves[lead.name]
                assert sum(size in curve for curve in curves.values()) > 1
    for one in crossings:
        assert one.low_bytes * (1 - 1e-9) <= one.size_bytes <= one.high_bytes * (1 + 1e-9)
        assert curves[one.after][one.high_bytes].median < curves[one.before][one.high_bytes].median
        assert math.isfinite(one.size_bytes)
