from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.topology.text import overlap, plain_lines, range_count, ranges


def test_colours_and_foreign_line_ends_disappear() -> None:
    assert plain_lines("\x1b[4mGPU0\x1b[0m\r\n[4mGPU1[0m\rend") == ["GPU0", "GPU1", "end"]


def test_text_in_brackets_that_is_no_colour_stays() -> None:
    assert plain_lines("[0] rank [12m away] [4x]") == ["[0] rank  away] [4x]"]
    assert plain_lines("ring[3] 10 m") == ["ring[3] 10 m"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0", ((0, 0),)),
        ("0-13,28-41", ((0, 13), (28, 41))),
        ("1-1, 3-3", ((1, 1), (3, 3))),
        ("-31,64-95", None),
        ("5-2", None),
        ("N/A", None),
        ("", None),
        ("0-9999999", ((0, 9999999),)),
        ("0-99999999", None),
        ("²", None),
    ],
)
def test_lists_of_cpus(text: str, wanted: tuple[tuple[int, int], ...] | None) -> None:
    assert ranges(text) == wanted


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=6))
def test_counting_ranges_is_counting_numbers(parts: list[tuple[int, int]]) -> None:
    found = tuple((first, first + more) for first, more in parts)
    numbers = {number for first, last in found for number in range(first, last + 1)}
    assert range_count(found) == len(numbers)
    halves = found[::2], found[1::2]
    sets = [{number for first, last in half for number in range(first, last + 1)} for half in halves]
    assert overlap(*halves) == bool(sets[0] & sets[1])
