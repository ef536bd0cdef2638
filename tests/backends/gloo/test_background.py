"""Gloo's new company: uneven blocks, one group alone, a second collective beside, a computation meanwhile."""

from __future__ import annotations

import random

import pytest

from ccbench.backends.gloo import BACKEND
from ccbench.cases import OVERLAP, UNEVEN, Case
from ccbench.collectives import COLLECTIVES
from ccbench.runner.measure import RankResult

from .team import measured, measured_with_facts
from .test_gloo import case_of, needs_torch

HALVES, COLUMNS = "rank // 2", "rank % 2"


def all_right(ranks: int, cases: list[Case]) -> list[list[RankResult]]:
    for case in cases:
        assert BACKEND.unsupported(case) is None, case.label
    found = measured(ranks, cases)
    for case, results in zip(cases, found, strict=True):
        for result in results:
            assert result.mismatch is None, f"{case.label}: {result.mismatch}"
            assert result.stamps.shape[1] >= 2
    return found


@needs_torch
def test_uneven_blocks_arrive() -> None:
    draw = random.Random(9)
    matrices = [[[draw.choice((0, 0, 1, 2, 7)) for _ in range(3)] for _ in range(3)] for _ in range(6)]
    traffics = ["", "zipf:1.2", "hot:1", *(str(one) for one in matrices if any(map(any, one)))]
    cases = [case_of(UNEVEN, 3, traffic=one, count=count) for one in traffics for count in (1, 37)]
    all_right(3, [*cases, case_of(UNEVEN, 3, traffic="hot:0.5", dtype="bfloat16")])


@needs_torch
def test_one_group_runs_while_the_others_stand_by() -> None:
    cases = [
        case_of(name, 4, groups=COLUMNS, active_group=alone, root=1 if COLLECTIVES[name].rooted else -1)
        for name, alone in (
            ("all_reduce", 0),
            ("all_to_all_v", 1),
            ("reduce", 0),
            ("send_recv", 1),
            ("barrier", 0),
        )
    ]
    cases.append(case_of("all_gather", 4, groups="dp of tp2-cp1-ep1-dp2-pp1", active_group=1))
    cases.append(case_of("all_reduce", 4, groups="[[2, 0]]"))
    all_right(4, cases)


@needs_torch
def test_every_collective_runs_beside_another() -> None:
    names = list(COLLECTIVES)
    cases = [
        case_of(name, 3, concurrent=f"{other} on all")
        for name, other in zip(names, names[3:] + names[:3], strict=True)
    ]
    all_right(3, cases)


@needs_torch
def test_two_collectives_have_groups_of_their_own_and_times_of_their_own() -> None:
    case = case_of("all_reduce", 4, groups=HALVES, concurrent=f"reduce_scatter on {COLUMNS}")
    alone = case_of("all_gather", 4, groups=HALVES, active_group=1, concurrent="all_reduce on all")
    silent = case_of("send_recv", 4, groups=HALVES, concurrent="reduce_scatter")
    found = measured_with_facts(4, [case, alone, silent])
    assert all(result.mismatch is None for by_rank in found for result, _ in by_rank)
    (first, second, third), samples = zip(
        *[(facts, result.stamps.shape[1]) for (result, facts), *_ in found], strict=True
    )
    own = ("ranks 0-1 all_reduce", "ranks 2-3 all_reduce")
    assert first.parts == (*own, "ranks 0, 2 reduce_scatter", "ranks 1, 3 reduce_scatter")
    assert second.parts == ("ranks 2-3 all_gather", "all_reduce")
    assert third.parts == ()
    for one, number in zip((first, second), samples, strict=False):
        assert all(len(part) == number for part in one.group_samples_seconds)
        assert all(seconds > 0 for part in one.group_samples_seconds for seconds in part)


@needs_torch
def test_every_collective_goes_on_behind_a_computation() -> None:
    cases = [case_of(name, 3, mode=OVERLAP, overlap_with="matmul") for name in COLLECTIVES]
    cases += [
        case_of("send_recv", 3, mode=OVERLAP, overlap_with="matmul", pair=one) for one in ("2>0", "0<>1")
    ]
    cases.append(case_of("all_reduce", 3, mode=OVERLAP, overlap_with="memory", in_place=True))
    cases.append(case_of("all_reduce", 3, mode=OVERLAP, overlap_with="matmul", groups="[[0, 2]]"))
    all_right(3, cases)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("all_to_all_v", {"in_place": True}, "no all_to_all_v in place"),
        (
            "all_reduce",
            {"mode": OVERLAP, "concurrent": "all_gather"},
            "concurrently with another in mode overlap",
        ),
        ("send_recv", {"pair": "0>1", "concurrent": "all_gather"}, "concurrently with a pair"),
        ("all_gather", {"dtype": "uint32", "concurrent": "all_reduce"}, "no dtype uint32"),
    ],
)
def test_what_cannot_go_on_in_the_background_is_refused_with_a_cure(
    name: str, changes: dict[str, object], words: str
) -> None:
    assert words in (BACKEND.unsupported(case_of(name, 2, **changes)) or "")
