"""Large JSON documents item by item, in bounded memory; what is cut off or damaged is left out and told.

A trace is one object with one large array ("traceEvents", "nodes", "entries"), or that array alone. Items are
decoded by the standard library's C scanner where they lie.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from io import BufferedIOBase
from typing import Any

from ccbench.topology.graph import SourceWarning
from ccbench.units import plural

CHUNK_BYTES = 1 << 20
LONGEST_VALUE = 32 << 20
"""Characters of one item, or of one member besides the array; a longer one is left out."""

MOST_DAMAGED = 1000
"""Places that are skipped; a document with more is read no further."""

_SCAN = json.JSONDecoder(strict=False).raw_decode
_BETWEEN = re.compile(r"[\s,]*")
_KEY = re.compile(r'"((?:[^"\\]|\\.){0,1000})"\s*:')
_END = re.compile(r"\}")
_NEXT_ITEM = re.compile(r'\}\s*,\s*(?=\{\s*")')
_LOOKAHEAD = 4096
"""Characters that the patterns may span."""

_LONGEST_WORD = 64
"""An error this close to the end of the text may be a number or word that is not read to its end."""


class _Damaged(ValueError):
    """No value can be decoded here. cut: because the text ends."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut = cut


class _Window:
    """A part of the text, and the place in it; what lies before the place is dropped as more is read."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self.text, self.at, self.ended = "", 0, False

    def more(self) -> bool:
        """Read as much again as is left, at least one chunk; False at the end."""
        if self.ended:
            return False
        pieces = [self.text[self.at :]]
        wanted = max(len(pieces[0]), CHUNK_BYTES)
        while wanted > 0 and not self.ended:
            chunk = self._stream.read(min(wanted, CHUNK_BYTES))
            self.ended, wanted = not chunk, wanted - len(chunk)
            pieces.append(self._decode(chunk, self.ended))
        self.text, self.at = "".join(pieces), 0
        return True

    def skip(self) -> bool:
        """Move past white space and commas; False at the end of the text."""
        while True:
            self.at = _BETWEEN.match(self.text, self.at).end()  # type: ignore[union-attr]  # may be empty
            if self.at < len(self.text):
                return True
            if not self.more():
                return False

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Move past ``pattern`` where it stands next, after white space and commas."""
        self.skip()
        if len(self.text) - self.at < _LOOKAHEAD:
            self.more()
        if found := pattern.match(self.text, self.at):
            self.at = found.end()
        return found

    def value(self) -> tuple[Any, int]:
        """Decode the value that stands next: (value, its end); the place is its start. Raises _Damaged."""
        self.skip()
        while True:
            cut = True
            try:
                value, end = _SCAN(self.text, self.at)
                if end < len(self.text) or self.ended:
                    return value, end
            except json.JSONDecodeError as error:
                cut = error.pos + _LONGEST_WORD > len(self.text) or error.msg.startswith("Unterminated")
            except (ValueError, RecursionError):  # a number of thousands of digits; brackets in brackets
                cut = False
            if not cut or len(self.text) - self.at > LONGEST_VALUE or not self.more():
                raise _Damaged(cut and self.ended)

    def seek(self, pattern: re.Pattern[str]) -> bool:
        """Move to where ``pattern`` next ends; False, at the end of the text, where it is nowhere."""
        while True:
            if found := pattern.search(self.text, self.at):
                self.at = found.end()
                return True
            self.at = max(self.at, len(self.text) - _LOOKAHEAD)
            if not self.more():
                self.at = len(self.text)
                return False


class JsonDocument:
    """One pass over a document. Iterating gives (1-based number, item) of the array, objects only.

    members: values at the top besides the array, the first of each name. warnings: what was cut off or
    skipped. Both are complete when the iteration has ended.
    """

    def __init__(self, stream: BufferedIOBase, array: str) -> None:
        self.members: dict[str, Any] = {}
        self.warnings: list[SourceWarning] = []
        self._window = _Window(stream)
        self._array = array
        self._begun = False
        self._number = self._damaged = self._first_damage = 0
        self._last_item: dict[str, Any] = {}

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        window = self._window
        window.skip()
        bare = self._begun = inside = window.text.startswith("[", window.at)
        window.at += 1  # the bracket of the document
        while True:
            if inside:
                yield from self._items()
            if window.match(_END) or (bare and not window.skip()):
                break
            if not window.skip():
                where = f"after item {self._number}" if self._number else "before its first item"
                self.warnings.append(SourceWarning("truncated", f"the file ends in the middle, {where}"))
                break
            try:
                inside = self._member()
            except _Damaged as problem:
                inside = self._resume(problem)
        if self._damaged:
            text = (
                f"{plural(self._damaged, 'damaged place')} skipped, the first after item {self._first_damage}"
            )
            self.warnings.append(SourceWarning("damaged_line", text))

    def _member(self) -> bool:
        """Take the member that stands next; True where it is the array: the place is its first item then."""
        window = self._window
        key = window.match(_KEY)
        if key is None:
            raise _Damaged(cut=False)
        if key[1] == self._array and window.skip() and window.text[window.at] == "[":
            window.at += 1
            self._begun = True
            return True
        value, window.at = window.value()
        self.members.setdefault(key[1], value)
        return False

    def _items(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Give the objects up to the bracket that closes the array, which is passed, or to the text's end."""
        window, scan, between = self._window, _SCAN, _BETWEEN.match
        while window.skip():
            text, at = window.text, window.at
            try:
                while True:  # the way of nearly all items: nothing is called but the scanner
                    item, at = scan(text, between(text, at).end())  # type: ignore[union-attr]
                    window.at = at
                    self._number += 1
                    if type(item) is dict:
                        self._last_item = item
                        yield self._number, item
            except (ValueError, RecursionError):
                pass
            if window.skip() and window.text[window.at] == "]":
                window.at += 1
                return
            try:
                window.value()  # reads on, so that the item is whole
            except _Damaged as problem:
                if not self._resume(problem):
                    return

    def _resume(self, problem: _Damaged) -> bool:
        """Move to the next whole item, or where the array begins; False, at the text's end, without one."""
        window = self._window
        while not problem.cut and self._damaged < MOST_DAMAGED:
            self._first_damage = self._first_damage or self._number
            self._damaged += 1
            if not self._begun:
                self._begun = window.seek(re.compile(rf'"{self._array}"\s*:\s*\['))
                return self._begun
            try:
                while window.seek(_NEXT_ITEM):
                    item, _ = window.value()
                    alike = self._last_item.keys() & item.keys()
                    # Objects inside of items have other keys than items.
                    if not self._last_item or 2 * len(alike) >= len(item):
                        return True
                return False
            except _Damaged as another:
                problem = another
        window.at = len(window.text)
        return False
