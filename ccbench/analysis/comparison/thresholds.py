"""The least change that counts, by collective, backend and band of sizes, from a small YAML file.

default: 5%
rules:                      # the last that fits a point is taken
  - size: {to: 32 KiB}      # from and to are inclusive
    threshold: 15%
  - collective: [all_reduce, all_gather]
    backend: nccl
    size: {from: 1 MiB}
    threshold: 3%
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from ccbench.collectives import COLLECTIVES
from ccbench.errors import UsageError
from ccbench.suite.documents import MOST_BYTES, FileKind, read_document
from ccbench.suite.model import StrictModel, first_error
from ccbench.suite.readers import MisfitError
from ccbench.units import parse_fraction, parse_size, shown, suggestion

DEFAULT_THRESHOLD = 0.05
"""As a fraction of the base's time; what HPC sites and benchmark libraries mostly take (3 to 5 %)."""

LARGEST_SIZE_BYTES = 2**62

THRESHOLDS_FILE = FileKind("file of thresholds", "'default: 5%' or 'rules:'", raises=UsageError)

Kind = tuple[str, str, int]
"""Collective, backend and bytes of a point."""


@dataclass(frozen=True)
class Rule:
    """A threshold and what it is for; an empty set is for all. Sizes are inclusive.

    place: file, line and number, for what is said of the rule.
    """

    threshold: float
    collectives: frozenset[str] = frozenset()
    backends: frozenset[str] = frozenset()
    from_bytes: int = 0
    to_bytes: int = LARGEST_SIZE_BYTES
    place: str = field(default="", compare=False)

    def fits(self, collective: str, backend: str, size_bytes: int) -> bool:
        """Whether the rule is for such a point."""
        named = not self.collectives or collective in self.collectives
        named = named and (not self.backends or backend in self.backends)
        return named and self.from_bytes <= size_bytes <= self.to_bytes


@dataclass(frozen=True)
class Thresholds:
    """The default and its exceptions; of those that fit a point the last one rules."""

    default: float = DEFAULT_THRESHOLD
    rules: tuple[Rule, ...] = ()

    def of(self, collective: str, backend: str, size_bytes: int) -> float:
        """The threshold of one point, a fraction."""
        for rule in reversed(self.rules):
            if rule.fits(collective, backend, size_bytes):
                return rule.threshold
        return self.default

    def unused(self, points: Collection[Kind]) -> tuple[str, ...]:
        """A line for each rule that is for none of ``points``, and for each backend that none of them has.

        Backends of imported logs may have any name, so that a name by itself is never wrong; but one that
        fits nothing is most likely misspelt, and then the rule is not in force. Nothing is said where there
        are no points at all.
        """
        there = sorted({backend for _, backend, _ in points})
        found = []
        for rule in self.rules if points else ():
            for name in sorted(rule.backends - set(there)):
                cure = suggestion(name, there)
                found.append(f"{rule.place}.backend: {shown(name)} is a backend of no point; {cure}")
            if not any(rule.fits(*point) for point in points) and rule.backends <= set(there):
                cure = "check its collective and size, or leave it out"
                found.append(f"{rule.place}: fits no point of either side; {cure}")
        return tuple(found)


def load_thresholds(path: Path | str, default: float = DEFAULT_THRESHOLD) -> Thresholds:
    """The thresholds of a YAML file; ``default`` where it names none. Raises UsageError with the place."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); name a file of thresholds") from None
    return read_thresholds(content, str(path), default)


def read_thresholds(
    content: bytes, place: str = "thresholds", default: float = DEFAULT_THRESHOLD
) -> Thresholds:
    """The thresholds that YAML text describes. Raises UsageError that begins with ``place``."""
    document = read_document(content, place, THRESHOLDS_FILE)
    try:
        found = _File.model_validate(document.tree)
    except ValidationError as problem:
        raise first_error(problem, document.origin) from None
    rules = (
        Rule(
            rule.threshold, rule.collective, rule.backend, rule.size.low, rule.size.high,
            place=str(document.origin.error(("rules", number), "")),
        )
        for number, rule in enumerate(found.rules)
    )  # fmt: skip
    return Thresholds(default if found.default is None else found.default, tuple(rules))


def _threshold(value: Any) -> float:
    fraction = parse_fraction(value)
    if not 0 < fraction < 1:
        raise MisfitError(f"{shown(value)} decides nothing; write more than 0 % and less than 100 %")
    return fraction


def _names(value: Any) -> frozenset[str]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise MisfitError(f"{shown(value)} is neither a name nor a list of names")
    return frozenset(names)


def _collectives(value: Any) -> frozenset[str]:
    names = _names(value)
    for name in sorted(names - set(COLLECTIVES)):
        raise MisfitError(f"{shown(name)} is no collective; {suggestion(name, COLLECTIVES)}")
    return names


def _rules(value: Any) -> Any:
    if not isinstance(value, list):
        raise MisfitError(f"{shown(value)} is not a list; write '- threshold: 10%' below it")
    return value


class _Size(StrictModel):
    low: Annotated[int, BeforeValidator(parse_size)] = Field(0, alias="from")
    high: Annotated[int, BeforeValidator(parse_size)] = Field(LARGEST_SIZE_BYTES, alias="to")

    @model_validator(mode="after")
    def _ends_are_in_order(self) -> _Size:
        if self.low > self.high:
            raise MisfitError("from is larger than to; exchange the two")
        return self


class _Rule(StrictModel):
    threshold: Annotated[float, BeforeValidator(_threshold)]
    collective: Annotated[frozenset[str], BeforeValidator(_collectives)] = frozenset()
    backend: Annotated[frozenset[str], BeforeValidator(_names)] = frozenset()
    size: _Size = Field(default_factory=lambda: _Size.model_validate({}))


class _File(StrictModel):
    default: Annotated[float | None, BeforeValidator(_threshold)] = None
    rules: Annotated[list[_Rule], BeforeValidator(_rules)] = Field(default_factory=list)
