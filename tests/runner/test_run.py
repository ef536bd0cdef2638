"""The runner with teams made of answers: what it does with every kind of outcome."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends.base import Backend, CannotRun, Team, TeamRequest
from ccbench.cases.axes import Case, asked_of, case_of
from ccbench.cases.capabilities import DECLARED, Device
from ccbench.cases.measurement import NO_TEAM, Measurement, Sampling, Status
from ccbench.errors import (
    BackendUnavailable,
    CannotStart,
    CcbenchError,
    RunFolderError,
    SuiteError,
    UsageError,
)
from ccbench.machine.host import Terminated
from ccbench.results import Run, load_run
from ccbench.runner.planning import RunOptions, check_output, plan_suite
from ccbench.runner.progress import Progress
from ccbench.runner.run import RunOutcome, run_suite
from ccbench.runner.workers.discovery import LaunchedRanks
from ccbench.runner.workers.facts import HostFacts
from ccbench.suite.model import Suite, load_suite, read_suite

Answer = Callable[[Case, Sampling], Measurement]

COLLECTIVES = ["all_reduce", "broadcast", "barrier"]


def good(case: Case, sampling: Sampling) -> Measurement:
    samples = (1e-6,) * 5
    return Measurement(
        case,
        Status.OK,
        samples_seconds=samples,
        round_samples=(5,),
        launches_per_sample=3,
        wrong_elements=0,
    )


@dataclass
class Teams(Backend):
    """Implements Backend and its teams; remembers who was asked what. folder: of the suite and the run."""

    folder: Path
    answers: dict[str, Answer] = field(default_factory=dict)
    measured: list[tuple[str, Sampling]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    opens: bool = True
    refusals_left: int = 0
    refusal: type[CcbenchError] = BackendUnavailable
    died: bool = False
    name: str = "cpu"
    settings: dict[str, str] = field(default_factory=dict)
    requests: list[TeamRequest] = field(default_factory=list)

    def team_settings(self, case: Case) -> tuple[tuple[str, str], ...]:
        return (
            (("WAY", self.settings[case.collective]),)
            if case.collective in self.settings
            else ()
        )

    def unavailable(self, elsewhere: bool = False) -> str | None:
        return None

    def version(self) -> str:
        return "fake 1"

    def algorithms(self, collective: str) -> tuple[str, ...]:
        return ("ring", "direct")

    def unsupported(self, case: Case) -> str | None:
        return "not here" if case.collective == "scatter" else None

    def launch(self, request: TeamRequest) -> None:
        raise AssertionError("it has no workers")

    def open_team(self, request: TeamRequest) -> Team:
        self.refusals_left -= 1
        if not self.opens or self.refusals_left >= 0:
            raise self.refusal("cpu: no ranks today")
        self.opened += 1
        self.requests.append(request)
        return FakeTeam(self)


@dataclass
class FakeTeam:
    """Implements Team: unusable after a failure, as real ones are."""

    backend: Teams
    whole: bool = True

    def run(self, case: Case, sampling: Sampling) -> Measurement:
        self.backend.measured.append((case.collective, sampling))
        measurement = self.backend.answers.get(case.collective, good)(case, sampling)
        self.whole = measurement.status not in (Status.FAILED, Status.TIMED_OUT)
        return measurement

    def usable(self) -> bool:
        if self.backend.died:
            self.backend.died, self.whole = False, False
        return self.whole

    def close(self) -> None:
        self.backend.closed += 1


def status_of(status: Status, detail: str = "as asked") -> Answer:
    return lambda case, sampling: Measurement(case, status, detail)


@pytest.fixture
def teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Teams:
    made = Teams(tmp_path)

    def opened(name: str) -> Backend:
        return made

    monkeypatch.setattr("ccbench.runner.run.open_backend", opened)
    return made


def declared_as(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """The teams' backend can do something else."""
    monkeypatch.setitem(DECLARED, "cpu", replace(DECLARED["cpu"], **changes))


