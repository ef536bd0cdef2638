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
from ccbench.results.importers.lines import whole
from ccbench.results.importers.words import DTYPES
from ccbench.topology.text import figure

_NAMES = {
    "size": "size bytes",
    "count": "count n elements elems",
    "type": "type dtype datatype",
    "redop": "redop op",
    "time": "time cputime",
    "error": "error errors res",
}
_COLUMN_OF_WORD = {word: name for name, words in _NAMES.items() for word in words.split()}
_MEASURED = ("time", "algbw", "busbw")
_WORD = re.compile(r"[A-Za-z][\w.+-]{0,31}")
_UNIT = re.compile(r"\([^()]{0,20}\)$")
_ABSENT = re.compile(r"n/?a|-?nan|-?inf(?:inity)?|null|none|-{1,3}", re.IGNORECASE)
_GLUED_RATES = re.compile(r"\d{1,9}\.\d{2}")
_LARGEST_ROOT = 10_000
_FEWEST_GUESSED = 6


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


def _column_name(word: str) -> str:
    """The column a header's word names: ``#wrong`` -> wrong, ``algbw(GB/s)`` -> algbw."""
    plain = _UNIT.sub("", word.lower()).strip("#*:,")
    return _COLUMN_OF_WORD.get(plain, plain)


def header_layout(words: list[str]) -> Layout | None:
    """The layout that a header line gives, or None where the words are no header of this form."""
    names = [name for name in map(_column_name, words) if name]
    if "size" in names[1:]:  # a second table stands beside this one
        names = names[: names.index("size", 1)]
    if not {"size", "algbw", "busbw"} <= set(names) or names[0] != "size":
        return None
    start = next(i for i, name in enumerate(names) if name in _MEASURED)
    if any(name.startswith("time") for name in names[:start]):  # time:avg and the like: another tool's
        return None
    end = names.index("timestamp", start) if "timestamp" in names[start:] else len(names)
    placements: list[list[str]] = []
    for name in names[start:end]:
        if name == names[start]:
            placements.append([])
        placements[-1].append(name)
    return Layout(tuple(names[:start]), tuple(map(tuple, placements)), tuple(names[end:]))


def is_whole_header(line: str) -> bool:
    """Whether a header has two placements with the same columns."""
    layout = header_layout(line[max(line.find("size"), 0) :].split())
    return layout is not None and len(layout.placements) == 2 and len(set(layout.placements)) == 1


def guessed_layout(words: list[str]) -> Layout | None:
    """The layout of a row without a header: size, count, a known type, perhaps redop and root, figures.

    Only a layout in which every placement's time x algbw is the size, or one rank's part of it, is taken.
    """
    words = _unglued(words)
    if len(words) < _FEWEST_GUESSED or words[2].lower() not in DTYPES:
        return None
    size, count = whole(words[0]), whole(words[1])
    has_op = _is_word(words[3])
    rest = words[4 if has_op else 3 :]
    if size is None or count is None or not all(map(is_figure, rest)):
        return None
    moved = {size, count * ITEM_BYTES[DTYPES[words[2].lower()]]}
    for columns, placements in ((4, 2), (4, 1), (3, 2), (3, 1)):
        rooted = len(rest) - placements * columns
        if rooted not in (0, 1) or rooted != _is_root(rest[0]):
            continue
        if all(_agrees(rest[i], rest[i + 1], moved) for i in range(rooted, len(rest), columns)):
            # Old versions print the largest error (2e-07, 0e+00), new ones the number of wrong elements.
            last = rest[rooted + 3] if columns == 4 else ""
            checked = ("error" if "e-" in last or "e+" in last else "wrong",) * bool(last)
            head = ("size", "count", "type", *("redop",) * has_op, *("root",) * rooted)
            return Layout(head, ((*_MEASURED, *checked),) * placements)
    return None


def _agrees(time: str, algbw: str, moved_bytes: set[int]) -> bool:
    """Whether printed time (us) x algbw (GB/s) can be one of these sizes, given the digits."""
    seconds, rate = figure(time), figure(algbw)
    if seconds is None or rate is None:
        return seconds is rate and time != "-1"
    slow, fast = (
        (seconds.value + sign * seconds.half_unit) * (rate.value + sign * rate.half_unit) * 1e3
        for sign in (-1, 1)
    )
    return any(slow * 0.999 <= size <= fast * 1.001 for size in moved_bytes)


def row_cells(words: list[str], layout: Layout) -> Cells | None:
    """A line's words in the columns of ``layout``; None where the line is no row of it."""
    words = _unglued(words)
    head: dict[str, str] = {}
    position = 0
    for name in layout.head:
        word = words[position] if position < len(words) else ""
        if name in ("size", "count") and whole(word) is None:
            return None
        head[name] = word if _belongs(name, word, len(words) - position, layout) else ""
        position += bool(head[name])
    figures: list[dict[str, str]] = []
    measured = 0
    while position + measured < len(words) and _is_measured(words[position + measured]):
        measured += 1
    for columns in layout.placements:
        if measured >= len(columns):
            figures.append(dict(zip(columns, words[position : position + len(columns)], strict=True)))
            position, measured = position + len(columns), measured - len(columns)
        else:
            missing = layout.measured - sum(map(len, figures)) - measured
            return Cells(head, tuple(figures), missing=missing, surplus=tuple(words[position + measured :]))
    stamp = position + 2 * len(layout.tail)
    return Cells(head, tuple(figures), tuple(words[position:stamp]), surplus=tuple(words[stamp:]))


def without_cut_rate(cells: Cells) -> Cells:
    """``cells`` without the last placement where its last word is a rate that lost digits.

    For a last line that nothing ends: both rates are printed with the same decimals.
    """
    if not cells.figures or cells.missing or cells.surplus or cells.tail:
        return cells
    last = cells.figures[-1]
    decimals = {len(last.get(name, "").partition(".")[2]) for name in ("algbw", "busbw")}
    if list(last)[-1] not in ("algbw", "busbw") or len(decimals) == 1:
        return cells
    return Cells(cells.head, cells.figures[:-1], missing=1)


def _belongs(name: str, word: str, left: int, layout: Layout) -> bool:
    """Whether ``word``, with ``left`` words from it to the end, fills the column ``name``."""
    if name in ("size", "count"):
        return True
    if name in ("type", "redop"):
        return _is_word(word)
    return _is_root(word) if name == "root" else left > layout.measured


def _is_word(word: str) -> bool:
    return (_WORD.fullmatch(word) is not None and not is_figure(word)) or word.lower() == "none"


def _is_root(word: str) -> bool:
    number = whole(word)
    return word == "-1" or (number is not None and number < _LARGEST_ROOT)


def is_figure(token: str) -> bool:
    """Whether ``token`` can stand among figures: a number, a word for none, or -1 for no root."""
    return token == "-1" or _is_measured(token)


def _is_measured(token: str) -> bool:
    """Whether ``token`` can be a time, a rate or a count; a word such as N/A says that there is none."""
    return figure(token) is not None or _ABSENT.fullmatch(token) is not None


def _unglued(tokens: list[str]) -> list[str]:
    """``tokens`` with rates that ran together (two points in one word) cut after every second decimal."""
    taken: list[str] = []
    for token in tokens:
        pieces = _GLUED_RATES.findall(token) if token.count(".") > 1 else []
        taken += pieces if "".join(pieces) == token else [token]
    return taken
