"""benchmarks/gpu_day.py: what is left on disk however a day ends, and a rehearsal's parts on the doubles."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from benchmarks import gpu_day, gpu_facts
from benchmarks.gpu_day import FAILED, NOT_REACHED, PASSED, SKIPPED, STOPPED, Day, Ending
from benchmarks.gpu_day_phases import ON_DOUBLES, PHASES, ROOT, Phase, Step
from ccbench.backends import open_backend
from ccbench.backends.kernels import building
from ccbench.backends.kernels.building import Nvrtc, nvrtc
from ccbench.errors import MissingDependency
from ccbench.machine.telemetry import DeviceWatch
from ccbench.results import load_run
from tests.gpu import warm
from tests.machine.nvml_double import Gpu, Nvml
from tests.machine.test_telemetry import ADDRESS, driver
from tests.report.synthetic import sweep, write_run

PYTHON_LOG = """tests/gpu/test_a.py::test_one[all_reduce-rank // 2] PASSED [ 33%]
tests/gpu/test_a.py::test_two FAILED [ 66%]
tests/gpu/test_a.py::test_three SKIPPED (no) [100%]
FAILED tests/gpu/test_a.py::test_two - assert 1 == 2
SKIPPED [1] tests/gpu/test_a.py:7: no second GPU
"""

MOST_CHARACTERS = 12_000
"""What a launcher that keeps the end of the output shows of it."""


def says(text: str, code: int = 0) -> tuple[str, ...]:
    return "-c", f"import sys; print({text!r}); sys.exit({code})"


def day(out: Path, minutes: float = 5.0) -> Day:
    return Day(out, minutes, rehearsal=False, environment=dict(os.environ))


def ended(out: Path, *phases: Phase) -> dict[str, Ending]:
    return {ending.step: ending for ending in gpu_day.endings(out, phases)}


# -- steps ------------------------------------------------------------------------------------------------


def test_a_step_that_fails_says_so_and_the_rest_goes_on(tmp_path: Path) -> None:
    phases = (
        Phase(
            "one",
            "?",
            (Step("bad", 60, says("FAILED this - that", 1)), Step("good", 60, says("fine"))),
        ),
        Phase(
            "two",
            "?",
            (Step("absent", 60, (), needs="no-such-program"), Step("last", 60, says("fine"))),
        ),
    )
    day(tmp_path).run(phases, resume=False)
    found = ended(tmp_path, *phases)
    assert [one.state for one in found.values()] == [FAILED, PASSED, SKIPPED, PASSED]
    assert found["bad"].text == "FAILED this - that"
    assert found["absent"].text == "no-such-program is not installed"
    assert (tmp_path / "one" / "good.log").read_text() == "fine\n"


def test_the_end_of_the_day_cuts_a_step_short_and_nothing_begins_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_day, "LEAST_SECONDS", 0.1)
    cut = Step("cut", 60, ("-c", "import time; time.sleep(300)"))
    phase = Phase("one", "?", (cut, Step("late", 60, says("fine"))))
    day(tmp_path, minutes=(gpu_day.ENDING_SECONDS + 1) / 60).run((phase,), resume=False)
    states = [ending.state for ending in ended(tmp_path, phase).values()]
    assert states == [STOPPED, NOT_REACHED]


def test_a_log_of_tests_gives_counts_and_the_first_failure_with_its_reason() -> None:
    state, text, counts = gpu_day.judged(1, PYTHON_LOG)
    assert (state, counts) == (FAILED, {"passed": 1, "failed": 1, "skipped": 1})
    assert text == "FAILED tests/gpu/test_a.py::test_two - assert 1 == 2"
    cut = PYTHON_LOG[: PYTHON_LOG.index("FAILED tests")]  # pytest was killed before its summary
    assert gpu_day.failure_text(cut) == "tests/gpu/test_a.py::test_two FAILED"
    log = "tests/gpu/test_a.py::test_three SKIPPED (no) [100%]\nSKIPPED [1] tests/gpu/test_a.py:7: no GPU\n"
    assert gpu_day.judged(0, log) == (SKIPPED, "no GPU", {"skipped": 1})


# -- a day that is stopped, and goes on -------------------------------------------------------------------

SCRIPT = """
import sys
from benchmarks import gpu_day
from benchmarks.gpu_day_phases import Phase, Step
words = ("-c", "import pathlib, sys, time; p = pathlib.Path('{here}'); p.mkdir(parents=True); "
         "(p / 'data').write_text('kept'); print('begun', flush=True); time.sleep(float(sys.argv[1]))")
gpu_day.PHASES = (
    Phase("first", "?", (Step("quick", 60, (*words, "0")),)),
    Phase("second", "?", (Step("long", 60, (*words, sys.argv[2])), Step("never", 60, (*words, "0")))),
)
sys.exit(gpu_day.main([sys.argv[1], "--minutes", "2", *sys.argv[3:]]))
"""


def started(out: Path, seconds: str, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", SCRIPT, str(out), seconds, *more]
    return subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_sigterm_in_the_middle_leaves_everything_whole_and_resume_goes_on(
    tmp_path: Path,
) -> None:
    out = tmp_path / "day"
    process = started(out, "300")
    log = out / "second" / "long.log"
    deadline = time.monotonic() + 60
    while not (log.is_file() and "begun" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert said.splitlines()[-2] == "1 passed, 1 stopped, 1 not reached"
    assert "second/long: stopped" in said
    states = [load["state"] for load in json.loads((out / "figures.json").read_text())["steps"]]
    assert states == [PASSED, STOPPED, NOT_REACHED]
    assert "| second | long | stopped |" in (out / "summary.md").read_text()
    with tarfile.open(out / "gpu-day.tar.gz") as tar:
        names = tar.getnames()
    assert {
        "gpu-day/first/quick/data",
        "gpu-day/second/long/data",
        "gpu-day/second/long.log",
    } <= set(names)

    first = (out / "first" / "quick.json").stat().st_mtime_ns
    process = started(out, "0", "--resume")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert said.splitlines()[-2] == "3 passed"
    assert (out / "first" / "quick.json").stat().st_mtime_ns == first  # it did not run again


def test_a_step_that_is_tried_again_does_not_keep_how_it_ended_before(tmp_path: Path) -> None:
    ending = tmp_path / "one" / "asks.json"
    text = f"import pathlib; print(pathlib.Path({str(ending)!r}).exists())"
    phase = Phase("one", "?", (Step("asks", 60, ("-c", text)),))
    for _ in range(2):
        day(tmp_path).run((phase,), resume=False)
        assert (tmp_path / "one" / "asks.log").read_text() == "False\n"


# -- the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "words", "text"),
    [
        ("notes.txt", [], "holds something else"),
        ("figures.json", [], "add --resume or --only"),
        ("figures.json", ["--resume", "--rehearse"], "do not go together"),
        ("notes.txt", ["--only", "nothing"], "invalid choice: 'nothing'"),
    ],
)
def test_a_mistake_on_the_command_line_ends_with_2(
    there: str, words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / there).write_text('{"rehearsal": false}')
    with pytest.raises(SystemExit) as leaving:
        gpu_day.parse([str(tmp_path), *words])
    assert leaving.value.code == 2
    assert text in capsys.readouterr().err


def test_a_package_that_nobody_carried_is_named_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "CARRIED", ("ccbench_no_such_package",))
    monkeypatch.setattr(gpu_day, "WHEELS", tmp_path)
    with pytest.raises(SystemExit) as leaving:
        gpu_day.environment_with_wheels(tmp_path)
    assert leaving.value.code == 2
    said = capsys.readouterr().err
    assert "ccbench_no_such_package: not installed" in said
    assert "make gpu-day-bundle" in said


def test_what_a_day_on_a_gpu_left_is_published_with_every_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "REFERENCE", tmp_path / "reference")
    out = tmp_path / "day"
    write_run(out / "loopback" / "suite", sweep())
    (out / "gpu" / "own-kernels" / "run").mkdir(
        parents=True
    )  # of a step that was ended before it measured
    (out / "facts").mkdir()
    (out / "facts" / "nvidia-smi.log").write_text(
        "    Product Name                    : NVIDIA X100 PCIe\n"
    )
    gpu_day.report(out, rehearsal=False)
    assert gpu_day.main([str(out), "--publish"]) == 0
    assert "left out" in capsys.readouterr().err
    target = tmp_path / "reference" / "nvidia-x100-pcie"
    assert {file.name for file in target.iterdir()} == {
        "summary.md",
        "figures.json",
        "loopback",
    }
    kept, run = load_run(target / "loopback"), load_run(out / "loopback" / "suite")
    pd.testing.assert_frame_equal(kept.cases, run.cases)
    assert run.manifest.host not in (target / "loopback" / "run.json").read_text()


def test_a_rehearsal_is_not_published_and_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "REFERENCE", tmp_path / "reference")
    gpu_day.report(tmp_path, rehearsal=True)
    assert "REHEARSAL" in (tmp_path / "summary.md").read_text()
    assert gpu_day.main([str(tmp_path), "--publish"]) == 2
    assert "is of a rehearsal" in capsys.readouterr().err
    assert not (tmp_path / "reference").exists()


# -- the phases -------------------------------------------------------------------------------------------


def test_every_file_of_gpu_tests_is_in_a_phase_and_every_module_is_there() -> None:
    words = [word for phase in PHASES for step in phase.steps for word in step.words]
    assert {file.name for file in (ROOT / "tests" / "gpu").glob("test_*.py")} == {
        word.removeprefix("tests/gpu/") for word in words if word.startswith("tests/gpu/")
    }
    names = "".join(file.read_text() for file in (ROOT / "tests" / "gpu").glob("*.py"))
    assert all(
        word in names for word in re.findall(r"[a-z_]{6,}", ON_DOUBLES)
    )  # what rehearsals leave out
    modules = [words[place + 1] for place, word in enumerate(words) if word == "-m"]
    assert all(
        "-m" in step.words for phase in PHASES for step in phase.steps if not step.program
    )
    assert all(find_spec(name) for name in modules)
    doubles = {step.doubles for phase in PHASES for step in phase.steps if step.doubles}
    assert all(
        (ROOT / "tests" / "backends" / name / "fake" / "cupy").is_dir() for name in doubles
    )


@pytest.mark.exhaustive
def test_every_gpu_test_is_in_one_step() -> None:
    commands = [
        step.words for phase in PHASES for step in phase.steps if "pytest" in step.words
    ]
    everything, *steps = collected(
        [("tests/gpu",), *(words[words.index("-o") + 7 :] for words in commands)]
    )
    assert len(everything) > 1000
    of_steps = [test for step in steps for test in step]
    assert len(set(of_steps)) == len(of_steps)
    assert set(of_steps) == set(everything)


COLLECT = """
import contextlib, io, json, sys
import pytest

for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *words])
    print(json.dumps([line for line in said.getvalue().splitlines() if line.startswith("tests/gpu/")]))
