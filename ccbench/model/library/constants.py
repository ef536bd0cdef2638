"""The model's own constants: values, the levels that move several of them, what the levels were learned from.

A constant is a published figure or follows from physics; none is fitted. A level scales several constants at
once. ``benchmarks.score.learning`` moves those levels that have a learned spread, on published logs of many
systems; ``shipped.yaml`` holds what came out and says on what. ``calibration`` scales levels for one system
that was measured. Everything else takes a plain mapping of names to values (``LibraryConstants.table``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccbench.cases.axes import UNEVEN
from ccbench.documents import read_installed
from ccbench.errors import MachineError
from ccbench.model.library import Generation, LibraryRequest, LibrarySystem
from ccbench.units import format_size

FOLDER = Path(__file__).parent
SHIPPED_FILE = FOLDER / "shipped.yaml"


@dataclass(frozen=True)
class ConstantScale:
    """A scale on the constants of ``moves``.

    learned_spread: standard deviation of its logarithm that is plausible over all systems; 0 keeps it at 1.
    measured_spread: the same of one system, over what holds for all; 0 leaves it alone.
    """

    name: str
    moves: tuple[str, ...]
    learned_spread: float
    measured_spread: float


_FILE = read_installed(FOLDER / "constants.yaml")

CONSTANTS: dict[str, float] = {
    name: float(value) for name, (value, _) in _FILE["values"].items()
}
"""Constants of the model from outside NCCL's tables, by name."""

LEVELS = {
    name: ConstantScale(
        name, tuple(row["moves"]), float(row["learned"]), float(row["measured"])
    )
    for name, row in _FILE["levels"].items()
}
"""All levels, by name."""

MEASURED_LEVELS = {name: level for name, level in LEVELS.items() if level.measured_spread > 0}
"""Those that one system may move."""


@dataclass(frozen=True)
class Domain:
    """Systems that constants were learned on, for saying what lies outside.

    most_nodes: of each (kind, word) seen, the most nodes; kinds are those of ``kinds_of``.
    most_ranks_per_node: by intra. largest_bytes: of all sizes.
    """

    most_nodes: tuple[tuple[tuple[str, str], int], ...] = ()
    most_ranks_per_node: tuple[tuple[str, int], ...] = ()
    largest_bytes: int = 0


@dataclass(frozen=True)
class LibraryConstants:
    """Values of all constants. Raises MachineError where one is missing, unknown or not positive.

    learned_on: what moved them, in words; "" where nothing did. domain: the same as figures. levels: the
    scales that made them from CONSTANTS, where that is what made them.
    """

    values: tuple[tuple[str, float], ...]
    learned_on: str = ""
    domain: Domain = Domain()
    levels: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.values]
        for wrong in sorted({*names} ^ set(CONSTANTS)):
            raise MachineError(f"constants: {wrong!r} is missing or not one of the model's")
        if len(names) != len(CONSTANTS):
            raise MachineError("constants: one is given twice; give each once")
        for name, value in self.values:
            if not (value > 0 and math.isfinite(value)):
                raise MachineError(f"constants: {name}: {value} is not a positive number")

    @property
    def table(self) -> dict[str, float]:
        """Values by name."""
        return dict(self.values)


def scaled(table: Mapping[str, float], levels: Mapping[str, float]) -> dict[str, float]:
    """``table`` with every constant times the scales of its levels; shares of a rate stay at or below one."""
    result = dict(table)
    for level, scale in levels.items():
        for name in LEVELS[level].moves:
            result[name] *= scale
    shares = (name for name in result if {"efficiency", "payload"} & {*name.split(".")})
    return result | {name: min(1.0, result[name]) for name in shares}


def constants_of(
    levels: Mapping[str, float], learned_on: str = "", domain: Domain | None = None
) -> LibraryConstants:
    """Published constants with ``levels`` where given, and one elsewhere. Raises MachineError."""
    for name, scale in levels.items():
        if name not in LEVELS:
            raise MachineError(
                f"constants: {name!r} is not one of the model's levels: {', '.join(LEVELS)}"
            )
        if not (scale > 0 and math.isfinite(scale)):
            raise MachineError(f"constants: {name}: {scale} is not a positive number")
    table = scaled(CONSTANTS, levels)
    return LibraryConstants(
        tuple(table.items()), learned_on, domain or Domain(), tuple(levels.items())
    )


def shipped(path: Path = SHIPPED_FILE) -> LibraryConstants:
    """The constants that ``benchmarks.score.learning`` wrote. Raises MachineError for a damaged file."""
    constants: LibraryConstants = read_installed(path, _made)
    return constants


def _made(plain: Any) -> LibraryConstants:
    ranges = plain.get("domain") or {}
    most_nodes = tuple(
        ((str(kind), str(word)), int(nodes))
        for kind, words in ranges.get("most_nodes", {}).items()
        for word, nodes in words.items()
    )
    inside = tuple(
        (str(intra), int(ranks))
        for intra, ranks in ranges.get("most_ranks_per_node", {}).items()
    )
    domain = Domain(most_nodes, inside, int(ranges.get("largest_bytes", 0)))
    levels = {str(name): float(scale) for name, scale in plain["levels"].items()}
    return constants_of(levels, str(plain["learned_on"]), domain)


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
    if system.nodes > 1:
        network = system.network_family
        return (*words, ("network", network), ("collective across", f"{name} on {network}"))
    return (*words, ("collective inside", f"{name} on {system.intra.value}"))


def reasons(
    system: LibrarySystem, request: LibraryRequest, constants: LibraryConstants
) -> tuple[str, ...]:
    """The reasons for which each size of ``request`` is extrapolated, "" where it is not."""
    domain = constants.domain
    most_nodes, texts = dict(domain.most_nodes), list[str]()
    for kind, word in kinds_of(system, request) if most_nodes else ():
        together = kind in ("collective across", "collective inside")
        if together and texts:
            continue  # follows from what was said
        most = most_nodes.get((kind, word))
        if word == Generation.UNKNOWN.value:
            texts.append("the generation of the GPUs is not known")
        elif most is None:
            inside = " within one node" if kind == "collective inside" else ""
            what = f"{word}{inside}" if together else f"{kind} {word}"
            texts.append(f"no published {what} among the data")
        # Of networks alone the number of nodes that was seen matters.
        elif kind == "network" and system.nodes > most:
            texts.append(f"{system.nodes} nodes on {word}; learned on up to {most}")
        elif kind == "collective across" and system.nodes > most:
            texts.append(f"{word} over {system.nodes} nodes; learned on up to {most}")
    most_inside = dict(domain.most_ranks_per_node).get(
        system.intra.value, system.ranks_per_node
    )
    if not most_nodes:
        texts.append("nothing was learned: the constants are published figures and assumptions")
    elif system.ranks_per_node > most_inside:
        texts.append(f"{system.ranks_per_node} GPUs a node; learned on up to {most_inside}")
    always, largest = "; ".join(texts), domain.largest_bytes
    far = f"no published size above {format_size(largest)} among the data" if largest else ""
    limit = largest * FAR_IN_SIZE
    return tuple(
        "; ".join(filter(None, (always, far if size > limit else "")))
        for size in request.size_bytes
    )
