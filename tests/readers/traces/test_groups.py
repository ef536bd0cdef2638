"""Process groups: from listed ranks, or from a start and a stride where the list is cut off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.traces.groups import Groups


@pytest.mark.parametrize(("start", "stride"), [(-1, 1), (0, -1), (0, 0), (-1, -1)])
def test_no_start_or_stride_gives_no_ranks(start: int, stride: int) -> None:
    assert Groups().of("1", 2, start=start, stride=stride).ranks == ()


@given(
    st.text(), st.integers(0, 2**70), st.text(), st.integers(-2, 2**70), st.integers(-2, 2**70)
)
def test_any_words_make_a_group(
    name: str, size: int, listed: str, start: int, stride: int
) -> None:
    group = Groups().of(name, min(size, 1000), listed, start, stride)
    assert group.size >= len(group.ranks)
