"""rocm-smi --showtopo, as text and as JSON."""

from __future__ import annotations

import json

from ccbench.readers.machines.rocm_smi import read, recognises

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
    assert len(found.gpus) == len(expected.gpus)
