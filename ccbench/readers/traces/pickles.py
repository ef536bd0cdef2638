"""Python pickles as plain values: containers, texts and numbers are built here, and nothing is ever called.

A pickle is a program for a small machine (Lib/pickletools.py of CPython). Of its operations those are carried
out that build lists, dictionaries and scalars, by this module and not by ``pickle``; any other is refused by
name. Flight Recorder writes no other (torch/csrc/jit/serialization/pickler.cpp, protocol 2).
"""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from ccbench.errors import UsageError
from ccbench.findings import SourceWarning
from ccbench.readers.traces.json_stream import CHUNK_BYTES
from ccbench.units import plain

LARGEST_BYTES = 256 << 20
"""Of a pickle; a buffer of 20,000 calls with their stacks takes about 40 MiB."""

MOST_VALUES, DEEPEST = 8_000_000, 64
"""Values of the whole tree, one that stands in two places counted twice, and containers inside each other."""

MOST_MADE, MOST_HELD = 3_000_000, 2_000_000
"""Values made, and those on the stack, marks and places in the memo at a time: a byte each of what is packed well,
and 50 to 250 bytes of memory."""

LONGEST_NUMBER_BITS = 512

_BEGINNING = re.compile(rb"\x80[\x01-\x05]|[(][dl][pq0]|[\]}]q|c[A-Za-z_][\w.]*\n[\w.]+\n")
"""Protocols from 2 on say their number; those before begin with a container, or with what they ask for."""

_NOTHING = {"PROTO", "FRAME"}
_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], object]] = {
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,
}
_SCALAR = re.compile(
    r"INT|BININT[12]?|LONG[14]?|(BIN)?FLOAT|(SHORT_)?BIN(STRING|UNICODE8?|BYTES8?)|STRING|UNICODE"
)
_SCALARS = {code.name for code in pickletools.opcodes if _SCALAR.fullmatch(code.name)}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SINCE_MARK = {"TUPLE", "LIST", "FROZENSET"}
_PUT, _GET = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_EXTEND = {"APPENDS": list, "ADDITEMS": list, "SETITEMS": dict}


def recognises(head: bytes) -> bool:
    """Tell whether a file begins as a pickle of any protocol does."""
    return _BEGINNING.match(head) is not None


@dataclass(frozen=True)
class PickleDocument:
    """A dictionary with one large list in it, as ``JsonDocument`` gives it: (1-based number, object).

    members: values besides the list. warnings: none, for a damaged pickle is refused as a whole.
    """

    items: list[Any]
    members: dict[str, Any]
    warnings: tuple[SourceWarning, ...] = ()

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return (
            (number, item if isinstance(item, dict) else {})
            for number, item in enumerate(self.items, 1)
        )


def document(stream: io.BufferedIOBase, array: str) -> PickleDocument:
    """Return the dictionary that a pickle holds, with the list ``array`` of it. Raises UsageError for others."""
    content = values(stream)
    if not isinstance(content, dict) or not isinstance(content.get(array), list):
        raise UsageError(f"a pickle without a list of {array}; no dump of Flight Recorder")
    return PickleDocument(content.pop(array), content)


