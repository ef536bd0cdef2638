"""``ccbench run``: what it asks of the runner, and what it says about the outcome."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.cases import Case, Status
from ccbench.errors import RunFolderError
from ccbench.machine.host import Terminated
from ccbench.model.context import PredictionContext, named_context
from ccbench.runner.planning import Plan, RunOptions
from ccbench.runner.run import RunOutcome
from tests.cli.conftest import Command

CASE = Case("quick", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 2)


@dataclass
class Fakes:
    """The runner and the report, replaced; remembers what they were asked."""

    outcome: RunOutcome = field(default_factory=lambda: RunOutcome(Path("results/r"), 0, {Status.OK: 3}))
    options: RunOptions | None = None
    reported: list[Any] = field(default_factory=list)
    failure: BaseException | None = None
    context: PredictionContext | None = None

    def run_suite(self, suite: object, options: RunOptions, progress: object) -> RunOutcome:
        self.options = options
        return self.outcome

    def plan_suite(self, suite: object, options: RunOptions) -> Plan:
        self.options = options
        return Plan((CASE,), 8192, 2048, 0.5, ("one note",), self.context)

    def write_report(self, runs: list[Any], formats: tuple[str, ...]) -> tuple[Path, ...]:
        self.reported += runs
        if self.failure is not None:
            raise self.failure
        return (runs[0] / "report" / "report.md",)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    made = Fakes()
    monkeypatch.setattr("ccbench.runner.run.run_suite", made.run_suite)
    monkeypatch.setattr("ccbench.runner.planning.plan_suite", made.plan_suite)
    monkeypatch.setattr("ccbench.report.writing.write_report", made.write_report)
    monkeypatch.setattr("ccbench.report.case_table.screen_table", lambda run, width: f"a table {width} wide")
    monkeypatch.setattr("ccbench.report.wording.verdict_lines", lambda run: ["all is well"])
    monkeypatch.setattr("ccbench.results.load_run", lambda path: path)
    return made


def test_a_run_prints_table_verdicts_and_where_things_are(ccbench: Command, fakes: Fakes) -> None:
    ended = ccbench("run", "quick")
    assert ended.code == 0
    assert ended.out.splitlines() == ["a table 100 wide", "all is well", "wrote results/r/report/report.md"]
    assert ended.err == "run folder: results/r\n"


def test_options_reach_the_runner_in_its_units(ccbench: Command, fakes: Fakes) -> None:
    ccbench(
        *("run", "quick", "-o", "here", "--backend", "cpu", "--backend", "simulated", "--ranks", "3"),
        *("--machine", "cpu-shared-memory", "--only", "ring", "--time-limit", "1m30s"),
    )
    assert fakes.options == RunOptions(
        output=Path("here"), backends=("cpu", "simulated"), ranks=3, machine="cpu-shared-memory", only="ring",
        time_limit_seconds=90.0, results_root=Path("results"),
    )  # fmt: skip


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
        "files": ["results/r/report/report.md"],
    }


@pytest.mark.parametrize(
    ("code", "why"), [(130, "interrupted"), (143, "terminated by SIGTERM"), (129, "terminated by SIGHUP")]
)
def test_a_stopped_run_waits_for_no_report_and_says_why_and_how_to_go_on(
    ccbench: Command, fakes: Fakes, code: int, why: str
) -> None:
    fakes.outcome = RunOutcome(Path("results/a b"), code, {Status.OK: 1, Status.SKIPPED: 2}, interrupted=True)
    ended = ccbench("run", "quick", "--ranks", "3", "--backend", "cpu", "--only", "ring 4KiB")
    assert ended.code == code
    again = "ccbench run quick --resume 'results/a b' --backend cpu --ranks 3 --only 'ring 4KiB'"
    assert ended.err.splitlines() == [
        "run folder: results/a b",
        f"ccbench: {why}; go on with: {again}",
        "no report was written; write it with: ccbench report 'results/a b'",
    ]
    assert ended.out.splitlines()[0] == "a table 100 wide"
    assert fakes.reported == []


def test_the_line_that_goes_on_asks_for_the_same_run(
    ccbench: Command, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.outcome = RunOutcome(Path("r"), 130, {Status.SKIPPED: 2}, interrupted=True)
    said = ccbench(
        "run", "quick", "--backend", "cpu", "--backend", "simulated", "--machine", "cpu-shared-memory"
    ).err
    before = fakes.options
    assert before is not None
    words = shlex.split(said.splitlines()[1].split("go on with: ccbench ")[1])
    ccbench(*words)
    assert fakes.options == replace(before, resume=Path("r"))


def test_a_run_out_of_time_says_how_to_go_on(ccbench: Command, fakes: Fakes) -> None:
    fakes.outcome = RunOutcome(Path("r"), 5, {Status.OK: 1, Status.SKIPPED: 2})
    ended = ccbench("run", "quick", "--time-limit", "1s")
    assert ended.code == 5
    assert ended.err.splitlines()[1].endswith("go on with: ccbench run quick --resume r")


def test_a_run_stopped_before_it_measured_speaks_of_no_report(ccbench: Command, fakes: Fakes) -> None:
    fakes.outcome = RunOutcome(Path("r"), 130, {Status.SKIPPED: 3}, interrupted=True)
    ended = ccbench("run", "quick")
    assert ended.code == 130
    assert "no report" not in ended.err
    assert "a table" in ended.out


def test_the_report_is_written_after_the_table_and_although_nobody_reads_it(
    ccbench: Command, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def draw(runs: list[Any], formats: tuple[str, ...]) -> tuple[Path, ...]:
        shown.append(capfd.readouterr().out)
        return ()

    monkeypatch.setattr("ccbench.report.writing.write_report", draw)
    ccbench("run", "quick")
    assert "a table 100 wide" in shown[0]
    monkeypatch.setattr("click.echo", lambda *words, **how: (_ for _ in ()).throw(BrokenPipeError()))
    ccbench("run", "quick")
    assert len(shown) == 2


def test_a_failing_drawing_of_a_whole_run_is_an_error(ccbench: Command, fakes: Fakes) -> None:
    fakes.failure = RunFolderError("disk full")
    ended = ccbench("run", "quick")
    assert ended.code == 2
    assert "error: disk full" in ended.err


def test_a_failing_table_after_a_stop_keeps_the_exit_code(
    ccbench: Command, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: object, width: int) -> str:
        raise RunFolderError("unreadable")

    monkeypatch.setattr("ccbench.report.case_table.screen_table", broken)
    fakes.outcome = RunOutcome(Path("r"), 129, {Status.OK: 3}, interrupted=True)
    ended = ccbench("run", "quick")
    assert ended.code == 129
    assert "note: the results were not all shown (unreadable)" in ended.err


def test_columns_decides_the_width_where_there_is_no_terminal(
    ccbench: Command, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "61")
    assert ccbench("run", "quick").out.splitlines()[0] == "a table 61 wide"


def test_no_report_draws_nothing(ccbench: Command, fakes: Fakes) -> None:
    ended = ccbench("run", "quick", "--no-report")
    assert fakes.reported == []
    assert "wrote" not in ended.out


def test_a_plan_lists_cases_and_runs_nothing(ccbench: Command, fakes: Fakes) -> None:
    ended = ccbench("run", "quick", "--plan")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        f"{CASE.case_id}  {CASE.label}  8 KiB a rank",
        "note: one note",
        "1 case, at most 2 KiB on one rank and 8 KiB on all at once, about 500 ms",
    ]
    assert fakes.reported == []


def test_a_plan_for_a_named_machine_says_what_each_case_should_take(ccbench: Command, fakes: Fakes) -> None:
    fakes.context = named_context("cpu-shared-memory")
    ended = ccbench("run", "quick", "--plan", "--machine", "cpu-shared-memory")
    assert "8 KiB a rank  " in ended.out.splitlines()[0]
    assert ended.out.splitlines()[0].endswith("us predicted")


def test_a_plan_as_json(ccbench: Command, fakes: Fakes) -> None:
    assert ccbench("run", "quick", "--plan", "--json").json == {
        "cases": [
            {"case_id": CASE.case_id, "label": CASE.label, "rank_bytes": 8192, "predicted_seconds": None}
        ],
        "total_bytes": 8192,
        "rank_bytes": 2048,
        "expected_seconds": 0.5,
        "notes": ["one note"],
    }


def test_a_signal_before_the_first_case_ends_with_its_code(
    ccbench: Command, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*arguments: object) -> RunOutcome:
        raise Terminated(15)

    monkeypatch.setattr("ccbench.runner.run.run_suite", stopped)
    ended = ccbench("run", "quick")
    assert (ended.code, ended.err) == (143, "ccbench: terminated by SIGTERM before the first case\n")


def test_a_suite_runs_end_to_end_on_the_simulated_backend(ccbench: Command, tmp_path: Path) -> None:
    ended = ccbench("run", "quick", "--backend", "simulated", "--only", "all_reduce", "-o", "made", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["folder"] == "made"
    assert set(ended.json["counts"]) == {"ok"}
    assert (tmp_path / "made" / "run.json").is_file()
    assert len(list((tmp_path / "made" / "cases").glob("*.parquet"))) == ended.json["counts"]["ok"]
    for file in ended.json["files"]:
        assert (tmp_path / file).is_file()
    again = ccbench("report", "made", "--json")
    assert again.code == 0, again.err
    assert again.json["files"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "here", "--resume", "there"), "--output and --resume"),
        (("--time-limit", "10"), "--time-limit"),
        (("--time-limit", "10"), "500 ms"),
        (("--launch", ""), "--launch: is empty; write a command"),
        (("--launch", " "), "--launch: is empty; write a command"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_asked(
    ccbench: Command, fakes: Fakes, options: tuple[str, ...], said: str
) -> None:
    ended = ccbench("run", "quick", *options)
    assert ended.code == 2
    assert said in ended.err
    assert fakes.options is None
