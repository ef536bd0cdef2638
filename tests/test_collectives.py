from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ccbench.collectives import COLLECTIVES, OPS, Collective, collective, combined, reference
from ccbench.dtypes import item_bytes
from ccbench.errors import UsageError

RANKS = st.integers(1, 9)
NAMES = st.sampled_from(sorted(COLLECTIVES))
DTYPES = st.sampled_from(
    [np.int8, np.int32, np.uint64, np.float16, np.float32, np.float64, ml_dtypes.bfloat16]
)


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
        for index in range(
            len(row.outputs(rank, ranks, pieces, root)) if row.moves_data else 0
        ):
            blocks = [
                inputs[origin][at * count : (at + 1) * count]
                for origin, at in row.origins(rank, index, ranks, root)
            ]
            parts.append(combined(blocks, op) if row.reduces else blocks[0])
            assert row.reduces or len(blocks) == 1
        outputs.append(np.concatenate(parts))
    return outputs


@given(
    name=NAMES,
    ranks=RANKS,
    count=st.integers(0, 7),
    dtype=DTYPES,
    op=st.sampled_from(OPS),
    drawn=st.data(),
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


@pytest.mark.parametrize(
    ("op", "dtype", "values", "result"),
    [
        ("min", np.float32, [1, 4], 1),
        ("max", np.float32, [-2, -3], -2),
        ("prod", np.float32, [-2, -3], 6),
        ("sum", np.int8, [127, 1], -128),
        ("sum", np.float16, [60000, 60000], np.inf),
        # Added one by one and rounded every time, the small ones would be lost.
        ("sum", np.float16, [2048, 1, 1, 1, 1], 2052),
        ("sum", ml_dtypes.bfloat16, [256, 1, 1, 1, 1], 260),
        # Whole numbers are cut off towards zero, and the number of ranks need not fit their type.
        ("avg", np.int32, [-3, -4], -3),
        ("avg", np.int32, [3, 4], 3),
        ("avg", np.int8, [1] * 127 + [0] * 130, 0),
    ],
)
def test_an_op_combines_as_its_type_does(
    op: str, dtype: Any, values: list[int], result: float
) -> None:
    assert combined([np.array([value], dtype) for value in values], op).astype(
        float
    ).tolist() == [result]


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (
            lambda: combined([np.array([1])], "xor"),
            "'xor' is not known; write one of sum, prod",
        ),
        (
            lambda: collective("allreduce"),
            "'allreduce' is not known; did you mean 'all_reduce'",
        ),
        (lambda: reference([np.array([1])], "sum", "allreduce", 0), "'allreduce' is not known"),
        (lambda: item_bytes("fp16"), "dtype: 'fp16' is not known; did you mean 'float16'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(
    asked: Callable[[], object], refusal: str
) -> None:
    with pytest.raises(UsageError, match=refusal):
        asked()


def test_bus_factors_of_eight_ranks_are_those_of_nccl_tests() -> None:
    factors = {
        1.75: "all_reduce",
        0.875: "all_gather reduce_scatter all_to_all all_to_all_v gather scatter",
        1.0: "broadcast reduce send_recv barrier",
    }
    expected = {name: factor for factor, names in factors.items() for name in names.split()}
    assert {name: row.bus_factor(8) for name, row in COLLECTIVES.items()} == expected


@given(name=NAMES, ranks=RANKS, size=st.integers(0, 10**6), item=st.sampled_from([1, 2, 4, 8]))
def test_the_count_of_a_size_is_the_largest_that_fits(
    name: str, ranks: int, size: int, item: int
) -> None:
    row = collective(name)
    count = row.count_for(size, ranks, item)
    assert row.size_bytes(count, ranks, item) <= size
    assert not row.moves_data or row.size_bytes(count + 1, ranks, item) > size


@given(
    name=NAMES, ranks=RANKS, count=st.integers(0, 50), pieces=st.integers(1, 6), drawn=st.data()
)
def test_sizes_and_slots_are_those_of_the_largest_buffer(
    name: str, ranks: int, count: int, pieces: int, drawn: st.DataObject
) -> None:
    row = collective(name)
    pieces = ranks if row.blocked else pieces
    root = drawn.draw(st.integers(0, ranks - 1))
    counts, slots = [], []
    for rank in range(ranks):
        counts += [
            row.input_count(count, ranks, rank, root),
            row.output_count(count, ranks, rank, root),
        ]
        slots += [
            *row.inputs(rank, ranks, pieces, root),
            *row.outputs(rank, ranks, pieces, root),
        ]
    assert row.size_bytes(count, ranks, 4) == 4 * max(counts)
    assert row.slots(ranks, pieces) % pieces == 0
    assert all(0 <= slot < row.slots(ranks, pieces) for slot in slots)
