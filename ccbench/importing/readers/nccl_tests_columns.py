"""What the columns of an nccl-tests table mean: from its header, or from a row that has none.

Forms met (github.com/NVIDIA/nccl-tests src/common.cu and src/util.cu, 2017 to 2026): ``bytes N type op``
with ``res``; ``size count type [redop] [root]`` with ``error``; the same with ``#wrong``; ``cputime`` for
``time`` (-C); i_min i_max i_p99 i_cv% after each placement (-I); #bitdiff; a timestamp of two words at the
end (-S); one placement instead of two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ccbench.dtypes import ITEM_BYTES
from ccbench.importing.readers.nccl_tests_numbers import figure, is_figure, unglued, whole

COLUMN_WORDS = {
    "size": "size",
    "bytes": "size",
    "count": "count",
    "n": "count",
    "elements": "count",
    "elems": "count",
    "type": "type",
    "dtype": "type",
    "datatype": "type",
    "redop": "redop",
    "op": "redop",
    "root": "root",
    "time": "time",
    "cputime": "time",
    "algbw": "algbw",
    "busbw": "busbw",
    "wrong": "wrong",
    "error": "error",
    "errors": "error",
    "res": "error",
}
"""Words of a header and the column they name; other words keep their own."""

TYPES = {
    "int8": "int8",
    "char": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "int": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float16": "float16",
    "fp16": "float16",
    "float": "float32",
    "float32": "float32",
    "fp32": "float32",
    "double": "float64",
    "float64": "float64",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "float8_e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2",
    "float8_e5m2": "float8_e5m2",
}
"""nccl-tests', rccl-tests' and ccbench's own words for element types, and ccbench's name."""

ITEM_BYTES_OF_WORD = {word: ITEM_BYTES[name] for word, name in TYPES.items()}
"""Bytes of one element, by those words."""

_MEASURED = ("time", "algbw", "busbw")
_WORD = re.compile(r"[A-Za-z][\w.+-]{0,31}")
_UNIT = re.compile(r"\([^()]{0,20}\)$")
_LARGEST_ROOT = 1 << 20


@dataclass(frozen=True)
class Layout:
    """Columns of a table, left to right; two placements are out of place, then in place."""

    head: tuple[str, ...]
    placements: tuple[tuple[str, ...], ...]
    tail: tuple[str, ...] = ()

    @property
    def measured(self) -> int:
        """Columns of all placements together."""
        return sum(len(columns) for columns in self.placements)


@dataclass(frozen=True)
class Cells:
    """One row taken apart. figures: per placement, column -> token; whole placements only.

    head: columns before the figures, as printed; "" where the row leaves one blank. missing: columns that the
    row should have and has not. surplus: words after the last column.
    """

    head: dict[str, str]
    figures: tuple[dict[str, str], ...]
    tail: tuple[str, ...] = ()
    missing: int = 0
    surplus: tuple[str, ...] = ()


def column_name(word: str) -> str:
    """The column a header's word names: ``#wrong`` -> wrong, ``algbw(GB/s)`` -> algbw."""
    plain = _UNIT.sub("", word.lower()).strip("#*:,")
    return COLUMN_WORDS.get(plain, plain)


def header_layout(words: list[str]) -> Layout | None:
    """The layout that a header line gives, or None where the words are no header of this form."""
    names = [name for name in map(column_name, words) if name]
    if not {"size", "algbw", "busbw"} <= set(names) or names[0] != "size":
        return None
    start = next((i for i, name in enumerate(names) if name in _MEASURED), 0)
    if "size" in names[1:]:  # a second table stands beside this one
        names = names[: names.index("size", 1)]
    if any(name.startswith("time") for name in names[:start]):  # time:avg and the like: another tool's
        return None
    opening = names[start]
    placements: list[list[str]] = []
    tail: list[str] = []
    for name in names[start:]:
        if name == "timestamp" or tail:
            tail.append(name)
        elif name == opening:
            placements.append([name])
        else:
            placements[-1].append(name)
    return Layout(tuple(names[:start]), tuple(tuple(columns) for columns in placements), tuple(tail))


