"""Equal collectives become cases, and these a suite that asks for just them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import IDENTITY, Case
from ccbench.readers.traces.events import Communication, ProcessGroup
from ccbench.readers.traces.fold import JobCase, fold, on_fewer, suite_text
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.jobs import call, expanded, trace
from tests.readers.traces.recorded import expected, needs_traces, path_of


def only_case(*records: Communication, **fields: Any) -> JobCase:
    (job_case,) = fold(trace(records, **fields)).cases
    return job_case


def of(case: Case) -> tuple[Any, ...]:
    """What a suite can ask of a case."""
    return tuple(getattr(case, axis.name) for axis in IDENTITY if axis.name != "backend")


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
