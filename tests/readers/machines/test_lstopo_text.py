"""lstopo's console output."""

from __future__ import annotations

from ccbench.readers.machines.hwloc import read
from ccbench.topology.graph import DeviceKind, TopologyClass

TEXT = """\
Machine (P#0 total=63GB)
  Package L#0 (P#0)
    NUMANode L#0 (P#0 local=31GB)
    Core L#0 (P#0)
      PU L#0 (P#0)
    HostBridge L#0 (buses=0000:[00-05])
      PCIBridge L#1 (busid=0000:00:01.0)
        PCI L#0 (busid=0000:01:00.0 id=10de:20b2 class=0302(3D))
          GPU(NVML) L#0 "nvml0"
      PCI L#1 (busid=0000:02:00.0 id=1a03:2000 class=0300(VGA))
  Package L#1 (P#1)
    NUMANode L#1 (P#1 local=31GB)
    NUMANode(GPUMemory) L#2 (P#9 local=15GB PCIBusID=0001:01:00.0)
    HostBridge L#2
      PCI 82:00.0 (InfiniBand)
        Net "ib0"
        OpenFabrics "mlx5_0"
      PCI L#3 (busid=0001:01:00.0 id=0000:0000 class=0300(VGA))
"""


def test_gpus_and_cards_stand_on_their_numa_nodes() -> None:
    topology = read(TEXT)
    assert [(gpu.bus_id, gpu.numa_node) for gpu in topology.gpus] == [
        ("0000:01:00.0", 0),
        ("0001:01:00.0", 1),
    ]
    (nic,) = topology.of_kind(DeviceKind.NIC)
    assert (nic.numa_node, nic.attributes["name"]) == (1, "mlx5_0")


def test_memory_of_a_gpu_is_no_cpu_and_names_its_gpu() -> None:
    topology = read(TEXT)
    assert topology.facts["cpu_numa_nodes"] == [0, 1]
    assert topology.facts["gpu_memory_numa_to_bus"] == {"9": "0001:01:00.0"}
    assert topology.gpus[1].attributes["memory_numa_node"] == 9


def test_no_links_are_invented() -> None:
    topology = read(TEXT)
    assert topology.links == ()
    assert topology.topology_class is TopologyClass.UNKNOWN
    assert "not_visible" in {warning.kind for warning in topology.warnings}
