"""All-to-all with uneven blocks: what the busiest GPU and the busiest NIC have to carry.

Messages are those of the even all-to-all, each as wide as the traffic says; ``size`` is the largest input of
a rank, of which ``shares`` gives every block's part. Balanced, the figures are those of ``shapes``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.model.library.shapes import FULL_MESHES, PORTS_ONLY, Shape, relays
from ccbench.model.library.system import Intra, LibrarySystem
from ccbench.traffic_matrix import shares

Floats = NDArray[np.float64]

MOST_RANKS = 4096
"""Of one all_to_all_v: the matrix of the amounts is looked at as a whole."""


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


def uneven_shape(shape: Shape, system: LibrarySystem, traffic: str) -> Shape:
    """``shape`` of an even all-to-all, with the loads of ``traffic``; MachineError for too many ranks."""
    loads = uneven_loads(system, traffic)
    return replace(shape, port_bytes=loads.inside, node_bytes=loads.nic)


def uneven_loads(system: LibrarySystem, traffic: str) -> UnevenLoads:
    """What ``traffic`` (see ``ccbench.traffic_matrix``) asks of ``system``.

    Raises MachineError for more than MOST_RANKS ranks, UsageError for a matrix of another number of them.
    """
    if system.ranks > MOST_RANKS:
        raise MachineError(
            f"all_to_all_v: {system.ranks} ranks with traffic {traffic[:40]!r}; at most {MOST_RANKS} are "
            "priced unless it is balanced"
        )
    nodes, inside = system.nodes, system.ranks_per_node
    # [node, seat in it, node, seat in it]; what a rank sends itself moves nowhere.
    sent = shares(traffic, system.ranks).copy()
    np.fill_diagonal(sent, 0.0)
    whole = float(max(sent.sum(axis=0).max(), sent.sum(axis=1).max()))
    amounts = sent.reshape(nodes, inside, nodes, inside)
    local = np.stack([amounts[node, :, node, :] for node in range(nodes)])
    # [node, seat of it, seat of the other end], over all other nodes.
    outwards = amounts.sum(axis=2) - local
    inwards = amounts.sum(axis=0).transpose(1, 0, 2) - local
    port = _port(system, local, outwards, inwards)
    by_target = system.intra is Intra.NVSWITCH
    out_of_nic = outwards.sum(axis=1) if by_target else outwards.sum(axis=2)
    into_nic = inwards.sum(axis=1)
    node = max(out_of_nic.sum(axis=1).max(), into_nic.sum(axis=1).max())
    return UnevenLoads(whole, port, float(node), _nic(system, out_of_nic, into_nic))


def _port(system: LibrarySystem, local: Floats, outwards: Floats, inwards: Floats) -> float:
    """Through one GPU's links inside its node; see ``shapes`` for who relays what. On a full mesh the link
    between two GPUs carries what these two exchange, so that all are counted as busy as the busiest.
    """
    if system.intra in FULL_MESHES:
        return (system.ranks_per_node - 1) * float(local.max())
    out, into = local.sum(axis=2), local.sum(axis=1)
    if system.ranks_per_node > 1 and system.intra in PORTS_ONLY:
        out, into = out + outwards.sum(axis=2), into + inwards.sum(axis=1)
    else:
        out, into = out * relays(system), into * relays(system)
    if system.intra is Intra.NVSWITCH:
        own = np.arange(system.ranks_per_node)
        kept = outwards[:, own, own]
        out, into = out + outwards.sum(axis=2) - kept, into + outwards.sum(axis=1) - kept
    return float(max(out.max(), into.max()))


def _nic(system: LibrarySystem, out_of_seat: Floats, into_seat: Floats) -> float:
    """The busiest NIC's load times the NICs, neighbouring GPUs sharing one where there are fewer."""
    seats = system.ranks_per_node
    nics = system.network.per_node if system.network is not None else seats
    if nics >= seats:
        return seats * float(max(out_of_seat.max(), into_seat.max()))
    first = [-(-nic * seats // nics) for nic in range(nics)]
    of_nics = [np.add.reduceat(loads, first, axis=1) for loads in (out_of_seat, into_seat)]
    return nics * float(max(loads.max() for loads in of_nics))
