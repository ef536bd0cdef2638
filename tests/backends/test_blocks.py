"""Blocks of an all_to_all_v fill their buffers without gaps, and what one rank sends another receives."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.blocks import Blocks, one_after_the_other, received_blocks, sent_blocks
from ccbench.cases import UNEVEN, Case

PLAIN = Case("s", "mpi", UNEVEN, "default", "float32", "none", 0, 0, 4)

amounts = st.integers(0, 9)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ranks = draw(st.integers(1, 6))
    matrix = draw(st.lists(st.lists(amounts, min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks))
    matrix[0][0] += 1  # one that is all zeros is none
    named = st.sampled_from(["", "zipf:1.2", "hot:0.5", "hot:1"])
    traffic = draw(st.one_of(named, st.just(str(matrix))))
    return replace(PLAIN, ranks=ranks, count=draw(st.integers(0, 1000)), traffic=traffic)


@given(st.lists(st.integers(0, 1 << 40), max_size=20), st.integers(1, 8))
def test_each_block_begins_where_the_one_before_ends(counts: list[int], factor: int) -> None:
    blocks = one_after_the_other(counts)
    ends = [offset + count for offset, count in zip(blocks.offsets, blocks.counts, strict=True)]
    assert list(blocks.offsets) == [0, *ends[:-1]][: len(counts)]
    assert blocks.times(factor) == one_after_the_other([one * factor for one in counts])


@given(cases())
def test_what_one_sends_the_other_receives(case: Case) -> None:
    sent = [sent_blocks(case, seat) for seat in range(case.ranks)]
    received = [received_blocks(case, seat) for seat in range(case.ranks)]
    for source in range(case.ranks):
        assert [one.counts[source] for one in received] == list(sent[source].counts)


@given(cases())
def test_blocks_fill_the_buffers_of_the_case(case: Case) -> None:
    for seat in range(case.ranks):
        assert sum(sent_blocks(case, seat).counts) == case.input_count(seat)
        assert sum(received_blocks(case, seat).counts) == case.output_count(seat)


def test_nothing_has_no_blocks() -> None:
    assert one_after_the_other(()) == Blocks((), ())
