from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ccbench.collectives import COLLECTIVES, OPS, Collective, collective, combined, reference
from ccbench.errors import UsageError

RANKS = st.integers(1, 9)
NAMES = st.sampled_from(sorted(COLLECTIVES))
DTYPES = st.sampled_from(
    [np.int8, np.int32, np.uint64, np.float16, np.float32, np.float64, ml_dtypes.bfloat16]
)
AMOUNTS = st.integers(1, 6).flatmap(
    lambda ranks: st.lists(
        st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks
    ).map(np.array)
)
"""Elements that each source sends to each target."""


def made_inputs(
    row: Collective, ranks: int, count: int, root: int, dtype: Any, seed: int
) -> list[NDArray[Any]]:
    """Small whole numbers from -2 to 2 (0 to 4 unsigned): exact in every dtype for up to 9 ranks."""
    source = np.random.default_rng(seed)
    low = 0 if np.dtype(dtype).kind == "u" else -2
    return [
        source.integers(low, low + 5, row.input_count(count, ranks, rank, root)).astype(dtype)
        for rank in range(ranks)
    ]


def by_origins(
    row: Collective, inputs: list[NDArray[Any]], count: int, root: int, op: str
) -> list[NDArray[Any]]:
    """The outputs as the row's slots and origins tell them; one piece a block."""
    ranks = len(inputs)
    outputs = []
    for rank in range(ranks):
        # Not blocked: any number of pieces must give the same; with one it is the whole buffer.
        pieces = ranks if row.blocked else 1
        parts = [inputs[0][:0]]
        for index in range(len(row.outputs(rank, ranks, pieces, root)) if row.moves_data else 0):
            blocks = [
                inputs[origin][at * count : (at + 1) * count]
                for origin, at in row.origins(rank, index, ranks, root)
            ]
            parts.append(combined(blocks, op) if row.reduces else blocks[0])
            assert row.reduces or len(blocks) == 1
        outputs.append(np.concatenate(parts))
    return outputs


@given(
    name=NAMES, ranks=RANKS, count=st.integers(0, 7), dtype=DTYPES, op=st.sampled_from(OPS), drawn=st.data()
)
def test_the_reference_agrees_with_the_origins_of_the_table(
    name: str, ranks: int, count: int, dtype: Any, op: str, drawn: st.DataObject
) -> None:
    row = collective(name)
    root = drawn.draw(st.integers(0, ranks - 1))
    inputs = made_inputs(row, ranks, count, root, dtype, drawn.draw(st.integers(0, 99)))
    outputs = reference(inputs, op, name, root)
    for rank, (seen, expected) in enumerate(
        zip(outputs, by_origins(row, inputs, count, root, op), strict=True)
    ):
        assert seen.dtype == np.dtype(dtype)
        assert len(seen) == row.output_count(count, ranks, rank, root)
        np.testing.assert_array_equal(seen, expected)


@given(name=NAMES, ranks=RANKS, seed=st.integers(0, 99))
def test_the_reference_gives_arrays_of_its_own(name: str, ranks: int, seed: int) -> None:
    inputs = made_inputs(collective(name), ranks, 3, 0, np.int32, seed)
    before = [buffer.copy() for buffer in inputs]
    outputs = reference(inputs, "sum", name, 0)
    for output in outputs:
        output += 1
    for seen, expected in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(seen, expected)
    assert len({id(output) for output in outputs}) == ranks


def test_the_reference_does_what_the_mpi_standard_draws() -> None:
    inputs = [np.array([1, 2], np.int32), np.array([30, 40], np.int32)]
    blocks = [np.array([1], np.int32), np.array([2], np.int32)]
    nothing = np.array([], np.int32)

    def seen(name: str, buffers: list[NDArray[np.int32]], root: int = 1) -> list[list[int]]:
        return [output.tolist() for output in reference(buffers, "sum", name, root)]

    assert seen("all_reduce", inputs) == [[31, 42], [31, 42]]
    assert seen("reduce", inputs) == [[], [31, 42]]
    assert seen("reduce_scatter", inputs) == [[31], [42]]
    assert seen("all_gather", blocks) == [[1, 2], [1, 2]]
    assert seen("gather", blocks) == [[], [1, 2]]
    assert seen("broadcast", [nothing, inputs[1]]) == [[30, 40], [30, 40]]
    assert seen("scatter", [nothing, inputs[1]]) == [[30], [40]]
    assert seen("all_to_all", inputs) == [[1, 30], [2, 40]]
    assert seen("all_to_all_v", inputs) == [[1, 30], [2, 40]]
    assert seen("send_recv", inputs) == [[30, 40], [1, 2]]
    assert seen("barrier", [nothing, nothing]) == [[], []]


def test_blocks_of_an_all_to_all_v_are_as_large_as_is_said() -> None:
    inputs = [np.array([1, 2, 3], np.int32), np.array([], np.int32), np.array([7, 8], np.int32)]
    sent = np.array([[0, 2, 1], [0, 0, 0], [1, 0, 1]])
    outputs = reference(inputs, "none", "all_to_all_v", 0, sent)
    assert [output.tolist() for output in outputs] == [[7], [1, 2], [3, 8]]


