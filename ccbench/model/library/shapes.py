"""Hops that an algorithm of a collective library takes one after another, and bytes per link, on a system.

Everything per byte of nccl-tests' size, so that a sweep over sizes is one multiplication. The counts follow
from the algorithms (ring: Patarasuk and Yuan, JPDC 69 (2009) 117; double binary tree: Sanders, Speck and
Traeff, Parallel Computing 35 (2009) 581; NVLS: NVIDIA/nccl-tests#212; CollNet: Graham et al., SHArP,
COM-HPC 2016); a test derives those of rings and all-to-all from ccbench's own schedules.

All-to-all with uneven blocks has the messages of the even one, each as wide as the traffic says; ``size`` is
the largest input of a rank, of which ``shares`` gives every block's part. The busiest GPU and the busiest NIC
count. Balanced, the figures are those of all_to_all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.collectives import shares
from ccbench.errors import MachineError
from ccbench.model.library import Generation, Intra, LibrarySystem


@dataclass(frozen=True)
class Shape:
    """One algorithm on one system.

    inside_hops, network_hops: of the longest chain of messages that wait for each other.
    port_bytes: through one GPU's links inside its node, per byte of size, in the busier direction.
    node_bytes: through all NICs of a node together, in the busier direction.
    both_ways: True if links inside the node carry as much in both directions at once.
    peers: other ranks that each rank addresses one by one (grouped send and receive), else 0.
    one_pair: port_bytes pass only the links of a GPU that lead to one other GPU.
    one_rail: node_bytes pass only the NICs near one GPU, not all of a node.
    unasked: True if the library takes it without being told to.
    fills: False if all links are busy from the first step to the last, so that only chunks of one block fill.
    """

    algorithm: str
    inside_hops: int
    network_hops: int
    port_bytes: float
    node_bytes: float
    both_ways: bool = True
    peers: int = 0
    one_pair: bool = False
    one_rail: bool = False
    unasked: bool = True
    fills: bool = True


FEWEST_NVLS_RANKS = 5
"""Published tables (ml-engineering, H200 and B200) show Ring's rates for 4 GPUs of a switch, NVLS's for 8.
NCCL itself could take NVLS from fewer on; what counts here is what was seen."""

MOST_DIRECT_RANKS = 8
"""CollNet addresses all GPUs of a node at once up to here, else a chain (NCCL, src/graph/tuning.cc)."""

MOST_NVLSTREE_NICS = 8
"""NICs of a node that NVLSTree keeps busy: 144 GPUs of two NVL72 racks see 413 GB/s, eight NICs, of 72."""

MOST_NVLS_SHARES = 8
"""A GPU sends all, and its share of the sum: domains of 64 and 72 of them reduce no faster than 8 (published: 472,
423 and 481 GB/s of the buffer, GB300 and GB200), so that a smaller share saves nothing."""

SINCE: dict[str, tuple[int, ...]] = {"nvls": (2, 17), "nvlstree": (2, 18), "pat": (2, 23)}
"""First version of NCCL that has an algorithm (its release notes)."""

ALL_PAIRS_RANKS = 8
"""GPUs of a node for which RCCL has all pairs (ROCm/rccl, tools/msccl-algorithms/allreduce-allpairs-8n-*)."""

_ALL_PAIRS = frozenset({Generation.CDNA3, Generation.CDNA4})

HALVES_SINCE = (2, 12)
"""Version from which trees of two nodes exchange each half once. A published p4d with NCCL 2.9.9 has the 43.4 GB/s that
rings of its NICs give, with 2.17 and 2.23 it has 76 to 78; nothing between these versions is published."""

FULL_MESHES = frozenset({Intra.NVLINK_MESH, Intra.XGMI, Intra.HCCS})

PORTS_ONLY = frozenset({Intra.PCIE, Intra.HOST})
"""Nodes in which all that a GPU sends passes its PCIe port."""

CUBE_LINKS = 6
"""Links of a V100 in a cube mesh, of which some pairs of neighbours have one (DGX-1 user guide)."""

MOST_RANKS = 4096
"""Of one all_to_all_v: the matrix of the amounts is looked at as a whole."""


def shapes(
    collective: str, system: LibrarySystem, version: tuple[int, ...] = (), traffic: str = ""
) -> tuple[Shape, ...]:
    """Every algorithm that a library has for ``collective`` on ``system``; none for one rank.

    version: of NCCL, (major, minor); () is a current one. traffic: of an all_to_all_v, "" for even blocks.
    Raises MachineError for a collective that this model has nothing about, and as ``uneven_loads`` does.
    """
    if collective not in _BUILDERS:
        raise MachineError(
            f"{collective}: the library model has nothing about it; it knows {', '.join(_BUILDERS)}"
        )
    if system.ranks < 2:
        return ()
    built = _BUILDERS[collective](collective, system)
    if traffic:
        loads = uneven_loads(system, traffic)
        built = tuple(
            replace(shape, port_bytes=loads.inside, node_bytes=loads.nic) for shape in built
        )
    if system.nodes == 2 and version and version < HALVES_SINCE and not system.is_amd:
        built = tuple(
            replace(shape, node_bytes=2.0) if shape.algorithm == "tree" else shape
            for shape in built
        )
    return tuple(
        shape for shape in built if not version or version >= SINCE.get(shape.algorithm, ())
    )


def collnet_is_direct(system: LibrarySystem) -> bool:
    """True if CollNet scatters over all GPUs of a node at once; it is a chain elsewhere."""
    return system.intra is Intra.NVSWITCH and system.ranks_per_node <= MOST_DIRECT_RANKS


def _has_nvls(system: LibrarySystem) -> bool:
    """True if switches add for the GPUs of one node: published tables show it for more than four of them."""
    enough = system.ranks_per_node >= FEWEST_NVLS_RANKS
    return system.multicast and system.intra is Intra.NVSWITCH and enough and not system.is_amd


def _ring(
    system: LibrarySystem, rounds: int, bytes_per_size: float, chain: bool = False
) -> Shape:
    """A ring that data go round so many times; bytes_per_size: through every link of it.

    chain: one rank has all of them at first, or at last. Else each rank has its block to send at every step.
    """
    nodes, inside, port = system.nodes, system.ranks_per_node, bytes_per_size
    if nodes > 1 and system.intra not in PORTS_ONLY:
        # Rings leave a node at different GPUs, so that of its GPUs' turns one in ``inside`` goes out. Where
        # GPUs have nothing but PCIe, what goes out passes the same link.
        port = bytes_per_size * ((inside - 1) / inside)
    # A round passes all links of the ring but one. All rounds together leave out as many, side by side: in
    # the chain that takes longest they are links inside one node, as far as they go.
    across = 0 if nodes == 1 else rounds * nodes - rounds // inside
    hops = rounds * (system.ranks - 1) - across, across
    # A chain of three has a middle, which receives and sends at once.
    both_ways = not chain or system.ranks > 2
    node_bytes = bytes_per_size if nodes > 1 else 0.0
    return Shape("ring", *hops, port, node_bytes, both_ways, fills=chain)


def _all_reduce(collective: str, system: LibrarySystem) -> tuple[Shape, ...]:
    ranks, nodes, inside = system.ranks, system.nodes, system.ranks_per_node
    depth = (nodes - 1).bit_length() if nodes > 1 else 0
    # Two nodes exchange each half once; with more, inner nodes of both trees pass everything up and down.
    tree_network = 0.0 if nodes == 1 else 1.0 if nodes == 2 else 2.0
    # Between racks NCCL takes NVLSTree, whose eight NICs are slower than Tree's: 20 of NVL72 see 406 GB/s (published).
    racks = nodes > 1 and _has_nvls(system) and inside > MOST_NVLS_SHARES
    built = [
        # Reduce-scatter, then all-gather: each passes (p - 1) / p of the buffer through every link.
        _ring(system, 2, 2 * (ranks - 1) / ranks),
        Shape("tree", 2 * (inside - 1), 2 * depth, 2.0, tree_network, unasked=not racks),
    ]
    if _has_nvls(system):
        name = "nvls" if nodes == 1 else "nvlstree"
        port = 1.0 + 1.0 / min(inside, MOST_NVLS_SHARES)
        built.append(Shape(name, 2, 2 * depth, port, tree_network))
    if nodes == 1 and system.generation in _ALL_PAIRS and inside == ALL_PAIRS_RANKS:
        # Every GPU sends every other its block, sums what it got, and sends the sum to every other.
        built.append(Shape("allpairs", 2, 0, 2 * (ranks - 1) / ranks, 0.0, fills=False))
    if nodes > 1 and system.network is not None and system.network.in_network_reduction:
        # The node's sum goes up through its NICs once, the total comes down once; one stay in the network.
        if collnet_is_direct(system):
            hops, port = 2 * min(1, inside - 1), 2.0 * (inside - 1) / inside
        else:
            hops, port = 2 * (inside - 1), 2.0 * min(1, inside - 1)
        built.append(Shape("collnet", hops, 1, port, 1.0))
    return tuple(built)


def _gathering(collective: str, system: LibrarySystem) -> tuple[Shape, ...]:
    ranks, nodes = system.ranks, system.nodes
    share = (ranks - 1) / ranks
    built = [_ring(system, 1, share)]
    if nodes > 1 and system.ranks_per_node == 1:
        built.append(Shape("pat", 0, (nodes - 1).bit_length(), 0.0, share))
    if nodes == 1 and _has_nvls(system):
        # NCCL's constants rate it at (p - 1)^2 / p^2 of NVLS all_reduce, bytes of the buffer per second:
        # below Ring, which is what published runs name. Only NCCL_ALGO brings it.
        slower = (ranks / (ranks - 1)) ** 2
        built.append(Shape("nvls", 2, 0, (1.0 + 1.0 / ranks) * slower, 0.0, unasked=False))
    return tuple(built)


def _rooted(collective: str, system: LibrarySystem) -> tuple[Shape, ...]:
    return (_ring(system, 1, 1.0, chain=True),)


def _pairwise(collective: str, system: LibrarySystem) -> tuple[Shape, ...]:
    """Grouped send and receive: every rank with every other, with a root, or with the next."""
    ranks, inside = system.ranks, system.ranks_per_node
    hops = int(inside > 1), int(system.nodes > 1)
    if collective == "send_recv":
        # The last rank of a node sends to the next node, by the NICs near it.
        moved = float(hops[0]), float(hops[1])
        return (Shape("pairwise", *hops, *moved, peers=1, one_pair=True, one_rail=True),)
    remote = (ranks - inside) / ranks
    if inside > 1 and system.intra in PORTS_ONLY:
        # Where GPUs have nothing but PCIe, what goes to other nodes passes the same link.
        port = (ranks - 1) / ranks
    else:
        port = (inside - 1) / ranks
    over_rails = system.intra is Intra.NVSWITCH
    if over_rails and collective != "gather":
        # Over NVLink, data first go to the GPU near the NIC of the target's rail (NCCL's PXN, from 2.12): the
        # NICs of a node share its traffic. Those of a gather all arrive by the rail of the root.
        port += remote * (inside - 1) / inside
    rooted = collective in ("gather", "scatter")
    return (
        Shape(
            "pairwise",
            *hops,
            port,
            remote if rooted else inside * remote,
            both_ways=not rooted,
            peers=ranks - 1,
            one_rail=collective == "gather" or (collective == "scatter" and not over_rails),
        ),
    )


_BUILDERS: dict[str, Callable[[str, LibrarySystem], tuple[Shape, ...]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gathering,
    "reduce_scatter": _gathering,
    "broadcast": _rooted,
    "reduce": _rooted,
    "all_to_all": _pairwise,
    "all_to_all_v": _pairwise,
    "gather": _pairwise,
    "scatter": _pairwise,
    "send_recv": _pairwise,
}


def links_share(shape: Shape, system: LibrarySystem) -> float:
    """Share of a GPU's links inside its node that ``shape`` keeps busy; a switch gives one pair all."""
    if not shape.one_pair:
        return 1.0
    if system.intra is Intra.CUBE_MESH:
        return 1.0 / (system.links_per_gpu or CUBE_LINKS)
    return 1.0 / (system.ranks_per_node - 1) if system.intra in FULL_MESHES else 1.0


