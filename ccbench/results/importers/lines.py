"""Lines of another tool's output without what launchers and terminals put around them, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ccbench.results.importers.log import Outcome
from ccbench.topology.graph import Notice
from ccbench.topology.text import Figure, plain, without_tags

LONGEST_LINE = 4096
"""Characters of a line that are looked at; no tool here prints a longer one."""

MOST_NOTICES = 100
"""Remarks that are kept of one text; whoever has more lines that do not fit has another form."""

_MESSAGE = re.compile(
    r"(?:[\w.-]{1,80}:\d{1,10}:\d{1,10} )?\[\d{1,5}\] (?:NCCL|RCCL|MCCL) (?:INFO|WARN|TRACE|ERROR)\b"
)
_ROW = re.compile(r"\s*\d{1,20}\s+\d{1,20}\s+[a-z]")
_NARROWEST, _WIDEST = 30, 400
_MOST_PIECES = 6


@dataclass(frozen=True)
class Line:
    """One line. number: 1-based, of the source. text: without tags, colours and the end of the line.

    unfinished: it is the last line and has no end. message: it is one of a library's debug output.
    """

    number: int
    text: str
    unfinished: bool = False
    message: bool = False


def source_lines(text: str, is_header: Callable[[str], bool] | None = None) -> Iterator[Line]:
    """Every line that is not blank; longer ones than LONGEST_LINE are cut there.

    A message that another thread wrote into the middle of a row stands before the row, which is put together
    again. is_header: tells the whole header of the tool's table, for text that a terminal broke at its width.
    """
    begun: Line | None = None
    for number, raw, unfinished in _unwrapped(text.split("\n"), is_header):
        if not raw or raw.isspace():
            continue
        bare = without_tags(plain(raw[:LONGEST_LINE]).rstrip())
        message = _MESSAGE.search(bare) if "CCL " in bare else None
        before = bare[: message.start()] if message else bare
        if begun is not None and before:
            if _ROW.match(before):  # a row of its own: the one before ended where the message began
                yield begun
            else:
                number, before = begun.number, f"{begun.text} {before.lstrip()}"
            begun = None
        if message and before.lstrip()[:1].isdigit():
            begun = Line(number, before, unfinished)
        elif before and (not message or not before.isspace()):
            yield Line(number, before, unfinished)
        if message:
            yield Line(number, bare[message.start() :], unfinished, message=True)
    if begun is not None:
        yield begun


def _unwrapped(lines: list[str], is_header: Callable[[str], bool] | None) -> Iterator[tuple[int, str, bool]]:
    """(number of its first line, line, whether nothing ends it) of each line as it was before wrapping."""
    width = _width(lines, is_header) if is_header else 0
    number = 0
    while number < len(lines):
        first, pieces = number, [lines[number]]
        while width and len(pieces[-1]) == width and len(pieces) < _MOST_PIECES and number + 1 < len(lines):
            number += 1
            pieces.append(lines[number])
        number += 1
        yield first + 1, "".join(pieces), number == len(lines)


def _width(lines: list[str], is_header: Callable[[str], bool]) -> int:
    """The width at which a terminal broke lines: none is longer, and a header is whole only when joined."""
    longest = max(map(len, lines))
    if not _NARROWEST <= longest <= _WIDEST:
        return 0
    for position, line in enumerate(lines):
        if len(line) == longest and "size" in line and not is_header(line):
            joined = line
            for following in lines[position + 1 : position + _MOST_PIECES]:
                joined += following
                if is_header(joined):
                    return longest
                if len(following) != longest:
                    break
    return 0


def no_row(line: Line) -> Notice:
    """The remark that ``line`` stands where a row should and is none."""
    return Notice("damaged_line", f"no row of its table: {line.text.strip()[:80]!r}", line.number)


def capped(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    """The first MOST_NOTICES of ``notices``, and how many more there were."""
    if len(notices) <= MOST_NOTICES:
        return tuple(notices)
    more = Notice("damaged_line", f"{len(notices) - MOST_NOTICES} more remarks like these were left out")
    return (*notices[:MOST_NOTICES], more)


_HUNG = re.compile(
    r"watchdog caught collective|timed out|due to time limit|exceeded the time limit|test timeout \(\d"
    r"|timeout waiting for",
    re.IGNORECASE,
)
_CRASHED = re.compile(
    r"segmentation fault|segfault|mpi_abort was invoked|caught signal|exited on signal"
    r"|process received signal|\bsignal: \w|bus error|core dumped|out of memory|terminate called after"
    r"|unhandled (?:cuda|system) error|cuda failure|test (?:nccl|cuda|hip) failure|\btest failure\b"
    r"|traceback \(most recent call last\)|invalid number of gpus:|process(?:es)? exited with non-zero"
    r"|\bexit(?:ed|ing)?(?: with)?(?: exit)? (?:code|status)[ :=]{1,3}[1-9]",
    re.IGNORECASE,
)


def failures(lines: Iterable[Line]) -> tuple[str, str]:
    """(hang, crash): the first line that reports each, quoted with its number; "" where none does."""
    hang = crash = ""
    for line in lines:
        if not hang and _HUNG.search(line.text):
            hang = f"line {line.number}: {line.text.strip()[:200]}"
        elif not crash and _CRASHED.search(line.text):
            crash = f"line {line.number}: {line.text.strip()[:200]}"
    return hang, crash


def bad_ending(lines: Iterable[Line]) -> tuple[Outcome, str] | None:
    """A hang before a crash, which the launcher often reports of the processes that it ends."""
    hang, crash = failures(lines)
    if hang:
        return Outcome.HUNG, hang
    return (Outcome.CRASHED, crash) if crash else None


GIBI = 2**30 / 1e9
"""A rate in 2^30 bytes per second times this is one in 1e9 bytes per second."""

LARGEST_SIZE = 2**62
"""Bytes; a larger figure is no size."""

_WHOLE = re.compile(r"[0-9]{1,20}|[0-9][0-9_]{1,26}[0-9]|[0-9]{1,3}(?:,[0-9]{3}){1,6}", re.ASCII)


def whole(text: str) -> int | None:
    """The size or count ``text`` is (1048576, 1_048_576, 1,024); None for all but 0 to LARGEST_SIZE."""
    match = _WHOLE.fullmatch(text.strip())
    value = int(match[0].replace("_", "").replace(",", "")) if match else None
    return value if value is not None and value <= LARGEST_SIZE else None


def rate_factor(points: Iterable[tuple[int, Figure, Figure]], default: float) -> float:
    """Return the factor from printed rates to 1e9 bytes per second: 1 or GIBI.

    Some tools write GB/s for 2^30 bytes per second, and some changed their mind. points: (bytes, seconds,
    printed rate) of rows whose rate is bytes / seconds; those whose rounding leaves both open do not vote.
    default: where no row tells.
    """
    votes = {1.0: 0, GIBI: 0}
    for size_bytes, seconds, rate in points:
        if seconds.value <= 0:
            continue
        slack = rate.half_unit * 1.02 + rate.value * seconds.half_unit / seconds.value
        fits = [f for f in votes if abs(size_bytes / seconds.value / 1e9 / f - rate.value) <= slack]
        if len(fits) == 1:
            votes[fits[0]] += 1
    if votes[1.0] == votes[GIBI]:
        return default
    return max(votes, key=lambda factor: votes[factor])