def suite_of(folder: Path, collectives: Sequence[str] = COLLECTIVES, rounds: int = 1) -> Suite:
    path = folder / "tiny.yaml"
    document = {
        "suite": "tiny",
        "backends": "cpu",
        "order": "written",
        "sweep": {"collective": list(collectives), "ranks": 2, "size": "4 KiB"},
        "sampling": {"rounds": rounds, "budget": "10 ms", "warmup": "1 ms"},
    }
    path.write_text(json.dumps(document))
    return load_suite(path)


def run(
    teams: Teams,
    collectives: Sequence[str] = COLLECTIVES,
    rounds: int = 1,
    progress: Progress | None = None,
    **options: Any,
) -> RunOutcome:
    """Run or resume in the folder ``out``."""
    chosen: dict[str, Any] = {"machine": "cpu-shared-memory", **options}
    if "resume" not in chosen:
        chosen["output"] = teams.folder / "out"
    suite = suite_of(teams.folder, collectives, rounds)
    return run_suite(suite, RunOptions(**chosen), progress or Progress())


def statuses(folder: Path) -> dict[str, str]:
    return {point.collective: point.status.value for point in load_run(folder).points}


@pytest.mark.parametrize(
    ("found_statuses", "code"),
    [
        ([Status.UNSUPPORTED], 0),
        ([Status.OUT_OF_MEMORY], 5),
        ([Status.FAILED, Status.TIMED_OUT], 4),
        ([Status.TIMED_OUT, Status.WRONG], 1),
    ],
)
def test_the_exit_code_is_that_of_the_worst_case(
    teams: Teams, found_statuses: list[Status], code: int
) -> None:
    for collective, status in zip(COLLECTIVES, found_statuses, strict=False):
        if status is not Status.OK:
            teams.answers[collective] = status_of(status)
    outcome = run(teams)
    assert outcome.exit_code == code
    assert sum(outcome.counts.values()) == 3
    assert statuses(outcome.folder) == {
        collective: (
            found_statuses[number] if number < len(found_statuses) else Status.OK
        ).value
        for number, collective in enumerate(COLLECTIVES)
    }


def test_a_failure_costs_the_team_and_the_next_case_has_a_fresh_one(teams: Teams) -> None:
    teams.answers["broadcast"] = status_of(Status.FAILED, "rank 1 died")
    run(teams)
    assert teams.opened == 2
    assert [name for name, _ in teams.measured] == COLLECTIVES


def test_a_fault_that_comes_back_with_the_same_words_skips_the_rest_of_its_kind_and_a_resumed_run_tries_again(
    teams: Teams,
) -> None:
    names = [
        "all_reduce",
        "broadcast",
        "gather",
        "reduce",
        "all_gather",
        "all_to_all",
        "barrier",
    ]
    teams.settings = {"barrier": "another kind"}
    teams.answers = dict.fromkeys(names[1:-1], status_of(Status.FAILED, "no space in /dev/shm"))
    outcome = run(teams, names, rounds=3)
    assert [name for name, _ in teams.measured] == [*names[:4], "barrier", "barrier", "barrier"]
    assert (outcome.exit_code, outcome.unfinished) == (5, 1)
    assert outcome.counts == {Status.OK: 2, Status.FAILED: 3, Status.SKIPPED: 2}
    points = {point.collective: point for point in load_run(outcome.folder).points}
    assert len(points["all_reduce"].round_samples) == 1  # what was measured stays
    assert points["all_to_all"].status is Status.SKIPPED
    assert points["all_to_all"].detail == (
        "not started: 3 cases in a row lost their cpu team by: no space in /dev/shm"
    )
    teams.answers.clear()
    again = run(teams, names, rounds=3, resume=outcome.folder)
    assert (again.exit_code, again.counts) == (0, {Status.OK: 7})


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(BackendUnavailable, Status.FAILED), (CannotRun, Status.UNSUPPORTED)],
)
def test_teams_that_cannot_start_are_tried_three_times(
    teams: Teams, refusal: type[CcbenchError], status: Status
) -> None:
    teams.opens, teams.refusal = False, refusal
    outcome = run(teams, [*COLLECTIVES, "gather", "reduce"])
    assert outcome.exit_code == 5
    assert outcome.counts == {status: 5}
    details = [point.detail for point in load_run(outcome.folder).points]
    assert sorted(details) == ["cpu: no ranks today"] * 5


