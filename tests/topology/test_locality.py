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

UNDER_BRIDGE = """\
<system version="1"><cpu numaid="0"><pci busid="0000:06:00.0" class="0x060400" vendor="{vendor}"
 device="0x000c" link_speed="16.0 GT/s PCIe" link_width="16">
<pci busid="0000:07:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe"
 link_width="16"><gpu dev="0" sm="90" rank="0" gdr="1"/></pci>
<pci busid="0000:08:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe"
 link_width="16"><gpu dev="1" sm="90" rank="1" gdr="1"/></pci></pci></cpu></system>
"""


def test_a_file_of_a_virtual_machine_that_hides_the_tree_is_noted() -> None:
    finding = findings(VM)["flattened_tree"]
    assert (finding.severity, finding.devices) == ("note", ("gpu0", "gpu1"))
    assert finding.evidence == (
        "a virtual machine that hides the PCIe tree: every GPU is on bus 00, a processor's own, "
        "no bridge is above them, the NUMA node is -1, no link has a speed or width"
    )
    assert "NCCL_TOPO_FILE" in finding.advice


@pytest.mark.parametrize("vendor", ["0x1af4", "0x1b36", "0x15ad", "0x1414"])
def test_bridges_that_only_hypervisors_make_are_a_sign(vendor: str) -> None:
    assert (
        "bridges above GPUs"
        in findings(UNDER_BRIDGE.format(vendor=vendor))["flattened_tree"].evidence
    )
    assert not findings(UNDER_BRIDGE.format(vendor="0x1000"))


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


def test_nics_near_no_gpu_are_noted() -> None:
    near = {0: [0], 1: [0], 2: [1], 3: [1], 4: [2], 5: [2], 6: [5], 7: [5]}
    noted = findings(matrix(near, 8, 6, "NV12"))
    assert noted.keys() == {"nic_near_no_gpu"}
    assert noted["nic_near_no_gpu"].devices == ("nic3", "nic4")
    assert "nic3 (mlx5_3), nic4 (mlx5_4)" in noted["nic_near_no_gpu"].evidence


@pytest.mark.parametrize(
    "near",
    [
        {gpu: [gpu] for gpu in range(8)},
        {gpu: [gpu // 2 * 2, gpu // 2 * 2 + 1] for gpu in range(8)},
        {},
    ],
)
def test_machines_whose_gpus_are_alike_have_no_such_note(near: dict[int, list[int]]) -> None:
    assert not findings(matrix(near, 8, 8, "NV18"))
