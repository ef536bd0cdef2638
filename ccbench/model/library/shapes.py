"""What an algorithm of a collective library asks of a system: hops one after another, and bytes per link.

Everything per byte of nccl-tests' size, so that a sweep over sizes is one multiplication. The counts follow
from the algorithms (ring: Patarasuk and Yuan, JPDC 69 (2009) 117; double binary tree: Sanders, Speck and
Traeff, Parallel Computing 35 (2009) 581; NVLS: NVIDIA/nccl-tests#212; CollNet: Graham et al., SHArP,
COM-HPC 2016); a test derives those of rings and all-to-all from ccbench's own schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ccbench.errors import MachineError
from ccbench.model.library import Generation, Intra, LibrarySystem


@dataclass(frozen=True)
class Shape:
    """One algorithm on one system.

    inside_hops, network_hops: of the longest chain of messages that wait for each other.
    port_bytes: through one GPU's links inside its node, per byte of size, in the busier direction.
    node_bytes: through all NICs of a node together, in the busier direction.
    both_ways: whether links inside the node carry as much in both directions at once.
    peers: other ranks that each rank addresses one by one (grouped send and receive), else 0.
    one_pair: port_bytes pass only the links of a GPU that lead to one other GPU.
    one_rail: node_bytes pass only the NICs beside one GPU, not all of a node.
    unasked: whether the library takes it without being told to.
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


FEWEST_NVLS_RANKS = 5
"""Published tables (ml-engineering, H200 and B200) show Ring's rates for 4 GPUs of a switch, NVLS's for 8.
NCCL itself could take NVLS from fewer on; what counts here is what was seen."""

MOST_DIRECT_RANKS = 8
"""CollNet addresses all GPUs of a node at once up to here, else a chain (NCCL, src/graph/tuning.cc)."""

MOST_NVLSTREE_NICS = 8
"""NICs of a node that NVLSTree keeps busy: 144 GPUs of two NVL72 racks see 413 GB/s, eight NICs, of 72."""

SINCE: dict[str, tuple[int, ...]] = {"nvls": (2, 17), "nvlstree": (2, 18), "pat": (2, 23)}
"""First version of NCCL that has an algorithm (its release notes)."""

FULL_MESHES = frozenset({Intra.NVLINK_MESH, Intra.XGMI, Intra.HCCS})

PORTS_ONLY = frozenset({Intra.PCIE, Intra.HOST})
"""Where all that a GPU sends passes its PCIe port."""

CUBE_RELAYED = 10 / 7
"""In a cube mesh of 8, a GPU sees 4 of 7 others directly; what goes to the other 3 passes two links."""

CUBE_LINKS = 6
"""Links of a V100 in a cube mesh, of which some pairs of neighbours have one (DGX-1 user guide)."""


def shapes(collective: str, system: LibrarySystem, version: tuple[int, ...] = ()) -> tuple[Shape, ...]:
    """Every algorithm that a library has for ``collective`` on ``system``; none for one rank.

    version: of NCCL, (major, minor); () is a current one. Raises MachineError for a collective that this
    model has nothing about.
    """
    if collective not in _BUILDERS:
        raise MachineError(
            f"{collective}: the library model has nothing about it; it knows {', '.join(_BUILDERS)}"
        )
    if system.ranks < 2:
        return ()
    found = _BUILDERS[collective](system)
    return tuple(shape for shape in found if not version or version >= SINCE.get(shape.algorithm, ()))


def has_nvls(system: LibrarySystem) -> bool:
    """Whether switches add for the GPUs of one node: published tables show it for more than four of them."""
    enough = system.ranks_per_node >= FEWEST_NVLS_RANKS
    return system.multicast and system.intra is Intra.NVSWITCH and enough


def has_collnet(system: LibrarySystem) -> bool:
    """Whether switches of the network add (SHARP) and the run uses it."""
    return system.nodes > 1 and system.network is not None and system.network.in_network_reduction


def collnet_is_direct(system: LibrarySystem) -> bool:
    """Whether CollNet scatters over all GPUs of a node at once; it is a chain elsewhere."""
    return system.intra is Intra.NVSWITCH and system.ranks_per_node <= MOST_DIRECT_RANKS


def _ring_network(system: LibrarySystem, bytes_per_size: float) -> float:
    return bytes_per_size if system.nodes > 1 else 0.0


def _ring_port(system: LibrarySystem, bytes_per_size: float) -> float:
    """Rings leave a node at different GPUs, so that of its GPUs' turns one in ``ranks_per_node`` goes out.

    Where GPUs have nothing but PCIe, what goes out passes the same link.
    """
    inside = system.ranks_per_node
    apart = system.nodes > 1 and system.intra not in PORTS_ONLY
    return bytes_per_size * ((inside - 1) / inside if apart else 1.0)


def _all_reduce(system: LibrarySystem) -> tuple[Shape, ...]:
    ranks, nodes, inside = system.ranks, system.nodes, system.ranks_per_node
    # Reduce-scatter and all-gather pass (p - 1) / p of the buffer through every link, one after the other.
    ring = 2 * (ranks - 1) / ranks
    across = 2 * (nodes - 1)
    depth = (nodes - 1).bit_length() if nodes > 1 else 0
    # Two nodes exchange each half once; with more, inner nodes of both trees pass everything up and down.
    tree_network = 0.0 if nodes == 1 else 1.0 if nodes == 2 else 2.0
    found = [
        Shape(
            "ring", 2 * (ranks - 1) - across, across, _ring_port(system, ring), _ring_network(system, ring)
        ),
        Shape("tree", 2 * (inside - 1), 2 * depth, 2.0, tree_network),
    ]
    if has_nvls(system):
        name = "nvls" if nodes == 1 else "nvlstree"
        found.append(Shape(name, 2, 2 * depth, 1.0 + 1.0 / inside, tree_network))
    if has_collnet(system):
        found.append(_collnet(system))
    return tuple(found)


