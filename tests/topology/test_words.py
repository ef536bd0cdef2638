from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.topology.words import said_and_denied
from tests.clocks import within
from tests.topology.denials import NETWORKS, PARTS, denials


@pytest.mark.parametrize(
    ("words", "message", "denied"),
    [
        ("pcie4, no NVLink bridge", "pcie4", "no NVLink bridge"),
        ("no NVLink pcie4", "pcie4", "no NVLink"),
        ("2 cards without bridge on PCIe 4", "2 cards, on PCIe 4", "without bridge"),
        ("no PCIe 5, pcie4", "pcie4", "no PCIe 5"),
        ("nvswitch3 (no SHARP)", "nvswitch3", "no SHARP"),
        ("nvswitch3, disabled ECC", "nvswitch3, disabled ECC", ""),
        ("bridge, not installed, pcie4", "pcie4", "bridge, not installed"),
        ("no NVLink, NVSwitch or bridge", "", "no NVLink, NVSwitch or bridge"),
        ("neither NVLink nor NVSwitch, pcie5", "pcie5", "neither NVLink nor NVSwitch"),
        ("NVLink missing bridge", "", "NVLink missing bridge"),  # of both readings the slower
        ("B200, not H100", "B200", "not H100"),
        ("tcp-25x1, ib-ndr-400x8 not used", "tcp-25x1", "ib-ndr-400x8 not used"),
        ("not only NVLink but NVSwitch", "not only NVLink but NVSwitch", ""),
        ("none used", "none used", ""),
        ("pcie4, 0 NVLinks", "pcie4", "0 NVLinks"),
        (
            "pcie4, 0 % of the NVLink or NVSwitch links",
            "pcie4",
            "0 % of the NVLink or NVSwitch links",
        ),
        ("NVLink (missing bridge)", "NVLink", "missing bridge"),
        ("bridge (removed), pcie4", "pcie4", "bridge (removed)"),
        ("device 0 NVIDIA H100 NVLink", "device 0 NVIDIA H100 NVLink", ""),
        ("no. 3 of the NVLink boxes", "no. 3 of the NVLink boxes", ""),
        ("non-blocking InfiniBand NDR", "non-blocking InfiniBand NDR", ""),
        ("HGX, non-blocking NVSwitch", "HGX, non-blocking NVSwitch", ""),
        ("zero-copy RoCE 400x8", "zero-copy RoCE 400x8", ""),
        ("pcie4, no-NVLink", "pcie4", "no-NVLink"),
        ("nvswitch3, 0 NVLink links", "nvswitch3", "0 NVLink links"),
        ("pcie4, NVLink-less", "pcie4", "NVLink-less"),
        ("no more than 4 NVLinks", "no more than 4 NVLinks", ""),
        ("never oversubscribed InfiniBand 400x8", "InfiniBand 400x8", "never oversubscribed"),
    ],
)
def test_what_is_said_to_be_missing_is_told_from_what_is_there(
    words: str, message: str, denied: str
) -> None:
    assert said_and_denied(words) == (message, denied)


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


@pytest.mark.parametrize(
    "words", ["nvlink, ", "nvlink-bridge ", "no ", "nvlink and ", "link", "0 ", "(nvlink "]
)
def test_long_words_are_parted_in_little_time(words: str) -> None:
    within(5, lambda: said_and_denied(words * (20_000 // len(words))))
