"""Whether a prediction lies outside what its constants were learned on, and in which way."""

from __future__ import annotations

from ccbench.model.library.constants import Domain, LibraryConstants
from ccbench.model.library.system import Generation, LibraryRequest, LibrarySystem
from ccbench.units import format_size

FAR_IN_SIZE = 4
"""Factor over the largest size seen up to which nothing new is expected: times are proportional there."""


def kinds_of(system: LibrarySystem, request: LibraryRequest) -> tuple[tuple[str, str], ...]:
    """(kind, word) of everything that the constants distinguish."""
    words = [
        ("generation", system.generation.value),
        ("intra", system.intra.value),
        ("collective", request.collective),
    ]
    if system.nodes > 1 and system.network is not None:
        words.append(("network", family(system.network.word)))
    return tuple(words)


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
    found = []
    for kind, word in kinds_of(system, request):
        if word == Generation.UNKNOWN.value:
            found.append("the generation of the GPUs is not known")
        elif (kind, word) not in most_nodes:
            found.append(f"no {kind} {word} was learned on")
        elif kind == "network" and system.nodes > most_nodes[kind, word]:
            found.append(f"{system.nodes} nodes on {word}; learned on up to {most_nodes[kind, word]}")
    most_inside = dict(domain.most_ranks_per_node).get(system.intra.value, system.ranks_per_node)
    if system.ranks_per_node > most_inside:
        found.append(f"{system.ranks_per_node} GPUs a node; learned on up to {most_inside}")
    return found
