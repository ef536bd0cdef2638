"""Times and names of two collectives that run at the same time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.rank_endpoint import (
    HostMemory,
    LaneTimes,
    RankBuffers,
    group_facts,
    group_parts,
    lanes_of,
)
from ccbench.cases.axes import Case

TWO = Case(
    "s",
    "mpi",
    "all_reduce",
    "default",
    "float32",
    "sum",
    64,
    16,
    4,
    concurrent="all_gather on rank % 2",
)


def second_of(case: Case, rank: int) -> RankBuffers:
    second = lanes_of(RankBuffers, case, rank, None)[1]
    second.take(HostMemory(None))  # type: ignore[arg-type]  # no endpoint is asked for anything
    return second


@given(st.integers(1, 5), st.data())
def test_a_part_takes_as_long_as_the_slowest_of_its_ranks(
    samples: int, data: st.DataObject
) -> None:
    numbers = st.lists(st.floats(0, 9), min_size=8 * samples, max_size=8 * samples)
    seconds = np.array(data.draw(numbers)).reshape(4, samples, 2)
    main, even, odd = group_facts(TWO, seconds).group_samples_seconds
    assert main == tuple(seconds[:, :, 0].max(axis=0))
    assert even == tuple(np.maximum(seconds[0, :, 1], seconds[2, :, 1]))
    assert odd == tuple(np.maximum(seconds[1, :, 1], seconds[3, :, 1]))


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 9)), max_size=6))
def test_only_the_first_launches_after_a_sample_is_announced_are_kept(
    turns: list[tuple[int, float]],
) -> None:
    times = LaneTimes(np.zeros((8, 2)))
    for sample, (launches, seconds) in enumerate(turns):
        for announced in (
            -1,
            sample,
            None,
        ):  # a warm-up, the sample, and a launch that nobody announced
            if announced is not None:
                times.expect(announced)
            times.begin()
            times.running[0] += seconds if announced == sample else 100.0
            times.running[1] += seconds
            times.keep(launches)
    assert times.samples == len(turns)
    assert times.kept[: len(turns), 0].tolist() == [
        seconds / launches for launches, seconds in turns
    ]


@pytest.mark.parametrize("rank", range(4))
def test_data_of_the_second_collective_are_its_own_and_a_mismatch_names_it(rank: int) -> None:
    second = second_of(TWO, rank)
    assert second.needed_bytes == (8 + 16) * 4
    second.refill(3)
    second.poison()
    halves = []
    for source in (rank % 2, rank % 2 + 2):
        peer = second_of(TWO, source)
        peer.refill(3)
        halves.append(peer.source)
    mismatch = second.check(3, 1)
    assert mismatch is not None
    assert (mismatch.rank, mismatch.wrong_elements) == (rank, 16)
    assert mismatch.expected.endswith("in the concurrent all_gather")
    second.target[:] = np.concatenate(halves)
    assert second.check(3, 1) is None
    assert second.check(4, 1) is not None


def test_a_rank_outside_needs_nothing_and_finds_nothing_wrong() -> None:
    case = Case(
        "s",
        "mpi",
        "all_reduce",
        "default",
        "float32",
        "sum",
        64,
        16,
        4,
        groups="rank // 2",
        active_group=1,
        concurrent="all_gather",
    )
    outside = second_of(case, 0)
    outside.refill(1)
    outside.poison()
    assert (outside.needed_bytes, outside.part, outside.check(1, 1)) == (0, None, None)
    assert [name for name, *_ in group_parts(case)] == [
        "ranks 2-3 all_reduce",
        "ranks 2-3 all_gather",
    ]
