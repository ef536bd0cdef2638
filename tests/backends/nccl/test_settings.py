"""Environment of teams, and what NCCL would ignore without a word."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends.nccl import (
    BACKEND,
    CTA_POLICIES,
    environment_of,
    policy_refused,
)
from ccbench.backends.nccl.diagnostics import LibraryChoice, other_than_asked
from ccbench.cases.axes import Variant

from .measuring import case_of

OF_HOST = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}


@pytest.mark.parametrize(
    ("collective", "changes", "expected"),
    [
        ("all_reduce", {"algorithm": "ring"}, {"NCCL_ALGO": "Ring"}),
        ("all_reduce", {"algorithm": "nvlstree"}, {"NCCL_ALGO": "NVLSTree"}),
        ("all_reduce", {"algorithm": "collnet"}, {"NCCL_ALGO": "CollnetDirect,CollnetChain"}),
        ("all_gather", {"algorithm": "collnet"}, {"NCCL_ALGO": "CollnetDirect"}),
        (
            "barrier",
            {"algorithm": "tree", "protocol": "ll"},
            {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"},
        ),
        ("reduce", {"protocol": "ll128"}, {"NCCL_PROTO": "LL128"}),
        ("broadcast", {"transport": "host"}, OF_HOST),
        ("send_recv", {"transport": "network"}, {**OF_HOST, "NCCL_SHM_DISABLE": "1"}),
        (
            "all_reduce",
            {"channels": 4},
            {
                f"NCCL_{end}_{what}": "4"
                for end in ("MIN", "MAX")
                for what in ("CTAS", "NCHANNELS")
            },
        ),
        (
            "all_to_all",
            {"channels": 2},
            {"NCCL_MIN_P2P_NCHANNELS": "2", "NCCL_MAX_P2P_NCHANNELS": "2"},
        ),
    ],
)
def test_settings_are_the_variables_of_nccls_guide(
    collective: str, changes: dict[str, Any], expected: dict[str, str]
) -> None:
    assert dict(environment_of(case_of(collective, **changes))) == expected


@pytest.mark.parametrize(
    ("collective", "changes", "words"),
    [
        (
            "all_gather",
            {"algorithm": "tree"},
            "NCCL has no tree all_gather; it has ring, collnet, nvls, pat",
        ),
        ("all_reduce", {"algorithm": "pat"}, "NCCL has no pat all_reduce"),
        (
            "all_to_all",
            {"algorithm": "ring"},
            "point-to-point transfers, which have no algorithm",
        ),
        ("gather", {"protocol": "ll"}, "point-to-point transfers, which take no protocol"),
        ("all_reduce", {"algorithm": "nvlstree"}, "joins the NVSwitches of several nodes"),
        ("all_reduce", {"algorithm": "mesh"}, "algorithm 'mesh': NCCL has ring"),
        ("comm_init", {"aggregation": 2}, "comm_init takes no algorithm"),
    ],
)
def test_what_would_be_measured_under_a_wrong_name_is_refused_with_what_there_is(
    collective: str, changes: dict[str, Any], words: str
) -> None:
    reason = BACKEND.refused(case_of(collective, **changes))
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    ("choice", "ran", "words"),
    [
        ({}, LibraryChoice("nvls", "simple", 16), ""),
        ({"algorithm": "tree"}, LibraryChoice(), ""),
        (
            {"algorithm": "tree"},
            LibraryChoice("ring", "ll", 1),
            "asked for tree, NCCL ran ring ll",
        ),
        ({"algorithm": "collnet"}, LibraryChoice("collnetchain", "simple", 1), ""),
        (
            {"protocol": "ll"},
            LibraryChoice("ring", "simple", 1),
            "asked for protocol ll, NCCL ran ring simple",
        ),
        (
            {"algorithm": "ring"},
            LibraryChoice("symmetric", "agxll_r", 8),
            "NCCL ran symmetric agxll_r",
        ),
    ],
)
def test_another_choice_than_asked_for_is_seen(
    choice: dict[str, Any], ran: LibraryChoice, words: str
) -> None:
    reason = other_than_asked(case_of("all_reduce", **choice), ran)
    assert words in reason
    assert bool(words) == bool(reason)


@pytest.mark.parametrize("variable", ["NCCL_ALGO", "NCCL_PROTO"])
def test_what_is_set_already_would_override_a_call_and_is_overridden(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "Tree")
    case = case_of("all_reduce", algorithm="ring")
    assert environment_of(case, (2, 32, 3)) == (("NCCL_ALGO", "Ring"),)
    forced = environment_of(replace(case, protocol="ll128"), (2, 32, 3))
    assert forced == (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL128"))


def test_a_file_says_its_version_without_a_gpu_or_why_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "nccl.c").write_text(
        "int ncclGetVersion(int *found) { *found = 23203; return 0; }"
    )
    library = tmp_path / "libnccl.so.2"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "nccl.c"], check=True)
    assert BACKEND.library_version(str(library)) == "NCCL 2.32.3"
    new = replace(case_of("all_reduce", algorithm="ring"), variant="new")
    new = replace(new, started_with=Variant("new", str(library)))
    assert BACKEND.environment(new) == (
        ("LD_PRELOAD", str(library)),
    )  # the algorithm goes with each call
    absent = replace(new, started_with=Variant("new", "/none.so"))
    assert str(BACKEND.unsupported(absent)).startswith(
        "variant new: /none.so is no NCCL that can be loaded"
    )


def test_an_algorithm_that_a_variant_sets_is_refused_beside_one_that_the_case_asks_for() -> (
    None
):
    tree = Variant("tree", environment=(("NCCL_ALGO", "Tree"),))
    case = replace(case_of("all_reduce", algorithm="ring"), variant="tree", started_with=tree)
    assert str(BACKEND.unsupported(case)).startswith(
        "variant tree: NCCL_ALGO is set by the library or the case"
    )


ZERO: dict[str, Any] = {"cta_policy": "zero", "registration": "symmetric"}


def test_a_cta_policy_is_a_setting_of_a_call_from_2_31_on_unless_a_variable_would_override_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = case_of("all_gather", **ZERO)
    assert environment_of(case, (2, 31, 2)) == ()
    for version in ((), (2, 30, 7)):
        assert environment_of(case, version) == (("NCCL_CTA_POLICY", "2"),)
    monkeypatch.setenv("NCCL_CTA_POLICY", "EFFICIENCY")
    assert environment_of(case, (2, 31, 2)) == (("NCCL_CTA_POLICY", "2"),)


@pytest.mark.parametrize(
    ("collective", "version", "changes", "words"),
    [
        (
            "all_gather",
            (2, 27, 7),
            ZERO,
            "CTA policy zero came with NCCL 2.28, and here is 2.27.7",
        ),
        (
            "all_reduce",
            (),
            ZERO,
            "NCCL has no all_reduce with CTA policy zero; it has all_gather, all_to_all",
        ),
        ("all_gather", (), {"cta_policy": "zero"}, "ask for registration symmetric"),
        ("reduce_scatter", (), {"cta_policy": "efficiency"}, "ask for registration local"),
        ("all_gather", (2, 32, 3), {**ZERO, "algorithm": "ring"}, "ask for 'default' of both"),
    ],
)
def test_a_cta_policy_that_nccl_would_pass_over_is_refused(
    collective: str, version: tuple[int, ...], changes: dict[str, Any], words: str
) -> None:
    assert words in str(policy_refused(case_of(collective, **changes), version))


def test_a_cta_policy_is_not_refused_where_it_takes_effect() -> None:
    for name, policy in CTA_POLICIES.items():
        for collective in policy.collectives:
            case = case_of(collective, cta_policy=name, registration=policy.registration)
            for version in ((), policy.since, (2, 32, 3)):
                assert policy_refused(case, version) is None
    assert policy_refused(case_of("all_reduce"), (2, 14, 3)) is None
