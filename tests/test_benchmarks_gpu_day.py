"""benchmarks/gpu_day.py: what is left on disk however a day ends, and a rehearsal's parts on the doubles."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks import gpu_day
from benchmarks.gpu_day import FAILED, NOT_REACHED, OVER, PASSED, SKIPPED, STOPPED, Day, Ending
from benchmarks.gpu_day_phases import ON_DOUBLES, PHASES, ROOT, Phase, Step
from ccbench.backends import open_backend
from ccbench.backends.kernels import building
from ccbench.backends.kernels.building import Nvrtc, nvrtc
from ccbench.backends.kernels.sources import entries
from ccbench.errors import MissingDependency
from tests.gpu import warm

PYTHON_LOG = """tests/gpu/test_a.py::test_one[all_reduce-rank // 2] PASSED [ 33%]
tests/gpu/test_a.py::test_two FAILED [ 66%]
tests/gpu/test_a.py::test_three SKIPPED (no) [100%]
FAILED tests/gpu/test_a.py::test_two - assert 1 == 2
SKIPPED [1] tests/gpu/test_a.py:7: no second GPU
"""


def says(text: str, code: int = 0) -> tuple[str, ...]:
    return "-c", f"import sys; print({text!r}); sys.exit({code})"


def day(out: Path, minutes: float = 5.0) -> Day:
    return Day(out, minutes, rehearsal=False, environment=dict(os.environ))


def ended(out: Path, *phases: Phase) -> dict[str, Ending]:
    return {one.step: one for one in gpu_day.endings(out, phases)}


# -- steps ------------------------------------------------------------------------------------------------


def test_a_step_that_fails_says_so_and_the_rest_goes_on(tmp_path: Path) -> None:
    phases = (
        Phase("one", "?", (Step("bad", 60, says("FAILED this - that", 1)), Step("good", 60, says("fine")))),
        Phase("two", "?", (Step("absent", 60, (), needs="no-such-program"), Step("last", 60, says("fine")))),
    )
    day(tmp_path).run(phases, resume=False)
    found = ended(tmp_path, *phases)
    assert [one.state for one in found.values()] == [FAILED, PASSED, SKIPPED, PASSED]
    assert found["bad"].text == "FAILED this - that"
    assert found["absent"].text == "no-such-program is not installed"
    assert (tmp_path / "one" / "good.log").read_text() == "fine\n"


def test_a_step_over_its_limit_ends_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_day, "GRACE_SECONDS", 0.2)
    text = (
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    phase = Phase("one", "?", (Step("slow", 1.0, ("-c", text)), Step("next", 60, says("fine"))))
    day(tmp_path).run((phase,), resume=False)
    found = ended(tmp_path, phase)
    assert [found["slow"].state, found["next"].state] == [OVER, PASSED]
    assert found["slow"].text.startswith("limit 1 s; child ")
    assert not alive(int(found["slow"].text.split()[-1]))


def alive(pid: int) -> bool:
    """Whether the process runs; one that was ended may wait for its parent to hear of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_where_no_time_is_left_nothing_begins(tmp_path: Path) -> None:
    phase = Phase("one", "?", (Step("late", 60, says("fine")),))
    day(tmp_path, minutes=0.0).run((phase,), resume=False)
    assert ended(tmp_path, phase)["late"].state == NOT_REACHED
    assert not (tmp_path / "one").exists()


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
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_sigterm_in_the_middle_leaves_everything_whole_and_resume_goes_on(tmp_path: Path) -> None:
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
    states = [one["state"] for one in json.loads((out / "figures.json").read_text())["steps"]]
    assert states == [PASSED, STOPPED, NOT_REACHED]
    assert "| second | long | stopped |" in (out / "summary.md").read_text()
    with tarfile.open(out / "gpu-day.tar.gz") as tar:
        names = tar.getnames()
    assert {"gpu-day/first/quick/data", "gpu-day/second/long/data", "gpu-day/second/long.log"} <= set(names)

    first = (out / "first" / "quick.json").stat().st_mtime_ns
    process = started(out, "0", "--resume")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert said.splitlines()[-2] == "3 passed"
    assert (out / "first" / "quick.json").stat().st_mtime_ns == first  # it did not run again


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


def test_what_a_day_on_a_gpu_left_is_published_without_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_day, "REFERENCE", tmp_path / "reference")
    out = tmp_path / "day"
    for file in ("loopback/suite/run.json", "loopback/suite/report/page.html", "facts/nvidia-smi.log"):
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).write_text("    Product Name                    : NVIDIA X100 PCIe\n")
    gpu_day.report(out, rehearsal=False)
    assert gpu_day.main([str(out), "--publish"]) == 0
    target = tmp_path / "reference" / "nvidia-x100-pcie"
    files = {str(file.relative_to(target)) for file in target.rglob("*") if file.is_file()}
    assert files == {"summary.md", "figures.json", "loopback/run.json"}


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
    assert all(word in names for word in re.findall(r"[a-z_]{6,}", ON_DOUBLES))  # what rehearsals leave out
    modules = [words[place + 1] for place, word in enumerate(words) if word == "-m"]
    assert len(modules) == len([step for phase in PHASES for step in phase.steps if not step.program])
    assert all(find_spec(name) for name in modules)


def test_the_last_lines_hold_all_failures_even_when_everything_fails() -> None:
    found = [Ending(phase.name, step.name, FAILED) for phase in PHASES for step in phase.steps]
    assert len(gpu_day.last_lines(found)) < 40
    assert all(one.line in gpu_day.last_lines(found) for one in found)


def test_what_is_compiled_beforehand_is_every_kernel_once() -> None:
    wanted = warm.programs()
    assert len({one.digest for one in wanted}) == len(wanted)
    texts = " ".join(one.text for one in wanted)
    assert all(f"CCB_GLOBAL({name})" in texts for name in entries())


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
def test_a_device_that_no_compiler_knows_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert warm.main(["--capability", "33"]) == 2
    assert "not for this device's sm_33" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_kernels_of_two_streams_wait_for_each_other_on_the_doubles() -> None:
    reason = open_backend("cuda-host").unavailable()
    if reason:
        pytest.skip(reason)
    words = ["tests.backends.on_doubles", "cuda", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    done = subprocess.run(
        [sys.executable, "-m", *words, "tests/gpu/test_two_streams.py", "-k", "ring or captures or peer"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "15 passed" in done.stdout
