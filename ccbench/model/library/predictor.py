"""The library's time for every size: the cheapest algorithm and protocol, or the one that is asked for.

With each time goes one sentence on the term that costs most, and whether and in which way the prediction lies
outside what its constants were learned on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import UNEVEN
from ccbench.errors import MachineError
from ccbench.model.library import Intra, LibraryPoint, LibraryRequest, LibrarySystem
from ccbench.model.library.constants import CONSTANTS, LibraryConstants, reasons, shipped
from ccbench.model.library.costs import (
    HANDSHAKES,
    MICRO,
    SWITCH_ALGORITHMS,
    Cost,
    Floats,
    cost,
    protocols,
)
from ccbench.model.library.shapes import (
    PORTS_ONLY,
    Shape,
    busy_nics,
    gpus_of_network,
    links_share,
    shapes,
)
from ccbench.units import format_seconds

ON_PCIE = "pcie."
"""Begins the names of constants that stand in for others where PCIe alone joins the GPUs of one node."""


@dataclass(frozen=True)
class LibraryPrices:
    """Costs of all choices that a request leaves open, at its sizes; ``options`` is empty for one rank.

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


def priced(
    system: LibrarySystem, request: LibraryRequest, table: Mapping[str, float]
) -> LibraryPrices:
    """Prices of everything that ``request`` leaves open. Raises MachineError where there is nothing."""
    sizes = np.asarray(request.size_bytes, dtype=np.float64)
    table = table_of(system, table)
    there = shapes(request.collective, system, request.version, request.traffic)
    no_switches = request.multicast_off or request.floating_8_bit

    def allowed(shape: Shape) -> bool:
        if shape.algorithm in SWITCH_ALGORITHMS and no_switches:
            return False
        return request.algorithm == shape.algorithm or (
            request.algorithm == "default" and shape.unasked
        )

    beside = copied_beside(system, request, table)
    options = tuple(
        cost(shape, protocol, system, sizes, table).slower(beside)
        for shape in filter(allowed, there)
        for protocol in protocols(shape, system)
        if request.protocol in ("default", protocol)
    )
    if not options and system.ranks > 1:
        menu = ", ".join(
            f"{shape.algorithm} ({'/'.join(protocols(shape, system))})" for shape in there
        )
        raise MachineError(
            f"{request.collective} with algorithm {request.algorithm} and protocol {request.protocol}: "
            f"not on {system.name}; there are {menu}"
        )
    return LibraryPrices(options, launch_floor_seconds(system, request, table), len(sizes))


WITH_OWN_BLOCK = ("all_gather", "reduce_scatter", "all_to_all", UNEVEN)
"""Collectives in which a rank copies a block of its own, out of place."""

WHOLE_BOARD = 8
"""GPUs of a board, of which efficiencies of switched links are: they hold what is copied beside."""


def copied_beside(
    system: LibrarySystem, request: LibraryRequest, table: Mapping[str, float]
) -> float:
    """Return how much longer transfers take on few GPUs behind switches than on a whole board.

    A kernel copies a rank's own block, one of n, while it sends the n - 1 others: half of the work of two ranks, an
    eighth of that of eight. Over slower links the copy is hidden.
    """
    ranks = system.ranks_per_node
    if system.nodes > 1 or system.intra is not Intra.NVSWITCH or not 1 < ranks < WHOLE_BOARD:
        return 1.0
    reduced = request.collective == "all_reduce"
    if not reduced and (request.in_place or request.collective not in WITH_OWN_BLOCK):
        return 1.0
    copied = table["own_block_reduced" if reduced else "own_block"]
    return (1.0 + copied / (ranks - 1)) / (1.0 + copied / (WHOLE_BOARD - 1))


def table_of(system: LibrarySystem, table: Mapping[str, float]) -> Mapping[str, float]:
    """Return the constants of ``table`` as they are for ``system``: on PCIe alone some have values of their own."""
    if system.nodes > 1 or system.intra not in PORTS_ONLY:
        return table
    own = {
        name.removeprefix(ON_PCIE): value
        for name, value in table.items()
        if name.startswith(ON_PCIE)
    }
    return {**table, **own, f"generation.{system.generation.value}": 1.0}


def launch_floor_seconds(
    system: LibrarySystem, request: LibraryRequest, table: Mapping[str, float]
) -> float:
    """Least time of a launch: one thread launches on its GPUs one after the other, peer by peer."""
    peers = max((shape.peers for shape in shapes(request.collective, system)), default=0)
    each = table["launch_us"] + table["launch_peer_us"] * peers
    return request.gpus_per_process * each * MICRO


def seconds_of(
    system: LibrarySystem, request: LibraryRequest, table: Mapping[str, float]
) -> Floats:
    """Only the times, for learning; those that ``predict_library`` gives."""
    return priced(system, request, table).seconds


