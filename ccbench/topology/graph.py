"""A machine or a cluster as a graph of devices and directed links.

Three things are told apart everywhere: a link that is *not there* (no Link), one that is there but *down*
(LinkState.DOWN), and one that the source could not see (LinkState.NOT_VISIBLE, or a warning where not even
its ends are known). Rates are datasheet or stated rates in bytes per second in one direction; what a protocol
makes of them is the model's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

from ccbench.documents import STRICT
from ccbench.findings import SourceWarning


class DeviceKind(str, Enum):
    """Kind of a vertex."""

    GPU = "gpu"  # or any accelerator: NPU, one die of a package
    CPU = "cpu"  # one NUMA node: cores, memory, root ports
    PCIE_SWITCH = "pcie_switch"
    NVSWITCH = "nvswitch"
    NIC = "nic"
    NETWORK_SWITCH = "network_switch"


class LinkKind(str, Enum):
    """Technology of a link."""

    NVLINK = "nvlink"
    C2C = "c2c"
    XGMI = "xgmi"
    HCCS = "hccs"
    PCIE = "pcie"
    INTER_SOCKET = "inter_socket"
    SHARED_MEMORY = "shared_memory"
    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    ETHERNET = "ethernet"


class LinkState(str, Enum):
    """UP carries data; DOWN is there and carries none; NOT_VISIBLE could not be asked."""

    UP = "up"
    DOWN = "down"
    NOT_VISIBLE = "not_visible"


class TopologyClass(str, Enum):
    """Shape in which the GPUs of one node are joined."""

    PCIE = "pcie"
    NVLINK_BRIDGE = "nvlink-bridge"
    NVLINK_MESH = "nvlink-mesh"
    NVLINK_CUBE_MESH = "nvlink-cube-mesh"
    NVSWITCH = "nvswitch"
    XGMI_MESH = "xgmi-mesh"
    HCCS_FULL_MESH = "hccs-full-mesh"
    SINGLE_GPU = "single-gpu"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Device:
    """A vertex. ``name`` is unique in its topology: gpu0, cpu0, nic3, nvswitch1, pcie5, switch2, n1.gpu0.

    node: index of the machine it is in (0 in a single machine), -1 for switches of the network.
    numa_node: None where not known; -1 is what the system says when it does not know either.
    attributes: whatever else the source says (model, uuid, lanes, cores ...), plain JSON values.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    name: str
    kind: DeviceKind
    node: int = 0
    bus_id: str = ""
    numa_node: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def model(self) -> str:
        """Name of the product; empty where the source has none."""
        return str(self.attributes.get("model") or "")


@dataclass(frozen=True)
class Link:
    """``count`` equal physical links from ``source`` to ``target``; one direction.

    bytes_per_second: of all ``count`` together, in this direction; None where the source does not say.
    latency_seconds: of one hop; None where the source does not say.
    origin: where the numbers come from (a file's own words, a datasheet, a constant of the catalog).
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    source: str
    target: str
    kind: LinkKind
    bytes_per_second: float | None = None
    latency_seconds: float | None = None
    count: int = 1
    state: LinkState = LinkState.UP
    origin: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def both_ways(self) -> tuple[Link, Link]:
        """Return the link and one like it from its target to its source."""
        return self, replace(self, source=self.target, target=self.source)

    @property
    def carries(self) -> bool:
        """True if data go over it for all that is known; only such have routes, rings and shares."""
        return self.state is LinkState.UP

    @property
    def may_carry(self) -> bool:
        """True if data may go over it: all but those known to be down.

        Limits count these, for a limit that leaves out a link which may carry data can be exceeded.
        """
        return self.state is not LinkState.DOWN


@dataclass(frozen=True)
class Topology:
    """A graph. ``facts`` holds what a source says besides the graph (rings, matrices, versions), JSON values.

    matrix: (gpu name, gpu name) -> what nvidia-smi or the like calls their path (NV12, PIX, SYS, XGMI, ...),
        where the source prints one.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    topology_class: TopologyClass = TopologyClass.UNKNOWN
    source: str = ""
    warnings: tuple[SourceWarning, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    matrix: Mapping[tuple[str, str], str] = field(default_factory=dict, hash=False)

    def of_kind(self, kind: DeviceKind) -> tuple[Device, ...]:
        """Devices of one kind, in order."""
        return tuple(device for device in self.devices if device.kind is kind)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The accelerators, in rank order."""
        return self.of_kind(DeviceKind.GPU)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the accelerators' products, each once; those without a name count for nothing."""
        return tuple(dict.fromkeys(gpu.model for gpu in self.gpus if gpu.model))

    @property
    def by_name(self) -> Mapping[str, Device]:
        """Each device by its name, made anew at each use."""
        return {device.name: device for device in self.devices}

    @property
    def stated_nvlinks(self) -> Mapping[str, int | None] | None:
        """NVLinks that are up by GPU, None for a GPU of which the source does not say; None where it counts none."""
        stated = self.facts.get("nvlinks_per_gpu")
        if not isinstance(stated, list) or len(stated) != len(self.gpus):
            return None
        return dict(zip((gpu.name for gpu in self.gpus), stated, strict=True))

    def link_counts(self, kind: LinkKind, state: LinkState = LinkState.UP) -> Counter[str]:
        """Links of this kind and state in the graph, by the device that they lead from."""
        counts: Counter[str] = Counter()
        for link in self.links:
            if link.kind is kind and link.state is state:
                counts[link.source] += link.count
        return counts
