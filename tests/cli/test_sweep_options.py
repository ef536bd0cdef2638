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


def test_long_names_say_the_same_as_letters(ccbench: Command) -> None:
    letters = planned(ccbench, "broadcast", "-b", "8", "-e", "64", "-r", "1", "-g", "2")
    words = planned(ccbench, "broadcast", "--sizes", "8:64:2", "--root", "1", "--ranks", "2")
    assert letters == words
    assert len(letters) >= 4


def test_a_step_and_every_root_of_nccl_tests(ccbench: Command) -> None:
    labels = planned(
        ccbench, "reduce", *("-b", "8", "-e", "24", "-i", "8", "-r", "-1", "-g", "2", "-z", "1")
    )
    assert {label.split(" B")[0].split()[-1] for label in labels} == {"8", "16", "24"}
    assert any("root 1" in label for label in labels)
    assert all("isolated" in label for label in labels)


def test_the_saved_suite_plans_the_same_cases(ccbench: Command) -> None:
    options = ("-b", "8", "-e", "1K", "-g", "4", "-n", "20", "-w", "0", *ON_THE_MODEL)
    swept = planned(ccbench, "all_to_all", *options, "--save", "mine.yaml")
    saved = Path("mine.yaml").read_text()
    assert saved.startswith("# ")
    assert "maximum_samples: 20" in saved
    assert "warmup: 0" in saved
    assert planned(ccbench, "mine.yaml", "--machine", "hgx-h100") == swept


def test_options_narrow_a_suite(ccbench: Command) -> None:
    labels = planned(
        ccbench, "quick", *("--collective", "alltoall", "--sizes", "1K,2K", "--rounds", "4")
    )
    sizes = {label.split(" B")[0] for label in labels}
    assert sizes == {f"all_to_all default float32 {size}" for size in (1024, 2048)}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("quick", "-d", "flot"), "--dtype: 'flot' is not a dtype; did you mean"),
        (("quick", "-b", "8x"), "--sizes, -b, -e: "),
        (("all_reduce", "-f", "2", "-i", "8"), "-f, -i: sizes grow by a factor or by a step"),
        (("all_reduce", "-b", "8", "--sizes", "8"), "--sizes: -b, -e, -f and -i"),
        (("all_reduce", "-g", "2", "--ranks", "3"), "-g, -t: 2 ranks, and --ranks 3"),
        (("allreduce", "--collective", "reduce"), "suite 'allreduce' does not measure it"),
        ((), "name what to measure: 'ccbench run quick'"),
    ],
)
def test_a_mistake_names_the_option(
    ccbench: Command, arguments: tuple[str, ...], sentence: str
) -> None:
    ended = ccbench("run", *arguments, "--plan").refused
    assert sentence in ended.err


def test_letters_that_mean_something_else_here_say_so(ccbench: Command) -> None:
    ended = ccbench("run", "all_reduce", "-b", "8", "-e", "8", "-w", "5", "-c", "0", "--plan")
    assert "-w 5: warm-up lasts a time here" in ended.done.err
    assert "-c 0: data are checked all the same" in ended.done.err


@pytest.mark.parametrize("letter", ["-z", "-G"])
def test_switches_of_nccl_tests_are_0_or_1(ccbench: Command, letter: str) -> None:
    assert "0<=x<=1" in ccbench("run", "all_reduce", letter, "5", "--plan").refused.err


def test_a_suite_of_that_name_wins(ccbench: Command) -> None:
    Path("all_reduce").write_text("sweep: {collective: barrier, ranks: 2}\n")
    assert all(label.startswith("barrier") for label in planned(ccbench, "all_reduce"))


def test_a_saved_suite_says_which_machine_it_does_not_hold(ccbench: Command) -> None:
    ended = ccbench("run", "all_reduce", "--plan", "--save", "mine.yaml", *ON_THE_MODEL)
    assert "mine.yaml holds no machine; run it with --machine hgx-h100" in ended.done.err


def test_ranks_that_do_not_spread_over_the_simulated_machine_are_refused_at_once(
    ccbench: Command,
) -> None:
    ended = ccbench("run", "all_reduce", "-g", "8", "-t", "2", *ON_THE_MODEL)
    assert "16 ranks are 2 nodes and need a network" in ended.refused.err


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
