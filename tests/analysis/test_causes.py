from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.analysis.causes import RULES, Cause, Rule, causes_of
from ccbench.model.cluster import open_cluster
from ccbench.model.library import Intra, LibraryRequest, LibrarySystem, PciePath
from ccbench.model.library.predictor import predict_library

MACHINES = {
    "hgx-h100": "ib-ndr-400x8",
    "hgx-b200": "roce-400x8",
    "dgx-a100": "ib-hdr-200x8",
    "gh200x4": "slingshot-200x4",
    "mi300x": "roce-400x8",
    "l40s": "roce-100x2",
}
LARGE = LibraryRequest("all_reduce", tuple(2**power for power in range(26, 33)))


def system(name: str, nodes: int = 2) -> LibrarySystem:
    return open_cluster(name, nodes, MACHINES[name] if nodes > 1 else None).system


def seconds(library: LibrarySystem) -> list[float]:
    return [point.seconds for point in predict_library(library, LARGE)]


def rule(word: str) -> Rule:
    (matching,) = [candidate for candidate in RULES if word in candidate.name]
    return matching


def names(causes: tuple[Cause, ...]) -> list[str]:
    return [cause.rule.name for cause in causes]


@pytest.mark.parametrize(
    ("sign", "word"),
    [
        ("NCCL_IB_DISABLE=1", "sockets"),
        ("NCCL INFO Using network Socket", "sockets"),
        ("NCCL_IB_HCA=mlx5_3", "one NIC"),
        ("NCCL_IB_HCA==mlx5_3:1", "one NIC"),
        ("Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/2", "GPUDirect"),
        ("NCCL_P2P_DISABLE=1", "no peer access"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "no peer access"),
        ("throttled", "clocks"),
    ],
)
def test_what_a_log_shows_comes_first_whatever_the_rate(sign: str, word: str) -> None:
    healthy = system("hgx-h100")
    first = causes_of(
        healthy, LARGE, [1.5 * time for time in seconds(healthy)], signs=f"other\n{sign}"
    )[0]
    assert first.rule is rule(word)
    assert first.sign in sign


def test_channels_of_other_gpus_that_lack_it_still_show_a_cause() -> None:
    healthy = system("hgx-h100")
    signs = "8[0] [send] via NET/IB/0/GDRDMA\n9[1] [send] via NET/IB/1"
    first = causes_of(healthy, LARGE, [1.5 * time for time in seconds(healthy)], signs=signs)[0]
    assert (first.rule, first.sign) == (rule("GPUDirect"), "via NET/IB/1")


def test_boxes_of_cards_that_crawl_across_sockets_have_a_cause() -> None:
    box = replace(system("l40s", 1), intra=Intra.PCIE, path=PciePath.ACROSS)
    crawling = [600 * time for time in seconds(box)]
    assert "other CPU's GPUs" in names(causes_of(box, LARGE, crawling, True))[0]
    # What halves a rate is something else.
    halved = [2 * time for time in seconds(box)]
    assert not any("other CPU" in name for name in names(causes_of(box, LARGE, halved)))