def extended_layout(layout: Layout, words: list[str]) -> Layout | None:
    """``layout`` with the rest of a header that was wrapped; None where ``words`` are no such rest."""
    if len(layout.placements) < 2 or len(layout.placements[-1]) >= len(layout.placements[0]):
        return None
    wanted = layout.placements[0][len(layout.placements[-1]) :]
    if tuple(column_name(word) for word in words[: len(wanted)]) != wanted:
        return None
    return Layout(layout.head, (*layout.placements[:-1], layout.placements[0]), layout.tail)


def guessed_layout(words: list[str]) -> Layout | None:
    """The layout of a row without a header: size, count, a known type, perhaps redop and root, figures."""
    words = unglued(words, ITEM_BYTES_OF_WORD)
    if len(words) < 6 or whole(words[0]) is None or whole(words[1]) is None or words[2].lower() not in TYPES:
        return None
    has_op = _is_word(words[3])
    rest = words[4 if has_op else 3 :]
    if not all(map(is_figure, rest)):
        return None
    for columns in (4, 3):
        for placements in (2, 1):
            rooted = len(rest) - placements * columns
            if rooted in (0, 1) and (not rooted or _is_root(rest[0])):
                last = _error_column(rest[rooted + 3]) if columns == 4 else ""
                head = (
                    "size",
                    "count",
                    "type",
                    *(("redop",) if has_op else ()),
                    *(("root",) if rooted else ()),
                )
                names = ("time", "algbw", "busbw", *((last,) if last else ()))
                return Layout(head, (names,) * placements)
    return None


def row_cells(words: list[str], layout: Layout) -> Cells | None:
    """A line's words in the columns of ``layout``; None where the line is no row of it."""
    words = unglued(words, ITEM_BYTES_OF_WORD)
    if not words or whole(words[0]) is None:
        return None
    head: dict[str, str] = {}
    position = 0
    for name in layout.head:
        word = words[position] if position < len(words) else ""
        if name in ("size", "count") and whole(word) is None:
            return None
        if _belongs(name, word, len(words) - position, layout):
            head[name] = word
            position += 1
        else:
            head[name] = ""
    return _with_figures(head, words[position:], layout)


def _with_figures(head: dict[str, str], words: list[str], layout: Layout) -> Cells | None:
    figures: list[dict[str, str]] = []
    position = 0
    for columns in layout.placements:
        found = [word for word in words[position : position + len(columns)] if is_figure(word)]
        if len(found) < len(columns):
            break
        figures.append(dict(zip(columns, found, strict=True)))
        position += len(columns)
    partial = 0
    while partial < len(words) - position and is_figure(words[position + partial]):
        partial += 1
    missing = layout.measured - position - (partial if len(figures) < len(layout.placements) else 0)
    if len(figures) < len(layout.placements):
        surplus = tuple(words[position + partial :])
        return Cells(head, tuple(figures), missing=max(missing, 1), surplus=surplus)
    rest = words[position:]
    stamp = 2 * len(layout.tail)
    return Cells(head, tuple(figures), tuple(rest[:stamp]), surplus=tuple(rest[stamp:]))


def _belongs(name: str, word: str, left: int, layout: Layout) -> bool:
    """Whether ``word``, with ``left`` words from it to the end, fills the column ``name``."""
    if name in ("size", "count"):
        return True
    if name in ("type", "redop"):
        return _is_word(word)
    if name == "root":
        return _is_root(word) and (
            word == "-1" or left > layout.measured or ("." not in word and abs(figure(word) or 0) < 10_000)
        )
    return left > layout.measured


def _is_word(word: str) -> bool:
    return (_WORD.fullmatch(word) is not None and not is_figure(word)) or word.lower() == "none"


def _is_root(word: str) -> bool:
    return word == "-1" or (whole(word) is not None and int(whole(word) or 0) < _LARGEST_ROOT)


def _error_column(token: str) -> str:
    """Old versions print the largest error (2e-07, 0e+00), new ones the number of wrong elements."""
    return "error" if "e-" in token or "e+" in token else "wrong"