def nccl_seconds(system: LibrarySystem, request: LibraryRequest) -> Floats:
    """Return latency and bytes over rate with NCCL's constants, as NCCL's tuning model does.

    NCCL has no such model of grouped sends: theirs are with Ring's base and what CONSTANTS has beside.
    """
    options = priced(system, request, CONSTANTS).options
    if not options:
        return np.zeros(len(request.size_bytes))
    seconds = [option.latency_seconds + option.bandwidth_seconds for option in options]
    return np.asarray(np.min(seconds, axis=0))


def busy_seconds(system: LibrarySystem, request: LibraryRequest) -> tuple[float, float, float]:
    """(waiting, inside, network) of one launch of one size, of what ``predict_library`` chooses.

    Waiting is latency and the filling of pipelines, inside each GPU's links inside its node, network a node's
    NICs. The launch takes waiting and the larger of the other two. Raises MachineError as it does.
    """
    (size,) = request.size_bytes
    prices = priced(system, request, shipped().table)
    if not prices.options:
        return prices.launch_seconds, 0.0, 0.0
    option = prices.options[int(prices.best[0])]
    waiting = max(option.latency_seconds, prices.launch_seconds) + float(option.fill_seconds[0])
    return (
        waiting,
        option.inside_seconds_per_byte * size,
        option.network_seconds_per_byte * size,
    )


def predict_library(
    system: LibrarySystem, request: LibraryRequest, constants: LibraryConstants | None = None
) -> tuple[LibraryPoint, ...]:
    """One point per size of ``request``. Raises MachineError where nothing of the kind exists there."""
    using = shipped() if constants is None else constants
    prices = priced(system, request, using.table)
    floor = prices.launch_seconds
    if not prices.options:
        return tuple(
            LibraryPoint(
                size, "none", "none", floor, floor, 0.0, 0.0, "one rank: nothing is sent"
            )
            for size in request.size_bytes
        )
    points = []
    why = reasons(system, request, using)
    for place, (size, choice) in enumerate(
        zip(request.size_bytes, prices.best.tolist(), strict=True)
    ):
        option = prices.options[choice]
        latency = max(option.latency_seconds, floor)
        parts = (
            latency,
            float(option.fill_seconds[place]),
            float(option.bandwidth_seconds[place]),
        )
        bottleneck = _bottleneck(system, option, size, floor, *parts)
        chosen = option.shape.algorithm, option.protocol
        points.append(LibraryPoint(size, *chosen, sum(parts), *parts, bottleneck, why[place]))
    return tuple(points)


def _bottleneck(
    system: LibrarySystem,
    option: Cost,
    size_bytes: int,
    launch: float,
    latency: float,
    fill: float,
    bandwidth: float,
) -> str:
    """A sentence on the largest of the three; launch: the least that launching takes, all in seconds."""
    total, shape = latency + fill + bandwidth, option.shape
    if fill > max(latency, bandwidth):
        asks = system.network is not None and system.network.word in HANDSHAKES
        waiting = " and waiting for receivers' answers" if asks and shape.network_hops else ""
        return f"filling the pipeline{waiting}: {fill / total:.0%} ({format_seconds(fill)})"
    if bandwidth < latency and launch == latency:
        return f"launches: {format_seconds(launch)} for one thread to launch on its GPUs"
    if bandwidth < latency:
        base = option.base_seconds
        terms = [(base, f"{format_seconds(base)} of base")] if base else []
        for hops, seconds, where in (
            (shape.inside_hops, option.hop_seconds, "inside a node"),
            (shape.network_hops, option.network_hop_seconds, "across"),
        ):
            if hops:
                terms.append((hops * seconds, f"{hops} x {format_seconds(seconds)} {where}"))
        parts = ", ".join(words for _, words in sorted(terms, key=lambda part: -part[0]))
        return f"latency: {latency / total:.0%} ({parts})"
    if option.network_seconds_per_byte > option.inside_seconds_per_byte:
        assert system.network is not None  # what has bytes to carry is there
        where, moved, rate = "network", shape.node_bytes, option.network_rate
        nics = busy_nics(shape, system) * system.network.bytes_per_second
        if gpus_of_network(shape, system) * system.gpu_port_bytes_per_second < nics:
            ports = "one GPU's port" if shape.one_rail else "the ports of a node's GPUs"
            through = f"{ports} towards NICs"
        else:
            through = "the NICs beside one GPU" if shape.one_rail else "the NICs of a node"
    else:
        where, moved, rate = system.intra.value, shape.port_bytes, option.inside_rate
        through = (
            "the links of one pair of GPUs"
            if links_share(shape, system) < 1
            else "each GPU's links"
        )
    gigabytes = moved * size_bytes / 1e9
    return f"{where}: {bandwidth / total:.0%} ({gigabytes:.3g} GB through {through} at {rate / 1e9:.4g} GB/s)"
