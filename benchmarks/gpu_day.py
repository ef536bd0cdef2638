"""Everything that needs a GPU, in one command.

    python -m benchmarks.gpu_day OUT --minutes 9 [--only PHASE]
    python -m benchmarks.gpu_day OUT --minutes 3 --resume
    python -m benchmarks.gpu_day OUT --publish

Phases run one after the other, the most telling first (benchmarks/gpu_day_phases.py); each step of one is
a process with a limit of its own. What it prints goes to OUT/PHASE/STEP.log, what it measures to
OUT/PHASE/STEP/, how it ended to OUT/PHASE/STEP.json, so that nothing is lost whenever this is stopped; at the
end there are OUT/summary.md, figures.json and gpu-day.tar.gz. No report is drawn: `ccbench report` draws it
from a run folder, elsewhere. --resume goes on with what no call has begun, and comes last to what was cut
short; steps that ended by themselves are left out. --rehearse runs the same phases without a GPU: on
cuda-host and on the tests' doubles.
Exit codes: 0 all passed or skipped, 1 something failed, 2 usage, 3 something took longer than its limit, was
cut short by the end or was not reached, 130/143 by signal.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_day_phases import PHASES, ROOT, SETTLING, Phase, Step

WHEELS = ROOT / "wheels"
"""Of ``make gpu-day-bundle``."""

CARRIED = ("pydantic", "defusedxml")
"""Packages that images with CuPy, NCCL and pytest often lack."""

REFERENCE = ROOT / "results" / "reference"
PUBLISHED = {
    "own-kernels": "gpu/own-kernels/run",
    **{f"settle/{step.name}": f"settle/{step.name}" for step in SETTLING},
    "loopback": "loopback/suite",
}
"""Runs that --publish keeps, raw samples and all, by their names there."""

KEPT = ("schema_version", "created_at", "suite", "versions", "topology", "planned_cases")
KEPT_ENVIRONMENT = ("accelerators", "processor")
"""Entries of run.json that --publish keeps; the rest may name a host, a user or their files."""

TOOLKIT = "/usr/local/cuda/bin"
ENDING_SECONDS, GRACE_SECONDS, LEAST_SECONDS = 20.0, 8.0, 5.0
"""Kept for the end; between asking a step to end and ending it; a step that would have less is not begun."""

LOOK_SECONDS = 0.1
SLOWER = 2
"""A rehearsal's limits over a day's: the doubles are CPUs, and few."""

TEXT_LIMIT = 160

PASSED, FAILED, SKIPPED, OVER, STOPPED, NOT_REACHED = (
    "passed",
    "failed",
    "skipped",
    "over its limit",
    "stopped",
    "not reached",
)
WHOLE = (PASSED, FAILED, SKIPPED)

OUTCOME = re.compile(r"^tests/\S+::.* (PASSED|FAILED|ERROR|SKIPPED)\b", re.MULTILINE)
FAILURES = (
    re.compile(r"^(?:FAILED |ERROR |FAIL: |NO VERDICT: |wrong: |failed: ).*", re.MULTILINE),
    re.compile(r"^tests/\S+::.* (?:FAILED|ERROR)\b", re.MULTILINE),
)
"""A line of a summary, which has the reason; one of pytest's while it runs."""

