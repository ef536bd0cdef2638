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
from ccbench.results.importers.readers.words import DTYPES

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

ITEM_BYTES_OF_WORD = {word: ITEM_BYTES[name] for word, name in DTYPES.items()}
"""Bytes of one element, by those words."""

_MEASURED = ("time", "algbw", "busbw")
_WORD = re.compile(r"[A-Za-z][\w.+-]{0,31}")
_UNIT = re.compile(r"\([^()]{0,20}\)$")
_LARGEST_ROOT = 10_000
_FEWEST_GUESSED = 6
_NUMBER = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{2,3})?")
_WHOLE = re.compile(r"\d{1,20}|\d[\d_]{1,26}\d|\d{1,3}(?:,\d{3}){1,6}")
_ABSENT = re.compile(r"n/?a|-?nan|-?inf(?:inity)?|null|none|-{1,3}", re.IGNORECASE)
_GLUED_RATES = re.compile(r"\d{1,9}\.\d{2}")

LARGEST_SIZE = 1 << 63
"""Bytes; a number this large is no size (nccl-tests holds sizes in 64 bits)."""


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
    if "size" in names[1:]:  # a second table stands beside this one
        names = names[: names.index("size", 1)]
    if not {"size", "algbw", "busbw"} <= set(names) or names[0] != "size":
        return None
    start = next((i for i, name in enumerate(names) if name in _MEASURED), 0)
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
    """The layout of a row without a header: size, count, a known type, perhaps redop and root, figures.

    Only a layout in which every placement's time x algbw is the size, or one rank's part of it, is taken.
    """
    words = unglued(words, ITEM_BYTES_OF_WORD)
    if len(words) < _FEWEST_GUESSED or words[2].lower() not in DTYPES:
        return None
    size, count = whole(words[0]), whole(words[1])
    has_op = _is_word(words[3])
    rest = words[4 if has_op else 3 :]
    if size is None or count is None or not all(map(is_figure, rest)):
        return None
    moved = {size, count * ITEM_BYTES_OF_WORD[words[2].lower()]}
    for columns, placements in ((4, 2), (4, 1), (3, 2), (3, 1)):
        rooted = len(rest) - placements * columns
        if rooted not in (0, 1) or rooted != _is_root(rest[0]):
            continue
        starts = range(rooted, len(rest), columns)
        if all(_agrees(rest[start], rest[start + 1], moved) for start in starts):
            last = (_error_column(rest[rooted + 3]),) if columns == 4 else ()
            head = ("size", "count", "type", *("redop",) * has_op, *("root",) * rooted)
            return Layout(head, ((*_MEASURED, *last),) * placements)
    return None


def _agrees(time: str, algbw: str, moved_bytes: set[int]) -> bool:
    """Whether printed time (us) x algbw (GB/s) can be one of these sizes, given the digits."""
    if figure(time) is None or figure(algbw) is None:
        return figure(time) is figure(algbw)
    slow, fast = (
        ((figure(time) or 0.0) + sign * (half_unit(time) or 0.0))
        * ((figure(algbw) or 0.0) + sign * (half_unit(algbw) or 0.0))
        * 1e3
        for sign in (-1, 1)
    )
    return "-" not in time[:1] and any(slow * 0.999 <= size <= fast * 1.001 for size in moved_bytes)


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
        found = [word for word in words[position : position + len(columns)] if is_measured(word)]
        if len(found) < len(columns):
            break
        figures.append(dict(zip(columns, found, strict=True)))
        position += len(columns)
    partial = 0
    while partial < len(words) - position and is_measured(words[position + partial]):
        partial += 1
    missing = layout.measured - position - (partial if len(figures) < len(layout.placements) else 0)
    if len(figures) < len(layout.placements):
        surplus = tuple(words[position + partial :])
        return Cells(head, tuple(figures), missing=max(missing, 1), surplus=surplus)
    rest = words[position:]
    stamp = 2 * len(layout.tail)
    return Cells(head, tuple(figures), tuple(rest[:stamp]), surplus=tuple(rest[stamp:]))


