from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ccbench.cases.measurement import Conditions
from ccbench.dtypes import CPU_DTYPES
from ccbench.errors import HostBusy, MachineError
from ccbench.machine.readings import FOREIGN_CPU_LIMIT
from ccbench.model import calibration
from ccbench.model.calibration import (
    MOST_DAYS,
    PEAK_MARGIN,
    Calibration,
    better_of,
    disturbance,
    kept_file,
    machine_from_samples,
    measure_machine,
    quick_machine,
    stale,
)
from ccbench.model.calibration_worker import (
    BLOCK_BYTES,
    FEWEST_ROUNDS,
    KEYS,
    KINDS,
    Arithmetic,
    Probe,
    Samples,
    collect,
    payload_bytes,
)
from ccbench.model.machine import (
    ARITHMETIC,
    SECONDS_FIELDS,
    Machine,
    Rates,
    calls_of,
    load_machine,
    save_machine,
)
from tests.faults import traces

NOW = datetime(2031, 5, 6, 7, 8, tzinfo=timezone.utc)
CALL = 1e-7


class FakeProbe(Probe):
    """A machine of plain numbers whose every third sample is disturbed; each sample takes a second."""

    def __init__(self, cores: int = 4, pinned: bool = True) -> None:
        self.cores, self.pinned, self.rank = cores, pinned, 0
        self.working_sets_bytes: tuple[int, ...] = (1 << 15, 1 << 20, 1 << 26)
        self.seconds = 0.0
        self._samples = 0

    def clock(self) -> float:
        return self.seconds

    def _sample(self, seconds: float) -> float:
        self.seconds += 1.0
        self._samples += 1
        return seconds * (3.0 if self._samples % 3 == 0 else 1.0)

    def gather(self, value: int = 0, patient: bool = True) -> list[int]:
        return [value]

    def flag_seconds(self) -> float:
        return self._sample(2e-7)

    def yield_seconds(self) -> float:
        return self._sample(3e-6)

    def check_seconds(self) -> float:
        return self._sample(5e-8)

    def operation_seconds(self) -> float:
        return self._sample(3e-7)

    def call_seconds(self) -> float:
        return self._sample(CALL)

    def arithmetic_seconds(self, key: str) -> float:
        """Not disturbed, and takes no time of this clock: there are many of them."""
        return calls_of(key) * CALL + BLOCK_BYTES / (3e8 if key.startswith("float16") else 2e10)

    def operation_time(self, kind: str, working_set_bytes: int, processes: int) -> float:
        rate = {"copy": 8e9, "reduce": 5e9}[kind] * (
            2.0 if working_set_bytes < 1 << 24 else 1.0
        )
        # Twice one process's rate is what memory gives, however many cores ask.
        shared = 1.0 if working_set_bytes < 1 << 24 else max(1.0, processes / 2)
        return self._sample(CALL + payload_bytes(kind, working_set_bytes) * shared / rate)


def collected(probe: FakeProbe, until: float = 300.0) -> Samples:
    return collect(probe, until, probe.clock)


def machine_of(probe: FakeProbe) -> Machine:
    return machine_from_samples(vars(collected(probe)), NOW)


def test_the_numbers_of_the_machine_come_back() -> None:
    fabric = machine_of(FakeProbe()).fabric
    assert fabric.cores == 4
    assert fabric.flag_latency_seconds == pytest.approx(2e-7)
    assert fabric.yield_seconds == pytest.approx(3e-6)
    assert fabric.flag_check_seconds == pytest.approx(5e-8)
    assert fabric.operation_seconds == pytest.approx(3e-7)
    assert [p.bytes_per_second for p in fabric.copy.one_process] == pytest.approx(
        [16e9, 16e9, 8e9], rel=0.01
    )
    assert [p.bytes_per_second for p in fabric.copy.all_cores] == pytest.approx(
        [64e9, 64e9, 16e9], rel=0.01
    )
    assert [p.bytes_per_second for p in fabric.reduce.all_cores] == pytest.approx(
        [40e9, 40e9, 10e9], rel=0.01
    )


def test_each_type_and_operation_has_its_rate_without_the_cost_of_its_calls() -> None:
    machine = machine_of(FakeProbe())
    rates = machine.fabric.operation_bytes_per_second
    assert set(rates) == {f"{dtype} {kind}" for dtype in CPU_DTYPES for kind in ARITHMETIC}
    assert rates["float16 max"] == pytest.approx(3e8)
    assert [rates["int8 average"], rates["float32 sum"]] == pytest.approx([2e10, 2e10])
    assert "blocks of 32 KiB in cache" in machine.origins["operation_bytes_per_second"]


