"""rocm-smi --showtopo, as text and as JSON."""

from __future__ import annotations

import json

from ccbench.readers.machines.rocm_smi import read, recognises
from ccbench.topology.graph import DeviceKind, LinkKind, TopologyClass

TEXT = """\
============================ Weight between two GPUs ============================
       GPU0         GPU1         GPU2
GPU0   0            15           40
GPU1   15           0            40
GPU2   40           40           0

============================= Hops between two GPUs =============================
       GPU0         GPU1         GPU2
GPU0   0            1            2
GPU1   1            0            2
GPU2   2            2            0

=========================== Link Type between two GPUs ===========================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0

=================================== Numa Nodes ===================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 1
GPU[2]\t\t: (Topology) Numa Node: -1
"""


def test_only_xgmi_pairs_are_links_with_their_weight() -> None:
    topology = read(TEXT)
    ends = {(link.source, link.target): link for link in topology.links}
    assert set(ends) == {("gpu0", "gpu1"), ("gpu1", "gpu0")}
    assert ends["gpu0", "gpu1"].kind is LinkKind.XGMI
    assert ends["gpu0", "gpu1"].attributes == {"weight": 15, "count_known": False}
    assert ends["gpu0", "gpu1"].bytes_per_second is None  # rocm-smi prints none
    assert topology.matrix["gpu0", "gpu2"] == "PCIE"


def test_some_xgmi_is_a_mesh_and_none_is_pcie() -> None:
    assert read(TEXT).topology_class is TopologyClass.XGMI_MESH
    assert read(TEXT.replace("XGMI", "PCIE")).topology_class is TopologyClass.PCIE
    assert read(TEXT.replace("XGMI", "????")).topology_class is TopologyClass.UNKNOWN


def test_a_numa_node_of_minus_one_is_kept_but_is_no_cpu() -> None:
    topology = read(TEXT)
    assert [gpu.numa_node for gpu in topology.gpus] == [0, 1, -1]
    assert [cpu.numa_node for cpu in topology.of_kind(DeviceKind.CPU)] == [0, 1]


def test_a_cut_row_and_a_missing_row_are_noticed_and_leave_pcie_open() -> None:
    cut = TEXT.replace("XGMI", "PCIE").replace(
        "GPU2   PCIE         PCIE         0", "GPU2   PCIE"
    )
    topology = read(cut)
    assert "truncated" in {warning.kind for warning in topology.warnings}
    assert topology.topology_class is TopologyClass.UNKNOWN


def test_two_directions_that_differ_are_a_contradiction() -> None:
    topology = read(TEXT.replace("GPU1   XGMI", "GPU1   PCIE"))
    assert "contradiction" in {warning.kind for warning in topology.warnings}


def test_json_says_the_same_as_text() -> None:
    system = {}
    for (left, right), (weight, hops, kind) in {
        (0, 1): (15, 1, "XGMI"),
        (0, 2): (40, 2, "PCIE"),
        (1, 2): (40, 2, "PCIE"),
    }.items():
        system[f"(Topology) Weight between DRM devices {left} and {right}"] = str(weight)
        system[f"(Topology) Hops between DRM devices {left} and {right}"] = str(hops)
        system[f"(Topology) Link type between DRM devices {left} and {right}"] = kind
    cards = {
        f"card{index}": {"(Topology) Numa Node": str(node)}
        for index, node in enumerate((0, 1, -1))
    }
    text = json.dumps({"system": system, **cards})
    assert recognises(text)
    found, expected = read(text), read(TEXT)
    assert found.links == expected.links
    assert found.topology_class is expected.topology_class
    assert found.facts["gpu_count"] == expected.facts["gpu_count"]


def test_a_row_that_is_cut_is_mirrored() -> None:
    topology = read(TEXT.replace("GPU1   XGMI         0            PCIE\n", ""))
    assert topology.matrix["gpu1", "gpu0"] == "XGMI"
    assert topology.matrix["gpu1", "gpu2"] == "PCIE"
    assert {(link.source, link.target) for link in topology.links} == {
        ("gpu0", "gpu1"),
        ("gpu1", "gpu0"),
    }
