from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccbench.machine.detection import joined, read_nvml
from ccbench.machine.files import Files
from ccbench.machine.sysfs import read_sysfs
from ccbench.readers.machines import read_text
from ccbench.topology.classes import is_card, nvlinks_of_model
from ccbench.topology.diagnosis import diagnose
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology
from tests.machine.recorded_nvml import RecordedNvml, cards, switched
from tests.machine.sysfs_tree import (
    GPU,
    INFINIBAND,
    MELLANOX,
    NVIDIA,
    Tree,
    flattened_vm,
    two_sockets_four_switches,
)

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def driver(answers: dict[str, Any]) -> Topology:
    return read_nvml(RecordedNvml(answers))


def machine(root: Path, answers: dict[str, Any] | None = None) -> Topology:
    """What lies below ``root``, with the driver's answers about its GPUs."""
    kernel = read_sysfs(Files(root))
    if answers is None:
        answers = cards("NVIDIA RTX A6000", len(kernel.gpus), peer=0)
    for gpu, said in zip(kernel.gpus, answers["gpus"], strict=True):
        said["bus_id"] = f"0000{gpu.bus_id}"
    return joined(kernel, driver(answers))


def kinds(topology: Topology) -> list[str]:
    return [finding.kind for finding in diagnose(topology)]


def said(answers: dict[str, Any], gpu: int, **changes: Any) -> dict[str, Any]:
    """The driver's answers, of one GPU changed."""
    answers["gpus"][gpu] |= changes
    return answers


def first_links(answers: dict[str, Any], gpu: int, count: int) -> dict[str, Any]:
    return said(answers, gpu, links=answers["gpus"][gpu]["links"][:count])


def one_link(answers: dict[str, Any], gpu: int, link: int, up: object) -> dict[str, Any]:
    answers["gpus"][gpu]["links"][link]["up"] = up
    return answers


def resting(model: str, bridged: int, down: int) -> dict[str, Any]:
    """Two cards that list so many links to each other, and so many that are down."""
    answers = cards(model, 2, peer=0)
    for gpu, other in ((0, 1), (1, 0)):
        far = {"version": 6, "type": 0, "bus_id": answers["gpus"][other]["bus_id"]}
        said(
            answers,
            gpu,
            links=[{"up": True, **far}] * bridged + [{"up": False, "version": 6}] * down,
        )
    return answers


UNASKED = switched(H100, 2, 18, 6)
for _link in range(18):
    one_link(UNASKED, 1, _link, "?")

DRIVER = [
    *(
        (switched(model, 8, links, version), [])
        for model, links, version in (
            (A100, 12, 4),
            ("NVIDIA H800", 8, 6),
            ("NVIDIA GB200", 18, 7),
        )
    ),
    (cards("NVIDIA L40S", 2, peer=0), []),
    (
        said(cards("NVIDIA L40S", 1, peer=0), 0, pcie=[1, 4, 4, 16]),
        [("problem", "pcie_width", "gpu0", "x4 of x16"), ("note", "pcie_idle", "gpu0", "")],
    ),
    *(
        (
            first_links(switched(A100, 8, 12, 4), 3, left),
            [
                (
                    "problem",
                    "nvlinks_missing",
                    "gpu3",
                    f"gpu3: {left} NVLinks, where a {A100} has 12",
                )
            ],
        )
        for left in (0, 11)
    ),
    # A virtual machine with one GPU of an HGX H100, as seen in 2026-11.
    (cards(H100, 1, peer=0), [("note", "nvlinks_missing", "gpu0", "it is the only GPU here")]),
    (
        switched(H100, 4, 17, 6),
        [("problem", "nvlinks_missing", "gpu0 gpu1 gpu2 gpu3", "17 NVLinks")],
    ),
    (
        first_links(switched("NVIDIA Something New", 4, 20, 7), 2, 19),
        [("problem", "nvlinks_missing", "gpu2", "siblings have 20")],
    ),
    (UNASKED, []),
    (
        one_link(switched(A100, 8, 12, 4), 5, 7, False),
        [("problem", "nvlink_down", "gpu5", "gpu5: 1 of 12")],
    ),
    (
        resting("NVIDIA A100 80GB PCIe", 0, 12),
        [("note", "nvlink_without_bridge", "gpu0 gpu1", "2 cards rest")],
    ),
    (resting("NVIDIA H100 PCIe", 12, 6), []),
    (
        said(cards("NVIDIA A30", 2, peer=0), 1, mig=True),
        [("note", "mig_enabled", "gpu1", "MIG is on")],
    ),
    (
        said(switched(H100, 8, 18, 6), 0, fabric=[2, 0]),
        [("problem", "fabric_not_ready", "gpu0", "NVLink fabric: gpu0 in progress")],
    ),
    *(
        (
            cards("NVIDIA GeForce RTX 4090", 4, peer=status),
            [(severity, "peer_access", "gpu0 gpu1 gpu2 gpu3", f"is {word} for 6 pairs")] * 2,
        )
        for status, (word, severity) in enumerate(
            {
                "CNS": "doubt",
                "GNS": "note",
                "TNS": "doubt",
                "DR": "problem",
                "NS": "doubt",
                "U": "doubt",
            }.items(),
            1,
        )
    ),
    (
        said(cards("NVIDIA L40S", 2, peer=2), 0, pcie=[1, 16, 4, 16]),
        [
            ("note", "pcie_idle", "gpu0", ""),
            *[("note", "peer_access", "gpu0 gpu1", "for 1 pair of GPUs")] * 2,
        ],
    ),
]


