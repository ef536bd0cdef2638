"""Findings about near NICs, and about files of virtual machines that hide the tree."""

from __future__ import annotations

import pytest

from ccbench.findings import Finding
from ccbench.readers.machines import read_text
from ccbench.topology.diagnosis import diagnose
from tests.topology.dumps import entries, text_of

_KINDS = {
    "flattened_tree",
    "gpu_without_near_nic",
    "nic_near_no_gpu",
    "nic_shared_unevenly",
}


def findings(text: str) -> dict[str, Finding]:
    return {
        finding.kind: finding for finding in diagnose(read_text(text)) if finding.kind in _KINDS
    }


VM = """\
<system version="1">
  <cpu numaid="-1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="134">
    <pci busid="0000:00:09.0" class="0x030200" vendor="0x10de" device="0x20f5" link_speed="" link_width="0">\
<gpu dev="0" sm="80" rank="0" gdr="1"/></pci>
    <pci busid="0000:00:0a.0" class="0x030200" vendor="0x10de" device="0x20f5" link_speed="" link_width="0">\
<gpu dev="1" sm="80" rank="1" gdr="1"/></pci>
  </cpu>
</system>
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0000:00:", "0000:4f:"),
        ('numaid="-1"', 'numaid="0"'),
        ('link_speed=""', 'link_speed="16 GT/s"'),
    ],
)
def test_signs_that_real_machines_have_too_need_each_other(old: str, new: str) -> None:
    # On a bus of their own the other three signs are left; with one of these missing too there is none.
    elsewhere = VM.replace("0000:00:", "0000:4f:")
    assert "flattened_tree" in findings(elsewhere)
    changed = elsewhere.replace(old, new).replace('link_width="0"', 'link_width="16"')
    assert ("flattened_tree" in findings(changed)) is (old == "0000:00:")


@pytest.mark.skipif(not entries(), reason="no dumps beside the checkout")
def test_only_dumps_of_virtual_machines_have_the_note() -> None:
    noted = {
        entry["file"].split("/")[-1]
        for entry in entries()
        if "flattened_tree" in findings(text_of(entry))
    }
    assert noted == {
        "azure_H100_path_table_PXN.txt",
        "vm_1gpu_softroce_numa_ffff.txt",
        "azure_nc48v4_2xA100_pcie.xml",
        "azure_ncv4_a100_pcie_self_nvlink.xml",
        "azure_ndv2.xml",
        "rccl_topo_16p1h_vm.xml",
        "rccl_topo_8p_940vm.xml",
        "rccl_topo_8p_rome_vm1.xml",
    }


def matrix(near: dict[int, list[int]], gpus: int, nics: int, link: str) -> str:
    """A matrix of 2 NUMA nodes, half of the devices in each; near: GPU -> NICs that are PXB to it."""
    names = [f"GPU{gpu}" for gpu in range(gpus)] + [f"NIC{nic}" for nic in range(nics)]
    lines = ["\t" + "\t".join(names)]

    def cell(gpu: int, nic: int) -> str:
        if nic in near.get(gpu, []):
            return "PXB"
        return "NODE" if (gpu < gpus // 2) == (nic < nics // 2) else "SYS"

    for gpu in range(gpus):
        cells = ["X" if peer == gpu else link for peer in range(gpus)]
        lines.append("\t".join([f"GPU{gpu}", *cells, *(cell(gpu, nic) for nic in range(nics))]))
    for nic in range(nics):
        cells = [cell(gpu, nic) for gpu in range(gpus)]
        peers = ["X" if peer == nic else "SYS" for peer in range(nics)]
        lines.append("\t".join([f"NIC{nic}", *cells, *peers]))
    legend = [f"  NIC{nic}: mlx5_{nic}" for nic in range(nics)]
    return "\n".join([*lines, "", "NIC Legend:", "", *legend, ""])


def test_gpus_without_a_near_nic_are_noted() -> None:
    near = {0: [0], 2: [1], 3: [2], 4: [3], 5: [4], 6: [5], 7: [5]}
    noted = findings(matrix(near, 8, 6, "NV18"))
    assert noted["gpu_without_near_nic"].devices == ("gpu1",)
    assert "while 7 GPUs have such a NIC" in noted["gpu_without_near_nic"].evidence
    assert noted["nic_shared_unevenly"].devices == ("nic5",)
    assert "2 at nic5 (mlx5_5), 1 at the others" in noted["nic_shared_unevenly"].evidence
    assert "nic_near_no_gpu" not in noted
