"""Equal collectives become cases, and these a suite that asks for just them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import IDENTITY, Case
from ccbench.errors import UsageError
from ccbench.groups import parse_groups
from ccbench.readers.traces.events import Communication, ProcessGroup
from ccbench.readers.traces.fold import JobCase, fold, on_fewer, suite_text
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.jobs import WORLD, call, expanded, trace
from tests.readers.traces.recorded import expected, needs_traces, path_of


def only_case(*records: Communication, **fields: Any) -> JobCase:
    (job_case,) = fold(trace(records, **fields)).cases
    return job_case


def of(case: Case) -> tuple[Any, ...]:
    """What a suite can ask of a case."""
    return tuple(getattr(case, axis.name) for axis in IDENTITY if axis.name != "backend")


def test_equal_collectives_are_one_case_with_a_count() -> None:
    records = [call(rank, size_bytes=size) for rank in range(4) for size in (64, 128, 64)]
    folded = fold(trace(records))
    assert [(job_case.case.size_bytes, job_case.count) for job_case in folded.cases] == [
        (64, 2),
        (128, 1),
    ]
    assert folded.not_folded == {}


@pytest.mark.parametrize(
    ("collective", "given_bytes", "got_bytes", "size_bytes"),
    [
        ("all_reduce", 4096, 4096, 4096),
        ("all_gather", 1024, 4096, 4096),
        ("all_gather", 1024, None, 4096),
        ("reduce_scatter", 4096, 1024, 4096),
        ("reduce_scatter", None, 1024, 4096),
        ("broadcast", 4096, 4096, 4096),
        ("gather", 1024, None, 4096),
        ("scatter", None, 1024, 4096),
        ("all_to_all", 4096, 4096, 4096),
    ],
)
def test_sizes_are_nccl_tests_own(
    collective: str, given_bytes: int | None, got_bytes: int | None, size_bytes: int
) -> None:
    job_case = only_case(call(0, collective, input_bytes=given_bytes, output_bytes=got_bytes))
    assert job_case.case.size_bytes == size_bytes
    assert job_case.case.ranks == 4


@pytest.mark.parametrize(
    ("ranks", "world", "groups"),
    [
        (range(8), 8, ""),
        ((2, 3), 8, "rank // 2"),
        ((1, 5), 8, "rank % 4"),
        ((1, 3), 8, "dp of tp2-cp1-ep1-dp2-pp2"),
        ((1, 2), 8, "[[1, 2]]"),
        ((0, 1, 4), 8, "[[0, 1, 4]]"),
    ],
)
def test_groups_are_spelled_as_suites_have_them(
    ranks: Sequence[int], world: int, groups: str
) -> None:
    group = ProcessGroup("g", len(ranks), tuple(ranks))
    job_case = only_case(call(ranks[0], group=group), world_size=world)
    assert job_case.case.groups == groups
    assert job_case.case.ranks == world
    assert tuple(ranks) in parse_groups(groups, world)


def test_groups_of_one_shape_are_one_case() -> None:
    pairs = [ProcessGroup(str(n), 2, (2 * n, 2 * n + 1)) for n in range(2)]
    job_case = only_case(*(call(rank, group=pairs[rank // 2]) for rank in range(4)))
    assert (job_case.case.groups, job_case.count) == ("rank // 2", 2)


def test_a_group_without_known_ranks_is_alone() -> None:
    job_case = only_case(call(None, group=ProcessGroup("tp", 8)), world_size=0)
    assert (job_case.case.ranks, job_case.case.groups) == (8, "")


def test_uneven_blocks_are_a_matrix_where_all_ranks_are_known() -> None:
    splits = [(0, 4, 4, 4), (8, 0, 4, 4), (4, 4, 0, 4), (4, 4, 4, 0)]
    records = [
        call(rank, "all_to_all", input_bytes=sum(row), output_bytes=16, input_splits=row)
        for rank, row in enumerate(splits)
    ]
    job_case = only_case(*records)
    assert job_case.case.collective == "all_to_all_v"
    assert job_case.case.traffic == str([list(row) for row in splits])
    assert job_case.case.size_bytes == 16
    lacking = only_case(*records[:2])
    assert (lacking.case.collective, lacking.case.traffic) == ("all_to_all", "")
    assert "does not show what all ranks send" in lacking.remarks[0]


def test_messages_fold_by_their_distance() -> None:
    records = [
        call(0, "send", 64, peer=1),
        call(2, "send", 64, peer=3),
        call(3, "send", 64, peer=2),
    ]
    counts = {job_case.case.pair: job_case.count for job_case in fold(trace(records)).cases}
    assert counts == {"0>1": 2, "1>0": 1}


def test_what_is_no_case_is_counted_with_its_reason() -> None:
    records = [
        call(0, "", name="mystery"),
        call(0, group=ProcessGroup("", 0)),
        call(0, "send", 8),
        call(0, group=ProcessGroup("lone", 1, (0,))),
        call(0, input_bytes=None, output_bytes=None),
    ]
    folded = fold(trace(records, not_taken={"waits": 7}))
    assert folded.cases == ()
    assert sum(folded.not_folded.values()) == 12
    assert len(folded.not_folded) == 6


def test_a_type_that_ccbench_lacks_is_measured_by_its_bytes_and_marked() -> None:
    job_case = only_case(call(0, "all_gather", dtype="Bool"))
    assert job_case.case.dtype == "uint8"
    assert job_case.remarks == ("Bool elements measured as uint8",)
    assert only_case(call(0, dtype="")).case.dtype == "float32"


SHAPES = st.sampled_from([(tuple(range(8)),), ((0, 1),), ((0, 4),), ((1, 3),), ((0, 3, 5),)])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "all_reduce",
                    "all_gather",
                    "reduce_scatter",
                    "broadcast",
                    "barrier",
                    "all_to_all",
                ]
            ),
            st.integers(1, 2**20),
            SHAPES,
            st.sampled_from(["float32", "bfloat16", "int64"]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_the_suite_asks_for_exactly_these_cases(calls: list[Any]) -> None:
    records = []
    for collective, size, (ranks,), dtype in calls:
        group = ProcessGroup(str(ranks), len(ranks), ranks)
        whole = size * 8 * len(ranks)
        records.append(call(ranks[0], collective, whole, dtype=dtype, group=group))
    cases = fold(trace(records, world_size=8)).cases
    assert {of(case) for case in expanded(suite_text(cases, "a job"))} == {
        of(case.case) for case in cases
    }


def test_the_suite_has_pairs_traffic_roots_and_its_name_in_one_line() -> None:
    splits = [(0, 4, 4, 4), (8, 0, 4, 4), (4, 4, 0, 4), (4, 4, 4, 0)]
    records = [
        call(rank, "all_to_all", input_bytes=sum(row), output_bytes=16, input_splits=row)
        for rank, row in enumerate(splits)
    ]
    records += [call(1, "broadcast", root=2), call(0, "send", 64, peer=2)]
    cases = fold(trace(records)).cases
    text = suite_text(cases, 'evil"\nsweep: []')
    assert {of(job_case) for job_case in expanded(text)} == {
        of(job_case.case) for job_case in cases
    }
    assert {job_case.case.root for job_case in cases} == {-1, 2}


@given(
    st.integers(2, 16),
    SHAPES,
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]),
)
def test_fewer_ranks_keep_the_bytes_of_a_rank_and_say_so(
    ranks: int, shape: Any, collective: str
) -> None:
    group = ProcessGroup("g", len(shape[0]), shape[0])
    case = only_case(call(shape[0][0], collective, 2**20, group=group), world_size=16).case
    fewer, remark = on_fewer(case, ranks)
    assert fewer.ranks <= max(ranks, 2)
    assert fewer.group_ranks == min(case.group_ranks, ranks)
    assert (remark == "") == (fewer == case)
    assert 0 <= case.size_bytes - fewer.size_bytes < 64
    assert on_fewer(fewer, ranks) == (fewer, "")


def test_uneven_traffic_of_more_ranks_is_refused() -> None:
    case = Case(
        "job", "nccl", "all_to_all_v", "default", "float32", "none", 16, 1, 4, traffic="[[1]]"
    )
    with pytest.raises(UsageError, match="uneven traffic of 4 ranks; there are 2"):
        on_fewer(case, 2)


@needs_traces
@pytest.mark.parametrize("name", ["kineto/a100x2_ddp_metadata.json.gz"])
def test_real_traces_have_the_cases_that_their_manifest_counts(name: str) -> None:
    folded = fold(read_traces([path_of(name)]))
    assert len(folded.cases) == expected(name)["distinct_cases"]
    assert (
        sum(job_case.count for job_case in folded.cases)
        == expected(name)["communication_kernels"]
    )
    cases = {of(replace(job_case.case)) for job_case in folded.cases}
    assert {of(job_case) for job_case in expanded(suite_text(folded.cases, name))} == cases


def test_the_world_is_as_large_as_the_highest_rank() -> None:
    job_case = only_case(call(0, group=replace(WORLD, ranks=(0, 1, 2, 9))), world_size=0)
    assert job_case.case.ranks == 10
