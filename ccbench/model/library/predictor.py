"""The library's time for every size: the cheapest algorithm and protocol, or the one that is asked for.

With each time goes one sentence on the term that costs most, and whether and in which way the prediction lies
outside what its constants were learned on.

All-to-all with uneven blocks is priced by what the busiest GPU and the busiest NIC have to carry. Messages
are those of the even all-to-all, each as wide as the traffic says; ``size`` is the largest input of a rank,
of which ``shares`` gives every block's part. Balanced, the figures are those of ``shapes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.cases import UNEVEN
from ccbench.collectives import shares
from ccbench.errors import MachineError
from ccbench.model.library import Generation, Intra, LibraryPoint, LibraryRequest, LibrarySystem
from ccbench.model.library.constants import Domain, LibraryConstants, shipped
from ccbench.model.library.costs import MICRO, SWITCH_ALGORITHMS, Cost, Floats, cost, protocols
from ccbench.model.library.shapes import (
    FULL_MESHES,
    PORTS_ONLY,
    Shape,
    busy_nics,
    gpus_of_network,
    links_share,
    relays,
    shapes,
)
from ccbench.units import format_seconds, format_size


@dataclass(frozen=True)
class Prices:
    """Everything that a request leaves open, at its sizes; ``options`` is empty for one rank.

    launch_seconds: what launching alone takes, below which nothing starts to move.
    """

    options: tuple[Cost, ...]
    launch_seconds: float
    sizes: int

    @property
    def all_seconds(self) -> Floats:
        """Shape (options, sizes)."""
        return np.stack([option.floored(self.launch_seconds) for option in self.options])

    @property
    def best(self) -> NDArray[np.int64]:
        """Place of the cheapest option at each size."""
        return np.asarray(self.all_seconds.argmin(axis=0), dtype=np.int64)

    @property
    def seconds(self) -> Floats:
        """Of the cheapest option at each size."""
        if not self.options:
            return np.full(self.sizes, self.launch_seconds)
        return np.asarray(self.all_seconds.min(axis=0))


def predict_library(
    system: LibrarySystem, request: LibraryRequest, constants: LibraryConstants | None = None
) -> tuple[LibraryPoint, ...]:
    """One point per size of ``request``. Raises MachineError where nothing of the kind exists there."""
    using = shipped() if constants is None else constants
    prices = priced(system, request, using.table)
    floor = prices.launch_seconds
    if not prices.options:
        return tuple(
            LibraryPoint(size, "none", "none", floor, floor, 0.0, 0.0, "one rank: nothing is sent")
            for size in request.size_bytes
        )
    chosen = zip(request.size_bytes, prices.best.tolist(), reasons(system, request, using), strict=True)
    return tuple(
        explained(system, prices.options[choice], place, size, floor, why)
        for place, (size, choice, why) in enumerate(chosen)
    )


def seconds_of(system: LibrarySystem, request: LibraryRequest, table: Mapping[str, float]) -> Floats:
    """Only the times, for learning; the same as ``predict_library`` says."""
    return priced(system, request, table).seconds


def busy_seconds(system: LibrarySystem, request: LibraryRequest) -> tuple[float, float, float]:
    """What one launch of one size keeps busy, of what ``predict_library`` chooses: waiting, inside, network.

    Waiting is latency and the filling of pipelines, inside each GPU's links inside its node, network a node's
    NICs. The launch takes waiting and the larger of the other two. Raises MachineError as it does.
    """
    (size,) = request.size_bytes
    prices = priced(system, request, shipped().table)
    if not prices.options:
        return prices.launch_seconds, 0.0, 0.0
    option = prices.options[int(prices.best[0])]
    waiting = max(option.latency_seconds, prices.launch_seconds) + float(option.fill_seconds[0])
    return waiting, option.inside_seconds_per_byte * size, option.network_seconds_per_byte * size


def priced(system: LibrarySystem, request: LibraryRequest, table: Mapping[str, float]) -> Prices:
    """Prices of everything that ``request`` leaves open. Raises MachineError where there is nothing."""
    sizes = np.asarray(request.size_bytes, dtype=np.float64)
    wanted = [
        uneven_shape(shape, system, request.traffic) if request.traffic else shape
        for shape in shapes(request.collective, system, request.version)
        if _allowed(shape, request)
    ]
    options = tuple(
        cost(shape, protocol, system, sizes, table)
        for shape in wanted
        for protocol in protocols(shape, system)
        if request.protocol in ("default", protocol)
    )
    if not options and system.ranks > 1:
        raise MachineError(
            f"{request.collective} with algorithm {request.algorithm} and protocol {request.protocol}: "
            f"not on {system.name}; there are {_menu(request, system)}"
        )
    return Prices(options, launch_floor_seconds(system, request, table), len(sizes))


def _allowed(shape: Shape, request: LibraryRequest) -> bool:
    if shape.algorithm in SWITCH_ALGORITHMS and (request.multicast_off or request.floating_8_bit):
        return False
    return request.algorithm == shape.algorithm or (request.algorithm == "default" and shape.unasked)


def _menu(request: LibraryRequest, system: LibrarySystem) -> str:
    return ", ".join(
        f"{shape.algorithm} ({'/'.join(protocols(shape, system))})"
        for shape in shapes(request.collective, system, request.version)
    )


def launch_floor_seconds(system: LibrarySystem, request: LibraryRequest, table: Mapping[str, float]) -> float:
    """Least time of a launch: one thread launches on its GPUs one after the other, peer by peer."""
    peers = max((shape.peers for shape in shapes(request.collective, system)), default=0)
    each = table["launch_us"] + table["launch_peer_us"] * peers
    return request.gpus_per_process * each * MICRO


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
    """What ``traffic`` (see ``ccbench.collectives``) asks of ``system``.

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
    # Sending and receiving go on at the same time; the busier direction counts.
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
        # PXN: data for another rail first pass to the GPU beside that rail's NIC, those of the own rail do
        # not.
        kept = outwards[:, own, own]
        out, into = out + outwards.sum(axis=2) - kept, into + outwards.sum(axis=1) - kept
    return float(max(out.max(), into.max()))