SKIP = re.compile(r"^SKIPPED \[\d+\] \S+ (.*)", re.MULTILINE)
GPU_NAME = re.compile(r"^\s*Product Name\s*: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Ending:
    """How a step ended. text: the first failure, or why nothing ran. counts: of tests, by outcome."""

    phase: str
    step: str
    state: str
    seconds: float = 0.0
    exit_code: int | None = None
    text: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """Name, how it ended, how long it took, and the first failure."""
        parts = [
            f"{self.phase}/{self.step}: {self.state}, {self.seconds:.0f} s",
            self.tests,
            self.text,
        ]
        return ": ".join(filter(None, parts))

    @property
    def tests(self) -> str:
        """How many ended how."""
        return ", ".join(f"{number} {name}" for name, number in self.counts.items())


# -- one step ---------------------------------------------------------------------------------------------


def found(program: str) -> str | None:
    """The program, on the path or of a CUDA toolkit."""
    return shutil.which(program) or shutil.which(program, path=TOOLKIT)


def command_of(step: Step, here: Path, rehearsal: bool) -> list[str]:
    """What is started; here: what the step's files are called, without an ending."""
    words = (step.rehearsed or ()) if rehearsal else step.words
    if rehearsal and step.doubles:
        words = ("-m", "tests.backends.on_doubles", step.doubles, *words[1:])
    program = found(step.program) if step.program else sys.executable
    return [str(program), *(word.replace("{here}", str(here)) for word in words)]


def why_skipped(step: Step, rehearsal: bool) -> str:
    """Why a step cannot run here, empty where it can."""
    if rehearsal and step.rehearsed is None:
        return "needs a GPU"
    if step.needs and found(step.needs) is None:
        return f"{step.needs} is not installed"
    return ""


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask the step's processes to end, wait a little, and end those that are left."""
    if process.poll() is None:
        os.killpg(
            process.pid, signal.SIGINT
        )  # pytest then writes its report, and ccbench what it has
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judged(code: int, log: str) -> tuple[str, str, dict[str, int]]:
    """(state, text, tests by outcome) of a step that ended by itself."""
    outcomes = [found.lower() for found in OUTCOME.findall(log)]
    counts = {name: outcomes.count(name) for name in dict.fromkeys(outcomes)}
    if code:
        return FAILED, failure_text(log), counts
    if counts and not counts.get("passed"):
        reason = SKIP.search(log)
        return SKIPPED, (reason[1] if reason else "")[:TEXT_LIMIT], counts
    return PASSED, "", counts


def failure_text(log: str) -> str:
    """The first failure that a log tells of, else its last line."""
    failures = [found[0].strip() for pattern in FAILURES if (found := pattern.search(log))]
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return [*failures, *lines[-1:], "it said nothing"][0][:TEXT_LIMIT]


# -- one day ----------------------------------------------------------------------------------------------


class Day:
    """Phases on one machine, as far as the time goes. stopped: by which signal, 0 while by none."""

    def __init__(
        self, out: Path, minutes: float, rehearsal: bool, environment: dict[str, str]
    ) -> None:
        self.out, self.rehearsal = out, rehearsal
        self._environment = environment
        self._end = time.monotonic() + 60 * minutes - ENDING_SECONDS
        self.stopped = 0

    def stop(self, number: int, frame: object = None) -> None:
        """A signal's handler: what runs is asked to end, nothing new begins."""
        self.stopped = number

    def run(self, phases: Sequence[Phase], resume: bool) -> None:
        """Every step, by priority; how each ended is on disk before the next begins."""
        for phase, step in left_to_do(self.out, phases) if resume else steps_of(phases):
            ending = self._ending(phase, step)
            print(ending.line, flush=True)
            if ending.state != NOT_REACHED:
                write(self._here(phase, step, ".json"), json.dumps(asdict(ending), indent=1))
            report(self.out, self.rehearsal)

    def _here(self, phase: Phase, step: Step, ending: str = "") -> Path:
        return self.out / phase.name / f"{step.name}{ending}"

    def _ending(self, phase: Phase, step: Step) -> Ending:
        reason = why_skipped(step, self.rehearsal)
        if reason:
            return Ending(phase.name, step.name, SKIPPED, text=reason)
        left = self._end - time.monotonic()
        if self.stopped or left < LEAST_SECONDS:
            return Ending(phase.name, step.name, NOT_REACHED)
        seconds = min((SLOWER if self.rehearsal else 1) * step.limit_seconds, left)
        here = self._here(phase, step)
        shutil.rmtree(here, ignore_errors=True)
        here.parent.mkdir(parents=True, exist_ok=True)
        self._here(phase, step, ".json").unlink(missing_ok=True)  # of an earlier try
        log = self._here(phase, step, ".log")
        began = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen(
                command_of(step, here, self.rehearsal),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**self._environment, **dict(step.environment)},
            )
            while (
                process.poll() is None
                and not self.stopped
                and time.monotonic() - began < seconds
            ):
                time.sleep(LOOK_SECONDS)
            code = process.poll()
            end_group(process)
        said = log.read_text(encoding="utf-8", errors="replace")
        state, text, counts = judged(1 if code is None else code, said)
        if code is None:
            cut = self.stopped or seconds == left  # by a signal, or by the end of the day
            state, text = (STOPPED, text) if cut else (OVER, f"limit {seconds:.0f} s; {text}")
        return Ending(
            phase.name, step.name, state, time.monotonic() - began, code, text, counts
        )


# -- what is left on disk ---------------------------------------------------------------------------------


