"""Layouts, groups alone, what runs beside, uneven traffic and computing meanwhile become cases."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import ALL_GROUPS, AXIS, Case
from ccbench.cases.capabilities import DECLARED, backend_names, capabilities_of
from ccbench.collectives import COLLECTIVES
from ccbench.errors import SuiteError
from ccbench.groups import parse_groups
from ccbench.suite.expansion import expand
from ccbench.suite.model import read_suite

from .offers import context

TP2 = "tp2-cp1-ep1-dp2-pp1"


def cases_of(sweep: dict[str, Any], backend: str = "cpu", ranks: int = 4) -> tuple[Case, ...]:
    """The cases of one sweep with one size."""
    document = {
        "order": "written",
        "sweep": {"collective": "all_reduce", "size": "1 KiB", **sweep},
    }
    return expand(read_suite(json.dumps(document)), context(backends=(backend,), ranks=ranks))


def test_axes_of_a_layout_become_groups_that_name_the_whole_layout() -> None:
    cases = cases_of({"layout": {"tp": 2}, "groups": ["all", "tp", "dp"]})
    assert [case.groups for case in cases] == ["", f"tp of {TP2}", f"dp of {TP2}"]
    assert [case.members for case in cases[1:]] == [((0, 1), (2, 3)), ((0, 2), (1, 3))]
    (swapped,) = cases_of({"layout": {"tp": 2, "order": "dp-tp"}, "groups": "tp"})
    assert swapped.members == ((0, 2), (1, 3))


def test_axes_that_make_the_same_groups_are_one_case_and_single_ranks_none() -> None:
    cases = cases_of({"layout": {"tp": 2}, "groups": ["dp", "dp-cp", "edp", "etp"]})
    assert [case.groups for case in cases] == [f"dp of {TP2}", f"etp of {TP2}"]
    with pytest.raises(SuiteError, match="nothing is left"):
        cases_of({"layout": {"tp": 2}, "groups": "dp"}, ranks=2)


HALVES = {"groups": "rank // 2"}


@pytest.mark.parametrize(
    ("sweep", "ranks", "field", "found"),
    [
        # A layout that a number of ranks cannot form is left out there.
        ({"layout": {"tp": 2, "pp": 2}, "groups": ["all", "pp"]}, 6, "groups", [""]),
        (
            {"layout": {"tp": 2, "pp": 2}, "groups": ["all", "pp"]},
            8,
            "groups",
            ["", "pp of tp2-cp1-ep1-dp2-pp2"],
        ),
        # A matrix of traffic is for groups of as many ranks as it has rows.
        (
            {
                "collective": "all_to_all_v",
                "traffic": [[0, 1], [2, 0]],
                "groups": ["all", "rank // 2"],
            },
            4,
            "groups",
            ["rank // 2"],
        ),
        (
            {**HALVES, "group_mode": ["concurrent", "isolated"]},
            4,
            "active_group",
            [ALL_GROUPS, 0],
        ),
        ({**HALVES, "group_mode": ["isolated", "each"]}, 4, "active_group", [0, 1]),
        # One group is neither concurrent nor isolated.
        ({"group_mode": ["isolated", "each", "concurrent"]}, 4, "active_group", [ALL_GROUPS]),
        ({"groups": [[0, 2]], "group_mode": "isolated"}, 4, "active_group", [ALL_GROUPS]),
        # Everybody computes, so no group is alone in mode overlap.
        (
            {
                **HALVES,
                "mode": ["isolated", "overlap"],
                "group_mode": ["concurrent", "isolated"],
            },
            4,
            "active_group",
            [ALL_GROUPS, ALL_GROUPS, 0],
        ),
        (
            {"mode": ["streaming", "overlap"], "overlap_with": "all"},
            4,
            "overlap_with",
            ["", "matmul", "memory"],
        ),
        # Groups of its own that are the case's groups are not its own.
        (
            {"concurrent": ["all_gather on all", "all_gather", "all_gather on rank // 4"]},
            4,
            "concurrent",
            ["all_gather"],
        ),
        # The same collective runs concurrently on other ranks only.
        (
            {**HALVES, "concurrent": ["nothing", "all_reduce", "all_reduce on rank % 2"]},
            4,
            "concurrent",
            ["", "all_reduce on rank % 2"],
        ),
    ],
)
def test_values_that_go_together_become_cases_each_once(
    sweep: dict[str, Any], ranks: int, field: str, found: list[Any]
) -> None:
    assert [getattr(case, field) for case in cases_of(sweep, ranks=ranks)] == found


def test_what_runs_beside_has_groups_of_its_own_where_it_names_them() -> None:
    named = [
        "nothing",
        "all_gather",
        "all_gather on dp",
        "all_gather on rank // 3",
        "all_gather on all",
    ]
    cases = cases_of({"layout": {"tp": 2}, "groups": "tp", "concurrent": named})
    found = ["", "all_gather", f"all_gather on dp of {TP2}", "all_gather on all"]
    assert [case.concurrent for case in cases] == found
    others = [case.concurrent_case for case in cases]
    assert [other.members for other in others if other] == [
        ((0, 1), (2, 3)),
        ((0, 2), (1, 3)),
        ((0, 1, 2, 3),),
    ]


def test_the_size_of_uneven_traffic_is_the_largest_input() -> None:
    (case,) = cases_of(
        {"collective": "all_to_all_v", "size": 4123, "traffic": [[0, 1], [2, 0]]}, ranks=2
    )
    assert case.size_bytes == 4120
    assert max(case.input_count(group_rank) for group_rank in range(2)) * 4 == 4120


@pytest.mark.parametrize(
    "backend", [name for name in backend_names() if not capabilities_of(name).callables]
)
def test_a_backend_gets_only_what_it_has(backend: str) -> None:
    sweep = {
        "collective": ["all_reduce", "all_to_all_v"],
        "traffic": ["balanced", "hot:0.5"],
        "groups": ["all", "rank // 2"],
        "group_mode": ["concurrent", "each"],
        "concurrent": ["nothing", "broadcast"],
    }
    cases = cases_of(sweep, backend)
    for name in ("groups", "active_group", "concurrent", "traffic"):
        differ = any(getattr(case, name) != AXIS[name].default for case in cases)
        assert differ == capabilities_of(backend).has(name, "anything")
    uneven = any(case.collective == "all_to_all_v" for case in cases)
    assert uneven == capabilities_of(backend).has("collective", "all_to_all_v")


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["cpu", "simulated"])
def test_every_pair_of_a_million_ranks_is_refused_or_left_out_without_counting_them(
    backend: str,
) -> None:
    with pytest.raises(SuiteError, match=r"more than 100,000 cases|nothing is left"):
        cases_of({"collective": "send_recv", "pairs": "each"}, backend, ranks=1_000_000)


AXES = ["tp", "dp", "pp", "cp", "ep", "dp-cp", "edp", "tp-pp"]


@given(
    sizes=st.fixed_dictionaries(
        {}, optional={name: st.integers(1, 4) for name in ("tp", "cp", "pp", "ep")}
    ),
    named=st.lists(st.sampled_from(AXES), min_size=1, max_size=4, unique=True),
    collective=st.sampled_from(list(COLLECTIVES)),
    ranks=st.integers(2, 24),
)
def test_every_case_of_a_layout_is_one_that_its_ranks_can_run(
    sizes: dict[str, int], named: list[str], collective: str, ranks: int
) -> None:
    sweep = {
        "collective": collective,
        "layout": {"order": "megatron", **sizes},
        "groups": named,
        "group_mode": ["concurrent", "each"],
        "concurrent": ["nothing", "all_gather on dp"],
    }
    try:
        cases = cases_of(sweep, ranks=ranks)
    except SuiteError:
        cases = ()  # no axis has two ranks here, or so many ranks cannot form the layout
    assert len(set(cases)) == len(cases)
    for case in cases:
        assert case.group_ranks > 1
        assert set().union(*parse_groups(case.groups, ranks)) <= set(range(ranks))
        assert case.concurrent_case is None or case.concurrent_case.members


def test_rounds_of_pairs_of_nodes_are_a_case_each_and_nodes_alone_one() -> None:
    def groups(**sweep: Any) -> list[str]:
        document = {
            "order": "written",
            "sweep": {"collective": "all_reduce", "size": "1 KiB", **sweep},
        }
        cases = expand(
            read_suite(json.dumps(document)), context(backends=("cpu",), ranks=16, nodes=4)
        )
        return [case.groups for case in cases]

    assert groups(groups="node") == ["rank // 4"]
    assert groups(groups="matching:2:7", per="node") == [
        "matching 0 seed 7 per 4 ranks",
        "matching 1 seed 7 per 4 ranks",
    ]
    assert len(groups(groups="matching:99", per="node")) == 3
    assert len(groups(groups="round_robin")) == 15
    assert groups(groups="matching:1", within="rail") == ["matching 0 per 4 ranks by rail"]
    assert groups(groups="matching:1", per="node", within=2) == [
        "matching 0 per 4 ranks within 2"
    ]


def test_one_node_has_no_pairs_of_nodes() -> None:
    with pytest.raises(SuiteError, match=r"pairs need two nodes or more \(--nodes\), not 1"):
        cases_of({"groups": "matching:3", "per": "node"})


@pytest.mark.parametrize(("key", "value"), [("per", "node"), ("within", 2), ("within", "rail")])
def test_how_pairs_are_made_is_refused_where_no_pairs_are(key: str, value: object) -> None:
    text = f"{key}: says how groups matching:N and round_robin are made; write such groups, or leave it out"
    for groups in ("all", "rank // 2"):
        with pytest.raises(SuiteError, match=text):
            cases_of({"groups": groups, key: value})


def test_where_no_groups_are_left_the_first_ones_reason_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons = {
        "dp": r"with 2 ranks: dp of \S+ puts every rank into a group of its own",
        "tp": r"with 3 ranks: layout: tp x cp x pp = 2 does not divide 3 ranks",
    }
    for ranks, (axis, message) in enumerate(reasons.items(), start=2):
        with pytest.raises(SuiteError, match=message):
            cases_of({"layout": {"tp": 2}, "groups": axis}, ranks=ranks)
    with pytest.raises(SuiteError, match="with 1 rank: rank // 2 puts every rank"):
        cases_of({"groups": "rank // 2"}, ranks=1)
    lacking = {
        name: values for name, values in DECLARED["cuda"].values.items() if name != "groups"
    }
    monkeypatch.setitem(DECLARED, "cuda", dataclasses.replace(DECLARED["cuda"], values=lacking))
    with pytest.raises(
        SuiteError, match=r"cuda has no groups$"
    ):  # there would be, on another backend
        cases_of({"groups": "rank // 2"}, backend="cuda")
