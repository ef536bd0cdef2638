"""The kernel that compares: it finds every changed element with its place, and nothing else."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.kernels.abi import COPY_TYPES, NONE_DIFFERS
from ccbench.backends.kernels.host_engine import HostWorld
from ccbench.cases.axes import Case
from ccbench.verification import PERIOD_ELEMENTS, Array, Piece, check, expected_pieces
from tests.backends.kernels.checked import HostOutput

MOST_BYTES = 8 << 20


@lru_cache(maxsize=1)
def world() -> HostWorld:
    """Two channels, so that lanes of both have a share."""
    return HostWorld(1, 2, staging_bytes=4096, spare_bytes=4 * MOST_BYTES)


def placed(right: Array, misalignment_elements: int = 0) -> HostOutput:
    """A copy in the world's memory, between elements that are none of its."""
    mark = world().used
    at = world().allocate(right.nbytes + 64, misalignment_elements * right.itemsize)
    world().view(at, right.nbytes + 64)[:] = 0x5A
    output = world().view(at, right.nbytes + 64)[: right.nbytes].view(right.dtype)
    output[:] = right
    world().used = max(mark, at + right.nbytes + 64)
    return HostOutput(world(), output)


def joined(pieces: list[Piece]) -> Array:
    return np.concatenate([values for piece in pieces for _, values in piece.parts()])


@st.composite
def made_of_pieces(draw: st.DrawFn) -> list[Piece]:
    """Pieces of any lengths, each with a period of its own."""
    dtype: Any = np.dtype(draw(st.sampled_from([*COPY_TYPES.values()])))
    lengths = draw(
        st.lists(st.tuples(st.integers(1, 300), st.integers(1, 90)), min_size=1, max_size=5)
    )
    generator = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    begin, pieces = 0, []
    for elements, period in lengths:
        values = generator.integers(
            0, np.iinfo(dtype).max, min(period, elements), dtype, endpoint=True
        )
        pieces.append(Piece(begin, elements, values))
        begin += elements
    return pieces


@given(pieces=made_of_pieces(), misalignment=st.integers(0, 5), data=st.data())
def test_any_changed_elements_are_counted_and_the_first_is_named(
    pieces: list[Piece], misalignment: int, data: st.DataObject
) -> None:
    mark = world().used
    right = joined(pieces)
    output = placed(right, misalignment)
    assert output.differing(pieces) == NONE_DIFFERS
    changed = data.draw(st.sets(st.integers(0, len(right) - 1), min_size=1, max_size=4))
    bit = data.draw(st.integers(0, 8 * right.itemsize - 1))
    output.output[[*changed]] ^= right.dtype.type(1 << bit)
    assert output.differing(pieces) == (len(changed), min(changed))
    world().free_after(mark)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32", "int64"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_what_is_expected_of_a_case_is_found_right_behind_its_first_period(
    collective: str, dtype: str
) -> None:
    op = "sum" if collective == "all_reduce" else "none"
    case = Case("s", "cuda-host", collective, "ring", dtype, op, 0, PERIOD_ELEMENTS + 61, 2)
    mark = world().used
    pieces = list(expected_pieces(case, 1, case.count * (1 if op == "sum" else 2), 3, 1))
    output = placed(joined(pieces))
    assert output.differing(pieces) == NONE_DIFFERS
    output.output[-1:].view(np.uint8)[0] ^= 1
    assert output.differing(pieces) == (1, len(output.output) - 1)
    mismatch = check(case, 1, output.output, 3, 1)
    assert mismatch is not None
    assert (mismatch.wrong_elements, mismatch.offset) == (1, len(output.output) - 1)
    world().free_after(mark)
