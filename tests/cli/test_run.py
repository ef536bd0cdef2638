"""``ccbench run``: what it asks of the runner, and what it says about the outcome."""

from __future__ import annotations

import errno
import importlib.util
import json
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest

from ccbench.analysis.health_verdict import HealthVerdict
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Status
from ccbench.cli.run import _exit_code, plan_lines
from ccbench.errors import RunFolderError
from ccbench.findings import Finding
from ccbench.machine.host import Terminated
from ccbench.model.context import PredictionContext, named_context
from ccbench.results import Manifest
from ccbench.runner.planning import Plan, RunOptions, plan_suite
from ccbench.runner.progress import Progress
from ccbench.runner.run import RunOutcome, run_suite
from ccbench.suite.model import load_suite
from tests.cli.conftest import Command

CASE = Case("quick", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 2)


@dataclass
class Fakes:
    """The runner and the report, replaced; remembers what they were asked."""

    outcome: RunOutcome = field(
        default_factory=lambda: RunOutcome(Path("results/r"), 0, {Status.OK: 3})
    )
    options: RunOptions | None = None
    reported: list[Any] = field(default_factory=list)
    failure: BaseException | None = None
    context: PredictionContext | None = None
    case: Case = CASE

    def run_suite(self, suite: object, options: RunOptions, progress: object) -> RunOutcome:
        self.options = options
        return self.outcome

    def plan_suite(self, suite: object, options: RunOptions) -> Plan:
        self.options = options
        return Plan((self.case,), 8192, 2048, ("one note",), self.context)

    def write_report(self, runs: list[Any], formats: tuple[str, ...]) -> tuple[Path, ...]:
        self.reported += runs
        if self.failure is not None:
            raise self.failure
        return (runs[0].path / "report" / "report.md",)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    made = Fakes()
    monkeypatch.setattr("ccbench.runner.run.run_suite", made.run_suite)
    monkeypatch.setattr("ccbench.runner.planning.plan_suite", made.plan_suite)
    monkeypatch.setattr("ccbench.report.writing.write_report", made.write_report)
    monkeypatch.setattr(
        "ccbench.report.run_screen.run_screen",
        lambda run, width, layout, folds: ["all is well", f"a table {width} wide ({layout})"],
    )
    monkeypatch.setattr("ccbench.report.wording.verdict_lines", lambda run: ["all is well"])
    monkeypatch.setattr(
        "ccbench.results.load_run",
        lambda path: SimpleNamespace(path=path, points=(), manifest=Manifest()),
    )
    monkeypatch.setattr("ccbench.analysis.speed_verdict.speed_verdicts", lambda run: ())
    return made


def test_a_run_prints_table_verdicts_and_where_things_are(
    ccbench: Command, fakes: Fakes
) -> None:
    ended = ccbench("run", "quick").done
    assert ended.out.splitlines() == [
        "all is well",
        "a table 100 wide (card)",
        "wrote report.md in results/r/report",
        "next: ccbench doctor",
    ]
    assert ended.err == "run folder: results/r\n"


@pytest.mark.parametrize("code", [0, 1, 4, 5, 130])
def test_the_exit_code_is_the_outcomes(ccbench: Command, fakes: Fakes, code: int) -> None:
    fakes.outcome = RunOutcome(Path("r"), code, {Status.WRONG: 1}, interrupted=code == 130)
    ended = ccbench("run", "quick", "--json")
    assert ended.code == code
    assert ended.json["exit_code"] == code
    assert ended.json["interrupted"] is (code == 130)


def test_json_is_one_object_on_stdout(ccbench: Command, fakes: Fakes) -> None:
    assert ccbench("run", "quick", "--json").json == {
        "folder": "results/r",
        "exit_code": 0,
        "interrupted": False,
        "counts": {"ok": 3},
        "verdicts": ["all is well"],
        "points": [],
        "notes": [],
        "speed_verdicts": [],
        "files": ["results/r/report/report.md"],
    }


def test_a_run_out_of_time_says_how_to_go_on(ccbench: Command, fakes: Fakes) -> None:
    fakes.outcome = RunOutcome(Path("r"), 5, {Status.OK: 1, Status.SKIPPED: 2})
    ended = ccbench("run", "quick", "--time-limit", "1s")
    assert ended.code == 5
    assert ended.err.splitlines()[1].endswith("go on with: ccbench run quick --resume r")