def test_a_backend_that_can_start_no_team_ends_the_run_at_once(teams: Teams) -> None:
    teams.refusal = CannotStart
    teams.refusals_left = 1
    with pytest.raises(CannotStart, match="no ranks today"):
        run(teams)
    assert not teams.measured
    assert not (teams.folder / "out").exists()

    def gone(case: Case, sampling: Sampling) -> Measurement:
        raise CannotStart("the driver has left")

    teams.answers["broadcast"] = gone
    outcome = run(teams)
    assert (outcome.exit_code, outcome.counts) == (5, {Status.OK: 1, Status.SKIPPED: 2})


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (Terminated(15), 143), (Terminated(1), 129)]
)
def test_an_interrupted_run_keeps_its_cases_and_closes_its_teams(
    teams: Teams, error: BaseException, code: int
) -> None:
    def interrupted(case: Case, sampling: Sampling) -> Measurement:
        raise error

    teams.answers["broadcast"] = interrupted
    outcome = run(teams)
    assert (outcome.exit_code, outcome.interrupted) == (code, True)
    kept = load_run(outcome.folder)
    assert (kept.manifest.document["planned_cases"], len(kept.points)) == (3, 1)
    assert outcome.counts == {Status.OK: 1, Status.SKIPPED: 2}
    assert statuses(outcome.folder) == {"all_reduce": "ok"}
    assert teams.closed == teams.opened == 1


def test_a_signal_while_teams_are_closed_interrupts_a_run_that_keeps_its_cases(
    teams: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: object) -> None:
        raise Terminated(15)

    monkeypatch.setattr("ccbench.runner.run._Run._close", interrupted)
    outcome = run(teams)
    assert (outcome.exit_code, outcome.interrupted) == (143, True)
    assert outcome.counts == {Status.OK: 3}


def test_a_case_that_the_runs_own_limit_cut_is_not_called_hung(teams: Teams) -> None:
    def cut(case: Case, sampling: Sampling) -> Measurement:
        time.sleep(2.1)
        return Measurement(case, Status.TIMED_OUT, "cut")

    teams.answers["barrier"] = cut
    outcome = run(teams, time_limit_seconds=2.0)
    assert outcome.counts == {Status.OK: 2, Status.SKIPPED: 1}
    assert outcome.exit_code == 5
    assert "barrier" not in statuses(outcome.folder)


def larger(case: Case, times: int = 2) -> Case:
    return replace(case, size_bytes=times * case.size_bytes, count=times * case.count)


def sizes(folder: Path) -> list[tuple[str, int]]:
    return [(point.collective, point.size_bytes) for point in load_run(folder).points]


def test_a_guide_of_another_verdict_is_not_asked(teams: Teams) -> None:
    outcome = run(teams, ["barrier"], guides={"health": lambda left, measured: []})
    assert outcome.counts == {Status.OK: 1}


def test_a_lost_case_has_the_guide_say_how_the_others_go_on(teams: Teams) -> None:
    teams.answers["all_reduce"] = status_of(Status.TIMED_OUT, "rank 1 hangs")

    def guide(left: Sequence[Case], measured: Run) -> list[Case]:
        lost = any(point.status is Status.TIMED_OUT for point in measured.points)
        return [larger(case) if lost and case.size_bytes == 4096 else case for case in left]

    outcome = run(teams, ["broadcast", "all_reduce", "gather"], guides={"speed": guide})
    assert set(sizes(outcome.folder)) == {
        ("broadcast", 4096),
        ("all_reduce", 4096),
        ("gather", 8192),
    }
    assert load_run(outcome.folder).manifest.planned_cases == 3
    assert outcome.exit_code == 4