"""
"""Collects several times in one process, which imports everything once."""


def collected(words: list[Sequence[str]]) -> list[list[str]]:
    """The tests that pytest collects of each of these words."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, json.dumps(words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- facts ------------------------------------------------------------------------------------------------


class Driver:
    """libcuda whose functions return what a test says, by name; 0 where it says nothing."""

    def __init__(self, supported: int = 1, absent: str = "", **statuses: int) -> None:
        self.calls: list[str] = []
        self._supported, self._absent, self._statuses = supported, absent, statuses

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name == self._absent or not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuDeviceGetAttribute":
                assert arguments[1] == 132
                arguments[0]._obj.value = self._supported
            if name == "cuMulticastGetGranularity":
                assert arguments[1]._obj.devices == 1
                arguments[0]._obj.value = 2 << 20
            if name == "cuMulticastCreate":
                assert arguments[1]._obj.size_bytes == 2 << 20
            return self._statuses.get(name, 0)

        return call


@pytest.mark.parametrize(
    ("driver", "last", "calls"),
    [
        (Driver(), "multicast object of one device: takes the device", 7),
        (Driver(cuMulticastCreate=1), "multicast: cuMulticastCreate: CUresult 1", 5),
        (
            Driver(supported=0, cuMulticastGetGranularity=801),
            "multicast: cuMulticastGetGranularity: CUresult 801",
            4,
        ),
        (
            Driver(absent="cuMulticastCreate"),
            "multicast: cuMulticastCreate is not in this driver",
            4,
        ),
    ],
)
def test_multicast_of_one_device_is_a_fact_whatever_the_driver_says(
    driver: Driver, last: str, calls: int
) -> None:
    facts = [*gpu_facts.multicast(lambda name: driver)]
    assert facts[-1] == last
    assert facts[0].endswith("yes" if driver._supported else "no")
    assert len(driver.calls) == calls


