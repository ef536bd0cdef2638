"""Lines of a log without what launchers, web pages and terminals put before them.

mpirun --tag-output, srun --label, Ray, torchrun, kubectl logs, pdsh and docker compose write who said it
before each line; a line of NCCL_DEBUG output can start in the middle of a table's row.

Text that a terminal broke at its width, put together again.

Such text has no line longer than the width, and a header that is whole only with the lines that follow it.
Lines whose trailing blanks were lost on the way are left to ``nccl_tests_tables``, which joins figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ccbench.results.importers.readers.nccl_tests_columns import header_layout

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


LONGEST_LINE = 4096
"""Characters of a line that are looked at; no tool read here prints more in one."""

_PREFIX = re.compile(
    r"\([^()\n]{0,120}pid=\d{1,10}[^()\n]{0,60}\)\s?"  # Ray
    r"|\[[^\]\s\d,][^\]\s,]{0,60}[,:]\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:?\s?"  # Open MPI 5
    r"|\[\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:?\s?"  # mpirun --tag-output
    r"|\[default\d{1,6}\]:\s?"  # torchrun
    r"|\[pod/[^\]\s]{1,200}\]\s?"  # kubectl logs --prefix
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s"  # --timestamps
    r"|\s{0,6}\d{1,7}:\s"  # srun --label
    r"|[A-Za-z][\w.-]{0,80}(?::|\s{1,4}\|)\s(?=\s{0,8}#|\s{0,16}\d{1,20}\s{1,16}\d{1,20}\s)"  # pdsh, compose
    r"|>\s"  # a quotation
)
_PREFIX_STARTS = frozenset("([>0123456789 \t") | frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_MOST_PREFIXES = 5

_MESSAGE = re.compile(
    r"(?:[\w.-]{1,80}:\d{1,10}:\d{1,10} )?\[\d{1,5}\] (?:NCCL|RCCL|MCCL) (?:INFO|WARN|TRACE|ERROR)\b"
)
_COMMENT = re.compile(r"\s{0,200}#+[ \t]?")
_TERMINAL = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|[\x00-\x08\x0b\x0e-\x1f\x7f]")

_RULES = dict.fromkeys(range(9472, 9600), " ") | {ord("|"): " ", ord("\u00a0"): " "}
"""Box-drawing characters and bars stand between cells and mean nothing."""


@dataclass(frozen=True)
class Line:
    """number: 1-based, of the source. text: without prefixes and comment marks. message: of the library.

    cut: nothing ends the line, so that its last word may have lost its end.
    """

    number: int
    text: str
    commented: bool = False
    message: bool = False
    cut: bool = False

    def cells(self) -> list[str]:
        """The words of a table's line, whatever draws its borders."""
        return self.text.translate(_RULES).split()


def lines_of(text: str) -> Iterator[Line]:
    """Every line that holds something, in order; a message inside a row follows as a line of its own."""
    for number, raw, cut in numbered(text):
        if not raw or raw.isspace():
            continue
        bare = without_prefix(_TERMINAL.sub("", raw[:LONGEST_LINE]).rstrip())
        message = _MESSAGE.search(bare) if "CCL " in bare else None
        if message is not None:
            if message.start() and any(character.isdigit() for character in bare[: message.start()]):
                yield _plain(number, bare[: message.start()], False)
            yield Line(number, bare[message.start() :], message=True)
        elif bare:
            yield _plain(number, bare, cut)


def without_prefix(line: str) -> str:
    """``line`` without what a launcher wrote before it."""
    for _ in range(_MOST_PREFIXES):
        found = _PREFIX.match(line) if line[:1] in _PREFIX_STARTS else None
        if found is None:
            break
        line = line[found.end() :]
    return line


def _plain(number: int, bare: str, cut: bool) -> Line:
    comment = _COMMENT.match(bare)
    return Line(number, bare[comment.end() :] if comment else bare, commented=comment is not None, cut=cut)
