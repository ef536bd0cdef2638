"""The model's own constants: where each one starts, how far it may be learned, what it became.

A constant starts from a published figure or from physics. ``benchmarks.score.learning`` moves those with a
spread, within it, on published logs of many systems at once; ``shipped.yaml`` holds what came out and says
on what.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ccbench.errors import MachineError

FOLDER = Path(__file__).parent
SHIPPED_FILE = FOLDER / "shipped.yaml"


@dataclass(frozen=True)
class Constant:
    """``spread``: standard deviation of log(value / start) that is plausible beforehand; 0 keeps it fixed."""

    name: str
    start: float
    spread: float
    origin: str


@cache
def read_table(path: Path) -> Any:
    """Content of a YAML file that is part of ccbench."""
    import yaml

    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


CONSTANTS = tuple(
    Constant(name, float(start), float(spread), origin)
    for name, (start, spread, origin) in read_table(FOLDER / "constants.yaml").items()
)
"""Everything that the model takes from outside NCCL's tables."""

BY_NAME = {constant.name: constant for constant in CONSTANTS}


@dataclass(frozen=True)
class Domain:
    """What constants were learned on, for saying what lies outside.

    most_nodes: of each (kind, word) seen, the most nodes; kinds are those of
        ``predictor.kinds_of``. most_ranks_per_node: by intra. largest_bytes: of all sizes.
    """

    most_nodes: tuple[tuple[tuple[str, str], int], ...] = ()
    most_ranks_per_node: tuple[tuple[str, int], ...] = ()
    largest_bytes: int = 0


@dataclass(frozen=True)
class LibraryConstants:
    """A value for every name of CONSTANTS. Raises MachineError where one is missing, unknown or not positive.

    learned_on: what moved them, in words; "" where nothing did. domain: the same as figures.
    """

    values: tuple[tuple[str, float], ...]
    learned_on: str = ""
    domain: Domain = Domain()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.values]
        for wrong in sorted({*names} ^ set(BY_NAME)):
            raise MachineError(f"constants: {wrong!r} is missing or not one of the model's")
        if len(names) != len(BY_NAME):
            raise MachineError("constants: one is given twice; give each once")
        for name, value in self.values:
            if not (value > 0 and math.isfinite(value)):
                raise MachineError(f"constants: {name}: {value} is not a positive number")

    @property
    def table(self) -> dict[str, float]:
        """The same as a mapping."""
        return dict(self.values)


def constants_of(
    values: Mapping[str, float], learned_on: str = "", domain: Domain | None = None
) -> LibraryConstants:
    """Constants with ``values`` where given and the starts elsewhere. Raises MachineError."""
    for name in values:
        if name not in BY_NAME:
            raise MachineError(f"constants: {name!r} is not one of the model's")
    merged = {constant.name: float(values.get(constant.name, constant.start)) for constant in CONSTANTS}
    return LibraryConstants(tuple(merged.items()), learned_on, domain or Domain())


STARTS = constants_of({})
"""Nothing learned."""


@cache
def shipped() -> LibraryConstants:
    """What ``shipped.yaml`` says. Raises MachineError when it is damaged."""
    return read_constants(SHIPPED_FILE)


def read_constants(path: Path) -> LibraryConstants:
    """What ``benchmarks.score.learning`` wrote. Raises MachineError where the file is damaged."""
    import yaml

    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        return constants_of(plain["values"], str(plain["learned_on"]), _domain(plain.get("domain") or {}))
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise MachineError(f"{path}: damaged ({reason}); reinstall ccbench or learn it again") from None


def _domain(plain: Mapping[str, Any]) -> Domain:
    most_nodes = [
        ((str(kind), str(word)), int(nodes))
        for kind, words in plain.get("most_nodes", {}).items()
        for word, nodes in words.items()
    ]
    inside = [(str(intra), int(ranks)) for intra, ranks in plain.get("most_ranks_per_node", {}).items()]
    return Domain(tuple(most_nodes), tuple(inside), int(plain.get("largest_bytes", 0)))
