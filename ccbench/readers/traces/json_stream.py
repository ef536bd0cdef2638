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

from ccbench.errors import UsageError
from ccbench.findings import SourceWarning
from ccbench.units import plural

CHUNK_BYTES = 1 << 20
LONGEST_VALUE = 32 << 20
"""Characters of one item, or of one member besides the array; a longer one is left out."""

MOST_DAMAGED = 1000
"""Places that are skipped; a document with more is read no further."""

_SCAN = json.JSONDecoder(strict=False).raw_decode
_BETWEEN = re.compile(r"[\s,:]*")
_NEXT_ITEM = re.compile(r'\}\s*,\s*(?=\{\s*")')
_LOOKAHEAD = 4096
"""Characters that the pattern may span."""

_LONGEST_WORD = 64
"""An error this close to the end of the text may be a number or word that is not read to its end."""


class JsonDocument:
    """One pass over a document. Iterating gives (1-based number, object) of the array; {} for another item.

    members: values at the top besides the array, the first of each name. warnings: what was cut off or
    skipped. Both are complete when the iteration has ended.
    """

    def __init__(self, stream: BufferedIOBase, array: str) -> None:
        self.members: dict[str, Any] = {}
        self.warnings: list[SourceWarning] = []
        self._stream, self._array = stream, array
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        # What lies before the place ``_at`` is dropped as more is read.
        self._text, self._at, self._ended = "", 0, False
        self._number = 0

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        inside = begun = whole = self._next() == "["  # an array alone may lack its last bracket
        self._at += 1
        damaged = first_damage = 0
        while bracket := self._next():
            try:
                if inside and bracket != "]":
                    yield from self._items()
                elif inside:
                    self._at, inside = self._at + 1, False
                elif bracket == "}" or whole:
                    whole = True
                    break
                elif self._member():
                    inside = begun = True
            except EOFError:
                whole = False
                break
            except ValueError:
                # Go on where the next item seems to begin; before the array, only at the array itself.
                damaged, first_damage = damaged + 1, first_damage or self._number
                begin = _NEXT_ITEM if begun else re.compile(rf'"{self._array}"\s*:\s*\[')
                if damaged > MOST_DAMAGED or not self._seek(begin):
                    whole = False
                    break
                inside = begun = True
        if not self._number and (damaged or not whole):
            raise UsageError(
                "damaged or cut off before its first event; nothing of it can be read, record it again"
            )
        if damaged:
            text = f"{plural(damaged, 'damaged place')} skipped, the first after item {first_damage}"
            self.warnings.append(SourceWarning("damaged_line", text))
        if not whole:
            text = f"the file ends in the middle, after item {self._number}"
            self.warnings.append(SourceWarning("truncated", text))

    def _member(self) -> bool:
        """Take the member that stands next; True where it is the array: the place is its first item then."""
        name = self._value()
        if not isinstance(name, str):
            raise ValueError("no name of a member")
        # A member of that name may be something else: only an array is iterated.
        if name == self._array and self._next() == "[":
            self._at += 1
            return True
        self.members.setdefault(name, self._value())
        return False

    def _items(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Give the next item, and all after it that lie whole in the text that is read."""
        item, scan, between = self._value(), _SCAN, _BETWEEN.match
        text, at = self._text, self._at
        try:
            while True:  # nothing is called but the scanner
                self._number, self._at = self._number + 1, at
                yield self._number, item if type(item) is dict else {}
                item, at = scan(text, between(text, at).end())  # type: ignore[union-attr]  # may be empty
        except (ValueError, RecursionError):
            # Cut off, damaged, or the end of the array: the caller looks at it once more, with care.
            return

    def _value(self) -> Any:
        """Decode the value that stands next. Raises EOFError where the text ends in it, else ValueError."""
        self._next()
        while True:
            cut = True
            try:
                value, end = _SCAN(self._text, self._at)
                # A number that reaches the end of what is read may go on in the next chunk.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                cut = error.pos + _LONGEST_WORD > len(self._text) or error.msg.startswith(
                    "Unterminated"
                )
            except (
                ValueError,
                RecursionError,
            ):  # a number of thousands of digits; brackets in brackets
                cut = False
            if not cut or len(self._text) - self._at > LONGEST_VALUE or not self._more():
                raise EOFError if cut and self._ended else ValueError

    def _next(self) -> str:
        """Move past white space, commas and colons; the character there, "" at the end of the text."""
        while True:
            self._at = _BETWEEN.match(self._text, self._at).end()  # type: ignore[union-attr]  # may be empty
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _seek(self, pattern: re.Pattern[str]) -> bool:
        """Move to where ``pattern`` next ends; False where it is nowhere."""
        while not (match := pattern.search(self._text, self._at)):
            # What the pattern finds may begin here and end in the next chunk.
            self._at = max(self._at, len(self._text) - _LOOKAHEAD)
            if not self._more():
                return False
        self._at = match.end()
        return True

    def _more(self) -> bool:
        """Read as much again as is left, at least one chunk; False at the end."""
        if self._ended:
            return False
        # At least doubling keeps the copying of a long value linear in its length.
        pieces = [self._text[self._at :]]
        remaining = max(len(pieces[0]), CHUNK_BYTES)
        while remaining > 0 and not self._ended:
            chunk = self._stream.read(min(remaining, CHUNK_BYTES))
            self._ended, remaining = not chunk, remaining - len(chunk)
            pieces.append(self._decode(chunk, self._ended))
        self._text, self._at = "".join(pieces), 0
        return True
