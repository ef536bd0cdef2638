"""Process groups: from listed ranks, or from a start and a stride where the list is cut off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.traces import groups
from ccbench.readers.traces.groups import Groups


def test_listed_ranks_are_kept_in_their_order() -> None:
    group = Groups().of("1", 3, "[4, 0, 2]", description="tp")
    assert (group.name, group.size, group.ranks, group.description) == ("1", 3, (4, 0, 2), "tp")


def test_a_list_that_is_cut_off_is_rebuilt_from_start_and_stride() -> None:
    group = Groups().of("dp", 64, "[1, 9, 17, ...]", start=1, stride=8)
    assert group.ranks == tuple(range(1, 513, 8))


@pytest.mark.parametrize(
    "listed",
    [
        "[0, 1, ...]",
        "[0, 0]",
        "[0, -1]",
        "[0, 1.5]",
        "[true, 1]",
        "[[0], 1]",
        "[",
        "[" * 9999,
        "x",
    ],
)
def test_what_is_no_list_of_ranks_leaves_the_size(listed: str) -> None:
    assert Groups().of("1", 2, listed).ranks == ()
    assert Groups().of("1", 2, listed).size == 2


def test_a_list_that_contradicts_the_size_is_not_taken() -> None:
    assert Groups().of("1", 3, "[0, 1]").ranks == ()


def test_the_size_is_that_of_the_list_where_nothing_else_says_it() -> None:
    assert Groups().of("1", 0, "[0, 1]").size == 2


@pytest.mark.parametrize(("start", "stride"), [(-1, 1), (0, -1), (0, 0), (-1, -1)])
def test_no_start_or_stride_gives_no_ranks(start: int, stride: int) -> None:
    assert Groups().of("1", 2, start=start, stride=stride).ranks == ()


def test_a_group_of_one_needs_no_stride() -> None:
    assert Groups().of("1", 1, start=5).ranks == (5,)


def test_the_same_words_are_one_value_and_names_are_plain() -> None:
    listed = Groups()
    assert listed.of("a\n\x1b[31m", 2, "[0, 1]") is listed.of("a\n\x1b[31m", 2, "[0, 1]")
    assert listed.of("a\n\x1b[31m", 2).name.isprintable()


def test_ranks_of_all_groups_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_RANKS", 10)
    listed = Groups()
    sizes = [len(listed.of(str(i), 4, start=0, stride=1).ranks) for i in range(4)]
    assert sizes == [4, 4, 0, 0]
    assert len(Groups().of("huge", 10**18, start=0, stride=1).ranks) == 0


@given(
    st.text(), st.integers(0, 2**70), st.text(), st.integers(-2, 2**70), st.integers(-2, 2**70)
)
def test_any_words_make_a_group(
    name: str, size: int, listed: str, start: int, stride: int
) -> None:
    group = Groups().of(name, min(size, 1000), listed, start, stride)
    assert group.size >= len(group.ranks)