def test_a_resumed_run_measures_what_a_guide_had_added(teams: Teams) -> None:
    def guide(left: Sequence[Case], measured: Run) -> list[Case]:
        if left or len(measured.points) > 1:
            return list(left)
        case = case_of({"suite": "tiny", **asked_of(measured.points[0])})
        return [larger(case, times) for times in (2, 4, 8)]

    def stopped(case: Case, sampling: Sampling) -> Measurement:
        if case.size_bytes == 4 * 4096:
            raise KeyboardInterrupt
        return good(case, sampling)

    teams.answers["broadcast"] = stopped
    outcome = run(teams, ["broadcast"], guides={"speed": guide})
    assert outcome.counts == {Status.OK: 2, Status.SKIPPED: 2}
    teams.answers.clear()
    again = run(teams, ["broadcast"], guides={"speed": guide}, resume=outcome.folder)
    assert again.counts == {Status.OK: 4}
    assert [size for _, size in sizes(outcome.folder)] == [4096, 8192, 16384, 32768]
    assert load_run(outcome.folder).manifest.planned_cases == 4


def test_resume_measures_what_failed_and_leaves_the_rest(teams: Teams) -> None:
    teams.answers["broadcast"] = status_of(Status.FAILED)
    outcome = run(teams)
    teams.measured.clear()
    teams.answers.clear()
    again = run(teams, resume=outcome.folder)
    assert {name for name, _ in teams.measured} == {"broadcast"}
    assert (again.exit_code, again.counts) == (0, {Status.OK: 3})


def test_resume_tries_ranks_again_that_did_not_start(teams: Teams) -> None:
    teams.opens, teams.refusal = False, CannotRun
    outcome = run(teams)
    assert outcome.counts == {Status.UNSUPPORTED: 3}
    teams.opens = True
    assert run(teams, resume=outcome.folder).counts == {Status.OK: 3}


@pytest.mark.parametrize(
    ("name", "collectives", "options"),
    [
        ("suite.sweep", ["barrier"], {}),
        ("options.ranks", COLLECTIVES, {"ranks": 3, "oversubscribe": True}),
    ],
)
def test_resume_refuses_another_run(
    teams: Teams, name: str, collectives: list[str], options: dict[str, Any]
) -> None:
    outcome = run(teams)
    with pytest.raises(RunFolderError, match=f"{name} of this run differs; "):
        run(teams, collectives, resume=outcome.folder, **options)
    # The refusal let go of the folder.
    assert run(teams, resume=outcome.folder).exit_code == 0