def write(target: Path, text: str) -> None:
    """The whole text, or what was there before."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(target)


def recorded(out: Path, phase: Phase, step: Step) -> Ending:
    """How a step ended, now or in an earlier part of the day; stopped where it has a log alone."""
    file = out / phase.name / f"{step.name}.json"
    if file.is_file():
        return Ending(**json.loads(file.read_text(encoding="utf-8")))
    return Ending(
        phase.name, step.name, STOPPED if file.with_suffix(".log").is_file() else NOT_REACHED
    )


def steps_of(phases: Sequence[Phase]) -> list[tuple[Phase, Step]]:
    """Every step with its phase, by priority."""
    return [(phase, step) for phase in phases for step in phase.steps]


def left_to_do(out: Path, phases: Sequence[Phase]) -> list[tuple[Phase, Step]]:
    """What has not ended by itself: first what was never begun, as what was cut short may be again."""
    states = {
        (phase, step): recorded(out, phase, step).state for phase, step in steps_of(phases)
    }
    left = [place for place, state in states.items() if state not in WHOLE]
    return sorted(left, key=lambda place: states[place] != NOT_REACHED)


def endings(out: Path, phases: Sequence[Phase]) -> list[Ending]:
    """Of every step, also of those that were not reached."""
    return [recorded(out, phase, step) for phase, step in steps_of(phases)]


def log_of(out: Path, step: str) -> str:
    """What a step of the facts printed, empty where it did not run."""
    with suppress(OSError):
        return (out / "facts" / f"{step}.log").read_text(encoding="utf-8", errors="replace")
    return ""


def gpu_name(out: Path) -> str:
    """As nvidia-smi wrote it, empty where it did not."""
    name = GPU_NAME.search(log_of(out, "nvidia-smi"))
    return name[1].strip() if name else ""


def report(out: Path, rehearsal: bool) -> None:
    """Write summary.md and figures.json of what is there."""
    ended = endings(out, PHASES)
    what = (
        "REHEARSAL: a CPU in the place of the GPU; no time means anything"
        if rehearsal
        else gpu_name(out)
    )
    rows = [
        f"| {one.phase} | {one.step} | {one.state} | {one.seconds:.0f} | {one.tests} | "
        f"{one.text.replace('|', '/')} |"
        for one in ended
    ]
    facts = [f"- {line}" for line in log_of(out, "device").splitlines()]
    heads = "| phase | step | | seconds | tests | first failure, or why not |\n|---|---|---|---|---|---|"
    totals = f"{tally(ended)}; {sum(one.seconds for one in ended):.0f} s"
    text = "\n".join(["# GPU day", "", what, "", *facts, "", totals, "", heads, *rows, ""])
    write(out / "summary.md", text)
    figures: dict[str, Any] = {
        "rehearsal": rehearsal,
        "gpu": gpu_name(out),
        "steps": [asdict(one) for one in ended],
    }
    measured = out / "gpu" / "own-kernels" / "figures.json"
    if measured.is_file():
        figures["own_kernels"] = json.loads(measured.read_text(encoding="utf-8"))
    write(out / "figures.json", json.dumps(figures, indent=1))


def last_lines(ended: Sequence[Ending]) -> list[str]:
    """A line for each phase, then one for each step that did not pass."""
    names = dict.fromkeys(one.phase for one in ended)
    phases = [f"{name}: {tally([one for one in ended if one.phase == name])}" for name in names]
    return ["", *phases, *(one.line for one in ended if one.state != PASSED), tally(ended)]


def tally(ended: Sequence[Ending]) -> str:
    """How many steps ended how."""
    states = [one.state for one in ended]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def pack(out: Path) -> Path:
    """Everything in one file; names with a dot in front stay behind."""
    target = out / "gpu-day.tar.gz"
    temporary = out / ".gpu-day.tmp"
    with tarfile.open(temporary, "w:gz") as tar:
        for file in sorted(out.iterdir()):
            if file != target and not file.name.startswith("."):
                tar.add(file, arcname=f"gpu-day/{file.name}")
    return temporary.replace(target)


def publish(out: Path) -> int:
    """Keep the summary, the figures and each run in results/reference; nothing of a rehearsal."""
    file = out / "figures.json"
    figures: dict[str, Any] = {"rehearsal": False, "gpu": ""}
    if file.is_file():
        figures = json.loads(file.read_text(encoding="utf-8"))
    name = re.sub(r"[^a-z0-9]+", "-", figures["gpu"].lower()).strip("-")
    if figures["rehearsal"] or not name:
        seen = "is of a rehearsal" if figures["rehearsal"] else "names no GPU, or is not there"
        print(
            f"benchmarks/gpu_day.py: {file} {seen}; give the OUT of a day on a GPU",
            file=sys.stderr,
        )
        return 2
    target = REFERENCE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copy(file, target)
    shutil.copy(out / "summary.md", target)
    for kept, place in PUBLISHED.items():
        if (out / place).is_dir():
            keep_run(out / place, target / kept)
    print(f"wrote {target}")
    return 0


def keep_run(run: Path, target: Path) -> None:
    """The run's cases in one file, and of run.json what names no host and no user; a line on stderr if it has none."""
    # needs packages that a day installs for its steps alone
    from ccbench.errors import CcbenchError
    from ccbench.results import load_run
    from ccbench.results.files import TABLE_NAME, as_parquet

    try:
        read = load_run(run)
    except CcbenchError as error:
        print(f"benchmarks/gpu_day.py: left out: {error}", file=sys.stderr)
        return
    target.mkdir(parents=True)
    (target / TABLE_NAME).write_bytes(as_parquet(read.table))
    kept = {key: read.manifest.at(key) for key in KEPT}
    kept["environment"] = {
        key: read.manifest.mapping("environment").get(key) for key in KEPT_ENVIRONMENT
    }
    if isinstance(kept["topology"], dict):
        kept["topology"] = {**kept["topology"], "name": "machine"}
    write(target / "run.json", json.dumps(kept, indent=1) + "\n")