def gpus_of_network(shape: Shape, system: LibrarySystem) -> int:
    """GPUs of a node whose ports carry the traffic with other nodes at once."""
    return 1 if shape.one_rail else system.ranks_per_node


def busy_nics(shape: Shape, system: LibrarySystem) -> float:
    """NICs of a node that carry it: all, or as many as fall to one GPU, but at least one."""
    nics = 0 if system.network is None else system.network.per_node
    return nics / min(system.ranks_per_node, max(1, nics)) if shape.one_rail else float(nics)


@dataclass(frozen=True)
class UnevenLoads:
    """Per byte of size, in the busier direction, what stays on its rank left out.

    rank: of the busiest rank. inside: what it exchanges inside its node, what it relays to rails included.
    node: of the busiest node, to and from other nodes. nic: node's NICs times the busiest of them.
    """

    rank: float
    inside: float
    node: float
    nic: float


def uneven_loads(system: LibrarySystem, traffic: str) -> UnevenLoads:
    """Loads of ``traffic`` (see ``ccbench.collectives``) on ``system``.

    Raises MachineError for more than MOST_RANKS ranks, UsageError for a matrix of another number of them.
    """
    if system.ranks > MOST_RANKS:
        raise MachineError(
            f"all_to_all_v: {system.ranks} ranks with traffic {traffic[:40]!r}; at most {MOST_RANKS} are "
            "priced unless it is balanced"
        )
    nodes, inside = system.nodes, system.ranks_per_node
    # [node, GPU of it, node, GPU of it]; what a rank sends itself moves nowhere.
    sent = shares(traffic, system.ranks).copy()
    np.fill_diagonal(sent, 0.0)
    amounts = sent.reshape(nodes, inside, nodes, inside)
    local = np.stack([amounts[node, :, node, :] for node in range(nodes)])
    # [node, GPU of it, GPU of the other end], over all other nodes.
    outwards = amounts.sum(axis=2) - local
    inwards = amounts.sum(axis=0).transpose(1, 0, 2) - local
    # With NVSwitches a message leaves by the NIC of its target's rail, elsewhere by its source's.
    out_of_nic = outwards.sum(axis=1 if system.intra is Intra.NVSWITCH else 2)
    into_nic = inwards.sum(axis=1)
    nics = system.network.per_node if system.network is not None else inside
    by_nic = [out_of_nic, into_nic]
    if nics < inside:
        # NICs are dealt to neighbouring GPUs evenly; each adds up what its GPUs send.
        first = [-(-nic * inside // nics) for nic in range(nics)]
        by_nic = [np.add.reduceat(loads, first, axis=1) for loads in by_nic]
    # Sending and receiving go on at the same time; the busier direction counts.
    return UnevenLoads(
        rank=float(max(sent.sum(axis=0).max(), sent.sum(axis=1).max())),
        inside=_busiest_port(system, local, outwards, inwards),
        node=float(max(out_of_nic.sum(axis=1).max(), into_nic.sum(axis=1).max())),
        nic=min(nics, inside) * float(max(loads.max() for loads in by_nic)),
    )


def _busiest_port(
    system: LibrarySystem,
    local: NDArray[np.float64],
    outwards: NDArray[np.float64],
    inwards: NDArray[np.float64],
) -> float:
    """Through one GPU's links inside its node; arrays as in ``uneven_loads``."""
    inside = system.ranks_per_node
    if system.intra in FULL_MESHES:
        # The link between two GPUs carries what these two exchange: all are counted as busy as the busiest.
        return (inside - 1) * float(local.max())
    out, into = local.sum(axis=2), local.sum(axis=1)
    if inside > 1 and system.intra in PORTS_ONLY:
        out, into = out + outwards.sum(axis=2), into + inwards.sum(axis=1)
    if system.intra is Intra.NVSWITCH:
        # PXN: data for another rail first pass to the GPU near that rail's NIC, those of the own rail do not.
        own = np.arange(inside)
        kept = outwards[:, own, own]
        out, into = out + outwards.sum(axis=2) - kept, into + outwards.sum(axis=1) - kept
    return float(max(out.max(), into.max()))
