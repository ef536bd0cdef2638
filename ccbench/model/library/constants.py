"""The model's own constants: where each one starts, how far it may be learned, what it became.

A constant starts from a published figure or from physics. ``benchmarks.score.learning`` moves those with a
spread, within it, on published logs of many systems at once; ``shipped.yaml`` holds what came out and says
on what.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ccbench.errors import MachineError

SHIPPED_FILE = Path(__file__).with_name("shipped.yaml")


@dataclass(frozen=True)
class Constant:
    """``spread``: standard deviation of log(value / start) that is plausible beforehand; 0 keeps it fixed."""

    name: str
    start: float
    spread: float
    origin: str


_NCCL = "scale on NCCL's own tuning constants, which are for choosing, not for predicting (nccl#535)"
_PIPELINE = "share of 2 sqrt(latency x transfer), the fill of an optimally chunked pipeline; between 0 and 1"

CONSTANTS: tuple[Constant, ...] = (
    Constant("base", 1.0, 0.05, _NCCL),
    Constant("hop.ll", 1.3, 0.1, _NCCL),
    Constant("hop.ll128", 1.3, 0.1, _NCCL),
    Constant("hop.simple", 1.4, 0.1, _NCCL),
    Constant("network_hop.ll", 1.2, 0.1, _NCCL),
    Constant("network_hop.simple", 1.2, 0.1, _NCCL),
    Constant("proxy", 0.75, 0.1, _NCCL),
    Constant("latency.efa_us", 15.0, 0.3, "beyond InfiniBand: 15 us one way (aws-ofi-nccl takes 20)"),
    Constant("latency.tcp_us", 35.0, 0.4, "kernel sockets, a proxy thread on each side; assumed"),
    Constant("latency.tcpx_us", 45.0, 0.4, "GPUDirect-TCPX and TCPXO; assumed like sockets"),
    Constant("latency.fabric_us", 0.3, 0.3, "InfiniBand and RoCE: what NCCL's constants leave out; assumed"),
    Constant("cdna_hop", 3.5, 0.3, "scale on RCCL's own constants"),
    Constant("fill.ring", 0.1, 0.5, _PIPELINE),
    Constant("fill.ring_network", 0.2, 0.15, _PIPELINE),
    Constant("fill.tree", 0.5, 0.3, _PIPELINE),
    Constant("fill.tree_network", 1.0, 0.2, _PIPELINE),
    Constant("fill.nvls", 0.7, 0.2, _PIPELINE),
    Constant("fill.nvlstree", 0.75, 0.2, _PIPELINE),
    Constant("fill.pairwise", 0.3, 0.4, _PIPELINE),
    Constant("payload.ll", 0.5, 0.05, "four of eight bytes are data"),
    Constant("payload.ll128", 0.9, 0.04, "120 of 128 bytes are data; NCCL takes 0.92"),
    Constant("payload.pcie", 0.914, 0.0, "256 of 280 bytes of a write: Neugebauer et al., SIGCOMM 2018"),
    Constant("ll_most", 0.35, 0.15, "scale on NCCL's llMaxBws"),
    Constant("tree_rate", 0.9, 0.05, "NCCL takes 0.92 for Tree"),
    Constant("efficiency.nvlink", 0.77, 0.02, "235 of 300, 682 of 900 GB/s; NCCL takes 20 of 25, 40.1 of 50"),
    Constant(
        "efficiency.nvlink_hopper", 0.81, 0.02, "362-370 of 450 (nccl-tests#212); NCCL takes 20.6 of 25"
    ),
    Constant("efficiency.nvlink_mesh", 0.8, 0.1, "as above, without switches"),
    Constant("efficiency.xgmi", 0.75, 0.02, "312 of 448 GB/s, ml-engineering, MI300X"),
    Constant("efficiency.hccs", 0.75, 0.2, "assumed like xGMI"),
    Constant("efficiency.pcie", 0.75, 0.15, "NCCL takes 12, 24, 48 GB/s for x16 of generation 3, 4, 5"),
    Constant("efficiency.host", 0.72, 0.1, "of the line's rate where one direction is used"),
    Constant("efficiency.host_both", 0.25, 0.1, "where both are: 3.9 of 15.75 GB/s between two RTX 2080 Ti"),
    Constant("efficiency.nvls_hopper", 0.68, 0.04, "305 of 450 GB/s x n / (n + 1), nccl-tests#212"),
    Constant("efficiency.nvls_blackwell", 0.6, 0.05, "540 of 900 GB/s x n / (n + 1), ml-engineering"),
    Constant("efficiency.nvlstree", 0.95, 0.05, "of NVLS inside a node"),
    Constant("efficiency.fabric", 0.965, 0.03, "24 of 25, 48 of 50 GB/s (nccl-tests#119, #267, #149, #212)"),
    Constant("efficiency.efa", 0.9, 0.08, "43.8 of 50 and 382 of 400 GB/s"),
    Constant("efficiency.tcp", 0.65, 0.2, "kernel sockets; assumed"),
    Constant(
        "socket_gbytes", 2.6, 0.15, "42 Gb/s of one core (Cai et al., SIGCOMM 2021), sending and receiving"
    ),
    Constant("efficiency.tcpx", 0.85, 0.15, "assumed between sockets and RDMA"),
    Constant("nvls_base_us", 11.0, 0.1, "fixed cost of an NVLS launch; NCCL takes 25 in all"),
    Constant("nvls_hop_us", 4.0, 0.1, "one way through the switch; as a Simple hop"),
    Constant("launch_us", 4.3, 0.05, "one thread: 34.5 us for launches on 8 GPUs (microsoft/superbenchmark)"),
    Constant("launch_peer_us", 0.95, 0.2, "each further peer of grouped send and receive; same logs"),
    Constant("pairwise_base", 1.0, 0.3, "scale on Ring's base, for grouped send and receive"),
)
"""Everything that the model takes from outside NCCL's tables."""