def _nic(system: LibrarySystem, out_of_seat: Floats, into_seat: Floats) -> float:
    """The busiest NIC's load times the NICs, neighbouring GPUs sharing one where there are fewer."""
    seats = system.ranks_per_node
    nics = system.network.per_node if system.network is not None else seats
    if nics >= seats:
        return seats * float(max(out_of_seat.max(), into_seat.max()))
    # NICs are dealt to neighbouring GPUs evenly; each adds up what its GPUs send.
    first = [-(-nic * seats // nics) for nic in range(nics)]
    of_nics = [np.add.reduceat(loads, first, axis=1) for loads in (out_of_seat, into_seat)]
    return nics * float(max(loads.max() for loads in of_nics))


_TOGETHER = ("collective across", "collective inside")
"""Kinds that name two things at once."""

_SCALED = ("network", "collective across")
"""Kinds for which the number of nodes that was seen matters."""

FAR_IN_SIZE = 4
"""Factor over the largest size seen up to which nothing new is expected: times are proportional there."""


def kinds_of(system: LibrarySystem, request: LibraryRequest) -> tuple[tuple[str, str], ...]:
    """(kind, word) of everything that the constants distinguish, and of what was seen together.

    A collective counts as seen on a network, or on one node of a kind, only where it ran there itself: other
    collectives there, and it elsewhere, do not show how it fares.
    """
    # Uneven or not, the messages are those of grouped sends.
    name = "all_to_all" if request.collective == UNEVEN else request.collective
    words = [
        ("generation", system.generation.value),
        ("intra", system.intra.value),
        ("collective", name),
    ]
    if system.nodes > 1 and system.network is not None:
        word = family(system.network.word)
        return (*words, ("network", word), ("collective across", f"{name} on {word}"))
    return (*words, ("collective inside", f"{name} on {system.intra.value}"))


def family(word: str) -> str:
    """``ib`` for ``ib-ndr`` and its like: generations of one network differ in their rate alone."""
    return word.split("-")[0]


def reasons(system: LibrarySystem, request: LibraryRequest, constants: LibraryConstants) -> tuple[str, ...]:
    """Why each size of ``request`` is extrapolated, "" where it is not."""
    domain = constants.domain
    always = "; ".join(_about(system, request, domain))
    seen = domain.largest_bytes * FAR_IN_SIZE
    far = f"no size above {format_size(domain.largest_bytes)} was learned on" if seen else ""
    return tuple("; ".join(filter(None, (always, far if size > seen else ""))) for size in request.size_bytes)


def _about(system: LibrarySystem, request: LibraryRequest, domain: Domain) -> list[str]:
    if not domain.most_nodes:
        return ["nothing was learned: the constants are published figures and assumptions"]
    most_nodes = dict(domain.most_nodes)
    found: list[str] = []
    for kind, word in kinds_of(system, request):
        if kind in _TOGETHER and found:
            continue  # follows from what was said
        if word == Generation.UNKNOWN.value:
            found.append("the generation of the GPUs is not known")
        elif (kind, word) not in most_nodes:
            found.append(_unseen(kind, word))
        elif kind in _SCALED and system.nodes > most_nodes[kind, word]:
            found.append(_larger(kind, word, system.nodes, most_nodes[kind, word]))
    most_inside = dict(domain.most_ranks_per_node).get(system.intra.value, system.ranks_per_node)
    if system.ranks_per_node > most_inside:
        found.append(f"{system.ranks_per_node} GPUs a node; learned on up to {most_inside}")
    return found


def _unseen(kind: str, word: str) -> str:
    if kind == "collective inside":
        return f"no {word} within one node was learned on"
    return f"no {word} was learned on" if kind in _TOGETHER else f"no {kind} {word} was learned on"


def _larger(kind: str, word: str, nodes: int, most: int) -> str:
    said = f"{nodes} nodes on {word}" if kind == "network" else f"{word} over {nodes} nodes"
    return f"{said}; learned on up to {most}"


def explained(
    system: LibrarySystem, option: Cost, place: int, size_bytes: int, launch_seconds: float, why: str
) -> LibraryPoint:
    """The point of ``option`` at the ``place``-th of its sizes; why: it is extrapolated, "" if it is not."""
    latency = max(option.latency_seconds, launch_seconds)
    fill, transfer = float(option.fill_seconds[place]), float(option.bandwidth_seconds[place])
    seconds = latency + fill + transfer
    chosen = option.shape.algorithm, option.protocol
    point = LibraryPoint(size_bytes, *chosen, seconds, latency, fill, transfer, "", why)
    return replace(point, bottleneck=_bottleneck(system, option, point, launch_seconds))


def _bottleneck(system: LibrarySystem, option: Cost, point: LibraryPoint, launch_seconds: float) -> str:
    latency, fill = point.latency_seconds, point.fill_seconds
    if point.bandwidth_seconds >= max(latency, fill):
        return _slowest_link(system, option, point)
    if fill > latency:
        return f"filling the pipeline: {fill / point.seconds:.0%} ({format_seconds(fill)})"
    if launch_seconds == latency:
        return f"launches: {format_seconds(launch_seconds)} for one thread to launch on its GPUs"
    shape = option.shape
    told = [(option.base_seconds, f"{format_seconds(option.base_seconds)} of base")]
    for hops, seconds, where in (
        (shape.inside_hops, option.hop_seconds, "inside a node"),
        (shape.network_hops, option.network_hop_seconds, "across"),
    ):
        if hops:
            told.append((hops * seconds, f"{hops} x {format_seconds(seconds)} {where}"))
    parts = ", ".join(words for _, words in sorted(told, key=lambda part: -part[0]))
    return f"latency: {latency / point.seconds:.0%} ({parts})"


def _slowest_link(system: LibrarySystem, option: Cost, point: LibraryPoint) -> str:
    shape = option.shape
    if option.network_seconds_per_byte > option.inside_seconds_per_byte:
        where, moved, rate = "network", shape.node_bytes, option.network_rate
        through = "the NICs beside one GPU" if shape.one_rail else "the NICs of a node"
        nominal = system.network.bytes_per_second if system.network is not None else 0.0
        if (
            gpus_of_network(shape, system) * system.gpu_port_bytes_per_second
            < busy_nics(shape, system) * nominal
        ):
            through = "one GPU's port" if shape.one_rail else "the ports of a node's GPUs"
            through += " towards NICs"
    else:
        where, moved, rate = system.intra.value, shape.port_bytes, option.inside_rate
        through = "the links of one pair of GPUs" if links_share(shape, system) < 1 else "each GPU's links"
    gigabytes = moved * point.size_bytes / 1e9
    share = point.bandwidth_seconds / point.seconds
    return f"{where}: {share:.0%} ({gigabytes:.3g} GB through {through} at {rate / 1e9:.4g} GB/s)"
