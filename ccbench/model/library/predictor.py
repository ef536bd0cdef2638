"""The library's time for every size: the cheapest algorithm and protocol, or the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.model.library.constants import LibraryConstants, shipped
from ccbench.model.library.costs import MICRO, SWITCH_ALGORITHMS, Cost, Floats, cost, protocols
from ccbench.model.library.explanation import explained
from ccbench.model.library.extrapolation import reasons
from ccbench.model.library.shapes import Shape, shapes
from ccbench.model.library.system import LibraryPoint, LibraryRequest, LibrarySystem
from ccbench.model.library.uneven import uneven_shape


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


@dataclass(frozen=True)
class Busy:
    """What one launch keeps busy at each size, seconds, arrays of one shape.

    waiting: latency and the filling of pipelines. inside: each GPU's links inside its node. network: a node's
    NICs. The launch takes waiting and the larger of the other two.
    """

    waiting: Floats
    inside: Floats
    network: Floats


def busy(system: LibrarySystem, request: LibraryRequest, constants: LibraryConstants | None = None) -> Busy:
    """Of what ``predict_library`` chooses. Raises MachineError as it does."""
    prices = priced(system, request, (shipped() if constants is None else constants).table)
    sizes = np.asarray(request.size_bytes, dtype=np.float64)
    found = Busy(np.full(len(sizes), prices.launch_seconds), np.zeros(len(sizes)), np.zeros(len(sizes)))
    for place, choice in enumerate(prices.best.tolist() if prices.options else ()):
        option = prices.options[choice]
        waiting = max(option.latency_seconds, prices.launch_seconds) + option.fill_seconds[place]
        found.waiting[place] = waiting
        found.inside[place] = option.shape.port_bytes / option.rates.inside * sizes[place]
        found.network[place] = option.shape.node_bytes / option.rates.network * sizes[place]
    return found


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
