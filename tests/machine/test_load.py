"""Which conditions make a case doubtful."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.measurement import Conditions
from ccbench.flags import Flag
from ccbench.machine.files import Files
from ccbench.machine.readings import (
    ClockWatch,
    CpuTimes,
    flagged,
    over_all,
    read_cpu_times,
    share_a_core,
    watched,
    worst_of_hosts,
)
from tests.machine.laid_out import CPU, lay_out

TICKS = os.sysconf("SC_CLK_TCK")


def test_processor_times_are_read_in_seconds(tmp_path: Path) -> None:
    ticks = " ".join(str(number * TICKS) for number in (10, 20, 30, 400, 50, 6, 7, 8, 99, 98))
    lay_out(tmp_path, {"proc/stat": f"cpu  {ticks}\ncpu0 1 2 3\n"})
    busy = 10 + 20 + 30 + 6 + 7
    assert read_cpu_times(Files(tmp_path)) == CpuTimes(busy, 8, busy + 400 + 50 + 8)


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3\n", "cpu a b c d e f g h\n"])
def test_a_stat_file_of_another_kind_tells_nothing(tmp_path: Path, text: str | None) -> None:
    assert read_cpu_times(Files(lay_out(tmp_path, {"proc/stat": text}))) is None


def test_foreign_time_is_what_is_neither_idle_nor_ours() -> None:
    seen = watched(
        CpuTimes(100.0, 5.0, 1000.0), CpuTimes(160.0, 15.0, 1100.0), own_cpu_seconds=20.0
    )
    assert (seen.other_cpu_share, seen.steal_share) == pytest.approx((0.4, 0.1))
    assert seen.watched_cpu_seconds == 100.0


def test_a_clock_that_stood_still_tells_nothing() -> None:
    assert watched(CpuTimes(1, 1, 1), CpuTimes(1, 1, 1), 0.0) == Conditions()


def test_many_short_rounds_are_judged_together() -> None:
    short = flagged(watched(CpuTimes(0, 0, 0), CpuTimes(4 / TICKS, 0, 6 / TICKS), 0.0))
    both = over_all(short, short)
    assert short.flags == ()
    assert both.flags == ("other_load", "cpu_contention")
    assert both.other_cpu_share == pytest.approx(4 / 6)


def test_load_of_one_round_is_forgiven_when_all_together_were_quiet() -> None:
    loaded = flagged(Conditions(other_cpu_share=0.5, steal_share=0.0, watched_cpu_seconds=1.0))
    quiet = flagged(Conditions(other_cpu_share=0.0, steal_share=0.0, watched_cpu_seconds=9.0))
    assert loaded.flags == ("other_load",)
    assert over_all(loaded, quiet).flags == ()


def test_a_processor_that_moved_in_any_round_stays_flagged() -> None:
    moved = flagged(
        Conditions(core_latency_before_seconds=1e-7, core_latency_after_seconds=5e-7)
    )
    calm = flagged(
        Conditions(core_latency_before_seconds=5e-7, core_latency_after_seconds=5e-7)
    )
    both = over_all(over_all(calm, moved), calm)
    assert both.flags == ("core_distance_changed",)
    assert (both.core_latency_before_seconds, both.core_latency_after_seconds) == (5e-7, 5e-7)


@pytest.mark.parametrize(
    ("fields", "found"),
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
        (
            (1e-7, 5e-7, 0.5, 0.0, True),
            ("other_load", "core_distance_changed", "oversubscribed"),
        ),
        ((None, None, 0.3, 0.3, False), ("other_load", "steal", "cpu_contention")),
    ],
)
def test_flags_name_what_is_doubtful(
    fields: tuple[float | None, float | None, float | None, float | None, bool],
    found: tuple[str, ...],
) -> None:
    before, after, foreign, steal, oversubscribed = fields
    seen = Conditions(
        core_latency_before_seconds=before,
        core_latency_after_seconds=after,
        other_cpu_share=foreign,
        steal_share=steal,
        watched_cpu_seconds=10.0,
        oversubscribed=bool(oversubscribed),
    )
    assert flagged(seen).flags == found


def two_threads_a_core(root: Path, cores: int) -> Path:
    """Processor n and n + cores are threads of core n."""
    siblings = {cpu: f"{cpu % cores},{cpu % cores + cores}\n" for cpu in range(2 * cores)}
    return lay_out(
        root,
        {f"{CPU}/cpu{cpu}/topology/thread_siblings_list": of for cpu, of in siblings.items()},
    )


@given(st.lists(st.integers(0, 7), max_size=8))
def test_ranks_share_a_core_where_two_are_on_different_threads_of_it(
    tmp_path_factory: pytest.TempPathFactory, binding: list[int]
) -> None:
    root = two_threads_a_core(tmp_path_factory.mktemp("cores"), 4)
    shared = any(one != other and one % 4 == other % 4 for one in binding for other in binding)
    assert share_a_core(tuple(binding), Files(root)) is shared


def test_a_shared_core_is_a_flag_and_stays_one_over_all_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "ccbench.machine.readings.share_a_core", lambda binding: binding == (0, 4)
    )
    assert flagged(Conditions(binding=(0, 4))).flags == ("shared_core",)
    assert flagged(Conditions(binding=(0, 1))).flags == ()
    one_round = flagged(Conditions(binding=(0, 4)))
    assert over_all(one_round, one_round).flags == ("shared_core",)


def test_a_busy_host_makes_the_case_of_several_hosts_doubtful() -> None:
    calm = Conditions(other_cpu_share=0.0, steal_share=0.0, watched_cpu_seconds=5.0)
    busy = Conditions(other_cpu_share=0.5, steal_share=0.0, watched_cpu_seconds=5.0)
    silent = Conditions()
    assert flagged(worst_of_hosts([calm, calm])).flags == ()
    assert flagged(worst_of_hosts([calm, busy, silent])).flags == ("other_load",)
    assert worst_of_hosts([silent, silent]) == silent


@pytest.mark.parametrize(
    ("speed", "date", "is_wrong"),
    [
        (1.0, 4e9, False),
        (1.05, 4e9, False),
        (10.0, 4e9, True),
        (0.1, 4e9, True),
        (1.0, 978_307_200.0, True),  # 2001
        (1.0, 1.7e9, True),  # 2023, before any release
    ],
)
def test_a_clock_of_another_speed_or_of_the_past_is_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float, date: float, is_wrong: bool
) -> None:
    uptime = tmp_path / "proc/uptime"
    uptime.parent.mkdir()
    uptime.write_text("100.00 350.10\n")
    clock = iter((50.0, 50.0 + 2.0 * speed, 50.0 + 2.5 * speed))
    monkeypatch.setattr("ccbench.machine.readings.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr("ccbench.machine.readings.time.time", lambda: date)
    watch = ClockWatch(Files(tmp_path))
    uptime.write_text("102.00 351.10\n")
    assert watch.flags() == ((Flag.CLOCK_WRONG,) if is_wrong else ())
    uptime.write_text("102.50 351.10\n")  # too short to say anything new
    assert watch.flags() == ((Flag.CLOCK_WRONG,) if is_wrong else ())


def test_this_hosts_clock_is_right_and_without_uptime_its_speed_is_not_judged(
    tmp_path: Path,
) -> None:
    for watch in (ClockWatch(), ClockWatch(Files(tmp_path))):
        assert watch.flags() == ()
