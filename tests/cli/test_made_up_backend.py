"""A backend that is declared in one place is everywhere: no other module has to hear of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends import open_backend
from ccbench.backends.base import Backend, Team, TeamRequest
from ccbench.cases import (
    DECLARED,
    EVERY,
    Capabilities,
    Case,
    Device,
    Measurement,
    Requirement,
    Sampling,
    Status,
)
from ccbench.errors import SuiteError
from ccbench.results import load_run
from ccbench.runner.planning import RunOptions, plan_suite
from ccbench.suite.model import Suite, read_suite
from tests.cli.conftest import Command

SAMPLES = (1e-3, 1.1e-3, 1.2e-3)


class LoomTeam:
    """Says of every case that it took about a millisecond."""

    def run(self, case: Case, sampling: Sampling) -> Measurement:
        return Measurement(
            case,
            Status.OK,
            samples_seconds=SAMPLES,
            round_samples=(3,),
            launches_per_sample=1,
            wrong_elements=0,
        )

    def usable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing to end."""


class Loom(Backend):
    name = "loom"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        return None

    def version(self) -> str:
        return "Loom 7"

    def algorithms(self, collective: str) -> tuple[str, ...]:
        return ("warp", "weft")

    def open_team(self, request: TeamRequest) -> Team:
        return LoomTeam()


BACKEND = Loom()

LOOM = Capabilities(
    "loom",
    home=f"{__name__}:BACKEND",
    library="Loom",
    values={
        "collective": ("all_reduce", "broadcast"),
        "dtype": ("float32", "uint64"),
        "op": ("sum",),
        "mode": ("streaming",),
        "channels": EVERY,
    },
    most_ranks=4,
    device=Device.PROCESS,
    start_seconds=1000.0,
    needs=(Requirement("Loom's yarn", "yarn", ("yarn",), "yarn"),),
)

SUITE = """
suite: woven
backends: [loom]
sweep:
  collective: [all_reduce, all_gather]
  algorithm: [default, warp]
  size: 4 KiB
  ranks: 2
  dtype: [float32, float64]
  mode: [streaming, graph]
  channels: [0, 2]
  transport: [default, host]
sampling: {rounds: 1}
"""


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECLARED, "loom", LOOM)


def test_a_suite_expands_to_what_it_has_and_the_plan_says_what_it_has_not() -> None:
    plan = plan_suite(read_suite(SUITE), RunOptions())
    assert {case.backend for case in plan.cases} == {"loom"}
    assert {(case.collective, case.dtype, case.mode, case.transport) for case in plan.cases} == {
        ("all_reduce", "float32", "streaming", "default")
    }
    assert {(case.algorithm, case.channels) for case in plan.cases} == {
        ("default", 0), ("default", 2), ("warp", 0), ("warp", 2),
    }  # fmt: skip
    said = "\n".join(plan.notes)
    for lacked in ("all_gather", "dtype float64", "mode graph", "transport"):
        assert f"loom has no {lacked}" in said
    assert plan.expected_seconds > LOOM.start_seconds


def test_a_sweep_may_be_for_it_and_nobody_else() -> None:
    suite = read_suite("{backends: [cpu, loom], sweep: {collective: all_reduce, backends: loom, ranks: 2}}")
    assert {case.backend for case in plan_suite(suite, RunOptions()).cases} == {"loom"}
    assert Suite.model_validate(suite.as_document()) == suite


def test_what_it_lacks_is_refused_with_who_has_it_and_what_others_lack_names_it() -> None:
    case = Case("s", "loom", "all_reduce", "default", "float32", "sum", 4096, 1024, 2)
    loom, cpu = open_backend("loom"), open_backend("cpu")
    assert loom.unsupported(case) is None

    staged = replace(case, transport="host")
    assert loom.unsupported(staged) == "loom has no transport host; there is on nccl, cuda"
    cold = loom.unsupported(replace(case, mode="cold"))
    assert str(cold).startswith("loom has no mode cold; it has streaming; there is on nccl,")
    assert loom.unsupported(replace(case, ranks=5)) == "5 ranks: loom has at most 4"
    assert "there is on nccl, loom" in str(cpu.unsupported(replace(case, channels=2)))


def test_an_unknown_name_is_told_about_it() -> None:
    with pytest.raises(SuiteError, match="did you mean 'loom'"):
        read_suite("{backends: [looom], sweep: {collective: all_reduce}}")


def test_it_is_listed_and_the_doctor_knows_what_it_needs(ccbench: Command) -> None:
    assert ccbench("list", "backends", "--json").json["backends"]["loom"] == "Loom 7"
    said = ccbench("doctor").out
    assert "backend loom" in said
    assert "needs Loom's yarn" in said


def test_what_it_measures_is_stored_and_reported(ccbench: Command) -> None:
    Path("woven.yaml").write_text(SUITE)
    assert ccbench("run", "woven.yaml", "-o", "run", "-q", "--no-report").code == 0
    cases = load_run(Path("run")).cases
    assert set(cases["backend"]) == {"loom"}
    assert set(cases["backend_version"]) == {"Loom 7"}
    assert set(cases["median_seconds"]) == {1.1e-3}
    assert ccbench("report", "run", "-o", "report.html").code == 0
    assert "loom" in Path("report.html").read_text()