@pytest.mark.parametrize("lacking", ["", "this machine has no NVIDIA driver"])
def test_whether_launched_ranks_have_gpus_is_asked_of_their_hosts(
    teams: Teams, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    facts = (HostFacts("a", ranks=1, gpus=("H100",)), HostFacts("b", ranks=1, no_gpus=lacking))
    monkeypatch.setattr(
        "ccbench.runner.starting.discover_ranks", lambda *_: LaunchedRanks(("a", "b"), facts)
    )
    monkeypatch.setattr(
        Teams,
        "unavailable",
        lambda self, elsewhere=False: None if elsewhere else "no driver in the launcher's pod",
    )
    teams.name = "nccl"
    chosen: dict[str, Any] = {"launch": "mpirun -n 2", "backends": ("nccl",)}
    if not lacking:
        assert run(teams, ["all_reduce"], **chosen).counts == {Status.OK: 1}
        return
    with pytest.raises(BackendUnavailable, match=f"backend nccl: b: {lacking}"):
        run(teams, ["all_reduce"], **chosen)


HOSTS = tuple(HostFacts(name, ranks=1) for name in ("a", "b", "c"))


def test_a_file_of_racks_gives_hosts_theirs_which_the_run_keeps(
    teams: Teams, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    racks = tmp_path / "topology.conf"
    racks.write_text("SwitchName=leaf1 Nodes=a\nSwitchName=leaf2 Nodes=b\n")
    monkeypatch.setattr(
        "ccbench.runner.starting.discover_ranks",
        lambda *_: LaunchedRanks(("a", "b", "c"), HOSTS),
    )
    monkeypatch.setattr(Teams, "unavailable", lambda self, elsewhere=False: None)
    teams.name = "nccl"
    notes: list[str] = []
    progress = Progress()
    monkeypatch.setattr(progress, "note", notes.append)
    chosen: dict[str, Any] = {"launch": "mpirun -n 3", "backends": ("nccl",), "racks": racks}
    outcome = run(teams, ["all_reduce"], progress=progress, **chosen)
    hosts = load_run(outcome.folder).manifest.mappings("hosts")
    assert [host["rack"] for host in hosts] == ["leaf1", "leaf2", ""]
    assert f"{racks}: has no rack of c" in notes


def test_racks_of_ranks_that_no_launcher_starts_are_refused(
    teams: Teams, tmp_path: Path
) -> None:
    with pytest.raises(
        UsageError, match=r"--racks: .* a launcher starts ranks on; leave it out"
    ):
        run(teams, racks=tmp_path / "racks")


def test_a_parameter_that_an_algorithm_does_not_have_is_refused_in_the_plan(
    tmp_path: Path,
) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text("sweep: {collective: all_reduce, algorithm: 'ring:4', size: 8 B}")
    with pytest.raises(UsageError, match="'ring:4': ring has no parameter"):
        plan_suite(load_suite(path), RunOptions())


def test_a_run_without_time_is_refused() -> None:
    with pytest.raises(UsageError, match="--time-limit"):
        check_output(RunOptions(time_limit_seconds=0.0))


def test_a_run_in_which_nothing_could_run_is_not_fine(teams: Teams) -> None:
    outcome = run(teams, ["scatter"])
    assert (outcome.counts, outcome.exit_code) == ({Status.UNSUPPORTED: 1}, 5)


def test_a_resumed_run_gives_each_block_the_rounds_that_are_missing(
    teams: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccbench.runner.run.MOST_COSTLY_TEAMS", 1)
    teams.settings = {"broadcast": "1"}
    declared_as(monkeypatch, device=Device.GPU)

    def interrupted(case: Case, sampling: Sampling) -> Measurement:
        raise KeyboardInterrupt

    teams.answers["broadcast"] = interrupted
    names = ["all_reduce", "broadcast"]
    outcome = run(teams, names, rounds=6)
    teams.answers.clear()
    teams.measured.clear()
    assert run(teams, names, rounds=6, resume=outcome.folder).exit_code == 0
    assert [name for name, _ in teams.measured] == ["broadcast"] * 6 + ["all_reduce"] * 3


@pytest.mark.parametrize("refusal", [BackendUnavailable, CannotRun])
def test_a_round_that_could_not_start_takes_nothing_from_those_before(
    teams: Teams, refusal: type[CcbenchError]
) -> None:
    teams.refusal = refusal

    def lost(case: Case, sampling: Sampling) -> Measurement:
        teams.opens = False
        return Measurement(case, Status.TIMED_OUT, "a cable was pulled")

    teams.answers["barrier"] = lost
    outcome = run(teams, ["all_reduce", "barrier"], rounds=3)
    assert statuses(outcome.folder) == {"all_reduce": "ok", "barrier": "timed_out"}
    (measured,) = (
        point for point in load_run(outcome.folder).points if point.collective == "all_reduce"
    )
    assert (measured.stop_reason, len(measured.round_samples)) == (NO_TEAM, 1)
    assert outcome.exit_code == 4


def test_ranks_that_a_launcher_started_cannot_be_started_for_each_round(
    teams: Teams, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared_as(monkeypatch, in_process_ranks=True)
    monkeypatch.setattr(
        "ccbench.runner.run.with_launched_ranks", lambda options, progress: options
    )
    text = "backends: [cpu]\nsampling: {start_ranks: each_round}\nsweep: {collective: all_reduce, ranks: 2}"
    options = RunOptions(
        machine="cpu-shared-memory", output=teams.folder / "out", launched_by="mpirun"
    )
    with pytest.raises(
        SuiteError, match=r"^suite:2: sampling.start_ranks: mpirun has started the ranks"
    ):
        run_suite(read_suite(text), options, Progress())
    assert not teams.opened