def test_the_report_is_written_after_the_table_and_although_nobody_reads_it(
    ccbench: Command,
    fakes: Fakes,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shown: list[str] = []

    def draw(runs: list[Any], formats: tuple[str, ...]) -> tuple[Path, ...]:
        shown.append(capfd.readouterr().out)
        return ()

    monkeypatch.setattr("ccbench.report.writing.write_report", draw)
    ccbench("run", "quick")
    assert "a table 100 wide" in shown[0]
    monkeypatch.setattr(
        "click.echo", lambda *words, **how: (_ for _ in ()).throw(BrokenPipeError())
    )
    ccbench("run", "quick")
    assert len(shown) == 2


def test_a_failing_table_after_a_stop_keeps_the_exit_code(
    ccbench: Command, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> str:
        raise RunFolderError("unreadable")

    monkeypatch.setattr("ccbench.report.run_screen.run_screen", broken)
    fakes.outcome = RunOutcome(Path("r"), 129, {Status.OK: 3}, interrupted=True)
    ended = ccbench("run", "quick")
    assert ended.code == 129
    assert "note: the results were not all shown (unreadable)" in ended.err


def test_a_signal_before_the_first_case_ends_with_its_code(
    ccbench: Command, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: object) -> RunOutcome:
        raise Terminated(15)

    monkeypatch.setattr("ccbench.runner.run.run_suite", stopped)
    ended = ccbench("run", "quick")
    assert (ended.code, ended.err) == (
        143,
        "ccbench: terminated by SIGTERM before the first case\n",
    )


def test_a_suite_runs_end_to_end_on_the_simulated_backend(
    ccbench: Command, tmp_path: Path
) -> None:
    ended = ccbench(
        "run", "quick", "--backend", "simulated", "--only", "all_reduce", "-o", "made", "--json"
    ).done
    assert ended.json["folder"] == "made"
    assert set(ended.json["counts"]) == {"ok"}
    assert (tmp_path / "made" / "run.json").is_file()
    assert (
        pq.read_metadata(tmp_path / "made/cases.parquet").num_rows == ended.json["counts"]["ok"]
    )
    for file in ended.json["files"]:
        assert (tmp_path / file).is_file()
    assert ccbench("report", "made", "--json").done.json["files"]


def test_commands_take_runs_by_name_and_without_one_the_latest(
    ccbench: Command, tmp_path: Path
) -> None:
    for words in (("list", "runs"), ("report",), ("compare",), ("tune",)):
        assert "ccbench run quick" in ccbench(*words).refused.err
    sizes = ("all_reduce", "--sizes", "64,1K", "--backend", "simulated", "--no-report", "-q")
    assert ccbench("run", *sizes).done.err == "run folder: results/0001-all_reduce\n"
    assert "no run of all_reduce before results/0001" in ccbench("compare").ends(2).err
    assert ccbench("run", *sizes).code == 0
    file = tmp_path / "results/0002-all_reduce/cases.parquet"
    pq.write_table(pq.read_table(file).slice(1), file)
    listed = [line.split() for line in ccbench("list", "runs").done.out.splitlines()]
    assert [[row[0], *row[3:]] for row in listed] == [
        ["name", "suite", "cases", "state"],
        ["0001-all_reduce", "all_reduce", "4", "complete"],
        ["0002-all_reduce", "all_reduce", "3", "interrupted"],
    ]
    assert ccbench("compare").err.splitlines()[:2] == [
        "run: results/0002-all_reduce",
        "base: results/0001-all_reduce",
    ]
    assert ccbench("compare", "1", "latest").out == ccbench("compare").out
    (tmp_path / "results/0002-all_reduce").rename(tmp_path / "results/mine")
    assert ccbench("report").done.err.startswith("run: results/mine\n")
    assert ccbench("run", *sizes, "--resume", "mine").done.err == "run folder: results/mine\n"
    assert ccbench("run", *sizes, "--vary", "algorithm=ring,two_shot").code == 0
    assert ccbench("compare").err == "run: results/0002-all_reduce\n"


def test_a_disk_that_is_full_when_the_report_is_drawn_changes_neither_code_nor_gate(
    ccbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ccbench.report.writing.write_atomically", full)
    words = ("run", "quick", "--backend", "simulated", "--only", "all_reduce", "--gate=normal")
    ended = ccbench(*words, "-o", "made")
    assert ended.out.splitlines()[-1].startswith("gate: ")
    assert ended.code == ccbench(*words, "-o", "bare", "--no-report").code != 2
    assert "no report was written: made/report/cases.csv: cannot be written (No space" in (
        ended.err
    )
    assert ended.err.endswith("write it elsewhere with: ccbench report made -o PLACE\n")


SRUN = Path(__file__).resolve().parents[1] / "fake_srun"


def test_a_fleet_check_without_a_launcher_ends_at_once_and_its_plan_is_shown(
    ccbench: Command, tmp_path: Path
) -> None:
    ended = ccbench("run", "fleet").refused
    assert ended.err.startswith(
        "ccbench: error: fleet needs 4 nodes, this run has 1; start ranks on more"
    )
    assert not (tmp_path / "results").exists()
    assert ccbench("run", "fleet", "--plan").done.out


QUESTION = "question: How fast?\nbackends: [simulated]\n"
ROUNDS = "sampling: {rounds: 6, minimum_samples: 6, warmup: 1 ms, minimum_sample: 100 us, budget: 6 ms}\n"


def suite_file(folder: Path, sweep: str, more: str = "") -> Path:
    path = folder / "tiny.yaml"
    path.write_text(f"{QUESTION}sweep: {sweep}\n{more}")
    return path


def passing_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes the runner a second."""
    seconds = count()
    monkeypatch.setattr(
        "ccbench.runner.run.time", SimpleNamespace(monotonic=lambda: float(next(seconds)))
    )


def test_a_run_out_of_time_before_the_last_rounds_is_partial_and_says_how_to_go_on(
    ccbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = suite_file(tmp_path, "{collective: all_reduce, size: 1 KiB, ranks: 2}", ROUNDS)
    folder = tmp_path / "r"
    passing_seconds(monkeypatch)
    ended = ccbench(
        "run", str(file), "-o", str(folder), "--no-report", "--time-limit", "3500 ms"
    )
    assert ended.code == 5
    assert "1 case not measured in as many rounds as planned" in ended.out
    assert f"--resume {folder}" in ended.out.replace("\n", " ")
    (line_shown,) = [line for line in ended.err.splitlines() if "go on with" in line]
    assert line_shown.startswith(
        "ccbench: not every case was measured in as many rounds as planned; go on with: ccbench run "
    )
    monkeypatch.undo()
    again = run_suite(load_suite(file), RunOptions(resume=folder), Progress())
    assert (again.exit_code, again.unfinished) == (0, 0)


HEALTHY = HealthVerdict((), ())
SICK = HealthVerdict((Finding("problem", "slow_rank", ("rank 2",), "late", ""),), ())
DOUBTFUL = HealthVerdict((), (), "other load")


def outcome(code: int, interrupted: bool = False, verdict: str = "speed") -> RunOutcome:
    return RunOutcome(Path("r"), code, {Status.OK: 1}, interrupted, 0, verdict)


@pytest.mark.parametrize(
    ("verdict", "run_code", "code"),
    [
        (HEALTHY, 0, 0),
        (SICK, 0, 1),
        (DOUBTFUL, 0, 3),
        (HEALTHY, 5, 5),
        (SICK, 5, 1),
        (DOUBTFUL, 4, 4),
        (DOUBTFUL, 1, 1),
    ],
)
def test_a_verdict_decides_the_exit_code_unless_worse_has_happened(
    monkeypatch: pytest.MonkeyPatch, verdict: HealthVerdict, run_code: int, code: int
) -> None:
    monkeypatch.setattr("ccbench.results.load_run", lambda path: path)
    monkeypatch.setattr("ccbench.analysis.machine_verdict.machine_verdict", lambda run: verdict)
    assert _exit_code(outcome(run_code, verdict="health")) == code


@pytest.mark.parametrize(
    ("verdict", "run_code", "code"),
    [
        (HEALTHY, 0, 0),
        (SICK, 0, 1),
        (DOUBTFUL, 0, 3),
        (SICK, 4, 1),
        (SICK, 5, 1),
        (HEALTHY, 4, 4),
        (DOUBTFUL, 4, 4),
        (DOUBTFUL, 5, 5),
    ],
)
def test_a_hang_that_a_fleets_verdict_explains_is_one_more_reason_and_no_other_exit_code(
    monkeypatch: pytest.MonkeyPatch, verdict: HealthVerdict, run_code: int, code: int
) -> None:
    monkeypatch.setattr("ccbench.results.load_run", lambda path: path)
    monkeypatch.setattr("ccbench.analysis.machine_verdict.machine_verdict", lambda run: verdict)
    assert _exit_code(outcome(run_code, verdict="fleet")) == code


def planned(suite: str, machine: str = "hgx-h100") -> Plan:
    return plan_suite(load_suite(suite), RunOptions(machine=machine, only_plan=True))


def numbers(lines: list[str]) -> int:
    """Cases that the lines add up to."""
    return sum(int(line.split(": ")[1].split(" case")[0]) for line in lines[:-1])


def test_few_cases_are_listed_one_by_one() -> None:
    cases = tuple(
        Case("s", "cuda", "all_reduce", "ring", "float32", "sum", 4 * count, count, 4)
        for count in range(1, 4)
    )
    lines = plan_lines(Plan(cases, 0, 0, (), named_context("hgx-h100")))
    assert [line.split("  ")[0] for line in lines] == [case.case_id for case in cases]
    assert all(line.endswith("us predicted") for line in lines)


def test_lines_say_sizes_bytes_and_what_a_machine_should_take() -> None:
    lines = plan_lines(planned("allreduce"))
    (ring,) = (line for line in lines if line.startswith("nccl all_reduce ring, 8 ranks: "))
    assert "41 cases, 8 B to 512 MiB; at most 1 GiB a rank; " in ring
    assert ring.endswith("ms predicted")
    (barrier,) = (
        line for line in plan_lines(planned("health")) if line.startswith("cuda barrier")
    )
    assert barrier == "cuda barrier default, 8 ranks: 1 case, 0 B; at most 0 B a rank"


SECRET = "hunter2andmore"
VARIABLES = ("CUDA_CREDS", "MPICH_PASS", "I_MPI_HYDRA_PW", "NCCL_OF_MY_OWN")


@pytest.mark.exhaustive
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="gloo needs torch")
def test_secrets_of_the_launcher_and_of_variables_are_in_nothing_that_a_run_leaves(
    ccbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)
    suite = tmp_path / "one.yaml"
    suite.write_text(
        "sweep: [{collective: all_reduce, size: [8 B, 16 B]}]\n"
        "sampling: {rounds: 1, budget: 5 ms, warmup: 1 ms}\n"
    )
    launch = f"env DB_TOKEN={SECRET} NCCL_ALGO=Ring {SRUN} -n 2"
    run = ("run", str(suite), "--backend", "gloo", "--launch", launch)
    ended = ccbench(*run, "-o", "run").done
    reported = ccbench("report", "run")
    printed = ccbench(
        "run", str(suite), "--backend", "gloo", "--launch", launch, "--resume", "run", "--json"
    )
    # Long enough for ranks to come together, and for no more than a part of so many rounds.
    endless = "rounds: 100, budget: 40 s, max_ci_width: 0.1%, minimum_samples: 90000, maximum_samples: 90000"
    suite.write_text(suite.read_text().replace("rounds: 1, budget: 5 ms", endless))
    stopped = ccbench(*run, "-o", "short", "--time-limit", "15 s")
    assert (
        f"--launch 'env '\"'\"'DB_TOKEN=<redacted>'\"'\"' NCCL_ALGO=Ring {SRUN} -n 2'"
        in stopped.err
    )
    for output in (ended, reported, printed, stopped):
        assert SECRET not in output.out + output.err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "report.html", "report.md"} <= {path.name for path in files}
    assert any(path.suffix == ".parquet" for path in files)
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (
        manifest["options"]["launch"] == f"env 'DB_TOKEN=<redacted>' NCCL_ALGO=Ring {SRUN} -n 2"
    )
    assert {manifest["environment"]["variables"][name] for name in VARIABLES} == {"<redacted>"}


@pytest.mark.parametrize(
    "launch",
    [
        f"sh -c 'echo cannot log in with {SECRET} >&2; exit 3' sh DB_TOKEN={SECRET}",
        f"DB_TOKEN={SECRET} mpirun -n 2",
        f"mpirun -x DB_TOKEN={SECRET} 'and no end",
    ],
)
def test_errors_about_a_launcher_do_not_tell_its_secrets(ccbench: Command, launch: str) -> None:
    ended = ccbench("run", "quick", "--backend", "gloo", "--launch", launch)
    assert ended.code in (2, 3)
    assert SECRET not in ended.out + ended.err