def values(stream: io.BufferedIOBase) -> Any:
    """Return what a pickle holds: tuples and sets as lists, keys as text, as JSON would have them.

    Raises UsageError with one line for a pickle that asks for anything else, is damaged, or is too large.
    """
    # Piece by piece: a buffer sets aside as much memory as is asked for, however short the file is.
    pieces = iter(lambda: stream.read(CHUNK_BYTES), b"")
    data = b"".join(islice(pieces, LARGEST_BYTES // CHUNK_BYTES + 1))
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"a pickle of more than {LARGEST_BYTES >> 20} MiB; not opened")
    machine = _PickleMachine()
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            if opcode.name == "STOP":
                result = machine.stack.pop()
                break
            machine.carry_out(opcode.name, argument)
        else:
            raise ValueError("no STOP")
    # Only these come from bytes that are no pickle: of pickletools, and of taking from an empty stack.
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError("a pickle that is damaged or cut off; copy it again") from error
    level, count, depth = [result], 0, 0
    while level and count <= MOST_VALUES and depth <= DEEPEST:
        containers = [value for value in level if isinstance(value, (list, dict))]
        count, depth = count + sum(map(len, containers)), depth + 1
        inside = (each.values() if isinstance(each, dict) else each for each in containers)
        level = list(islice(chain.from_iterable(inside), MOST_VALUES))
    if count > MOST_VALUES or depth > DEEPEST:
        raise UsageError(
            f"a pickle of more than {MOST_VALUES} values, or of {DEEPEST} inside each other; not opened"
        )
    return result


class _PickleMachine:
    """Stack and memo of one pickle. The memo is a dictionary: an index takes no more memory than another."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._made = 0

    def carry_out(self, name: str, argument: Any) -> None:
        """Do one operation. Raises UsageError for one that builds no plain value."""
        self._made += name in _SCALARS or name in _EMPTY or name in _TUPLES
        held = len(self.stack) + len(self._memo) + len(self._below)
        if self._made > MOST_MADE or held > MOST_HELD:
            raise UsageError(
                f"a pickle of more than {MOST_HELD} values at a time or {MOST_MADE} in all; not opened"
            )
        if name in _SCALARS:
            if isinstance(argument, int) and argument.bit_length() > LONGEST_NUMBER_BITS:
                raise ValueError("a number of thousands of digits")
            self.stack.append(argument)
        elif name in _PUT or name == "MEMOIZE":
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in _GET:
            self.stack.append(self._memo[argument])
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name == "MARK":
            self._below.append(self.stack)
            self.stack = []
        elif name in _TUPLES:
            self.stack.append([self.stack.pop() for _ in range(_TUPLES[name])][::-1])
        elif name in _SINCE_MARK:
            self._end_mark(self._items())
        elif name == "DICT":
            self._end_mark(_pairs(self._items()))
        elif name in _EXTEND:
            items = self._items()
            self.stack = self._below.pop()
            self._extend(_EXTEND[name], items)
        elif name == "APPEND":
            self._extend(list, [self.stack.pop()])
        elif name == "SETITEM":
            value, key = self.stack.pop(), self.stack.pop()
            self._extend(dict, [key, value])
        elif name not in _NOTHING:
            raise UsageError(f"a pickle that {self._asked(name, argument)}; not opened")

    def _items(self) -> list[Any]:
        if not self._below:
            raise ValueError("no MARK")
        return self.stack

    def _end_mark(self, value: object) -> None:
        self.stack = self._below.pop()
        self.stack.append(value)

    def _extend(self, kind: type, items: list[Any]) -> None:
        target: Any = self.stack[-1]
        is_kind = type(target) is kind
        if not is_kind:
            raise ValueError("items of something else")
        if kind is dict:
            target.update(_pairs(items))
        else:
            target.extend(items)

    def _asked(self, name: str, argument: object) -> str:
        """Words for an operation that is refused: the class or function where it has a name."""
        names: object = argument
        if name == "STACK_GLOBAL":
            names = " ".join(plain(part, 60) for part in self.stack[-2:])
        if name in ("GLOBAL", "INST", "STACK_GLOBAL") and names:
            return f"asks for {plain(names, 120).replace(' ', '.')}"
        if name in ("PERSID", "BINPERSID"):
            return "asks for an object outside of it"
        return f"asks for the operation {name}, which builds objects"


def _pairs(items: list[Any]) -> dict[str, Any]:
    """Keys and values by turns; a key that is a container would have to be hashed, however deep it is."""
    if len(items) % 2:
        raise ValueError("a key without a value")
    keys = items[::2]
    if any(isinstance(key, (list, dict)) for key in keys):
        raise UsageError("a pickle with containers as keys, which no dump has; not opened")
    return {
        key if isinstance(key, str) else str(key): value
        for key, value in zip(keys, items[1::2], strict=True)
    }
