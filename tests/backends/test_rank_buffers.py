"""Times and names of two collectives that run at the same time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.rank_endpoint import (
    LaneTimes,
    group_facts,
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
