"""npu-smi info -t topo."""

from __future__ import annotations

import pytest

from ccbench.readers.machines.npu_smi import read
from ccbench.topology.graph import LinkKind, TopologyClass

TEXT = """\
\t   NPU0       NPU1       NPU2       CPU Affinity
NPU0       X          HCCS       HCCS       0-23,96-119
NPU1       HCCS       X          HCCS       0-23
NPU2       HCCS       HCCS       X          24-47

Legend:

  X    = Self
  SYS  = Path traversing PCIe and NUMA nodes.
"""


def test_every_hccs_cell_is_a_link_without_a_rate() -> None:
    topology = read(TEXT)
    assert len(topology.links) == 6
    assert {(link.kind, link.bytes_per_second) for link in topology.links} == {
        (LinkKind.HCCS, None)
    }
    assert topology.topology_class is TopologyClass.HCCS_FULL_MESH
    assert topology.facts["hccs_links_per_npu"] == [2, 2, 2]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("PXB", TopologyClass.PCIE),
        ("SYS", TopologyClass.PCIE),
        ("HCCS_SW", TopologyClass.UNKNOWN),
        ("WHAT", TopologyClass.UNKNOWN),
    ],
)
def test_the_class_follows_from_all_labels(label: str, expected: TopologyClass) -> None:
    topology = read(TEXT.replace("HCCS", label))
    assert topology.topology_class is expected
    assert topology.links == ()
    unknown = [warning for warning in topology.warnings if warning.kind == "unknown_spelling"]
    assert bool(unknown) is (label == "WHAT")


def test_hccs_inside_groups_only_is_no_full_mesh() -> None:
    topology = read(
        TEXT.replace(
            "NPU0       X          HCCS       HCCS", "NPU0       X          HCCS       SYS "
        )
    )
    assert topology.topology_class is TopologyClass.UNKNOWN
    assert "contradiction" in {warning.kind for warning in topology.warnings}


def test_a_shifted_row_is_noticed() -> None:
    topology = read(
        TEXT.replace("NPU1       HCCS       X          HCCS", "NPU1       X          HCCS")
    )
    assert "contradiction" in {warning.kind for warning in topology.warnings}


def test_a_missing_row_leaves_the_class_open() -> None:
    topology = read(
        "".join(line for line in TEXT.splitlines(keepends=True) if not line.startswith("NPU2"))
    )
    assert topology.topology_class is TopologyClass.UNKNOWN
    assert "truncated" in {warning.kind for warning in topology.warnings}
    assert topology.facts["gpu_count"] == 3


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_that_are_cut_are_mirrored(rows: int) -> None:
    topology = read("".join(TEXT.splitlines(keepends=True)[: rows + 1]))
    assert topology.matrix["gpu2", "gpu0"] == "HCCS"
    assert ("gpu2", "gpu1") in topology.matrix or rows == 1
    assert topology.topology_class is TopologyClass.UNKNOWN
    assert "truncated" in {warning.kind for warning in topology.warnings}
