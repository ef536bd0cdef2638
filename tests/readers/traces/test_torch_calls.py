"""What operators of the host tell where no record says it."""

from __future__ import annotations

import pytest

from ccbench.readers.traces.torch_calls import group_size


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ({"Collective name": "c10d::alltoall_base_", "In split size": "[0, 64, 0]"}, 3),
        ({"Collective name": "c10d::alltoall_base_", "In split size": "[]"}, 0),
        ({"Collective name": "c10d::alltoall_base_", "In split size": "[1, 2, ..., 4]"}, 0),
        ({"Collective name": "all_gather", "In msg nelems": 8, "Out msg nelems": 32}, 4),
        ({"Collective name": "reduce_scatter", "In msg nelems": 9, "Out msg nelems": 4}, 0),
        ({"Collective name": "all_reduce", "In msg nelems": 8, "Out msg nelems": 8}, 0),
    ],
)
def test_splits_and_gathered_sizes_tell_how_many_ranks_a_group_has(
    words: dict[str, object], ranks: int
) -> None:
    assert group_size(words) == ranks