def test_peaks_are_the_best_traffic_and_a_margin() -> None:
    # Per payload byte a copy moves two bytes and an addition three: 3 x 40 is less than 2 x 64.
    peaks = machine_of(FakeProbe()).fabric.peak_traffic
    assert [p.bytes_per_second / PEAK_MARGIN for p in peaks.all_cores] == pytest.approx(
        [128e9, 128e9, 32e9], rel=0.01
    )


def test_a_round_samples_everything_once_and_rounds_go_on_until_the_time_is_over() -> None:
    probe = FakeProbe()
    samples = collected(probe, until=100.0)
    in_a_round = 5 + len(KINDS) * 3 * 2
    assert len(samples.flag) == -(-100 // in_a_round)
    assert all(len(values) == len(samples.flag) for values in samples.operations.values())
    assert len(samples.operations) == in_a_round - 5


def test_a_few_rounds_are_taken_even_when_there_is_no_time() -> None:
    assert len(collected(FakeProbe(), until=0.0).flag) == FEWEST_ROUNDS


def test_one_core_has_one_curve() -> None:
    fabric = machine_of(FakeProbe(cores=1)).fabric
    assert fabric.copy.one_process == fabric.copy.all_cores


def test_where_processes_cannot_be_pinned_the_yield_is_assumed_and_says_so() -> None:
    machine = machine_of(FakeProbe(pinned=False))
    assert machine.fabric.yield_seconds == calibration.ASSUMED_YIELD_SECONDS
    assert machine.origins["yield_seconds"].startswith("assumed")
    assert (
        machine_of(FakeProbe())
        .origins["yield_seconds"]
        .startswith("measured 2031-05-06 07:08 UTC")
    )


def test_noise_that_breaks_the_curves_is_smoothed_until_the_machine_is_valid() -> None:
    samples = vars(collected(FakeProbe()))
    # 64 MiB quicker than 1 MiB, and all cores slower than one.
    samples["operations"]["copy/67108864/1"] = [1e-9]
    samples["operations"]["copy/1048576/4"] = [1.0]
    fabric = machine_from_samples(samples, NOW).fabric
    for points in (fabric.copy.one_process, fabric.peak_traffic.one_process):
        seconds = [p.working_set_bytes / p.bytes_per_second for p in points]
        assert seconds == sorted(seconds)


def test_processors_that_a_hypervisor_may_move_apart_are_granted_what_each_has_alone() -> None:
    samples = vars(collected(FakeProbe()))
    here, moved = (
        machine_from_samples(samples, NOW, virtual).fabric for virtual in (False, True)
    )
    alone, together = here.peak_traffic.one_process, here.peak_traffic.all_cores
    assert together[-1].bytes_per_second == pytest.approx(
        2 * alone[-1].bytes_per_second, rel=0.01
    )
    assert moved.peak_traffic.all_cores[-1].bytes_per_second == pytest.approx(
        4 * alone[-1].bytes_per_second
    )
    assert (moved.copy, moved.peak_traffic.one_process) == (here.copy, alone)


def test_a_quarter_of_the_tries_undisturbed_is_enough_for_prices() -> None:
    fabric = machine_of(FakeProbe()).fabric
    samples = vars(collected(FakeProbe()))
    for tries in (
        samples["flag"],
        samples["operation"],
        samples["call"],
        *samples["operations"].values(),
    ):
        # As on a machine on which two other programs run: most tries wait for a time slice.
        tries[:] = [
            min(tries),
            *(1.001 * min(tries),) * (len(tries) // 4),
            *[4e-3] * (3 * len(tries) // 4),
        ]
    loaded = machine_from_samples(samples, NOW).fabric
    assert loaded.flag_latency_seconds == pytest.approx(fabric.flag_latency_seconds, rel=0.01)
    assert loaded.operation_seconds == pytest.approx(fabric.operation_seconds, rel=0.01)
    assert loaded.copy.all_cores[0].bytes_per_second == pytest.approx(
        fabric.copy.all_cores[0].bytes_per_second, rel=0.01
    )


@pytest.mark.parametrize(
    ("cores", "other", "steal", "disturbed"),
    [
        (2, 0.45, 0.0, False),
        (2, 0.55, 0.0, True),
        (2, 0.3, 0.25, True),
        (1, 0.7, 0.0, False),
        (64, FOREIGN_CPU_LIMIT, 0.0, False),
        (64, FOREIGN_CPU_LIMIT + 0.01, 0.0, True),
    ],
)
def test_load_that_leaves_less_than_a_quarter_of_the_tries_alone_disturbs(
    cores: int, other: float, steal: float, disturbed: bool
) -> None:
    reason = disturbance(
        {"cores": cores, "operations": {"copy/32768/2": [1.0, 1.0]}},
        Conditions(other_cpu_share=other, steal_share=steal),
    )
    assert bool(reason) is disturbed
    assert not disturbed or f"{other:.0%}" in reason


def test_tries_that_disagree_disturb_though_nobody_saw_a_load() -> None:
    operations = {"copy/32768/1": [1e-6] * 8, "reduce/1048576/2": [1e-6, *[5e-6] * 7]}
    reason = disturbance({"cores": 2, "operations": operations}, Conditions())
    assert "reduce (1024 KiB, 2 at once)" in reason
    assert "5.0 times" in reason
    operations["reduce/1048576/2"][1:3] = [1.1e-6, 1.2e-6]
    assert disturbance({"cores": 2, "operations": operations}, Conditions()) == ""


def slower(machine: Machine, factor: float) -> Machine:
    """``machine`` with all times ``factor`` as long, measured on another day."""

    def rates(curves: Rates) -> Rates:
        return Rates(
            *(
                tuple(
                    replace(one, bytes_per_second=one.bytes_per_second / factor)
                    for one in curve
                )
                for curve in (curves.one_process, curves.all_cores)
            )
        )

    fabric = machine.fabric
    changed: dict[str, Any] = {name: factor * getattr(fabric, name) for name in SECONDS_FIELDS}
    changed |= {
        name: rates(getattr(fabric, name)) for name in ("copy", "reduce", "peak_traffic")
    }
    computing = {key: rate / factor for key, rate in fabric.operation_bytes_per_second.items()}
    origins = {name: f"then: {text}" for name, text in machine.origins.items()}
    return Machine(
        machine.name, replace(fabric, **changed, operation_bytes_per_second=computing), origins
    )


def test_of_two_calibrations_each_figure_is_the_better_one() -> None:
    now, earlier = machine_of(FakeProbe()), slower(machine_of(FakeProbe()), 1.5)
    best = better_of(earlier, Calibration(now))
    assert best.fabric == now.fabric
    assert (
        best.origins["copy"]
        == f"{now.origins['copy']}; the best of this and earlier calibrations"
    )
    assert best.origins["cores"].startswith("then: ")
    assert better_of(now, Calibration(earlier)) == now
    again = better_of(slower(best, 2.0), Calibration(best))
    assert again.origins["copy"].count("earlier calibrations") == 1


def test_a_disturbed_calibration_can_only_raise_what_bounds_are_made_of() -> None:
    quick, earlier = machine_of(FakeProbe()), slower(machine_of(FakeProbe()), 1.5)
    best = better_of(earlier, Calibration(quick, "others were at it"))
    assert best.fabric.peak_traffic == quick.fabric.peak_traffic
    assert best.fabric.best_flag_latency_seconds == quick.fabric.best_flag_latency_seconds
    assert best.fabric.copy == earlier.fabric.copy
    assert best.fabric.flag_latency_seconds == earlier.fabric.flag_latency_seconds


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Calibration]:
    """Calibrations that are found one after the other; a cache of the test's own."""
    found: list[Calibration] = []
    monkeypatch.setenv("CCBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "measure_machine", lambda seconds: found.pop(0))
    return found


def test_the_best_calibration_of_this_host_is_kept(measured: list[Calibration]) -> None:
    good = machine_of(FakeProbe())
    measured[:] = [
        Calibration(slower(good, 1.2)),
        Calibration(good),
        Calibration(slower(good, 3.0)),
    ]
    assert quick_machine().fabric == slower(good, 1.2).fabric
    assert quick_machine().fabric == good.fabric
    assert quick_machine().fabric == good.fabric
    assert load_machine(kept_file()).fabric == good.fabric
    assert [path.name for path in kept_file().parent.iterdir()] == [kept_file().name]


def test_a_busy_host_that_was_never_quiet_is_not_told(measured: list[Calibration]) -> None:
    good = machine_of(FakeProbe())
    measured[:] = [Calibration(good, "other programs took 66 %"), Calibration(good)]
    with pytest.raises(
        HostBusy, match=r"cannot say how fast .* 66 %; measure again when it is quiet, or name"
    ):
        quick_machine()
    assert not kept_file().exists()
    assert quick_machine() == good


def test_a_busy_host_is_as_it_was_when_it_was_quiet(measured: list[Calibration]) -> None:
    good = machine_of(FakeProbe())
    measured[:] = [
        Calibration(good),
        Calibration(slower(good, 40.0), "other programs took 66 %"),
    ]
    assert quick_machine() == quick_machine() == good


def test_a_busy_host_stays_as_it_was_where_its_figures_contradict_those_of_then(
    measured: list[Calibration], monkeypatch: pytest.MonkeyPatch
) -> None:
    def contradiction(*_: object) -> Machine:
        raise MachineError("copy: all cores are slower than one")

    good = machine_of(FakeProbe())
    monkeypatch.setattr(calibration, "better_of", contradiction)
    measured[:] = [
        Calibration(good),
        Calibration(slower(good, 40.0), "other programs took 66 %"),
    ]
    assert quick_machine() == quick_machine() == good


def aged(machine: Machine, days: int) -> Machine:
    when = datetime.now(timezone.utc) - timedelta(days=days)
    return replace(machine, origins=dict.fromkeys(machine.origins, f"measured {when:%Y-%m-%d}"))


def test_a_kept_calibration_grows_old_and_is_measured_anew_when_the_host_is_quiet(
    measured: list[Calibration],
) -> None:
    good = machine_of(FakeProbe())
    old, slow = aged(good, MOST_DAYS + 1), slower(good, 3.0)
    measured[:] = [
        Calibration(old),
        Calibration(slow, "other programs took 66 %"),
        Calibration(slow),
    ]
    assert "31 days ago; calibrate again" in stale(quick_machine())
    assert "31 days ago" in stale(
        quick_machine()
    )  # too busy: the old figures, and that is told
    assert quick_machine().fabric == slow.fabric
    assert stale(aged(good, MOST_DAYS)) == stale(slow) == ""


def test_figures_of_this_host_before_an_update_are_told_and_not_taken_for_kept_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, kept = measure_machine(0.1).machine, kept_file()
    assert stale(here) == ""
    monkeypatch.setattr(calibration, "__version__", "99.0")
    assert re.search(
        r"was measured on .* ccbench 0.*; now it is .* ccbench 99\.0; calibrate again",
        stale(here),
    )
    assert kept_file() != kept
    other = {
        **here.origins,
        "cores": here.origins["cores"].replace("; host ", "; host another-"),
    }
    assert stale(replace(here, origins=other)) == ""


@pytest.mark.parametrize("content", ["", "name: [", "name: x\n", "\0"])
def test_a_damaged_file_of_kept_figures_is_written_anew(
    measured: list[Calibration], content: str
) -> None:
    good = machine_of(FakeProbe())
    measured[:] = [Calibration(good)]
    kept_file().parent.mkdir(parents=True)
    kept_file().write_text(content)
    assert quick_machine() == load_machine(kept_file()) == good


def test_where_nothing_can_be_kept_each_call_stands_alone(
    measured: list[Calibration], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file in the way of the folder")
    measured[:] = [Calibration(machine_of(FakeProbe()))]
    assert quick_machine() == machine_of(FakeProbe())


def test_this_machine_can_be_measured_and_saved(tmp_path: Path) -> None:
    machine = measure_machine(0.1).machine
    assert machine.fabric.cores >= 1
    assert machine.fabric.flag_latency_seconds > 0
    save_machine(machine, tmp_path / "here.yaml")
    assert load_machine(tmp_path / "here.yaml") == machine


def test_a_worker_that_fails_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        MachineError, match=r"exit status 1: no message\); name a machine instead"
    ):
        measure_machine()


def test_measuring_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "GRACE_SECONDS", -0.9)
    with pytest.raises(MachineError, match="killed: it had not ended after 0 s"):
        measure_machine(1.0)


def running(marker: str) -> list[int]:
    """Processes, alive, whose command line holds ``marker``."""
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if marker in command_line(folder)
    ]


def command_line(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_text()
    except OSError:
        return ""  # it ended meanwhile


@pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel's parent-death signal is Linux's"
)
def test_nothing_is_left_when_the_measuring_process_is_killed() -> None:
    # The time at which to stop is far away and serves as the mark of these processes.
    until = repr(time.monotonic() + 1000.125)
    program = f"from ccbench.model import calibration; calibration._measured({until}, 1000)"
    root = str(Path(calibration.__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": root}
    )
    try:
        traces.wait_until(lambda: len(running(f"\0{until}\0")) >= 2, 60)
    finally:
        parent.kill()
        parent.wait()
    traces.wait_until(lambda: not running(f"\0{until}\0"), 20)


def test_every_type_has_every_operation_and_each_can_be_timed() -> None:
    assert len(KEYS) == len(CPU_DTYPES) * len(ARITHMETIC)
    arithmetic = Arithmetic()
    with np.errstate(all="raise"):  # neither overflow nor underflow: both may take longer
        assert min(arithmetic.seconds(key) for key in KEYS) > 0
