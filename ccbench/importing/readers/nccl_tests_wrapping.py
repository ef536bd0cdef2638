"""Text that a terminal broke at its width, put together again.

Such text has no line longer than the width, and a header that is whole only with the lines that follow it.
Lines whose trailing blanks were lost on the way are left to ``nccl_tests_tables``, which joins figures.
"""

from __future__ import annotations

from collections.abc import Iterator

from ccbench.importing.readers.nccl_tests_columns import header_layout

_NARROWEST, _WIDEST = 30, 400
_MOST_PIECES = 6


def numbered(text: str) -> Iterator[tuple[int, str, bool]]:
    """(number of its first line, line, whether nothing ends it) of each line as it was before."""
    lines = text.split("\n")
    width = _width(lines) if "size" in text and "algbw" in text else 0
    number = 0
    while number < len(lines):
        first, pieces = number, [lines[number]]
        while width and len(pieces[-1]) == width and len(pieces) < _MOST_PIECES and number + 1 < len(lines):
            number += 1
            pieces.append(lines[number])
        number += 1
        yield first + 1, "".join(pieces), number == len(lines)


def _width(lines: list[str]) -> int:
    """The width at which lines were broken, or 0."""
    longest = max(map(len, lines))
    if not _NARROWEST <= longest <= _WIDEST:
        return 0
    for position, line in enumerate(lines):
        if len(line) == longest and "size" in line and not _is_whole(line):
            joined = line
            for following in lines[position + 1 : position + _MOST_PIECES]:
                joined += following
                if _is_whole(joined):
                    return longest
                if len(following) != longest:
                    break
    return 0


def _is_whole(line: str) -> bool:
    """Whether a header has two placements with the same columns."""
    start = line.find("size")
    layout = header_layout(line[max(start, 0) :].split())
    return layout is not None and len(layout.placements) == 2 and len(set(layout.placements)) == 1
