from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.units import (
    format_seconds,
    format_size,
    parse_duration,
    parse_fraction,
    parse_size,
    percent,
    shown,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        (8, 8),
        ("8B", 8),
        (" 1 MiB ", 2**20),
        ("2M", 2 * 2**20),
        ("2m", 2 * 2**20),
        ("3k", 3072),
        ("1.5  KiB", 1536),
        ("1 kB", 1000),
        ("1 KB", 1000),
        ("1 MB", 10**6),
        ("1e3 B", 1000),
        ("0", 0),
        ("2GB", 2 * 10**9),
        ("1 TiB", 2**40),
        ("3 TB", 3 * 10**12),
        ("0.5G", 2**29),
        ("1P", 2**50),
    ],
)
def test_sizes_are_binary_unless_they_say_otherwise(text: str | int, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1MiBs", "'1MiBs' is not a size; write '1 MiB'"),
        ("3 Gb", "'3 Gb' is not a size; write '3 GB'"),
        ("two", "'two' is not a size; write a number and a unit, such as '1 MiB'"),
        ("-8", "'-8' is not a size; write a number and a unit, such as '1 MiB'"),
        ("0.3 B", "'0.3 B' is 0.3 bytes; write a whole number of bytes"),
        (-1, "-1 is negative; a size is 0 bytes or more"),
        (1.5, "1.5 is not a size; write '1 MiB'"),
        (True, "True is not a size; write '1 MiB'"),
        ("\u0663 B", "'\u0663 B' is not a size; write a number and a unit, such as '1 MiB'"),
        ("9" * 50, f"'{'9' * 50}' is too long for a size; write '1 MiB'"),
    ],
)
def test_a_wrong_size_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_size(text)


@given(st.integers(0, 2**60))
def test_a_formatted_size_reads_back_exactly(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**20 + 1, "1048577 B"),
        (10**9, "1 GB"),
        (25 * 10**6, "25 MB"),
        (1_024_000, "1000 KiB"),
        (2**30 + 2**28, "1.25 GiB"),
    ],
)
def test_a_size_is_shown_in_the_largest_unit_that_is_exact(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("parse", "cure", "wrong"),
    [
        (
            parse_duration,
            "write '500 ms'",
            [
                "",
                "s",
                "5 x",
                "1s 2h",
                "1s1s",
                "-1 s",
                "1 S",
                "\u0661 s",
                "1" * 41 + "s",
                None,
            ],
        ),
        (parse_duration, "^5 has no unit; write '5 s' or '5 ms'$", [5, "5", " 5 "]),
        (parse_fraction, "write '5%'", ["5", "101%", -0.1, 2, math.nan, "x%", True, None, "%"]),
    ],
)
def test_a_wrong_duration_or_fraction_shows_one_that_is_right(
    parse: Callable[[object], float], cure: str, wrong: list[object]
) -> None:
    for text in wrong:
        with pytest.raises(ValueError, match=cure):
            parse(text)


@given(st.floats(1e-9, 1e9))
def test_formatted_seconds_keep_four_digits_and_long_ones_three(seconds: float) -> None:
    text = format_seconds(seconds)
    kept = 5.1e-4 if seconds < 600 else 5.1e-3
    assert parse_duration(text) == pytest.approx(seconds, rel=kept, abs=5.1e-13)
    assert "e" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (1.8e-11, "0.018 ns"),
        (8.5e-7, "0.85 us"),
        (1.23456e-5, "12.35 us"),
        (9.9996e-4, "1 ms"),
        (0.25, "250 ms"),
        (599.9, "599.9 s"),
        (1386.0, "23.1 min"),
        (36328.0, "10.1 h"),
        (0.99996, "1 s"),
        (12.3456, "12.35 s"),
        (-2e-3, "-2 ms"),
        (math.inf, "inf s"),
        (math.nan, "nan s"),
    ],
)
def test_seconds_are_shown_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(
    st.one_of(
        st.text(), st.integers(), st.floats(), st.lists(st.text()), st.integers(10**40, 10**41)
    )
)
def test_what_was_seen_is_shown_on_one_short_line(value: object) -> None:
    assert shown(value).isprintable() or isinstance(value, list)
    assert len(shown(value)) < 620


@pytest.mark.parametrize("parse", [parse_size, parse_duration, parse_fraction])
@given(text=st.text(max_size=60))
def test_any_text_is_a_quantity_or_a_value_error_with_a_cure(
    parse: Callable[[str], float], text: str
) -> None:
    problem = ""
    try:
        value = parse(text)
    except ValueError as error:
        value, problem = 0, str(error)
    assert value >= 0
    assert not problem or "; write " in problem


def test_shares_are_percentages_until_the_ratio_reads_more_easily() -> None:
    assert [percent(one) for one in (0.123, 0.004, 0.0001, 0.0, 8.5, 260.08)] == [
        "12 %",
        "0.4 %",
        "< 0.1 %",
        "0.0 %",
        "850 %",
        "260x",
    ]
