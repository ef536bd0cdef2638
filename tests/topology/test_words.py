from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccbench.topology.words import said_and_denied
from tests.topology.denials import NETWORKS, PARTS, denials


@given(
    denials(PARTS + NETWORKS),
    st.sampled_from(["pcie4", "H100 SXM", "2 pairs NV12 bridge", "tcp-25x1"]),
)
def test_a_denial_leaves_what_stands_beside_it(denial: str, words: str) -> None:
    assert said_and_denied(words) == (words, "")
    for text in (f"{words}, {denial}", f"{denial}, {words}"):
        assert said_and_denied(text)[0].strip(" ,)") == words


@given(st.text("nolik vswitcbrdge,;()-/ 04", max_size=80))
def test_any_words_are_parted_and_those_that_deny_nothing_stay(words: str) -> None:
    said, denied = said_and_denied(words)
    assert denied or said == words
