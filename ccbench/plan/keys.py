"""Values of one mapping of a YAML file by key, each checked, each error with its line."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from ccbench.errors import SuiteError
from ccbench.suite.document import Origin
from ccbench.units import parse_duration, parse_fraction, parse_size, shown

LEAST_NUMBER, MOST_NUMBER = 1e-6, 1e9
"""Beyond these a number is a slip, and what follows from it is no number any more."""

Spot = tuple[str | int, ...]
"""Where a value stands in the file."""


class Keys:
    """One mapping of the file: values by key, each with an error that names its line."""

    def __init__(self, tree: dict[str, Any], spot: Spot, origin: Origin, known: tuple[str, ...]) -> None:
        self.tree, self.spot, self.origin, self.known = tree, spot, origin, known

    def error(self, key: str, message: str) -> SuiteError:
        """An error of the file about the value of ``key``."""
        return self.origin.error((*self.spot, key), message)

    def refuse_unknown(self) -> None:
        """Raise for a key that is not one of the known."""
        for key in self.tree:
            if key not in self.known:
                near = difflib.get_close_matches(key, self.known, n=1)
                cure = f"did you mean {near[0]}" if near else f"one of {', '.join(self.known)}"
                raise self.error(key, f"is no key; {cure}")

    def take(self, key: str) -> Any:
        """The value as it stands, None where there is none."""
        return self.tree.get(key)

    def mapping(self, value: Any, key: str) -> dict[str, Any]:
        """A value that must hold keys."""
        if not isinstance(value, dict):
            raise self.error(key, f"{shown(value)} is no mapping; write keys below it")
        return value

    def text(self, key: str) -> str | None:
        """Text, None where there is none; so with all that follow."""
        value = self.take(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, f"{shown(value)} is no text")
        return None if value is None else str(value)

    def word(self, key: str, words: tuple[str, ...]) -> str | None:
        """One of ``words``."""
        value = self.take(key)
        if value is not None and value not in words:
            raise self.error(key, f"{shown(value)} is none; write one of {', '.join(words)}")
        return None if value is None else str(value)

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"{shown(value)} is no yes or no; write true or false")
        return value

    def whole(self, key: str, least: int = 1) -> int | None:
        """A whole number from ``least`` on."""
        value = self.take(key)
        if value is not None and not is_whole(value, least):
            raise self.error(key, f"{shown(value)} is no whole number from {least} on")
        return None if value is None else int(value)

    def wholes(self, key: str, least: int = 1, most: int | None = None) -> list[int]:
        """One or several of them, up to ``most``; none where the key is not there."""
        value = self.take(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(is_whole(one, least) and (most is None or one <= most) for one in listed):
            numbers = f"from {least} on" if most is None else f"from {least} to {most}"
            raise self.error(key, f"{shown(value)} holds something that is no whole number {numbers}")
        return listed

    def words(self, key: str, words: tuple[str, ...]) -> list[str]:
        """One or several of ``words``."""
        value = self.take(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        for one in listed:
            if one not in words:
                raise self.error(key, f"{shown(one)} is none; write some of {', '.join(words)}")
        return listed

    def number(self, key: str, or_nothing: bool = False) -> float | None:
        """A number above 0; 0 too where nothing is something to say."""
        value = self.take(key)
        if value is None:
            return None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (value >= 0 if or_nothing else value > 0):
            raise self.error(key, f"{shown(value)} is no number {'from 0 on' if or_nothing else 'above 0'}")
        if value and not LEAST_NUMBER <= value <= MOST_NUMBER:
            raise self.error(
                key, f"{shown(value)} is out of range; write {LEAST_NUMBER:g} to {MOST_NUMBER:g}"
            )
        return float(value)

    def _parsed(self, key: str, parse: Callable[[Any], Any]) -> Any:
        value = self.take(key)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as problem:
            raise self.error(key, str(problem)) from None

    def duration(self, key: str) -> float | None:
        """Seconds."""
        found: float | None = self._parsed(key, parse_duration)
        return found

    def fraction(self, key: str) -> float | None:
        """Of one."""
        found: float | None = self._parsed(key, parse_fraction)
        if found is not None and found < LEAST_NUMBER:
            raise self.error(key, "is nothing; write such as 50%")
        return found

    def size(self, key: str) -> int | None:
        """Bytes."""
        found: int | None = self._parsed(key, parse_size)
        if found == 0:
            raise self.error(key, "is nothing; write such as 25 MiB")
        return found


def is_whole(value: Any, least: int) -> bool:
    """Whether it is a whole number from ``least`` on; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
