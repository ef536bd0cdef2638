"""``ccbench replay`` of a real job: every call is measured alone, times add up, who is late is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import IN_TIME, JOB
from .job import Files, sent_rows
from .test_reading import ACTIVATIONS, LAYER, RANKS, ROW


def replayed(files: Files, folder: Path, *options: str) -> Any:
    """What ``ccbench replay`` says of Kineto's traces and Flight Recorder's dumps, as JSON."""
    traces = map(str, (*files.kineto, *files.flight_recorder))
    done = subprocess.run(
        [sys.executable, "-m", "ccbench", "replay", *traces, "--json", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def measured(in_time: Files, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The job in time, each of its cases measured alone on as many ranks."""
    options = ("--backend", "gloo", "--ranks", str(IN_TIME.ranks), "--quiet")
    return replayed(in_time, tmp_path_factory.mktemp("replayed"), *options)


def test_every_call_of_the_job_is_in_a_case(measured: Any) -> None:
    pairs = JOB.ranks // JOB.tensor_parallel
    most_sent = ROW * max(sum(sent_rows(rank, other) for other in RANKS) for rank in RANKS)
    found = {
        (one["collective"], one["size_bytes"], one["group_ranks"]): one["count"]
        for one in measured["cases"]
    }
    assert found == {
        ("all_reduce", LAYER, 2): pairs * IN_TIME.layers * IN_TIME.steps,
        ("all_reduce", ACTIVATIONS, 2): pairs * IN_TIME.steps,
        ("all_gather", IN_TIME.ranks * ACTIVATIONS, IN_TIME.ranks): IN_TIME.steps,
        ("all_to_all_v", most_sent, IN_TIME.ranks): IN_TIME.steps,
    }
    assert measured["not_folded"] == {}
    assert measured["step"]["no_case_seconds"] == 0


def test_the_parts_of_a_step_add_up_to_its_communication(measured: Any) -> None:
    step = measured["step"]
    parts = [step[f"{name}_seconds"] for name in ("waiting", "competing", "slower", "wire")]
    assert (step["steps"], step["ranks"]) == (IN_TIME.steps, IN_TIME.ranks)
    assert sum(parts) == pytest.approx(step["communication_seconds"])
    assert 0 < step["exposed_seconds"] <= step["communication_seconds"]


def test_each_case_is_measured_as_the_job_has_it_and_the_sum_stands_beside_the_transfer(
    measured: Any,
) -> None:
    assert all(not one["remarks"] for one in measured["cases"])
    # Of one rank: each call of a case counts for the ranks of its group.
    alone = sum(
        one["measured_seconds"] * one["count"] * one["group_ranks"] for one in measured["cases"]
    ) / (IN_TIME.ranks * IN_TIME.steps)
    told = {row["what"]: row["transfer_seconds"] for row in measured["what_if"]}
    assert told["every collective takes what it takes alone"] == pytest.approx(alone)
    transfer = measured["step"]["communication_seconds"] - measured["step"]["waiting_seconds"]
    # A wrong unit or count is further off than any machine that others use.
    assert transfer / 50 < alone < transfer * 50


def test_the_rank_that_is_late_is_the_one_that_the_others_wait_for(
    traced: Files, tmp_path: Path
) -> None:
    found = replayed(traced, tmp_path)
    (late, planted_seconds) = JOB.late[0]
    named = found["step"]["waiting_for"]
    assert max(named, key=named.__getitem__) == str(late)
    assert f"for rank {late}" in found["verdict"]
    # One rank in four is in a dp group with it, and waits for all of the lateness in its first bucket.
    assert found["step"]["waiting_seconds"] > planted_seconds / 4 / 2
