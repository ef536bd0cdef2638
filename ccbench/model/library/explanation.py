"""Why a time is what it is: the term that costs most, in one sentence.

Whether a prediction lies outside what its constants were learned on, and in which way.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    far = (
        ""
        if not domain.largest_bytes
        else f"no size above {format_size(domain.largest_bytes)} was learned on"
    )
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


@dataclass(frozen=True)
class _Split:
    """Seconds of one size. launches: what launching alone takes."""

    latency: float
    fill: float
    transfer: float
    launches: float

    @property
    def total(self) -> float:
        return self.latency + self.fill + self.transfer

    def share(self, term: float) -> str:
        return f"{term / self.total:.0%}"


def explained(
    system: LibrarySystem, option: Cost, place: int, size_bytes: int, launch_seconds: float, why: str
) -> LibraryPoint:
    """The point of ``option`` at the ``place``-th of its sizes; why: it is extrapolated, "" if it is not."""
    split = _Split(
        max(option.latency_seconds, launch_seconds),
        float(option.fill_seconds[place]),
        float(option.bandwidth_seconds[place]),
        launch_seconds,
    )
    return LibraryPoint(
        size_bytes,
        option.shape.algorithm,
        option.protocol,
        split.total,
        split.latency,
        split.fill,
        split.transfer,
        _bottleneck(system, option, size_bytes, split),
        why,
    )


def _bottleneck(system: LibrarySystem, option: Cost, size_bytes: int, split: _Split) -> str:
    if split.transfer >= max(split.latency, split.fill):
        return _slowest_link(system, option, size_bytes, split)
    if split.fill > split.latency:
        return f"filling the pipeline: {split.share(split.fill)} ({format_seconds(split.fill)})"
    if split.launches == split.latency:
        return f"launches: {format_seconds(split.launches)} for one thread to launch on its GPUs"
    shape = option.shape
    told = [(option.base_seconds, f"{format_seconds(option.base_seconds)} of base")]
    for hops, seconds, where in (
        (shape.inside_hops, option.hop_seconds, "inside a node"),
        (shape.network_hops, option.network_hop_seconds, "across"),
    ):
        if hops:
            told.append((hops * seconds, f"{hops} x {format_seconds(seconds)} {where}"))
    parts = ", ".join(words for _, words in sorted(told, key=lambda part: -part[0]))
    return f"latency: {split.share(split.latency)} ({parts})"


def _slowest_link(system: LibrarySystem, option: Cost, size_bytes: int, split: _Split) -> str:
    shape, rates = option.shape, option.rates
    if shape.node_bytes / rates.network > shape.port_bytes / rates.inside:
        where, moved, rate = "network", shape.node_bytes, rates.network
        through = "the NICs beside one GPU" if shape.one_rail else "the NICs of a node"
        nominal = system.network.bytes_per_second if system.network is not None else 0.0
        if (
            gpus_of_network(shape, system) * system.gpu_port_bytes_per_second
            < busy_nics(shape, system) * nominal
        ):
            through = "one GPU's port" if shape.one_rail else "the ports of a node's GPUs"
            through += " towards NICs"
    else:
        where, moved, rate = system.intra.value, shape.port_bytes, rates.inside
        through = "the links of one pair of GPUs" if links_share(shape, system) < 1 else "each GPU's links"
    gigabytes = moved * size_bytes / 1e9
    share = split.share(split.transfer)
    return f"{where}: {share} ({gigabytes:.3g} GB through {through} at {rate / 1e9:.4g} GB/s)"
