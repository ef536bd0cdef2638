"""Names in traces: collectives, element types, buffers from one size, the rank in a file's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.collectives import COLLECTIVES
from ccbench.readers.traces.words import buffers, collective_of


@given(st.text(max_size=300))
def test_any_text_is_a_collective_or_none(text: str) -> None:
    assert collective_of(text) in {*COLLECTIVES, "send", "recv", ""}


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(ranks=st.integers(1, 64), count=st.integers(1, 10**6))
def test_one_buffer_is_the_size_and_the_other_what_the_collective_makes_of_it(
    collective: str, ranks: int, count: int
) -> None:
    row = COLLECTIVES[collective]
    size = row.size_bytes(count, ranks, 1)
    both = buffers(collective, size, ranks)
    assert both == (row.input_count(count, ranks, 0, 0), row.output_count(count, ranks, 0, 0))
    assert max(both) == size
    assert size in buffers(collective, size, 0)
