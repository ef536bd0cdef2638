"""hwloc XML: PCIe tree, NUMA nodes, bandwidth matrices."""

from __future__ import annotations

import pytest

from ccbench.errors import MachineError
from ccbench.readers.machines.hwloc import read
from ccbench.topology.graph import DeviceKind, LinkKind, TopologyClass
from tests.topology.graphs import the_link

GPU = '<info name="GPUModel" value="{model}"/>'


def gpu(index: int, port_speed: str = "15.753846", model: str = "Tesla V100-SXM2-16GB") -> str:
    return (
        f'<object type="Bridge" bridge_type="1-1" pci_busid="0000:02:0{index}.0" '
        f'pci_type="0604 [10b5:9781] [0:0]" pci_link_speed="{port_speed}">'
        f'<object type="PCIDev" gp_index="{10 + index}" pci_busid="0000:1{index}:00.0" '
        'pci_type="0302 [10de:1db1] [10de:1212] a1 00" pci_link_speed="15.753846">'
        f'<object type="OSDev" gp_index="{20 + index}" name="nvml{index}" osdev_type="1">'
        f"{GPU.format(model=model)}</object></object></object>"
    )


def document(gpus: str, distances: str = "", backend: str = "NVML") -> str:
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" nodeset="0x00000003">
  <object type="Package" os_index="0" gp_index="3" nodeset="0x00000001">
   <object type="NUMANode" os_index="0" cpuset="0x1" nodeset="0x00000001" local_memory="1024"/>
   <object type="Core"><object type="PU"/><object type="PU"/></object>
   <object type="Bridge" bridge_type="0-1">
    <object type="Bridge" bridge_type="1-1" pci_busid="0000:00:01.0"
     pci_type="0604 [8086:2030] [0:0]" pci_link_speed="15.753846">
     <object type="Bridge" bridge_type="1-1" pci_busid="0000:01:00.0"
      pci_type="0604 [10b5:9781] [0:0]" pci_link_speed="7.876923">
      {gpus}
     </object>
    </object>
    <object type="Bridge" bridge_type="1-1" pci_busid="0000:00:02.0"
     pci_type="0604 [8086:2031] [0:0]" pci_link_speed="1.0">
     <object type="PCIDev" pci_busid="0000:20:00.0"
       pci_type="0207 [15b3:1017] [0:0]" pci_link_speed="15.75">
      <object type="OSDev" name="ib0" osdev_type="2"/>
      <object type="OSDev" name="mlx5_0" osdev_type="3"/>
     </object>
     <object type="PCIDev" pci_busid="0000:21:00.0" pci_type="0300 [1a03:2000] [0:0]"/>
    </object>
   </object>
  </object>
  <object type="Package" os_index="1" gp_index="4" nodeset="0x00000002">
   <object type="NUMANode" os_index="1" cpuset="0x2" nodeset="0x00000002"/>
   <object type="NUMANode" os_index="255" cpuset="0x0" subtype="GPUMemory"/>
  </object>
 </object>
 {distances}
 <info name="Backend" value="{backend}"/>