# -- the command line -------------------------------------------------------------------------------------


def environment_with_wheels(out: Path) -> dict[str, str]:
    """What steps run in: this checkout, and of the wheels beside it what is not installed. Exits with 2."""
    site = out / ".site"
    missing = [
        name for name in CARRIED if find_spec(name) is None and not (site / name).is_dir()
    ]
    if missing:
        words = [
            "install",
            "-q",
            "--no-index",
            f"--find-links={WHEELS}",
            f"--target={site}",
            *missing,
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(
                f"benchmarks/gpu_day.py: {', '.join(missing)}: not installed, and not to be had from "
                f"{WHEELS}: {failure_text(done.stderr)}; `make gpu-day-bundle` gathers the wheels",
                file=sys.stderr,
            )
            raise SystemExit(2)
    path = [
        str(ROOT),
        *([str(site)] if site.is_dir() else []),
        os.environ.get("PYTHONPATH", ""),
    ]
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "200",
    }
    return {**os.environ, **settings}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with 2 and a line that says what is wrong."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu_day.py", description=(__doc__ or "").splitlines()[0]
    )
    add, names = parser.add_argument, [phase.name for phase in PHASES]
    add("out", type=Path, metavar="OUT", help="folder for everything")
    add("--minutes", type=float, default=9.0, help="for all of it (default: 9)")
    add(
        "--only",
        choices=names,
        action="append",
        help=f"this phase alone; may be repeated ({', '.join(names)})",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with OUT, without the steps that ended by themselves",
    )
    add("--rehearse", action="store_true", help="without a GPU; no time means anything")
    add(
        "--publish",
        action="store_true",
        help="measure nothing; write what OUT has to results/reference",
    )
    options = parser.parse_args(arguments)
    before = options.out / "figures.json"
    if options.publish:
        return options
    if options.out.exists() and not before.is_file() and any(options.out.iterdir()):
        parser.error(
            f"{options.out}: holds something else; give a folder that is not there yet"
        )
    if before.is_file() and not (options.resume or options.only):
        parser.error(
            f"{options.out}: holds a day's results; add --resume or --only, or give another folder"
        )
    if (
        before.is_file()
        and json.loads(before.read_text(encoding="utf-8"))["rehearsal"] != options.rehearse
    ):
        parser.error(
            f"{options.out}: a rehearsal and a day on a GPU do not go together; give another folder"
        )
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the day; the exit code."""
    given = parse(arguments)
    if given.publish:
        return publish(given.out)
    out = given.out.resolve()
    phases = [phase for phase in PHASES if phase.name in (given.only or [phase.name])]
    out.mkdir(parents=True, exist_ok=True)
    day = Day(out, given.minutes, given.rehearse, environment_with_wheels(out))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, day.stop)
    report(out, given.rehearse)
    day.run(phases, given.resume)
    ended = endings(out, phases)
    print(*last_lines(ended), sep="\n")
    print(f"wrote {out / 'summary.md'}, figures.json and {pack(out).name}")
    states = {one.state for one in ended}
    return (
        128 + day.stopped
        if day.stopped
        else 1
        if FAILED in states
        else 3
        if states & {OVER, STOPPED, NOT_REACHED}
        else 0
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
