"""Who communicates with whom at the same time: one group alone, groups of their own beside, uneven blocks."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ccbench.backends.nccl import BACKEND, communicators
from ccbench.cases.axes import Case
from tests.backends.measuring import launched, measured, spoilt, wrong_elements
from tests.tiers import examples

from .measuring import bindings, case_of, close_clean, opened

CROSSED = "all_gather on rank % 2"
HALVES = ("all_reduce ranks 0-1", "all_reduce ranks 2-3")


# -- one group alone -----------------------------------------------------------------------------------------


@pytest.mark.thinned(1)
@pytest.mark.parametrize("mode", ["streaming", "graph"])
def test_only_so_many_communicators_are_kept_and_those_in_use_are(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicators, "MOST_KEPT", 2)
    endpoint, process = opened()
    for groups in ["rank // 2", "rank % 2", "[[0, 3], [1, 2]]", "[[2, 0]]", "rank % 2"]:
        assert wrong_elements(endpoint, case_of("all_reduce", groups=groups, mode=mode)) == 0
        assert (
            wrong_elements(endpoint, case_of("all_reduce", groups=groups, concurrent=CROSSED))
            == 0
        )
        assert len(endpoint._communicators._made) <= 3  # with that of all ranks
    close_clean(endpoint, process)


# -- groups of their own beside ------------------------------------------------------------------------------


@pytest.mark.thinned(2)
@pytest.mark.parametrize("version", [22809, 21704])
@pytest.mark.parametrize(
    ("groups", "beside", "parts"),
    [
        ("rank // 2", CROSSED, (*HALVES, "all_gather ranks 0, 2", "all_gather ranks 1, 3")),
        ("", CROSSED, ("all_reduce", "all_gather ranks 0, 2", "all_gather ranks 1, 3")),
        ("[[1, 2]]", "all_to_all on all", ("all_reduce", "all_to_all")),
        ("[[3, 0]]", "broadcast on [[2, 1]]", ("all_reduce", "broadcast")),
        ("rank // 2", "reduce", (*HALVES, "reduce ranks 0-1", "reduce ranks 2-3")),
    ],
)
def test_a_rank_is_in_several_groups_at_once_and_all_are_checked_and_timed(
    groups: str, beside: str, parts: tuple[str, ...], version: int
) -> None:
    endpoint, process = opened(version=version)
    for changes in (
        {},
        {"registration": "symmetric"} if version > 22700 else {},
        {"aggregation": 2},
    ):
        result, facts = measured(
            endpoint, case_of("all_reduce", groups=groups, concurrent=beside, **changes)
        )
        assert result.mismatch is None
        assert facts.parts == parts
        assert all(
            second > 0
            for group_samples_second in facts.group_samples_seconds
            for second in group_samples_second
        )
    close_clean(endpoint, process)


@pytest.mark.parametrize("part", range(4))
def test_a_spoilt_result_of_any_part_is_found_with_its_rank(part: int) -> None:
    endpoint, process = opened()
    launched(endpoint, case_of("all_reduce", groups="rank // 2", concurrent=CROSSED))
    assert spoilt(endpoint) is None
    changed = [binding for binding in bindings(endpoint) if binding.part.number == part][1]
    address, _ = changed.outputs()[0]
    process.world.view(address + 8, 4, changed.rank)[:] = 0x7F
    assert spoilt(endpoint) == (changed.rank, 1, 2)


# -- uneven blocks -------------------------------------------------------------------------------------------


@examples(
    10,
    100,
    settings(suppress_health_check=[HealthCheck.too_slow]),
    matrix=st.lists(
        st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=3, max_size=3
    ),
    count=st.integers(0, 40),
)
def test_any_matrix_arrives(matrix: list[list[int]], count: int) -> None:
    if not any(map(any, matrix)):
        matrix[0][1] = 1
    endpoint, process = opened(3)
    case = case_of("all_to_all_v", 3, count, traffic=str(matrix), dtype="int8")
    assert wrong_elements(endpoint, case) == 0
    close_clean(endpoint, process)


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (case_of("all_to_all_v", in_place=True), "nccl has no all_to_all_v in place"),
        (
            case_of(
                "all_reduce", mode="overlap", overlap_with="matmul", concurrent="all_gather"
            ),
            "no collective runs concurrently with another in mode overlap",
        ),
        (
            case_of("all_reduce", mode="overlap", overlap_with="memory", aggregation=2),
            "leave pair and",
        ),
        (
            case_of("all_to_all_v", algorithm="ring"),
            "point-to-point transfers, which have no algorithm",
        ),
        (
            case_of(
                "all_gather", dtype="float8_e4m3", concurrent="all_reduce on all", ranks=64
            ),
            "sum over 64 ranks cannot be checked",
        ),
    ],
)
def test_what_cannot_be_is_said_with_a_cure(case: Case, words: str) -> None:
    assert words in str(BACKEND.unsupported(case))