def test_the_driver_s_structure_is_that_of_cuda_h() -> None:
    layout = gpu_facts.MulticastProperties
    assert ctypes.sizeof(layout) == 32
    assert (layout.devices.offset, layout.size_bytes.offset, layout.flags.offset) == (0, 8, 24)


def test_readings_are_timed_one_by_one_and_none_without_nvml() -> None:
    watch = DeviceWatch([ADDRESS], driver(Nvml([Gpu(ADDRESS)])))
    first, others = gpu_facts.reading_seconds(watch)
    assert first > 0
    assert len(others) == gpu_facts.READINGS
    assert gpu_facts.reading_seconds(DeviceWatch([])) == (0.0, [])


# -- what is compiled and rehearsed -----------------------------------------------------------------------


def test_the_last_lines_hold_all_failures_even_when_everything_fails() -> None:
    text = "x" * gpu_day.TEXT_LIMIT
    found = [
        Ending(phase.name, step.name, FAILED, text=text)
        for phase in PHASES
        for step in phase.steps
    ]
    assert len("\n".join(gpu_day.last_lines(found))) < MOST_CHARACTERS
    assert all(one.line in gpu_day.last_lines(found) for one in found)


@pytest.mark.exhaustive
def test_what_is_compiled_beforehand_is_by_the_compiler_that_cupy_makes_backends_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, ...]] = []

    def compiler(*words: int) -> Nvrtc:
        asked.append(words)
        return nvrtc()

    def missing() -> None:
        raise MissingDependency("no compiler")

    cuda = ModuleType("cupy.cuda")
    cuda.__dict__["runtime"] = SimpleNamespace(
        runtimeGetVersion=lambda: 12090, driverGetVersion=lambda: 13000
    )
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(warm, "nvrtc", compiler)
    monkeypatch.setattr(warm, "programs", list)
    monkeypatch.setattr(building, "compiler", missing)
    assert warm.main(["--capability", "90"]) == 0
    assert asked == [(90, 12, 13)]


@pytest.mark.exhaustive
def test_a_device_that_no_compiler_knows_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert warm.main(["--capability", "33"]) == 2
    assert "not for this device's sm_33" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_kernels_of_two_streams_wait_for_each_other_on_the_doubles() -> None:
    reason = open_backend("cuda-host").unavailable()
    if reason:
        pytest.skip(reason)
    words = [
        "tests.backends.on_doubles",
        "cuda",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "",
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            *words,
            "tests/gpu/test_two_streams.py",
            "-k",
            "ring or captures or peer",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "15 passed" in done.stdout
