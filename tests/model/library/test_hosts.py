from __future__ import annotations

import pytest

from ccbench.model.library.generations import host_of
from ccbench.model.library.system import Generation, Host


@pytest.mark.parametrize(
    ("words", "host"),
    [
        ("A100 (DGX A100)", Host.AMD),
        ("A100-SXM4-40GB (ND96asr_v4)", Host.AMD),
        ("A100-SXM4-40GB (p4d.24xlarge)", Host.INTEL),
        ("H100 SXM (p5.48xlarge)", Host.AMD),
        ("H200 SXM (p5en.48xlarge)", Host.INTEL),
        ("H200 SXM (Azure ND H200 v5)", Host.INTEL),
        ("GH200 120GB", Host.ARM),
        ("H100 SXM beside EPYC 9654", Host.AMD),
        ("L40S, Xeon 6430", Host.INTEL),
        ("V100 (DGX-2H, NVSwitch)", Host.INTEL),
    ],
)
def test_boxes_that_are_named_have_known_processors(words: str, host: Host) -> None:
    assert host_of(words, Generation.UNKNOWN, is_board=True)[0] is host


def test_boards_without_a_name_are_assumed_and_the_origin_says_so() -> None:
    host, origin = host_of("H100 SXM", Generation.HOPPER, is_board=True)
    assert host is Host.INTEL
    assert origin.startswith("assumed")


def test_cards_go_into_any_box() -> None:
    assert host_of("RTX 2080 Ti", Generation.TURING, is_board=False) == (Host.UNKNOWN, "not stated")