@pytest.mark.parametrize(("answers", "expected"), DRIVER)
def test_what_the_driver_says_is_judged_problems_first(
    answers: dict[str, Any], expected: list[tuple[str, str, str, str]]
) -> None:
    findings = diagnose(driver(answers))
    heads = [
        (finding.severity, finding.kind, " ".join(finding.devices)) for finding in findings
    ]
    assert heads == [one[:3] for one in expected]
    assert all(
        words in one.evidence for one, (*_, words) in zip(findings, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("of_link", "of_gpu", "evidence"),
    [
        ({"max_width": 8, "device_max_width": 16}, {}, ["gpu0 can x16, its slot only x8"]),
        (
            {"max_gigatransfers": 8.0, "max_width": 8, "device_max_width": 16},
            {},
            ["gpu0 can x16, its slot only x8"],
        ),
        ({"width": "x8", "max_width": 16}, {"performance_state": "P0"}, []),
        (
            {"gigatransfers": "16 GT/s", "width": [16]},
            {"pcie_width": "8", "pcie_max_width": 16},
            [],
        ),
    ],
)
def test_what_a_link_does_not_say_in_numbers_is_no_finding_and_no_error(
    of_link: dict[str, Any], of_gpu: dict[str, Any], evidence: list[str]
) -> None:
    devices = (
        Device("gpu0", DeviceKind.GPU, attributes=of_gpu),
        Device("cpu0", DeviceKind.CPU),
    )
    link = Link("gpu0", "cpu0", LinkKind.PCIE, attributes=of_link)
    assert [
        one.evidence for one in diagnose(Topology("written by hand", devices, (link,)))
    ] == evidence


@pytest.mark.parametrize(
    ("now", "state", "expected"),
    [
        ((32.0, 16), "4: ACTIVE", []),
        ((8.0, 16), "4: ACTIVE", ["pcie_speed"]),
        ((32.0, 16), "1: DOWN", ["nic_down"]),
    ],
)
def test_a_network_card_never_rests_and_needs_an_active_port(
    tmp_path: Path, now: tuple[float, int], state: str, expected: list[str]
) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7")
    folder = tree.function(
        "pci0000:00/0000:01:00.0", INFINIBAND, MELLANOX, now=now, most=(32.0, 16)
    )
    tree.rdma(folder, "mlx5_0", state=state)
    assert kinds(read_sysfs(Files(tmp_path))) == expected


@pytest.mark.parametrize(
    ("acs", "iommu", "expected"),
    [
        (0, "", []),
        (0b1101, "", [("problem", "acs_redirects", "8 bridges")]),
        (0, "DMA-FQ", [("note", "iommu_translates", "DMA-FQ")]),
        (0, "identity", []),
    ],
)
def test_what_sends_peer_traffic_through_the_root_is_found(
    tmp_path: Path, acs: int, iommu: str, expected: list[tuple[str, str, str]]
) -> None:
    tree = two_sockets_four_switches(tmp_path, acs=acs)
    if iommu:
        tree.write("/sys/kernel/iommu_groups/0/type", iommu)
    findings = diagnose(machine(tmp_path, switched(A100, 8, 12, 4)))
    assert [(finding.severity, finding.kind) for finding in findings] == [
        one[:2] for one in expected
    ]
    assert all(
        words in one.evidence for one, (*_, words) in zip(findings, expected, strict=True)
    )


def test_a_vm_that_hides_the_tree_is_seen(tmp_path: Path) -> None:
    flattened_vm(tmp_path)
    found = kinds(machine(tmp_path, switched(H100, 8, 18, 6, hidden=True)))
    assert found == ["virtual_bridge", "flattened_tree"]


def test_an_unknown_numa_node_on_two_sockets_is_a_note(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7", "8-15")
    tree.function("pci0000:00/0000:01:00.0", GPU, NVIDIA, node=-1)
    assert kinds(machine(tmp_path)) == ["numa_unknown"]


def test_models_have_the_number_of_links_their_makers_say() -> None:
    numbers = {
        "Tesla P100-SXM2-16GB": 4,
        "Tesla V100-SXM2-32GB": 6,
        A100: 12,
        "NVIDIA A800-SXM4-80GB": 8,
        "NVIDIA H800": 8,
        H100: 18,
        "NVIDIA H100 NVL": 12,
        "NVIDIA B300 SXM6 AC": 18,
        "NVIDIA GeForce RTX 3090": None,
        "NVIDIA GB10": None,
        "NVIDIA A10": None,
    }
    assert {model: nvlinks_of_model(model) for model in numbers} == numbers
    assert is_card("NVIDIA A100 80GB PCIe")
    assert not is_card("NVIDIA GB200 NVL72")
    assert not is_card("NVIDIA A100, no PCIe card")


def nccl_file(port: str, width: int, gpu: str = "64.0 GT/s PCIe") -> Topology:
    def pci(bus: str, pci_class: str, speed: str, lanes: int, inside: str) -> str:
        return (
            f'<pci busid="0000:{bus}:00.0" class="{pci_class}" link_speed="{speed}" link_width="{lanes}">'
            f"{inside}</pci>"
        )

    card = pci("03", "0x030200", gpu, 16, '<gpu dev="0" sm="90" rank="0"/>')
    inner = pci("02", "0x060400", "64.0 GT/s PCIe", 16, card)
    text = f'<system version="1"><cpu numaid="0">{pci("01", "0x060400", port, width, inner)}</cpu></system>'
    return read_text(text, "file")


@pytest.mark.parametrize(
    ("port", "width", "gpu", "expected"),
    [
        ("64.0 GT/s PCIe", 16, "64.0 GT/s PCIe", []),
        ("32.0 GT/s PCIe", 16, "64.0 GT/s PCIe", []),
        ("16.0 GT/s PCIe", 16, "64.0 GT/s PCIe", ["pcie_slow_hop"]),
        ("16.0 GT/s PCIe", 1, "64.0 GT/s PCIe", ["pcie_slow_hop"]),
        ("2.5 GT/s PCIe", 1, "32.0 GT/s PCIe", ["virtual_bridge"]),
        ("64.0 GT/s PCIe", 16, "2.5 GT/s PCIe", ["pcie_idle"]),
        ("", 0, "64.0 GT/s PCIe", []),
    ],
)
def test_a_hop_far_slower_than_the_gpu_below_is_named(
    port: str, width: int, gpu: str, expected: list[str]
) -> None:
    findings = diagnose(nccl_file(port, width, gpu))
    assert [finding.kind for finding in findings] == expected
    if expected and expected != ["pcie_idle"]:
        assert findings[0].devices == ("pcie0",)


def test_a_bridge_of_a_fifth_of_a_gigabyte_in_a_log_is_an_invention() -> None:
    log = (
        "=== System : maxBw 24.0 totalBw 24.0 ===\nCPU/0 (1/2/-1)\n+ PCI[0.2] - PCI/1000 (1)\n"
        "             + PCI[24.0] - GPU/2000 (0)\n+ PCI[12.0] - PCI/3000 (1)\n"
        "             + PCI[24.0] - GPU/4000 (1)\n==========\n"
    )
    (finding,) = diagnose(read_text(log))
    assert (finding.kind, finding.devices) == ("virtual_bridge", ("pcie0",))
