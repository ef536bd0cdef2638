"""Axes that only some backends have become cases there, and nothing elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ccbench.cases import Case
from ccbench.errors import SuiteError
from ccbench.suite.expansion import ExpansionContext, expand
from ccbench.suite.model import read_suite


def cases_of(sweep: dict[str, Any], backend: str = "nccl", ranks: int = 4) -> tuple[Case, ...]:
    """The cases of one sweep with one size."""
    document = {"backends": [backend], "sweep": {"size": "1 KiB", "ranks": ranks, **sweep}}
    suite = read_suite(json.dumps(document))
    return expand(suite, ExpansionContext(None, (backend,), None, ranks, lambda *_: ("ring",)))


def values(cases: tuple[Case, ...], name: str) -> list[Any]:
    """The field's values, each once, in any order."""
    return sorted({getattr(case, name) for case in cases})


@pytest.mark.parametrize(
    ("key", "asked", "field", "found"),
    [
        ("channels", [0, 8], "channels", [0, 8]),
        ("transport", ["default", "host"], "transport", ["default", "host"]),
        ("registration", "all", "registration", ["local", "none", "symmetric"]),
        ("aggregation", [1, 16], "aggregation", [1, 16]),
        ("misalignment", [0, 4], "misalignment_bytes", [0, 4]),
        ("groups", ["all", "rank // 2", [[0, 3], [1, 2]]], "groups", ["", "[[0, 3], [1, 2]]", "rank // 2"]),
        ("groups", [[0, 3], [1, 2]], "groups", ["[[0, 3], [1, 2]]"]),
        ("concurrent", ["nothing", "all_gather"], "concurrent", ["", "all_gather"]),
        ("op", ["sum", "premulsum"], "op", ["premulsum", "sum"]),
    ],
)
def test_each_value_of_an_axis_becomes_a_case(key: str, asked: Any, field: str, found: list[Any]) -> None:
    assert values(cases_of({"collective": "all_reduce", key: asked}), field) == found


def test_a_backend_without_an_axis_keeps_only_its_default() -> None:
    sweep = {
        "collective": "all_reduce",
        "channels": [0, 8],
        "registration": "all",
        "protocol": ["default", "ll"],
    }
    assert len(cases_of(sweep, "cpu")) == 1


def test_pairs_are_of_send_recv_alone() -> None:
    sweep = {"collective": ["send_recv", "all_reduce"], "pairs": ["ring", "each", "both", "0>9"]}
    cases = cases_of(sweep)
    assert sum(case.collective == "all_reduce" for case in cases) == 1
    assert sum(case.pair != "" for case in cases) == 12 + 6


def test_sizes_and_roots_are_those_of_one_group() -> None:
    cases = cases_of({"collective": "broadcast", "groups": "rank // 2", "root": "all"})
    assert values(cases, "root") == [0, 1]
    (gathered,) = cases_of({"collective": "all_gather", "groups": "rank // 2"})
    assert (gathered.size_bytes, gathered.count, gathered.group_ranks) == (1024, 128, 2)


def test_groups_that_do_not_fit_the_ranks_are_left_out() -> None:
    cases = cases_of({"collective": "all_reduce", "ranks": [3, 4], "groups": "rank // 2"})
    assert values(cases, "ranks") == [4]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("groups", "rank ^ 2", "who belongs together"),
        ("pairs", "0-3", "no pair of ranks"),
        ("channels", [0, 65], r"channels\[1\].*write 0 to 64"),
        ("transport", "shm", "transport"),
        ("concurrent", "barrier", "collective"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(key: str, value: Any, words: str) -> None:
    with pytest.raises(SuiteError, match=words):
        cases_of({"collective": "all_reduce", key: value})


def test_what_a_case_does_not_ask_for_leaves_its_id_alone() -> None:
    case = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 1024, 256, 4)
    assert case.case_id == "770c69d9d3b860d8"  # as it was before these fields came
    asked: tuple[dict[str, Any], ...] = (
        {"channels": 1}, {"transport": "host"}, {"registration": "local"}, {"aggregation": 2},
        {"misalignment_bytes": 4}, {"groups": "rank // 2"}, {"concurrent": "all_gather"},
    )  # fmt: skip
    changed = {replace(case, **one).case_id for one in asked}
    assert len(changed) == 7
    assert case.case_id not in changed


@pytest.mark.parametrize(("ranks", "found"), [(4, [""]), (8, ["rank // 4"])])
def test_a_grouping_of_all_ranks_together_is_the_plain_case(ranks: int, found: list[str]) -> None:
    cases = cases_of({"collective": "all_reduce", "groups": "rank // 4"}, ranks=ranks)
    assert values(cases, "groups") == found


def test_a_sweep_is_for_the_backends_it_names() -> None:
    sweeps = [
        {"collective": "all_reduce", "size": "1 KiB", "backends": "nccl"},
        {"collective": "all_reduce", "size": "2 KiB", "backends": ["cpu", "mpi"]},
        {"collective": "all_reduce", "size": "4 KiB", "backends": "all"},
        {"collective": "all_reduce", "size": "8 KiB"},
    ]
    suite = read_suite(json.dumps({"backends": ["nccl", "cpu"], "sweep": sweeps}))
    context = ExpansionContext(None, (), None, 4, lambda *_: ("ring",))
    sizes = [(case.backend, case.size_bytes) for case in expand(suite, context)]
    assert sorted(size for backend, size in sizes if backend == "nccl") == [1024, 4096, 8192]
    assert sorted(size for backend, size in sizes if backend == "cpu") == [2048, 4096, 8192]


def test_a_misspelt_algorithm_is_an_error_in_a_sweep_of_other_backends_too() -> None:
    sweeps = [
        {"collective": "all_reduce", "backends": "nccl", "algorithm": "rign"},
        {"collective": "all_reduce"},
    ]
    suite = read_suite(json.dumps({"backends": ["cpu"], "sweep": sweeps}))
    with pytest.raises(
        SuiteError, match=r"'rign' is no algorithm of nccl for all_reduce; did you mean 'ring'"
    ):
        expand(suite, ExpansionContext(None, (), None, 4, lambda *_: ("ring",)))


def test_a_suite_whose_sweeps_are_all_for_other_backends_is_an_error() -> None:
    suite = read_suite(
        json.dumps({"backends": ["cpu"], "sweep": {"collective": "barrier", "backends": "nccl"}})
    )
    with pytest.raises(SuiteError, match="nothing is left to run on cpu"):
        expand(suite, ExpansionContext(None, (), None, 4, lambda *_: ("ring",)))


def test_auto_is_no_backend_of_a_sweep() -> None:
    with pytest.raises(SuiteError, match="'auto' is not a backend"):
        read_suite(json.dumps({"sweep": {"collective": "barrier", "backends": "auto"}}))


@pytest.mark.parametrize("word", ["health", "speed"])
def test_a_suite_says_which_verdict_it_wants(word: str) -> None:
    suite = read_suite(json.dumps({"verdict": word, "sweep": {"collective": "barrier"}}))
    assert suite.as_document()["verdict"] == word


def test_an_unknown_verdict_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SuiteError, match="'helth' is not a verdict; did you mean 'health'"):
        read_suite(json.dumps({"verdict": "helth", "sweep": {"collective": "barrier"}}))
