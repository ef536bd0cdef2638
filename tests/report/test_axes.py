from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccbench.report.figure import MOST_TICKS, Axis, limits, tick_text, tick_values

SIZE = Axis("size", "bytes", "log2")
TIME = Axis("time", "seconds", "log10")


def _texts(axis: Axis, values: list[float]) -> list[str]:
    low, high = limits(axis, values)
    return [tick_text(axis, value) for value in tick_values(axis, low, high) or []]


def test_sizes_are_written_in_binary_units_at_powers_of_two() -> None:
    assert _texts(SIZE, [1024.0, 65536.0]) == [
        "1 KiB", "2 KiB", "4 KiB", "8 KiB", "16 KiB", "32 KiB", "64 KiB",
    ]  # fmt: skip
    assert "1 MiB" in _texts(SIZE, [8.0, 2.0**34])


def test_few_sizes_that_lie_apart_are_their_own_ticks() -> None:
    sizes = [64.0, 512.0, 4096.0, 3 * 2.0**20]
    assert tick_values(SIZE, *limits(SIZE, sizes), sizes) == sizes
    close = [64.0, 80.0, 2.0**20]
    assert tick_values(SIZE, *limits(SIZE, close), close) != close


def test_times_are_written_in_us_and_ms() -> None:
    assert _texts(TIME, [3e-6, 2e-3]) == [
        "5 us", "10 us", "20 us", "50 us", "100 us", "200 us", "500 us", "1 ms", "2 ms",
    ]  # fmt: skip


@given(st.floats(1e-9, 1e3), st.floats(1, 1e9))
def test_a_time_axis_never_lacks_ticks_and_never_crowds(low: float, factor: float) -> None:
    begin, end = limits(TIME, [low, low * factor])
    places = tick_values(TIME, begin, end)
    assert places is not None
    assert 1 <= len(places) <= MOST_TICKS
    assert begin < low
    assert end > low * factor


@given(st.integers(0, 40), st.integers(0, 30))
def test_a_size_axis_never_lacks_ticks_and_never_crowds(power: int, span: int) -> None:
    begin, end = limits(SIZE, [2.0**power, 2.0 ** (power + span)])
    places = tick_values(SIZE, begin, end)
    assert places is not None
    assert 1 <= len(places) <= MOST_TICKS + 1


def test_ranks_are_whole_numbers_thinned_when_many() -> None:
    rank = Axis("rank", "rank", "linear")
    assert tick_values(rank, *limits(rank, [0.0, 3.0])) == [0.0, 1.0, 2.0, 3.0]
    many = tick_values(rank, *limits(rank, [0.0, 511.0]))
    assert many is not None
    assert len(many) <= 16
