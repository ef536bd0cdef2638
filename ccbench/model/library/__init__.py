"""The model of a collective library (NCCL, RCCL): GPUs and their links as a page of numbers, no graph.

Questions and answers stand here. ``clusters`` makes a system from a topology and a network,
``benchmarks.score`` from the words of a published log. ``shapes`` counts hops and bytes, ``costs`` turns
them into seconds by the values of ``constants``, ``predictor`` chooses, ``calibration`` fits the levels of
one measured system.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ccbench.errors import MachineError


class Generation(str, Enum):
    """Families of accelerators whose synchronisation costs resemble each other."""

    PASCAL = "pascal"
    VOLTA = "volta"
    TURING = "turing"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    CDNA2 = "cdna2"
    CDNA3 = "cdna3"
    CDNA4 = "cdna4"
    ASCEND = "ascend"
    UNKNOWN = "unknown"


class Intra(str, Enum):
    """Links that join the GPUs of one node."""

    NVSWITCH = "nvswitch"
    NVLINK_MESH = "nvlink-mesh"
    CUBE_MESH = "nvlink-cube-mesh"
    BRIDGE = "nvlink-bridge"
    XGMI = "xgmi-mesh"
    HCCS = "hccs-full-mesh"
    PCIE = "pcie"
    HOST = "host"  # no peer access: staged through host memory
    NONE = "none"  # one GPU a node


class PciePath(str, Enum):
    """How data pass between GPUs that nothing but PCIe joins. UNKNOWN: what is known leaves it open."""

    DIRECT = "direct"
    ACROSS = "direct across host bridges"
    HOST = "host"
    UNKNOWN = "unknown"


class HostProcessor(str, Enum):
    """Processors of the host; the flags of a proxy thread take longer on some."""

    INTEL = "intel"
    AMD = "amd"
    ARM = "arm"
    POWER = "power"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NetworkPorts:
    """word: kind as in ``ib-ndr``, ``roce``, ``efa``, ``tcp``, ``tcpx``, ``slingshot``.

    bytes_per_second: nominal rate of one NIC in one direction. per_node: NICs of one node.
    in_network_reduction: switches add (SHARP) and the run uses it.
    """

    word: str
    bytes_per_second: float
    per_node: int
    in_network_reduction: bool = False

    @property
    def node_bytes_per_second(self) -> float:
        """Of all NICs of a node together, in one direction."""
        return self.bytes_per_second * self.per_node


@dataclass(frozen=True)
class LibrarySystem:
    """GPUs as a collective library sees them; every rank is one GPU.

    ranks_per_node: GPUs that share NVLink (or what ``intra`` says): an NVL72 rack is one node.
    nodes: how many such nodes. intra_bytes_per_second: nominal rate of all links of one GPU into ``intra``,
        in one direction; 0 where there are none. links_per_gpu: how many physical links that is, 0 unknown.
    multicast: the NVSwitches can add and multicast (NVLS: Hopper and later).
    gpu_port_bytes_per_second: nominal rate between one GPU and the NICs, in one direction (its PCIe port);
        infinite where it is not known or no limit.
    path: between the GPUs of a node that PCIe joins; DIRECT elsewhere. origins: where each number came from.
    """

    name: str
    generation: Generation
    ranks_per_node: int
    nodes: int
    intra: Intra
    intra_bytes_per_second: float
    links_per_gpu: int = 0
    multicast: bool = False
    network: NetworkPorts | None = None
    host: HostProcessor = HostProcessor.UNKNOWN
    origins: Mapping[str, str] = field(default_factory=dict, hash=False)
    gpu_port_bytes_per_second: float = math.inf
    path: PciePath = PciePath.DIRECT

    def __post_init__(self) -> None:
        if self.ranks_per_node < 1 or self.nodes < 1:
            raise MachineError(
                f"{self.name}: {self.nodes} nodes of {self.ranks_per_node} ranks; give at least one"
            )
        if not self.gpu_port_bytes_per_second > 0:
            raise MachineError(
                f"{self.name}: a GPU's port towards NICs has no rate; leave it out if unknown"
            )
        if self.nodes > 1 and self.network is None:
            raise MachineError(
                f"{self.name}: {self.nodes} nodes without a network; name one (ib-ndr-400x8)"
            )
        if self.ranks_per_node > 1 and not self.intra_bytes_per_second > 0:
            raise MachineError(
                f"{self.name}: no rate inside a node of {self.ranks_per_node} GPUs is known"
            )

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.ranks_per_node * self.nodes

    @property
    def is_amd(self) -> bool:
        """True if RCCL runs there."""
        return self.generation in {Generation.CDNA2, Generation.CDNA3, Generation.CDNA4}

    @property
    def network_family(self) -> str:
        """``ib`` for ``ib-ndr`` and its like: generations of one network differ in their rate alone."""
        return self.network.word.split("-")[0] if self.network is not None else ""


@dataclass(frozen=True)
class LibraryRequest:
    """A question to the library, for all sizes of a sweep at once.

    size_bytes: nccl-tests' sizes. item_bytes: of one element. algorithm, protocol: ``default`` for the
        library's choice, else one of ``ALGORITHMS`` / ``PROTOCOLS``.
    gpus_per_process: GPUs that one thread launches on, one after the other (nccl-tests -g): its launches
        are a floor under small sizes. 0: all was enqueued before the clock started. launch_known: False where
        nobody says how many they are; one is priced, and a small size may take longer than that.
    version: of the library, (major, minor), () where not known.
    traffic: of an all_to_all_v, as ``ccbench.collectives`` has it; "" for blocks of one size.
    """

    collective: str
    size_bytes: tuple[int, ...]
    item_bytes: int = 4
    floating_8_bit: bool = False
    in_place: bool = False
    algorithm: str = "default"
    protocol: str = "default"
    gpus_per_process: int = 1
    version: tuple[int, ...] = ()
    multicast_off: bool = False
    traffic: str = ""
    launch_known: bool = True


@dataclass(frozen=True)
class LibraryPoint:
    """The model's answer for one size; seconds of one launch.

    latency_seconds + fill_seconds + bandwidth_seconds = seconds; handshakes count as fill. bottleneck: a sentence.
    extrapolated: why this point lies outside what the constants were learned on; "" when it does not.
    """

    size_bytes: int
    algorithm: str
    protocol: str
    seconds: float
    latency_seconds: float
    fill_seconds: float
    bandwidth_seconds: float
    bottleneck: str
    extrapolated: str = ""


ALGORITHMS = ("ring", "tree", "nvls", "nvlstree", "collnet", "pat", "pairwise", "allpairs")
PROTOCOLS = ("ll", "ll128", "simple")
