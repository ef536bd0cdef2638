"""Why a time is what it is: the term that costs most, in one sentence.

Whether a prediction lies outside what its constants were learned on, and in which way.
"""

from __future__ import annotations

from dataclasses import replace

from ccbench.cases import UNEVEN
from ccbench.model.library.constants import Domain, LibraryConstants
from ccbench.model.library.costs import Cost
from ccbench.model.library.shapes import busy_nics, gpus_of_network, links_share
from ccbench.model.library.system import Generation, LibraryPoint, LibraryRequest, LibrarySystem
from ccbench.units import format_seconds, format_size

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
