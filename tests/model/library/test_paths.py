"""The path between GPUs that PCIe joins, of boxes whose owners or whose NCCL said which it was."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from ccbench.model.cluster import without_gpus
from ccbench.model.library import HostProcessor, PciePath
from ccbench.model.library.paths import BOXES, pcie_path, place_among_boxes, shares_of
from ccbench.topology.graph import Device, DeviceKind, Topology, TopologyClass

AMD, INTEL, UNKNOWN = HostProcessor.AMD, HostProcessor.INTEL, HostProcessor.UNKNOWN
DIRECT, ACROSS, HOST, OPEN = (
    PciePath.DIRECT,
    PciePath.ACROSS,
    PciePath.HOST,
    PciePath.UNKNOWN,
)
SYS = {"variables": {"NCCL_P2P_LEVEL": "SYS"}}
PATCHED: dict[str, Any] = {"peer_access": True}
RTX_4090, RTX_PRO = "NVIDIA GeForce RTX 4090", "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def box(
    model: str, gpus: int, near: str, switch: int, far: str, facts: dict[str, Any]
) -> Topology:
    """``gpus`` GPUs of which ``switch`` neighbours are ``near`` each other, and the rest ``far``."""
    names = [f"gpu{number}" for number in range(gpus)]
    return Topology(
        "box",
        tuple(Device(name, DeviceKind.GPU, attributes={"model": model}) for name in names),
        topology_class=TopologyClass.PCIE,
        facts={**facts, "paths": "as printed"},
        matrix={
            (one, other): near if place // switch == number // switch else far
            for number, one in enumerate(names)
            for place, other in enumerate(names)
            if one != other
        },
    )


@pytest.mark.parametrize(
    ("model", "gpus", "near", "switch", "far", "host", "facts", "path"),
    [
        (RTX_4090, 8, "SYS", 1, "SYS", AMD, {**PATCHED, **SYS}, ACROSS),
        (RTX_4090, 8, "SYS", 1, "SYS", AMD, PATCHED, HOST),
        (RTX_4090, 4, "NODE", 1, "NODE", AMD, {**PATCHED, **SYS}, ACROSS),
        (RTX_4090, 4, "NODE", 1, "NODE", AMD, PATCHED, HOST),
        (RTX_4090, 2, "PHB", 1, "PHB", AMD, {"channel_path": "SHM"}, HOST),
        (RTX_4090, 8, "PIX", 4, "SYS", UNKNOWN, PATCHED, HOST),
        ("NVIDIA GeForce RTX 3090", 4, "PHB", 1, "PHB", AMD, {"peer_access": False}, HOST),
        ("NVIDIA L4", 4, "NODE", 2, "SYS", UNKNOWN, {}, HOST),
        ("NVIDIA GeForce RTX 5090", 8, "SYS", 1, "SYS", AMD, {**PATCHED, **SYS}, ACROSS),
        ("NVIDIA GeForce RTX 5090", 8, "NODE", 4, "SYS", INTEL, {}, HOST),
        (RTX_PRO, 8, "PIX", 4, "PHB", AMD, {**PATCHED, **SYS}, ACROSS),
        (RTX_PRO, 8, "PIX", 4, "PXB", AMD, {}, DIRECT),
        (RTX_PRO, 4, "PIX", 2, "NODE", AMD, SYS, ACROSS),
        (RTX_PRO, 4, "PIX", 2, "NODE", AMD, {}, HOST),
        (RTX_PRO, 2, "SYS", 1, "SYS", AMD, {}, ACROSS),
        (RTX_PRO, 2, "SYS", 1, "SYS", AMD, {"variables": {"NCCL_P2P_DISABLE": "1"}}, HOST),
        (RTX_PRO, 4, "SYS", 1, "SYS", AMD, {}, HOST),
        ("Tesla V100S-PCIE-32GB", 4, "PIX", 4, "PIX", INTEL, {"channel_path": "SHM"}, HOST),
        (
            "GeForce RTX 2080 Ti",
            2,
            "PIX",
            2,
            "PIX",
            INTEL,
            {"p2p_matrix": [["X", "NS"], ["NS", "X"]]},
            HOST,
        ),
        # What is left open.
        (RTX_4090, 4, "PIX", 4, "PIX", AMD, {}, OPEN),
        (RTX_4090, 4, "PIX", 4, "PIX", AMD, {"channel_path": "P2P"}, DIRECT),
        (RTX_PRO, 2, "NODE", 1, "NODE", UNKNOWN, {}, OPEN),
        (RTX_PRO, 2, "NODE", 1, "NODE", INTEL, {}, HOST),
        (RTX_PRO, 2, "NODE", 1, "NODE", INTEL, {"variables": {"NCCL_P2P_LEVEL": "3"}}, ACROSS),
        (RTX_PRO, 2, "?", 1, "?", AMD, {}, OPEN),
    ],
)
def test_the_path_is_what_nccls_rule_and_the_evidence_say(
    model: str,
    gpus: int,
    near: str,
    switch: int,
    far: str,
    host: HostProcessor,
    facts: dict[str, Any],
    path: PciePath,
) -> None:
    topology = box(model, gpus, near, switch, far, facts)
    found, why = pcie_path(topology, topology.gpus, host)
    assert found is path, why


@pytest.mark.parametrize(("gone", "path"), [((2, 3), DIRECT), ((0, 1), HOST), ((1, 2), HOST)])
def test_gpus_cut_out_keep_what_the_driver_says_of_them(
    gone: tuple[int, int], path: PciePath
) -> None:
    """The first two reach each other; the others reach nobody."""
    words = [["OK" if {i, j} <= {0, 1} else "CNS" for j in range(4)] for i in range(4)]
    whole = box(RTX_PRO, 4, "PIX", 4, "PIX", {"p2p_matrix": words, "p2p_access": "read"})
    part = without_gpus(whole, {f"gpu{number}" for number in gone})
    found, why = pcie_path(part, part.gpus, INTEL)
    assert found is path, why


def test_boxes_tell_the_paths_apart() -> None:
    direct, host = shares_of(PciePath.DIRECT), shares_of(PciePath.HOST)
    assert direct[0] > host[-1]
    assert (round(median(direct), 2), round(median(host), 2)) == (0.66, 0.31)
    assert len({row.box for row in BOXES}) == 24


def test_a_share_has_a_place_among_boxes_of_either_kind_where_the_path_is_not_known() -> None:
    host, direct = place_among_boxes(OPEN, 0.58).split("; ")
    assert host.startswith("12 published boxes go through host memory, 12 of them with less")
    assert direct.startswith(
        "16 published boxes go directly, 0 of them with less in all_reduce (60%"
    )
    assert place_among_boxes(ACROSS, 0.58) == direct
