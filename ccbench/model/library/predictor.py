"""The library's time for every size: the cheapest algorithm and protocol, or the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ccbench.errors import MachineError
from ccbench.model.library.constants import LibraryConstants, shipped
from ccbench.model.library.costs import MICRO, SWITCH_ALGORITHMS, Cost, Floats, cost, protocols
from ccbench.model.library.shapes import Shape, shapes
from ccbench.model.library.system import LibraryPoint, LibraryRequest, LibrarySystem
from ccbench.units import format_seconds


def predict_library(
    system: LibrarySystem, request: LibraryRequest, constants: LibraryConstants | None = None
) -> tuple[LibraryPoint, ...]:
    """One point per size of ``request``. Raises MachineError where nothing of the kind exists there."""
    table = (shipped() if constants is None else constants).table
    sizes = np.asarray(request.size_bytes, dtype=np.float64)
    found = costs(system, request, sizes, table)
    floor = launch_floor_seconds(system, request, table)
    if not found:
        return tuple(
            LibraryPoint(size, "none", "none", floor, floor, 0.0, 0.0, "one rank: nothing is sent")
            for size in request.size_bytes
        )
    best = np.stack([option.floored(floor) for option in found]).argmin(axis=0)
    return tuple(
        _point(system, found[choice], index, size, floor)
        for index, (size, choice) in enumerate(zip(request.size_bytes, best.tolist(), strict=True))
    )


def seconds_of(system: LibrarySystem, request: LibraryRequest, table: Mapping[str, float]) -> Floats:
    """Only the times, for learning; the same as ``predict_library`` says."""
    sizes = np.asarray(request.size_bytes, dtype=np.float64)
    found = costs(system, request, sizes, table)
    floor = launch_floor_seconds(system, request, table)
    if not found:
        return np.full(len(sizes), floor)
    return np.asarray(np.min([option.floored(floor) for option in found], axis=0))


def costs(
    system: LibrarySystem, request: LibraryRequest, sizes: Floats, table: Mapping[str, float]
) -> list[Cost]:
    """Prices of everything that ``request`` leaves open; empty for one rank."""
    wanted = [shape for shape in shapes(request.collective, system) if _allowed(shape, request)]
    options = [
        cost(shape, protocol, system, sizes, table)
        for shape in wanted
        for protocol in protocols(shape, system)
        if request.protocol in ("default", protocol)
    ]
    if not options and system.ranks > 1:
        raise MachineError(
            f"{request.collective} with algorithm {request.algorithm} and protocol {request.protocol}: "
            f"not on {system.name}; there are {_menu(request.collective, system)}"
        )
    return options


def _allowed(shape: Shape, request: LibraryRequest) -> bool:
    if shape.algorithm in SWITCH_ALGORITHMS and (request.multicast_off or request.floating_8_bit):
        return False
    return request.algorithm in ("default", shape.algorithm)


def _menu(collective: str, system: LibrarySystem) -> str:
    return ", ".join(
        f"{shape.algorithm} ({'/'.join(protocols(shape, system))})" for shape in shapes(collective, system)
    )


def launch_floor_seconds(system: LibrarySystem, request: LibraryRequest, table: Mapping[str, float]) -> float:
    """Least time of a launch when one thread launches on several GPUs, one after the other."""
    if request.gpus_per_process < 2:
        return 0.0
    peers = max((shape.peers for shape in shapes(request.collective, system)), default=0)
    each = table["launch_us"] + table["launch_peer_us"] * peers
    return request.gpus_per_process * each * MICRO


def _point(system: LibrarySystem, option: Cost, index: int, size: int, floor: float) -> LibraryPoint:
    fill, transfer = float(option.fill_seconds[index]), float(option.bandwidth_seconds[index])
    latency = max(option.latency_seconds, floor)
    seconds = latency + fill + transfer
    return LibraryPoint(
        size,
        option.shape.algorithm,
        option.protocol,
        seconds,
        latency,
        fill,
        transfer,
        _bottleneck(system, option, size, seconds, latency, fill, transfer, floor),
    )


def _bottleneck(
    system: LibrarySystem,
    option: Cost,
    size: int,
    seconds: float,
    latency: float,
    fill: float,
    transfer: float,
    floor: float,
) -> str:
    shape, rates = option.shape, option.rates
    if floor == latency > max(fill, transfer):
        return f"launches: {format_seconds(floor)} for one thread to launch on its GPUs"
    if max(latency, fill) > transfer:
        if fill > latency:
            return f"filling the pipeline: {fill / seconds:.0%} ({format_seconds(fill)})"
        hops = f"{shape.inside_hops} x {format_seconds(option.hop_seconds)} inside a node"
        if shape.network_hops:
            hops += f", {shape.network_hops} x {format_seconds(option.network_hop_seconds)} across"
        return f"latency: {latency / seconds:.0%} ({hops})"
    network = shape.node_bytes / rates.network
    if network > shape.port_bytes / rates.inside and system.network is not None:
        share = shape.node_bytes * size / 1e9
        return (
            f"network: {transfer / seconds:.0%} ({share:.3g} GB through the NICs of a node at "
            f"{rates.network / 1e9:.4g} GB/s)"
        )
    return (
        f"{system.intra.value}: {transfer / seconds:.0%} ({shape.port_bytes * size / 1e9:.3g} GB through each "
        f"GPU's links at {rates.inside / 1e9:.4g} GB/s)"
    )
