"""What tells systems apart, and observations at some of their sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ccbench.model.library import LibrarySystem
from ccbench.model.library.calibration import Observation

Report = Callable[[str], None]


def system_key(system: LibrarySystem) -> tuple[Hashable, ...]:
    """The figures of a system: not its name, their origins, nor the processors, which are often assumed."""
    return (
        system.generation,
        system.ranks_per_node,
        system.nodes,
        system.intra,
        round(system.intra_bytes_per_second),
        system.network,
    )


def machine_key(system: LibrarySystem) -> tuple[Hashable, ...]:
    """What systems share that are more or less of one kind of machine, or of one cluster."""
    network = system.network
    return (
        system.generation,
        system.intra,
        round(system.intra_bytes_per_second),
        None if network is None else (network.word, round(network.bytes_per_second)),
    )


def at_sizes(observations: Sequence[Observation], sizes: set[int]) -> list[Observation]:
    """``observations`` at those of their sizes that are among ``sizes``; without those that have none."""
    found = []
    for observation in observations:
        places = [
            place for place, size in enumerate(observation.request.size_bytes) if size in sizes
        ]
        if places:
            found.append(observation.taking(places))
    return found
