"""Lines of another tool's output without what launchers and terminals put around them; printed figures.

A figure is its value and half a unit of its last digit, so that checks know the rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ccbench.results.importers.log import Outcome
from ccbench.topology.graph import Notice

LONGEST_LINE = 4096
"""Characters of a line that are looked at; no tool here prints a longer one."""

MOST_NOTICES = 100
"""Remarks that are kept of one text; whoever has more lines that do not fit has another form."""

_TERMINAL = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|[\x00-\x08\x0b\x0e-\x1f\x7f]")
_TAG = re.compile(
    r"\([^()\n]{0,120}pid=\d{1,10}[^()\n]{0,60}\)\s?"  # Ray
    r"|\[[^\]\s\d,][^\]\s,]{0,60}[,:]\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:?\s?"  # Open MPI 5
    r"|\[\d{1,9},\d{1,9}\](?:<std\w{2,8}>)?:?\s?"  # mpirun --tag-output
    r"|\[[\w.-]{1,200}:\d+\]:\s?"  # Intel MPI's -prepend-rank, torchrun --tee
    r"|\[default\d{1,6}\]:\s?"  # torchrun
    r"|\[\d{1,7}\]\s(?!\s{0,9}[NRM]CCL (?:INFO|WARN|TRACE|ERROR))"  # mpiexec -l; not a library's message
    r"|\[pod/[^\]\s]{1,200}\]\s?"  # kubectl logs --prefix
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s"  # --timestamps
    r"|\s{0,6}\d{1,7}:\s"  # srun --label
    r"|[A-Za-z][\w.-]{0,80}(?::|\s{1,4}\|)\s(?=\s{0,8}#|\s{0,16}\d{1,20}\s{1,16}\d{1,20}\s)"  # pdsh, compose
    r"|>\s"  # a quotation
)
_MOST_TAGS = 5
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
        bare = _untagged(_TERMINAL.sub("", raw[:LONGEST_LINE]).rstrip())
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


def _untagged(line: str) -> str:
    for _ in range(_MOST_TAGS):
        found = _TAG.match(line)
        if found is None:
            break
        line = line[found.end() :]
    return line


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

_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(?:\.([0-9]{0,30}))?(?:[eE]([+-]?[0-9]{1,3}))?", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,20}|[0-9][0-9_]{1,26}[0-9]|[0-9]{1,3}(?:,[0-9]{3}){1,6}", re.ASCII)


@dataclass(frozen=True)
class Figure:
    """A number as printed, times the unit it stands in."""

    value: float
    half_unit: float

    def times(self, factor: float) -> Figure:
        """The same figure in a unit that is ``factor`` times smaller."""
        return Figure(self.value * factor, self.half_unit * factor)

    def over(self, divisor: float) -> Figure:
        """The same figure in a unit ``divisor`` times larger: one rounding only, unlike times(1/divisor)."""
        return Figure(self.value / divisor, self.half_unit / divisor)


def figure(text: str) -> Figure | None:
    """The figure ``text`` is, None where it is none, negative, or too large for a float."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    value = float(text)
    exponent = int(match[2] or 0) - len(match[1] or "")
    if not math.isfinite(value) or value < 0 or not -300 < exponent < 300:
        return None
    return Figure(value, 0.5 * 10.0**exponent)


def whole(text: str) -> int | None:
    """The size or count ``text`` is (1048576, 1_048_576, 1,024); None for all but 0 to LARGEST_SIZE."""
    match = _WHOLE.fullmatch(text.strip())
    value = int(match[0].replace("_", "").replace(",", "")) if match else None
    return value if value is not None and value <= LARGEST_SIZE else None


def rate_factor(points: Iterable[tuple[int, Figure, Figure]], default: float) -> float:
    """What printed rates are to be multiplied with to be in 1e9 bytes per second: 1 or GIBI.

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