def without_cut_rate(cells: Cells) -> Cells:
    """``cells`` without the last placement where its last word is a rate that lost digits.

    For a last line that nothing ends: both rates are printed with the same decimals.
    """
    if not cells.figures or cells.missing or cells.surplus or cells.tail:
        return cells
    last = cells.figures[-1]
    names = list(last)
    if names[-1] not in ("algbw", "busbw") or half_unit(last["algbw"]) == half_unit(last["busbw"]):
        return cells
    return Cells(cells.head, cells.figures[:-1], missing=1)


def _belongs(name: str, word: str, left: int, layout: Layout) -> bool:
    """Whether ``word``, with ``left`` words from it to the end, fills the column ``name``."""
    if name in ("size", "count"):
        return True
    if name in ("type", "redop"):
        return _is_word(word)
    if name == "root":
        return _is_root(word) and (
            word == "-1" or left > layout.measured or abs(figure(word) or 0) < _LARGEST_ROOT
        )
    return left > layout.measured


def _is_word(word: str) -> bool:
    return (_WORD.fullmatch(word) is not None and not is_figure(word)) or word.lower() == "none"


def _is_root(word: str) -> bool:
    return word == "-1" or (whole(word) is not None and int(whole(word) or 0) < _LARGEST_ROOT)


def _error_column(token: str) -> str:
    """Old versions print the largest error (2e-07, 0e+00), new ones the number of wrong elements."""
    return "error" if "e-" in token or "e+" in token else "wrong"


def whole(token: str) -> int | None:
    """A size or count: ``1048576``, ``17_179_869_184``, ``1048_576``, ``1,024``; None for anything else."""
    if _WHOLE.fullmatch(token) is None:
        return None
    value = int(token.replace("_", "").replace(",", ""))
    return value if value < LARGEST_SIZE else None


def is_figure(token: str) -> bool:
    """Whether ``token`` can stand in a measured column: a number, or a word for none."""
    return _NUMBER.fullmatch(token) is not None or _ABSENT.fullmatch(token) is not None


def is_measured(token: str) -> bool:
    """Whether ``token`` can be a time, a rate or a count: a figure that is not below zero."""
    return is_figure(token) and not (token[:1] == "-" and token[1:2].isdigit())


def figure(token: str) -> float | None:
    """The number, or None for N/A, nan, inf and the like."""
    if _NUMBER.fullmatch(token) is None:
        return None
    value = float(token)
    return value if value < float("inf") else None


def half_unit(token: str) -> float | None:
    """Half a unit of the last printed digit: 0.005 for ``36.50``, 5000 for ``1.2e+05``."""
    if _NUMBER.fullmatch(token) is None:
        return None
    mantissa, _, exponent = token.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * float(f"1e{int(exponent or 0) - decimals}")


def unglued(tokens: list[str], item_bytes: dict[str, int]) -> list[str]:
    """``tokens`` with columns that ran together taken apart.

    A figure with two points is cut after every second decimal. A first word of more than 12 digits, which
    the type follows directly, is cut where count x item = size, or a whole multiple of it, allows; the
    smallest multiple wins.
    """
    taken: list[str] = []
    for token in tokens:
        pieces = _GLUED_RATES.findall(token) if token.count(".") > 1 else []
        taken += pieces if "".join(pieces) == token else [token]
    if (
        len(taken) > 1
        and 12 < len(taken[0]) <= 40
        and taken[0].isdecimal()
        and taken[1].lower() in item_bytes
    ):
        taken[:1] = _size_and_count(taken[0], item_bytes[taken[1].lower()]) or taken[:1]
    return taken


def _size_and_count(digits: str, item_bytes: int) -> list[str] | None:
    best: tuple[int, list[str]] | None = None
    for cut in range(1, len(digits)):
        size, count = int(digits[:cut]), int(digits[cut:])
        if digits[cut] == "0" or size % (count * item_bytes):
            continue
        multiple = size // (count * item_bytes)
        if multiple and (best is None or multiple < best[0]):
            best = multiple, [digits[:cut], digits[cut:]]
    return best[1] if best else None