@given(sent=AMOUNTS, dtype=DTYPES)
def test_an_all_to_all_v_and_its_transpose_bring_everything_back(sent: NDArray[Any], dtype: Any) -> None:
    inputs = [np.arange(total).astype(dtype) for total in sent.sum(axis=1)]
    there = reference(inputs, "none", "all_to_all_v", 0, sent)
    assert [len(one) for one in there] == sent.sum(axis=0).tolist()
    back = reference(there, "none", "all_to_all_v", 0, sent.T)
    for seen, expected in zip(back, inputs, strict=True):
        np.testing.assert_array_equal(seen, expected)


def test_averages_of_whole_numbers_are_cut_off_towards_zero() -> None:
    buffers = [np.array([-3, 3, -4, 5], np.int32), np.array([-4, 4, -4, 5], np.int32)]
    assert combined(buffers, "avg").tolist() == [-3, 3, -4, 5]


def test_the_number_of_ranks_need_not_fit_the_dtype_that_is_averaged() -> None:
    buffers = [np.array([1], np.int8) for _ in range(127)] + [np.array([0], np.int8) for _ in range(130)]
    assert combined(buffers, "avg").tolist() == [0]


def test_sums_of_whole_numbers_wrap_around() -> None:
    assert combined([np.array([127], np.int8), np.array([1], np.int8)], "sum").tolist() == [-128]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_summed_in_float32_and_rounded_once(dtype: Any) -> None:
    # Added one by one and rounded every time, the small ones would be lost.
    large, small = (2048, 1) if dtype == np.float16 else (256, 1)
    buffers = [np.array([large], dtype)] + [np.array([small], dtype)] * 4
    assert float(combined(buffers, "sum")[0]) == large + 4 * small


def test_a_sum_too_large_for_its_dtype_is_infinite() -> None:
    buffers = [np.array([60000], np.float16)] * 2
    assert np.isinf(combined(buffers, "sum")[0])


def test_minimum_and_maximum_and_product() -> None:
    buffers = [np.array([1.0, -2.0], np.float32), np.array([4.0, -3.0], np.float32)]
    assert combined(buffers, "min").tolist() == [1.0, -3.0]
    assert combined(buffers, "max").tolist() == [4.0, -2.0]
    assert combined(buffers, "prod").tolist() == [4.0, 6.0]


def test_an_unknown_op_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'xor' is not known; write one of sum, prod, min, max, avg"):
        combined([np.array([1])], "xor")


def test_an_unknown_collective_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'allreduce' is not known; did you mean 'all_reduce'"):
        collective("allreduce")
    with pytest.raises(UsageError, match="'allreduce' is not known; did you mean 'all_reduce'"):
        reference([np.array([1])], "sum", "allreduce", 0)


def test_bus_factors_of_eight_ranks_are_those_of_nccl_tests() -> None:
    assert {name: row.bus_factor(8) for name, row in COLLECTIVES.items()} == {
        "all_reduce": 1.75,
        "all_gather": 0.875,
        "reduce_scatter": 0.875,
        "all_to_all": 0.875,
        "all_to_all_v": 0.875,
        "gather": 0.875,
        "scatter": 0.875,
        "broadcast": 1.0,
        "reduce": 1.0,
        "send_recv": 1.0,
        "barrier": 1.0,
    }


@given(name=NAMES, ranks=RANKS, size=st.integers(0, 10**6), item=st.sampled_from([1, 2, 4, 8]))
def test_the_count_of_a_size_is_the_largest_that_fits(name: str, ranks: int, size: int, item: int) -> None:
    row = collective(name)
    count = row.count_for(size, ranks, item)
    assert row.size_bytes(count, ranks, item) <= size
    assert not row.moves_data or row.size_bytes(count + 1, ranks, item) > size


@given(name=NAMES, ranks=RANKS, count=st.integers(0, 50), drawn=st.data())
def test_the_size_is_that_of_the_largest_buffer(
    name: str, ranks: int, count: int, drawn: st.DataObject
) -> None:
    row = collective(name)
    root = drawn.draw(st.integers(0, ranks - 1))
    counts = [row.input_count(count, ranks, rank, root) for rank in range(ranks)]
    counts += [row.output_count(count, ranks, rank, root) for rank in range(ranks)]
    assert row.size_bytes(count, ranks, 4) == 4 * max(counts)


@given(name=NAMES, ranks=RANKS, pieces=st.integers(1, 6), drawn=st.data())
def test_all_slots_lie_within_the_count_of_slots(
    name: str, ranks: int, pieces: int, drawn: st.DataObject
) -> None:
    row = collective(name)
    pieces = ranks if row.blocked else pieces
    root = drawn.draw(st.integers(0, ranks - 1))
    limit = row.slots(ranks, pieces)
    assert limit % pieces == 0
    for rank in range(ranks):
        for slots in (row.inputs(rank, ranks, pieces, root), row.outputs(rank, ranks, pieces, root)):
            assert all(0 <= slot < limit for slot in slots)
