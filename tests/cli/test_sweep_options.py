"""A collective in the place of a suite, with nccl-tests' letters, and options that narrow any suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

ON_THE_MODEL = ("--backend", "simulated", "--machine", "hgx-h100")


def planned(ccbench: Command, *arguments: str) -> list[str]:
    """Labels of the cases that ``run --plan`` lists."""
    document: Any = json.loads(ccbench("run", *arguments, "--plan", "--json").done.out)
    return [case["label"] for case in document["cases"]]


@pytest.mark.parametrize(
    "name", ["all_reduce", "all_reduce_perf", "allreduce_perf", "AllReduce"]
)
def test_nccl_tests_command_line_is_a_sweep(ccbench: Command, name: str) -> None:
    letters = ("-b", "8", "-e", "128", "-f", "4", "-g", "8", "-d", "half", "-o", "max")
    expected = [
        f"all_reduce default float16 max {size} B, 8 ranks, simulated{placement}"
        for size in (8, 32, 128)
        for placement in ("", ", in place")
    ]
    labels = planned(ccbench, name, *letters, *ON_THE_MODEL)
    assert sorted(labels) == sorted(expected)


def test_the_saved_suite_plans_the_same_cases(ccbench: Command) -> None:
    options = ("-b", "8", "-e", "1K", "-g", "4", "-n", "20", "-w", "0", *ON_THE_MODEL)
    swept = planned(ccbench, "all_to_all", *options, "--save", "mine.yaml")
    saved = Path("mine.yaml").read_text()
    assert saved.startswith("# ")
    assert "maximum_samples: 20" in saved
    assert "warmup: 0" in saved
    assert planned(ccbench, "mine.yaml", "--machine", "hgx-h100") == swept


def test_simulated_runs_of_two_machines_have_no_verdict(ccbench: Command) -> None:
    sizes = ("-b", "8", "-e", "64", "-g", "8", "-q", "--no-report", "--backend", "simulated")
    for machine in ("hgx-h100", "dgx-a100"):
        ccbench("run", "all_reduce", *sizes, "--machine", machine, "-o", machine)
    ended = ccbench("compare", "hgx-h100", "dgx-a100")
    assert ended.code == 3
    assert "simulated machine: hgx-h100 in base, dgx-a100 in new" in " ".join(ended.out.split())


def test_every_mode_has_the_columns_of_nccl_tests(ccbench: Command) -> None:
    sizes = ("-b", "8", "-e", "64", "-g", "8", "-z", "1", "-q", "--no-report", *ON_THE_MODEL)
    ended = ccbench("run", "all_reduce", *sizes).done
    assert "Avg bus bandwidth" in ended.out
    assert "SIMULATED for hgx-h100" in ended.out
