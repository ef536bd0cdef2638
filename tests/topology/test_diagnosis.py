from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ccbench.machine.detection import joined, read_nvml
from ccbench.machine.files import Files
from ccbench.machine.sysfs import read_sysfs
from ccbench.topology.catalog import catalog_names, load_catalog
from ccbench.topology.classes import is_card, nvlinks_of_model, topology_class
from ccbench.topology.diagnosis import diagnose
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass
from ccbench.topology.readers import read_text
from tests.machine.recorded_nvml import RecordedNvml, cards, switched
from tests.machine.sysfs_tree import (
    BRIDGE,
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


def one_card(root: Path, state: int | None = 0, **ports: Any) -> Topology:
    tree = Tree(root)
    tree.processors("0-7")
    tree.function("pci0000:00/0000:00:01.0", BRIDGE, "0x8086", most=ports.pop("slot", (16.0, 16)))
    tree.function("pci0000:00/0000:00:01.0/0000:01:00.0", GPU, NVIDIA, **ports)
    answers = cards("NVIDIA RTX A6000", 1, peer=0)
    answers["gpus"][0]["performance_state"] = state
    return machine(root, answers)


def test_a_healthy_board_with_switches_is_met_with_silence(tmp_path: Path) -> None:
    two_sockets_four_switches(tmp_path)
    assert diagnose(machine(tmp_path, switched(A100, 8, 12, 4))) == ()


@pytest.mark.parametrize(
    ("model", "links", "version"),
    [
        (A100, 12, 4),
        (H100, 18, 6),
        ("NVIDIA H800", 8, 6),
        ("NVIDIA H200", 18, 6),
        ("NVIDIA B200", 18, 7),
        ("NVIDIA GB200", 18, 7),
    ],
)
def test_every_model_with_all_its_links_is_met_with_silence(model: str, links: int, version: int) -> None:
    assert diagnose(driver(switched(model, 8, links, version))) == ()


def test_a_healthy_pair_of_cards_is_met_with_silence() -> None:
    assert diagnose(driver(cards("NVIDIA L40S", 2, peer=0))) == ()


def test_a_healthy_card_in_a_healthy_slot_is_met_with_silence(tmp_path: Path) -> None:
    assert diagnose(one_card(tmp_path)) == ()


def test_a_link_that_is_too_narrow_is_a_problem_even_when_idle(tmp_path: Path) -> None:
    (finding,) = diagnose(one_card(tmp_path, state=8, now=(16.0, 8)))
    assert (finding.kind, finding.severity, finding.devices) == ("pcie_width", "problem", ("gpu0",))
    assert "x8 of x16" in finding.evidence


def test_a_resting_gpus_slow_link_is_only_a_note(tmp_path: Path) -> None:
    (finding,) = diagnose(one_card(tmp_path, state=8, now=(2.5, 16)))
    assert (finding.kind, finding.severity) == ("pcie_idle", "note")


def test_a_working_gpus_slow_link_is_a_problem(tmp_path: Path) -> None:
    (finding,) = diagnose(one_card(tmp_path, state=0, now=(8.0, 16)))
    assert (finding.kind, finding.severity) == ("pcie_speed", "problem")
    assert "8 of 16 GT/s" in finding.evidence


def test_a_slot_below_the_card_is_a_note(tmp_path: Path) -> None:
    (finding,) = diagnose(one_card(tmp_path, slot=(8.0, 16), now=(8.0, 16)))
    assert finding.kind == "pcie_slot"
    assert "16 GT/s x16, its slot only 8 GT/s x16" in finding.evidence


def test_a_network_cards_slow_link_is_a_problem_since_those_never_rest(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7")
    folder = tree.function("pci0000:00/0000:01:00.0", INFINIBAND, MELLANOX, now=(8.0, 16), most=(32.0, 16))
    tree.rdma(folder, "mlx5_0")
    assert kinds(read_sysfs(Files(tmp_path))) == ["pcie_speed"]


def test_the_driver_alone_tells_of_a_narrow_link() -> None:
    answers = cards("NVIDIA L40S", 1, peer=0)
    answers["gpus"][0]["pcie"] = [1, 4, 4, 16]
    assert kinds(driver(answers)) == ["pcie_width", "pcie_idle"]


@pytest.mark.parametrize("left", [0, 11])
def test_a_gpu_with_fewer_links_than_its_model_has_is_a_problem(left: int) -> None:
    answers = switched(A100, 8, 12, 4)
    answers["gpus"][3]["links"] = answers["gpus"][3]["links"][:left]
    (finding,) = diagnose(driver(answers))
    assert (finding.kind, finding.severity, finding.devices) == ("nvlinks_missing", "problem", ("gpu3",))
    assert f"{left} NVLinks" in finding.evidence
    assert "has 12" in finding.evidence


def test_all_gpus_with_too_few_links_are_noticed_by_their_model() -> None:
    (finding,) = diagnose(driver(switched(H100, 4, 17, 6)))
    assert finding.devices == ("gpu0", "gpu1", "gpu2", "gpu3")


def test_an_unknown_model_is_compared_with_its_siblings() -> None:
    answers = switched("NVIDIA Something New", 4, 20, 7)
    answers["gpus"][2]["links"] = answers["gpus"][2]["links"][:19]
    (finding,) = diagnose(driver(answers))
    assert finding.devices == ("gpu2",)
    assert "siblings have 20" in finding.evidence


def test_links_that_could_not_be_asked_are_not_called_missing() -> None:
    answers = switched(H100, 2, 18, 6)
    for link in answers["gpus"][1]["links"]:
        link["up"] = "?"
    assert diagnose(driver(answers)) == ()


def test_a_link_that_is_down_is_a_problem_and_named_once() -> None:
    answers = switched(A100, 8, 12, 4)
    answers["gpus"][5]["links"][7]["up"] = False
    (finding,) = diagnose(driver(answers))
    assert (finding.kind, finding.devices) == ("nvlink_down", ("gpu5",))
    assert "gpu5: 1 of 12" in finding.evidence


def test_resting_links_of_cards_without_a_bridge_are_only_a_note() -> None:
    answers = cards("NVIDIA A100 80GB PCIe", 2, peer=0)
    for gpu in answers["gpus"]:
        gpu["links"] = [{"up": False, "version": 4}] * 12
    (finding,) = diagnose(driver(answers))
    assert (finding.kind, finding.severity) == ("nvlink_without_bridge", "note")


def test_a_bridged_card_may_list_links_that_it_does_not_use() -> None:
    answers = cards("NVIDIA H100 PCIe", 2, peer=0)
    for gpu, other in ((0, 1), (1, 0)):
        far = {"version": 6, "type": 0, "bus_id": answers["gpus"][other]["bus_id"]}
        answers["gpus"][gpu]["links"] = [{"up": True, **far}] * 12 + [{"up": False, "version": 6}] * 6
    assert diagnose(driver(answers)) == ()


@pytest.mark.parametrize(
    ("status", "word"), [(1, "CNS"), (2, "GNS"), (3, "TNS"), (4, "DR"), (5, "NS"), (6, "U")]
)
def test_peer_access_that_is_refused_is_a_problem_with_its_reason(status: int, word: str) -> None:
    found = diagnose(driver(cards("NVIDIA GeForce RTX 4090", 4, peer=status)))
    assert [finding.kind for finding in found] == ["peer_access", "peer_access"]
    assert f"is {word} for 6 pairs" in found[0].evidence


def test_acs_that_redirects_is_a_problem(tmp_path: Path) -> None:
    two_sockets_four_switches(tmp_path, acs=0b1101)
    (finding,) = diagnose(machine(tmp_path, switched(A100, 8, 12, 4)))
    assert (finding.kind, finding.severity) == ("acs_redirects", "problem")
    assert "8 bridges" in finding.evidence


def test_a_translating_iommu_is_a_note(tmp_path: Path) -> None:
    tree = two_sockets_four_switches(tmp_path)
    tree.write("/sys/kernel/iommu_groups/0/type", "DMA-FQ")
    assert kinds(machine(tmp_path, switched(A100, 8, 12, 4))) == ["iommu_translates"]


def test_an_iommu_that_passes_through_is_met_with_silence(tmp_path: Path) -> None:
    tree = two_sockets_four_switches(tmp_path)
    tree.write("/sys/kernel/iommu_groups/0/type", "identity")
    assert diagnose(machine(tmp_path, switched(A100, 8, 12, 4))) == ()


def test_a_vm_that_hides_the_tree_is_seen(tmp_path: Path) -> None:
    flattened_vm(tmp_path)
    found = kinds(machine(tmp_path, switched(H100, 8, 18, 6, hidden=True)))
    assert found == ["virtual_bridge", "flattened_tree"]


def test_an_invented_bridge_on_the_way_to_a_gpu_is_seen(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7")
    tree.hypervisor()
    tree.function("pci0000:00/0000:00:01.0", BRIDGE, "0x104c", now=(2.5, 1), most=(2.5, 1))
    up = "pci0000:00/0000:00:01.0/0000:01:00.0"
    tree.function(up, BRIDGE, "0x104c", now=(2.5, 1), most=(2.5, 1))
    tree.function(f"{up}/0000:02:00.0", GPU, NVIDIA, now=(32.0, 16), most=(32.0, 16))
    assert "virtual_bridge" in kinds(machine(tmp_path))


def test_gpus_far_from_every_network_card_are_a_note(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7", "8-15")
    for node in (0, 1):
        tree.function(f"pci0000:{node}0/0000:{node}1:00.0", GPU, NVIDIA, node)
    tree.rdma(tree.function("pci0000:00/0000:02:00.0", INFINIBAND, MELLANOX, 0), "mlx5_0")
    (finding,) = diagnose(machine(tmp_path))
    assert (finding.kind, finding.devices) == ("gpu_far_from_nics", ("gpu1",))


def test_mig_is_a_problem() -> None:
    answers = cards("NVIDIA A30", 2, peer=0)
    answers["gpus"][1]["mig"] = True
    (finding,) = diagnose(driver(answers))
    assert (finding.kind, finding.devices) == ("mig_enabled", ("gpu1",))


def test_a_fabric_that_is_not_ready_is_a_problem() -> None:
    answers = switched(H100, 8, 18, 6)
    answers["gpus"][0]["fabric"] = [2, 0]
    (finding,) = diagnose(driver(answers))
    assert (finding.kind, finding.evidence) == ("fabric_not_ready", "NVLink fabric: gpu0 in progress")


def test_an_unknown_numa_node_on_two_sockets_is_a_note(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7", "8-15")
    tree.function("pci0000:00/0000:01:00.0", GPU, NVIDIA, node=-1)
    assert kinds(machine(tmp_path)) == ["numa_unknown"]


def test_a_network_card_without_an_active_port_is_a_note(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7")
    folder = tree.function("pci0000:00/0000:01:00.0", INFINIBAND, MELLANOX)
    tree.rdma(folder, "mlx5_0", state="1: DOWN")
    assert kinds(read_sysfs(Files(tmp_path))) == ["nic_down"]


def test_problems_come_before_notes() -> None:
    answers = cards("NVIDIA L40S", 2, peer=2)
    answers["gpus"][0]["pcie"] = [1, 16, 4, 16]
    found = [finding.severity for finding in diagnose(driver(answers))]
    assert found == ["problem", "problem", "note"]


def test_part_of_a_mesh_is_not_accused_of_missing_links() -> None:
    """A container with two of a DGX-1's eight GPUs prints two of their six links."""
    gpus = tuple(
        Device(f"gpu{one}", DeviceKind.GPU, attributes={"model": "Tesla V100-SXM2-16GB"}) for one in (0, 1)
    )
    links = tuple(Link(f"gpu{a}", f"gpu{1 - a}", LinkKind.NVLINK, 50e9, count=2) for a in (0, 1))
    part = Topology("part", gpus, links, TopologyClass.NVLINK_MESH)
    assert diagnose(part) == ()
    assert diagnose(replace(part, devices=(), links=())) == ()


@pytest.mark.parametrize("name", catalog_names())
def test_machines_of_the_catalog_are_met_with_silence(name: str) -> None:
    machine = load_catalog(name)
    assert [one for one in diagnose(machine) if one.severity == "problem"] == []
    assert topology_class(machine) is machine.topology_class


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
    found = diagnose(nccl_file(port, width, gpu))
    assert [finding.kind for finding in found] == expected
    if expected and expected != ["pcie_idle"]:
        assert found[0].devices == ("pcie0",)


def test_far_from_nics_goes_by_the_printed_words() -> None:
    heading = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n"
    rows = "GPU0\t X \tNODE\tSYS\t0-7\t0\nGPU1\tNODE\t X \tPHB\t0-7\t0\nNIC0\tSYS\tPHB\t X \n"
    far = [one for one in diagnose(read_text(heading + rows)) if one.kind == "gpu_far_from_nics"]
    assert [one.devices for one in far] == [("gpu0",)]
    assert "(SYS)" in far[0].evidence
    old = diagnose(read_text((heading + rows).replace("SYS", "SOC")))
    assert "(SOC)" in next(one for one in old if one.kind == "gpu_far_from_nics").evidence


def test_a_bridge_of_a_fifth_of_a_gigabyte_in_a_log_is_an_invention() -> None:
    log = (
        "=== System : maxBw 24.0 totalBw 24.0 ===\nCPU/0 (1/2/-1)\n+ PCI[0.2] - PCI/1000 (1)\n"
        "             + PCI[24.0] - GPU/2000 (0)\n+ PCI[12.0] - PCI/3000 (1)\n"
        "             + PCI[24.0] - GPU/4000 (1)\n==========\n"
    )
    (finding,) = diagnose(read_text(log))
    assert (finding.kind, finding.devices) == ("virtual_bridge", ("pcie0",))
