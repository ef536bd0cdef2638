"""What a run of a suite that asks for a verdict ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.analysis.health import HealthVerdict
from ccbench.cases import Status
from ccbench.cli.run import _exit_code
from ccbench.runner.run import RunOutcome
from ccbench.topology.graph import Finding

HEALTHY = HealthVerdict((), ())
SICK = HealthVerdict((Finding("problem", "slow_rank", ("rank 2",), "late", ""),), ())
DOUBTFUL = HealthVerdict((), (), "other load")


def outcome(code: int, interrupted: bool = False) -> RunOutcome:
    return RunOutcome(Path("r"), code, {Status.OK: 1}, interrupted, 0)


@pytest.mark.parametrize(
    ("verdict", "run_code", "code"),
    [
        (HEALTHY, 0, 0), (SICK, 0, 1), (DOUBTFUL, 0, 3), (HEALTHY, 5, 5), (SICK, 5, 1), (DOUBTFUL, 4, 4),
        (DOUBTFUL, 1, 1),
    ],
)  # fmt: skip
def test_a_verdict_decides_the_exit_code_unless_worse_has_happened(
    monkeypatch: pytest.MonkeyPatch, verdict: HealthVerdict, run_code: int, code: int
) -> None:
    monkeypatch.setattr("ccbench.results.load_run", lambda path: path)
    monkeypatch.setattr("ccbench.analysis.health.health_of", lambda run: verdict)
    assert _exit_code(outcome(run_code), judged=True) == code


def test_without_a_verdict_or_after_a_signal_the_code_is_the_runs() -> None:
    assert _exit_code(outcome(0), judged=False) == 0
    assert _exit_code(outcome(130, interrupted=True), judged=True) == 130
