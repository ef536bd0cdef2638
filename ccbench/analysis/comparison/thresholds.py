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

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ccbench.collectives import COLLECTIVES
from ccbench.documents import MOST_BYTES, Document, read_document
from ccbench.errors import CcbenchError, SuiteError, UsageError
from ccbench.units import parse_fraction, parse_size, shown, suggestion

DEFAULT_THRESHOLD = 0.05
"""As a fraction of the base's time; what HPC sites and benchmark libraries mostly take (3 to 5 %)."""

LARGEST_SIZE_BYTES = 2**62

Where = tuple[str | int, ...]
Kind = tuple[str, str, int]
"""Collective, backend and bytes of a point."""

Value = TypeVar("Value")


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
    try:
        document = read_document(content, place)
        return _Reader(document).thresholds(default)
    except SuiteError as error:  # the strict YAML reader is that of suites
        raise UsageError(str(error)) from None


class _Reader:
    """Turns the tree of one document into values; every refusal names its place."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def refuse(self, where: Where, message: str) -> CcbenchError:
        return self.document.origin.error(where, message)

    def thresholds(self, default: float) -> Thresholds:
        tree = self.mapping(self.document.tree, (), ("default", "rules"))
        if "default" in tree:
            default = self.threshold(tree["default"], ("default",))
        rules = tree.get("rules", [])
        if not isinstance(rules, list):
            raise self.refuse(("rules",), f"{shown(rules)} is not a list; write '- threshold: 10%' below it")
        return Thresholds(default, tuple(self.rule(rule, ("rules", n)) for n, rule in enumerate(rules)))

    def mapping(self, value: Any, where: Where, known: Collection[str]) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(where, f"{shown(value)} is not a mapping; write {' and '.join(known)}")
        for key in value:
            if key not in known:
                raise self.refuse((*where, key), f"is no key here; {suggestion(key, known)}")
        return value

    def rule(self, value: Any, where: Where) -> Rule:
        tree = self.mapping(value, where, ("collective", "backend", "size", "threshold"))
        if "threshold" not in tree:
            raise self.refuse(where, "has no threshold; add 'threshold: 10%'")
        band = (
            self.mapping(tree["size"], (*where, "size"), ("from", "to")) if tree.get("size", {}) != {} else {}
        )
        ends = {name: self.read(parse_size, band[name], (*where, "size", name)) for name in band}
        low, high = ends.get("from", 0), ends.get("to", LARGEST_SIZE_BYTES)
        if low > high:
            raise self.refuse((*where, "size"), "from is larger than to; exchange the two")
        collectives = self.names(tree, "collective", where)
        for name in sorted(collectives - set(COLLECTIVES)):
            raise self.refuse(
                (*where, "collective"),
                f"{shown(name)} is no collective; {suggestion(name, COLLECTIVES)}",
            )
        backends = self.names(tree, "backend", where)
        threshold = self.threshold(tree["threshold"], (*where, "threshold"))
        place = str(self.document.origin.error(where, ""))
        return Rule(threshold, collectives, backends, low, high, place)

    def names(self, tree: Mapping[str, Any], key: str, where: Where) -> frozenset[str]:
        if key not in tree:
            return frozenset()
        value = tree[key]
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(name, str) and name for name in names):
            raise self.refuse((*where, key), f"{shown(value)} is neither a name nor a list of names")
        return frozenset(names)

    def threshold(self, value: Any, where: Where) -> float:
        fraction = self.read(parse_fraction, value, where)
        if not 0 < fraction < 1:
            raise self.refuse(
                where, f"{shown(value)} decides nothing; write more than 0 % and less than 100 %"
            )
        return fraction

    def read(self, parse: Callable[[Any], Value], value: Any, where: Where) -> Value:
        try:
            return parse(value)
        except ValueError as error:
            raise self.refuse(where, str(error)) from None
