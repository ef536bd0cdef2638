"""The commands that measure nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccbench.cases.capabilities import backend_names
from ccbench.collectives import COLLECTIVES
from ccbench.machine.doctor import Check
from ccbench.topology.files import catalog_names
from tests.cli.conftest import Command

POINT_KEYS = [
    "collective",
    "algorithm",
    "protocol",
    "ranks",
    "size_bytes",
    "bound_seconds",
    "predicted_seconds",
    "algbw_GB_s",
    "busbw_GB_s",
    "bottleneck",
]
MACHINE = "hgx-h100"
ALL_REDUCE = ("--collective", "all_reduce")


def price(ccbench: Command, *arguments: str, machine: str = "") -> list[dict[str, Any]]:
    """Points on ``machine``, else those of ccbench's own schedules."""
    where = (machine,) if machine else (MACHINE, "--model", "schedule")
    ended = ccbench("predict", "--machine", *where, "--json", *arguments).done
    points: list[dict[str, Any]] = ended.json
    return points


def test_predict_prints_the_promised_keys(ccbench: Command) -> None:
    (point,) = price(
        ccbench, *ALL_REDUCE, "--algorithm", "ring", "--ranks", "4", "--sizes", "1MiB"
    )
    assert list(point) == POINT_KEYS
    assert point["size_bytes"] == 1 << 20
    assert 0 < point["bound_seconds"] <= point["predicted_seconds"]
    assert point["algbw_GB_s"] == pytest.approx((1 << 20) / point["predicted_seconds"] / 1e9)
    assert point["busbw_GB_s"] == pytest.approx(point["algbw_GB_s"] * 2 * 3 / 4)


@pytest.mark.parametrize(
    "sizes", ["8:4", "0:8:2", "8:16:1", "8:16:0.5", "8:1:2:3", "lots", "8:16:x", "8:9:nan"]
)
def test_predict_refuses_sizes_that_never_end(ccbench: Command, sizes: str) -> None:
    ended = ccbench(
        *(
            "predict",
            "--machine",
            MACHINE,
            "--collective",
            "all_reduce",
            "--ranks",
            "2",
            "--sizes",
            sizes,
        )
    ).refused
    assert "--sizes" in ended.err
    assert "8:1GiB:2" in ended.err


def test_schedule_draws(ccbench: Command, tmp_path: Path) -> None:
    assert ccbench(
        "schedule", "broadcast", "binomial", "--ranks", "5", "--root", "2", "--draw", "b.svg"
    ).done
    assert "<svg" in (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "proven"),
    [
        (
            "all_reduce",
            "ring",
            "1",
            "every output of 1 rank holds every contribution exactly once",
        ),
        (
            "all_reduce",
            "ring",
            "4",
            "every output of 4 ranks holds every contribution exactly once",
        ),
        (
            "all_gather",
            "ring",
            "4",
            "every output of 4 ranks holds the piece it should, and nothing else",
        ),
        ("barrier", "dissemination", "4", "every one of 4 ranks has a signal from every other"),
    ],
)
def test_a_proof_says_what_the_collective_promises(
    ccbench: Command, collective: str, algorithm: str, ranks: str, proven: str
) -> None:
    ended = ccbench("schedule", collective, algorithm, "--ranks", ranks, "--prove").done
    assert ended.out.splitlines()[-1] == f"proven: {proven}"


@pytest.mark.parametrize(
    ("output", "sentence"),
    [("no/mine.yaml", "no folder no"), ("d.yaml", "it is a folder"), ("mine.txt", ".yaml")],
)
def test_predict_checks_the_file_of_a_fit_first(
    ccbench: Command, tmp_path: Path, output: str, sentence: str
) -> None:
    (tmp_path / "d.yaml").mkdir()
    ended = ccbench("predict", "--from", "run", "-o", output).refused
    assert sentence in ended.err


def test_list_knows_everything_there_is(ccbench: Command) -> None:
    listed = ccbench("list", "--json").json
    assert list(listed["collectives"]) == list(COLLECTIVES)
    assert tuple(listed["backends"]) == backend_names()
    assert set(listed["machines"]) == {*catalog_names()}
    assert {"quick", "allreduce"} <= set(listed["suites"])
    assert "all_reduce ring" in listed["algorithms"]


def test_doctor_ends_with_2_only_when_there_is_a_problem(
    ccbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [Check("clock", "ok", "ticks"), Check("load", "note", "busy", "wait")]
    monkeypatch.setattr("ccbench.machine.doctor.examine", lambda *_: tuple(checks))
    monkeypatch.setattr("ccbench.machine.doctor.backend_checks", lambda *_: ())
    monkeypatch.setattr(
        "ccbench.machine.doctor.results_folder", lambda _: Check("folder", "ok", "there")
    )
    ended = ccbench("doctor").done
    lines = [
        "ok       clock: ticks",
        "note     load: busy",
        "         -> wait",
        "ok       folder: there",
    ]
    assert ended.out.splitlines() == lines
    checks.append(Check("/dev/shm", "problem", "64 MiB", "more"))
    ended = ccbench("doctor", "--json")
    assert ended.code == 2
    assert ended.json[-2] == {
        "name": "/dev/shm",
        "status": "problem",
        "seen": "64 MiB",
        "advice": "more",
    }


def test_suite_schema_is_a_json_schema(ccbench: Command) -> None:
    schema = ccbench("list", "suite-schema").json
    assert schema["type"] == "object"
    assert {"suite", "question", "sweep"} <= set(schema["properties"])