def _collnet(system: LibrarySystem) -> Shape:
    """The node's sum goes up through its NICs once, the total comes down once; one stay in the network."""
    inside = system.ranks_per_node
    if collnet_is_direct(system):
        return Shape("collnet", 2 * min(1, inside - 1), 1, 2.0 * (inside - 1) / inside, 1.0)
    return Shape("collnet", 2 * (inside - 1), 1, 2.0 * min(1, inside - 1), 1.0)


def _gathering(system: LibrarySystem) -> tuple[Shape, ...]:
    ranks, nodes = system.ranks, system.nodes
    share = (ranks - 1) / ranks
    hops = (ranks - nodes, nodes - 1)
    found = [Shape("ring", *hops, _ring_port(system, share), _ring_network(system, share))]
    if nodes > 1 and system.ranks_per_node == 1:
        found.append(Shape("pat", 0, (nodes - 1).bit_length(), 0.0, share))
    if nodes == 1 and has_nvls(system):
        # NCCL's constants rate it at (p - 1)^2 / p^2 of NVLS all_reduce, bytes of the buffer per second:
        # below Ring, which is what published runs name. Only NCCL_ALGO brings it.
        slower = (ranks / (ranks - 1)) ** 2
        found.append(Shape("nvls", 2, 0, (1.0 + 1.0 / ranks) * slower, 0.0, unasked=False))
    return tuple(found)


def _rooted(system: LibrarySystem) -> tuple[Shape, ...]:
    ranks, nodes = system.ranks, system.nodes
    network = _ring_network(system, 1.0)
    port = _ring_port(system, 1.0)
    # A chain of three has a middle, which receives and sends at once.
    return (Shape("ring", ranks - nodes, nodes - 1, port, network, both_ways=ranks > 2),)


def _pairwise(system: LibrarySystem) -> tuple[Shape, ...]:
    """Every rank to every other; over NVLink, data first go to the GPU beside the NIC of the target's rail.

    That is NCCL's PXN (from 2.12): the NICs of a node share its traffic, each serving one rail.
    """
    ranks, inside = system.ranks, system.ranks_per_node
    remote = (ranks - inside) / ranks
    port = _local_bytes(system)
    if system.intra is Intra.NVSWITCH:
        port += remote * (inside - 1) / inside
    hops = (int(inside > 1), int(system.nodes > 1))
    return (Shape("pairwise", *hops, port, inside * remote, peers=ranks - 1),)


def _local_bytes(system: LibrarySystem) -> float:
    """What one rank exchanges with all others through the links inside its node, rails left out.

    Where GPUs have nothing but PCIe, what goes to other nodes passes the same link.
    """
    ranks, inside = system.ranks, system.ranks_per_node
    if inside > 1 and system.intra in PORTS_ONLY:
        return (ranks - 1) / ranks
    return (inside - 1) / ranks * relays(system)


def _scatter(system: LibrarySystem) -> tuple[Shape, ...]:
    """The root to all others: over NVSwitches data leave by the NICs of all rails (PXN), else by its own."""
    ranks, inside = system.ranks, system.ranks_per_node
    remote = (ranks - inside) / ranks
    port, rails = _local_bytes(system), system.intra is Intra.NVSWITCH
    if rails:
        port += remote * (inside - 1) / inside
    hops = (int(inside > 1), int(system.nodes > 1))
    return (Shape("pairwise", *hops, port, remote, both_ways=False, peers=ranks - 1, one_rail=not rails),)


def _gather(system: LibrarySystem) -> tuple[Shape, ...]:
    """All others to the root: whatever way data take, they arrive by the NICs of the root's own rail."""
    ranks, inside = system.ranks, system.ranks_per_node
    remote = (ranks - inside) / ranks
    hops = (int(inside > 1), int(system.nodes > 1))
    port = _local_bytes(system)
    return (Shape("pairwise", *hops, port, remote, both_ways=False, peers=ranks - 1, one_rail=True),)


def _shift(system: LibrarySystem) -> tuple[Shape, ...]:
    """Each rank to the next; the last one of a node sends to the next node, by the NICs beside it."""
    inside, across = int(system.ranks_per_node > 1), int(system.nodes > 1)
    return (
        Shape(
            "pairwise",
            inside,
            across,
            float(inside),
            float(across),
            peers=1,
            one_pair=True,
            one_rail=True,
        ),
    )


def relays(system: LibrarySystem) -> float:
    """Links that a byte between two GPUs of a node passes, on average over the pairs."""
    return CUBE_RELAYED if system.intra is Intra.CUBE_MESH and system.ranks_per_node == 8 else 1.0


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


_BUILDERS: dict[str, Callable[[LibrarySystem], tuple[Shape, ...]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gathering,
    "reduce_scatter": _gathering,
    "broadcast": _rooted,
    "reduce": _rooted,
    "all_to_all": _pairwise,
    "all_to_all_v": _pairwise,
    "gather": _gather,
    "scatter": _scatter,
    "send_recv": _shift,
}


def is_amd(system: LibrarySystem) -> bool:
    """Whether RCCL runs there."""
    return system.generation in {Generation.CDNA2, Generation.CDNA3}
