"""benchmarks/gpu.py: arithmetic on written-down figures, and a whole run with a CPU in the place of a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import gpu, gpu_copy, gpu_figures
from benchmarks.gpu_figures import (
    GRAPH,
    INTERPRETED,
    LARGEST_BYTES,
    MIB,
    Ceiling,
    Timed,
    floor_seconds,
    judged,
    moved_bytes,
    table_lines,
    verdict_line,
    verdicts,
)
from ccbench.backends import open_backend
from ccbench.results import load_run
from ccbench.runner.run import RunOutcome, run_suite
from ccbench.schedules import schedule_for
from ccbench.stats import Interval

RANKS = st.integers(2, 64)
SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"


def exactly(seconds: float) -> Interval:
    return Interval(seconds, seconds, seconds, 0.95)


def timed(
    algorithm: str, ranks: int, size_bytes: int, seconds: float, mode: str = GRAPH
) -> Timed:
    return Timed(algorithm, ranks, size_bytes, mode, exactly(seconds), 18)


CEILING = Ceiling(LARGEST_BYTES, exactly(2 * LARGEST_BYTES / 4e12), 60)
"""A GPU that reads and writes 4 TB/s."""


def at_share(
    algorithm: str, ranks: int, share: float, size_bytes: int = LARGEST_BYTES
) -> Timed:
    floor = floor_seconds(ranks, size_bytes, CEILING).median
    return timed(algorithm, ranks, size_bytes, floor / share)


# -- bytes and floors -------------------------------------------------------------------------------------


@given(RANKS, st.sampled_from(gpu.ALGORITHMS), st.integers(1, 1 << 30))
def test_no_kernel_moves_less_than_every_input_and_output_once(
    ranks: int, name: str, size: int
) -> None:
    least = 2 * ranks * size
    assert moved_bytes(name, ranks, size) >= least
    assert moved_bytes("mesh_two_shot", ranks, size) == least
    assert moved_bytes(name, 1, size) == 2 * size


@given(RANKS)
def test_the_ring_s_bytes_are_those_counted_along_a_piece_s_way(ranks: int) -> None:
    moved = 0
    for step in range(
        2 * ranks - 1
    ):  # the piece's ranks, in order: around once to be added, then again
        moved += 1 if step < ranks else 0  # its contribution is read
        moved += 2 if step < ranks - 1 else 0  # a message is written, and read by the next rank
        moved += 1 if step >= ranks - 1 else 0  # an output is written
        moved += 1 if ranks <= step < 2 * ranks - 2 else 0  # and read again to be handed on
    assert ranks * moved == moved_bytes(
        "ring", ranks, ranks
    )  # each piece is a rank's share of the buffer


@given(st.integers(2, 16))
def test_the_interpreter_s_bytes_follow_from_the_schedule_it_runs(ranks: int) -> None:
    schedule = schedule_for("all_reduce", INTERPRETED.partition(":")[2], ranks)
    messages = sum(len(phase.source) * phase.repeat for phase in schedule.phases)
    shares = (
        2 * messages + 2 * ranks * schedule.slots
    )  # messages written and read, inputs read, outputs written
    assert shares == moved_bytes(INTERPRETED, ranks, schedule.slots)


# -- verdicts ---------------------------------------------------------------------------------------------


@given(st.floats(0.1, 2.0), st.floats(0.0, 0.5))
def test_a_verdict_needs_the_whole_interval_on_one_side(middle: float, half: float) -> None:
    value = Interval(middle - half, middle, middle + half, 0.95)
    verdict = judged(value, 1.0, at_least=True)
    assert verdict == (
        "PASS" if middle - half >= 1 else "FAIL" if middle + half < 1 else "NO VERDICT"
    )
    mirrored = Interval(-value.high, -value.median, -value.low, 0.95)
    assert judged(mirrored, -1.0, at_least=False) == verdict


def all_good() -> list[Timed]:
    found = [timed("ll", 8, 8, 6e-6), timed("ring", 8, 8, 20e-6)]
    for ranks in (2, 4, 8):
        found += [at_share("mesh_two_shot", ranks, 0.85), at_share("ring", ranks, 0.65)]
        found += [at_share(INTERPRETED, ranks, 0.60)]
        found += [
            at_share("ring", ranks, 0.65, 16 * MIB),
            at_share(INTERPRETED, ranks, 0.64, 16 * MIB),
        ]
    return found


def test_all_targets_can_be_met_at_every_number_of_ranks() -> None:
    found = verdicts(all_good(), CEILING, (2, 4, 8))
    assert [one.verdict for one in found] == ["PASS"] * (3 * (2 + 2) + 1)
    assert gpu_figures.exit_code(found) == 0
    assert "(ll)" in found[-1].text
    line = "PASS: mesh_two_shot 256 MiB, 2 ranks, share of the memory floor: 0.85 [0.85, 0.85]"
    assert verdict_line(found[0]).startswith(line)
    assert "18 samples (wanted: at least 0.80)" in verdict_line(found[0])


def test_plain_launches_decide_nothing_and_what_is_missing_is_said() -> None:
    plain = [
        timed(one.algorithm, one.ranks, one.size_bytes, 1.0, "streaming") for one in all_good()
    ]
    found = verdicts(plain, CEILING, (2,))
    assert {one.verdict for one in found} == {"NO VERDICT"}
    assert gpu_figures.exit_code(found) == 3
    assert all("not measured" in verdict_line(one) for one in found)


def test_the_table_of_an_emulation_has_neither_floor_nor_rate() -> None:
    rows = table_lines(all_good(), CEILING, emulated=False)
    assert rows[0].split()[-3:] == ["GB/s", "of", "floor"]
    assert any("85.0%" in row for row in rows)
    emulated = table_lines(all_good(), CEILING, emulated=True)
    assert len(emulated) == len(rows)
    assert not any(word in row for row in emulated for word in ("GB/s", "floor", "%"))


# -- what is measured -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["--ranks", "1"], ["--ranks", "two"], ["--sizes", "8 X"], ["--rounds", "0"]]
)
def test_a_mistake_on_the_command_line_ends_with_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.parse([*words, "-o", "somewhere"])
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_without_a_driver_it_ends_with_2_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ccbench.backends.cuda.driver_missing", lambda: "this machine has no NVIDIA driver"
    )
    assert gpu.main(["-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.err == "benchmarks/gpu.py: backend cuda: this machine has no NVIDIA driver\n"
    assert said.out == ""
    assert not (tmp_path / "out").exists()


def test_copies_are_checked_and_timed_by_the_measuring_rules() -> None:
    samples = gpu_copy.copied(gpu_copy.HostCopies(4096), 4096, 0.02)
    assert len(samples) >= 10
    assert min(samples) > 0

    class Idle(gpu_copy.HostCopies):
        def copy(self, times: int) -> float:
            return 1e-3 * times

    with pytest.raises(RuntimeError, match="4096 bytes of the copy are wrong"):
        gpu_copy.copied(Idle(4096), 4096, 0.02)


@pytest.fixture
def emulation() -> None:
    reason = open_backend("cuda-host").unavailable()
    if reason:
        pytest.skip(reason)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("emulation")
def test_a_whole_run_on_the_cpu_is_labelled_and_judges_nothing(tmp_path: Path) -> None:
    words = [
        "--backend",
        "cuda-host",
        "--ranks",
        "2",
        "--sizes",
        "260 B",
        "--rounds",
        "1",
        "-o",
        "out",
    ]
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "CCBENCH_FAULT": ""},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("EMULATION: ")
    assert "No verdicts" in ended.stdout
    assert not any(word in ended.stdout for word in ("PASS", "FAIL", "GB/s", "of floor"))
    document = json.loads((tmp_path / "out/figures.json").read_text())
    assert document["emulated"]
    assert document["verdicts"] == document["without_figures"] == []
    points = document["points"]
    assert {(point["algorithm"], point["size_bytes"]) for point in points} == {
        (name, 260) for name in gpu.ALGORITHMS
    }
    assert all(point["samples"] > 0 and "emulation" in point["flags"] for point in points)
    assert not any("floor_share" in point for point in points)
    run = load_run(tmp_path / "out/run")
    assert {point.status for point in run.points} == {"ok"}
    assert (tmp_path / "out/run/report/report.md").read_text().startswith("# EMULATION")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("emulation")
def test_a_run_without_a_report_leaves_its_folder_for_another_machine_to_draw(
    tmp_path: Path,
) -> None:
    words = [
        "--backend",
        "cuda-host",
        "--ranks",
        "2",
        "--sizes",
        "8 B",
        "--rounds",
        "1",
        "--no-report",
    ]
    assert gpu.main([*words, "-o", str(tmp_path / "out")]) == 0
    assert load_run(tmp_path / "out/run").points
    assert not (tmp_path / "out/run/report").exists()


@pytest.mark.usefixtures("emulation")
def test_a_run_that_is_stopped_keeps_the_figures_of_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: Any) -> RunOutcome:
        return replace(run_suite(*arguments), exit_code=130, interrupted=True)

    monkeypatch.setattr(gpu, "run_suite", stopped)
    words = ["--backend", "cuda-host", "--ranks", "2", "--sizes", "8 B", "--rounds", "1"]
    assert gpu.main([*words, "-o", str(tmp_path / "out")]) == 130
    document = json.loads((tmp_path / "out/figures.json").read_text())
    assert {one["algorithm"] for one in document["points"]} == set(gpu.ALGORITHMS)
    assert document["copy"]["samples"] > 0
    assert not (tmp_path / "out/run/report").exists()
