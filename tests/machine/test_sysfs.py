from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.machine.files import Files
from ccbench.machine.sysfs import read_sysfs
from ccbench.topology.graph import DeviceKind, Topology
from ccbench.topology.pci import bytes_per_second
from tests.machine.sysfs_tree import (
    BRIDGE,
    ETHERNET,
    GPU,
    MELLANOX,
    NVIDIA,
    Tree,
    flattened_vm,
    two_sockets_four_switches,
)


def read(root: Path) -> Topology:
    return read_sysfs(Files(root))


def test_a_machine_of_two_sockets_and_four_switches_is_read_whole(tmp_path: Path) -> None:
    two_sockets_four_switches(tmp_path)
    found = read(tmp_path)
    counts = {kind: len(found.of_kind(kind)) for kind in DeviceKind}
    assert counts[DeviceKind.GPU] == counts[DeviceKind.NIC] == 8
    assert (counts[DeviceKind.CPU], counts[DeviceKind.PCIE_SWITCH]) == (2, 4)
    assert [gpu.numa_node for gpu in found.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found.by_name["cpu1"].attributes["cores"] == "64-127"
    assert found.by_name["cpu1"].attributes["memory_bytes"] == 512 << 30
    assert found.facts["nvswitch_count"] is None
    assert not found.warnings


def test_an_idle_gpus_rate_is_what_its_link_can_do_and_both_speeds_are_kept(
    tmp_path: Path,
) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7")
    tree.function("pci0000:00/0000:00:01.0", BRIDGE, "0x8086", most=(32.0, 16))
    tree.function(
        "pci0000:00/0000:00:01.0/0000:01:00.0", GPU, NVIDIA, now=(2.5, 8), most=(16.0, 16)
    )
    (hop,) = (link for link in read(tmp_path).links if link.source == "gpu0")
    assert hop.bytes_per_second == bytes_per_second(16.0, 8)
    assert (hop.attributes["gigatransfers"], hop.attributes["max_gigatransfers"]) == (2.5, 16.0)


def test_a_port_slower_than_the_link_that_runs_is_not_believed(tmp_path: Path) -> None:
    flattened_vm(tmp_path)
    hop = next(link for link in read(tmp_path).links if link.source == "gpu0")
    assert hop.bytes_per_second == bytes_per_second(32.0, 16)
    assert (hop.attributes["port_max_gigatransfers"], hop.attributes["port_max_width"]) == (
        2.5,
        1,
    )


def test_network_cards_have_names_rates_states_and_no_addresses(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7")
    for place, name in ((1, "mlx5_10"), (2, "mlx5_2")):
        folder = tree.function(f"pci0000:00/0000:0{place}:00.0", ETHERNET, MELLANOX)
        tree.rdma(folder, name, state="1: DOWN" if place == 1 else "4: ACTIVE")
        tree.interface(folder, f"ens{place}")
    tree.interface(tree.function("pci0000:00/0000:03:00.0", ETHERNET, "0x8086"), "eno1", 25000)
    tree.interface(tree.function("pci0000:00/0000:04:00.0", ETHERNET, "0x1af4"), "eth9", None)
    tree.virtual_interface("docker0")
    nics = read(tmp_path).of_kind(DeviceKind.NIC)
    assert [nic.attributes["name"] for nic in nics] == ["mlx5_2", "mlx5_10", "eno1", "eth9"]
    assert [nic.attributes["bytes_per_second"] for nic in nics] == [25e9, 25e9, 3.125e9, None]
    assert [nic.attributes["up"] for nic in nics] == [True, False, True, True]
    assert nics[0].attributes["interfaces"] == ["ens2"]
    assert "0607" not in str(nics)


def test_a_numa_node_of_minus_one_on_two_sockets_is_said_and_no_processor_guessed(
    tmp_path: Path,
) -> None:
    tree = Tree(tmp_path)
    tree.processors("0-7", "8-15")
    tree.function("pci0000:00/0000:01:00.0", GPU, NVIDIA, node=-1)
    found = read(tmp_path)
    assert found.gpus[0].numa_node == -1
    assert not [link for link in found.links if "gpu0" in (link.source, link.target)]
    assert "NUMA node is -1" in found.warnings[0].text


def test_memory_without_cores_is_no_processor(tmp_path: Path) -> None:
    Tree(tmp_path).processors("0-71", "")
    found = read(tmp_path)
    assert len(found.of_kind(DeviceKind.CPU)) == 1


def test_an_empty_root_gives_one_processor_and_says_what_is_hidden(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert [device.name for device in found.devices] == ["cpu0"]
    assert [warning.kind for warning in found.warnings] == ["not_visible"]


@pytest.mark.parametrize("damage", ["", "0x", "Unknown", "zz", "\x00", "99999999999999999999"])
def test_damaged_files_are_unknown_values_and_no_error(tmp_path: Path, damage: str) -> None:
    tree = two_sockets_four_switches(tmp_path)
    for name in ("max_link_speed", "current_link_width", "numa_node", "vendor"):
        for file in tmp_path.rglob(name):
            file.write_text(damage)
    del tree
    assert read(tmp_path).of_kind(DeviceKind.CPU)


@pytest.mark.parametrize(
    ("speed", "gigabytes"),
    [(2.5, 4.0), (5.0, 8.0), (8.0, 15.75), (16.0, 31.5), (32.0, 63.0), (64.0, 121.0)],
)
def test_sixteen_lanes_carry_what_the_standard_leaves_after_coding(
    speed: float, gigabytes: float
) -> None:
    assert bytes_per_second(speed, 16) == pytest.approx(gigabytes * 1e9, rel=2e-3)
    assert bytes_per_second(speed, None) is bytes_per_second(3.0, 16) is None