BY_NAME = {constant.name: constant for constant in CONSTANTS}


@dataclass(frozen=True)
class Domain:
    """What constants were learned on, for saying what lies outside.

    most_nodes: of each (kind, word) seen, the most nodes; kinds are those of
        ``explanation.kinds_of``. most_ranks_per_node: by intra. largest_bytes: of all sizes.
    """

    most_nodes: tuple[tuple[tuple[str, str], int], ...] = ()
    most_ranks_per_node: tuple[tuple[str, int], ...] = ()
    largest_bytes: int = 0


@dataclass(frozen=True)
class LibraryConstants:
    """A value for every name of CONSTANTS. Raises MachineError where one is missing, unknown or not positive.

    learned_on: what moved them, in words; "" where nothing did. domain: the same as figures.
    """

    values: tuple[tuple[str, float], ...]
    learned_on: str = ""
    domain: Domain = Domain()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.values]
        for wrong in sorted({*names} ^ set(BY_NAME)):
            raise MachineError(f"constants: {wrong!r} is missing or not one of the model's")
        if len(names) != len(BY_NAME):
            raise MachineError("constants: one is given twice; give each once")
        for name, value in self.values:
            if not (value > 0 and math.isfinite(value)):
                raise MachineError(f"constants: {name}: {value} is not a positive number")

    @property
    def table(self) -> dict[str, float]:
        """The same as a mapping."""
        return dict(self.values)


def constants_of(
    values: Mapping[str, float], learned_on: str = "", domain: Domain | None = None
) -> LibraryConstants:
    """Constants with ``values`` where given and the starts elsewhere. Raises MachineError."""
    for name in values:
        if name not in BY_NAME:
            raise MachineError(f"constants: {name!r} is not one of the model's")
    merged = {constant.name: float(values.get(constant.name, constant.start)) for constant in CONSTANTS}
    return LibraryConstants(tuple(merged.items()), learned_on, domain or Domain())


STARTS = constants_of({})
"""Nothing learned."""


@lru_cache(maxsize=1)
def shipped() -> LibraryConstants:
    """What ``shipped.yaml`` says. Raises MachineError when it is damaged."""
    return read_constants(SHIPPED_FILE)


def read_constants(path: Path) -> LibraryConstants:
    """What ``benchmarks.score.learning`` wrote. Raises MachineError where the file is damaged."""
    import yaml

    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        return constants_of(plain["values"], str(plain["learned_on"]), _domain(plain.get("domain") or {}))
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise MachineError(f"{path}: damaged ({reason}); reinstall ccbench or learn it again") from None


def _domain(plain: Mapping[str, Any]) -> Domain:
    most_nodes = [
        ((str(kind), str(word)), int(nodes))
        for kind, words in plain.get("most_nodes", {}).items()
        for word, nodes in words.items()
    ]
    inside = [(str(intra), int(ranks)) for intra, ranks in plain.get("most_ranks_per_node", {}).items()]
    return Domain(tuple(most_nodes), tuple(inside), int(plain.get("largest_bytes", 0)))