</topology>
"""


def matrix(rows: list[list[int]], keys: str) -> str:
    values = " ".join(str(value) for row in rows for value in row)
    return (
        f'<distances2hetero nbobjs="{len(rows)}" kind="25" name="NVLinkBandwidth"><indexes>{keys}</indexes>'
        f"<u64values>{values}</u64values></distances2hetero>"
    )


TWO = document(
    gpu(0) + gpu(1), matrix([[1000000, 50000], [50000, 1000000]], "OSDev:20 OSDev:21")
)


def test_ports_of_one_switch_are_one_device_and_root_ports_belong_to_the_cpu() -> None:
    topology = read(TWO)
    assert [device.name for device in topology.of_kind(DeviceKind.PCIE_SWITCH)] == ["pcie0"]
    assert the_link(topology, "pcie0", "cpu0", LinkKind.PCIE).bytes_per_second == pytest.approx(
        7.876923e9
    )
    assert the_link(topology, "gpu1", "pcie0", LinkKind.PCIE).bytes_per_second == pytest.approx(
        15.753846e9
    )


def test_a_link_is_as_fast_as_its_slower_end() -> None:
    topology = read(document(gpu(0, port_speed="3.9")))
    assert the_link(topology, "gpu0", "pcie0", LinkKind.PCIE).bytes_per_second == pytest.approx(
        3.9e9
    )
    assert the_link(topology, "nic0", "cpu0", LinkKind.PCIE).bytes_per_second == pytest.approx(
        1.0e9
    )


def test_the_console_chip_is_no_gpu_and_gpu_memory_is_no_cpu() -> None:
    topology = read(TWO)
    assert len(topology.gpus) == 2
    assert [device.numa_node for device in topology.of_kind(DeviceKind.CPU)] == [0, 1]
    assert topology.facts["gpu_memory_numa_nodes"] == [255]
    assert topology.facts["cpu_threads"] == 2


def test_a_network_card_is_called_by_its_verbs_name() -> None:
    (nic,) = read(TWO).of_kind(DeviceKind.NIC)
    assert nic.attributes["name"] == "mlx5_0"
    assert nic.numa_node == 0


@pytest.mark.parametrize(
    ("model", "megabytes", "links"),
    [
        ("Tesla P100-SXM2-16GB", 40000, 2),
        ("Tesla V100-SXM2-16GB", 50000, 2),
        ("NVIDIA H100 80GB HBM3", 450000, 18),
        ("NVIDIA B200", 900000, 18),
        ("NVIDIA GB200", 900000, 18),
        ("NVIDIA Unheard-of", 50000, None),
    ],
)
def test_links_are_counted_from_the_models_rate_of_one(
    model: str, megabytes: int, links: int | None
) -> None:
    rows = [[1000000, megabytes], [megabytes, 1000000]]
    text = document(
        gpu(0, model=model) + gpu(1, model=model), matrix(rows, "OSDev:20 OSDev:21")
    )
    topology = read(text)
    nvlink = the_link(topology, "gpu0", "gpu1", LinkKind.NVLINK)
    assert nvlink.bytes_per_second == megabytes * 1e6
    assert topology.facts["nvlinks_per_gpu"] == (None if links is None else [links, links])
    assert topology.topology_class is TopologyClass.NVLINK_BRIDGE


def test_without_a_matrix_the_class_is_pcie_only_if_the_driver_was_asked() -> None:
    both = gpu(0) + gpu(1)
    assert read(document(both)).topology_class is TopologyClass.PCIE
    assert read(document(both, backend="Linux")).topology_class is TopologyClass.UNKNOWN
    assert read(document(gpu(0))).topology_class is TopologyClass.SINGLE_GPU


def test_a_matrix_that_is_short_or_names_strangers_is_noticed() -> None:
    short = document(gpu(0) + gpu(1), matrix([[1, 2]], "OSDev:20 OSDev:21"))
    assert "damaged_line" in {warning.kind for warning in read(short).warnings}
    stranger = document(gpu(0), matrix([[0, 5], [5, 0]], "OSDev:20 OSDev:99"))
    assert "missing_peer" in {warning.kind for warning in read(stranger).warnings}


def test_version_1_files_have_numa_nodes_around_their_sockets() -> None:
    text = """<topology><object type="Machine">
      <object type="NUMANode" os_index="0" cpuset="0x1" nodeset="0x1">
       <object type="Socket"><object type="PU"/></object>
       <object type="Bridge" bridge_type="0-1"><object type="PCIDev" pci_busid="0000:05:00.0"
        pci_type="0302 [10de:15f9] [0:0]" pci_link_speed="15.75"/></object></object>
      <object type="NUMANode" os_index="1" cpuset="0x2" nodeset="0x2"/></object></topology>"""
    topology = read(text)
    assert [device.numa_node for device in topology.gpus] == [0]
    assert the_link(topology, "gpu0", "cpu0", LinkKind.PCIE).bytes_per_second == pytest.approx(
        15.75e9
    )


def test_entities_are_refused() -> None:
    bomb = '<!DOCTYPE topology [<!ENTITY a "b">]><topology><object type="Machine"/></topology>'
    with pytest.raises(MachineError, match="entity"):
        read(bomb)


def test_of_thousands_of_numa_nodes_some_are_left_out_with_a_warning() -> None:
    nodes = "".join(
        f'<object type="NUMANode" os_index="{index}" cpuset="0x1"/>' for index in range(5000)
    )
    topology = read(f'<topology><object type="Machine">{nodes}</object></topology>')
    assert "unsupported" in {warning.kind for warning in topology.warnings}


def test_devices_of_a_file_without_machine_and_numa_nodes_hang_at_nothing() -> None:
    text = TWO.replace('type="Machine"', 'type="Thing"').replace(
        'type="NUMANode"', 'type="Node"'
    )
    topology = read(text)
    known = {device.name for device in topology.devices}
    assert len(topology.gpus) == 2
    assert all({each.source, each.target} <= known for each in topology.links)
