"""Which conditions make a case doubtful."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.conditions import CpuTimes, flags, read_cpu_times, shares

TICKS = os.sysconf("SC_CLK_TCK")


def test_processor_times_are_read_in_seconds(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    numbers = [10, 20, 30, 400, 50, 6, 7, 8, 99, 98]
    stat.write_text(f"cpu  {' '.join(str(number * TICKS) for number in numbers)}\ncpu0 1 2 3\n")
    assert read_cpu_times(stat) == CpuTimes(10 + 20 + 30 + 6 + 7, 8, 10 + 20 + 30 + 400 + 50 + 6 + 7 + 8)


@pytest.mark.parametrize("text", ["", "cpu 1 2 3\n", "cpu a b c d e f g h\n"])
def test_a_stat_file_of_another_kind_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "stat").write_text(text)
    assert read_cpu_times(tmp_path / "stat") is None
    assert read_cpu_times(tmp_path / "absent") is None


def test_foreign_time_is_what_is_neither_idle_nor_ours() -> None:
    before = CpuTimes(100.0, 5.0, 1000.0)
    after = CpuTimes(160.0, 15.0, 1100.0)
    assert shares(before, after, own_cpu_seconds=20.0) == pytest.approx((0.4, 0.1))


def test_rounding_never_makes_a_share_negative() -> None:
    assert shares(CpuTimes(0, 0, 0), CpuTimes(10, 0, 100), own_cpu_seconds=10.5) == (0.0, 0.0)


def test_too_few_ticks_tell_nothing() -> None:
    assert shares(CpuTimes(0, 0, 0), CpuTimes(1 / TICKS, 0, 9 / TICKS), 0.0) is None


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((1e-7, 1e-7, 0.0, 0.0, False), ()),
        ((None, None, None, None, False), ()),
        ((None, None, 0.11, None, False), ("other_load",)),
        ((None, None, 0.10, 0.05, False), ()),
        ((None, None, None, 0.06, False), ("steal",)),
        ((1e-7, 2.1e-7, None, None, False), ("core_distance_changed",)),
        ((2.1e-7, 1e-7, None, None, False), ("core_distance_changed",)),
        ((1e-7, 1.9e-7, None, None, False), ()),
        ((None, 1e-7, None, None, True), ("oversubscribed",)),
        ((1e-7, 5e-7, 0.5, 0.5, True), ("other_load", "steal", "core_distance_changed", "oversubscribed")),
    ],
)
def test_flags_name_what_is_doubtful(
    arguments: tuple[float | None, float | None, float | None, float | None, bool], found: tuple[str, ...]
) -> None:
    assert flags(*arguments) == found


@given(st.floats(1e-9, 1e-3), st.floats(1e-9, 1e-3))
def test_a_distance_that_grew_counts_as_one_that_shrank(one: float, other: float) -> None:
    assert flags(one, other, None, None, False) == flags(other, one, None, None, False)
