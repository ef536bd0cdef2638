"""Text as tools print it and people paste it: lines, and numbers with their rounding."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ccbench.documents import open_file, times_text
from ccbench.errors import CcbenchError, UsageError

LARGEST_TEXT_BYTES = 64 << 20
"""More than any tool prints, debug lines of a few hundred ranks included; what is larger is not read."""

UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""Marks at the beginning of a file, as terminals of Windows write them."""

_TERMINAL = re.compile(
    r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b[()][A-Za-z0-9]"
    r"|\[[0-9]{1,2}(?:;[0-9]{1,2})*m"  # as below
    r"|[\x00-\x08\x0b\x0e-\x1f\x7f]"
)
_COLOUR = re.compile(r"\[[0-9]{1,2}(?:;[0-9]{1,2})*m")
"""Colours whose ESC byte was lost on the way through a web page; found several times faster than all the others."""

_TAG = re.compile(
    r"\([^()\n]{0,120}pid=\d{1,10}[^()\n]{0,60}\)\s?"  # Ray
    r"|\[[^\]\s\d,][^\]\s,]{0,60}[,:]\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:?\s?"  # Open MPI 5
    r"|\[\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:?\s?"  # mpirun --tag-output
    r"|\[[\w.-]{1,200}:\d{1,9}\]:\s?"  # Intel MPI's -prepend-rank, torchrun
    r"|\[default\d{1,6}\]:\s?"  # torchrun
    r"|\[pod/[^\]\s]{1,200}\]\s?"  # kubectl logs --prefix
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s"  # --timestamps
    r"|\s{0,6}\d{1,7}:\s"  # srun --label
    r"|>\s"  # a quotation
)
_MOST_TAGS = 5

_YAML_MARGIN = re.compile(r"#|---|[\])}]|- |[A-Za-z_][\w.-]{0,60}:(?:\s|$)")
_YAML_ITEM = re.compile(
    r"^\s{0,20}- [A-Za-z_][\w.-]{0,60}:\s.*\n\s+[A-Za-z_][\w.-]{0,60}:\s", re.MULTILINE
)
_YAML_BLOCK = re.compile(r":[ \t]+[|>][+-]?[ \t]*$", re.MULTILINE)

_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(
    r"[+-]?[0-9]{1,30}(?:\.([0-9]{0,30}))?(?:[eE]([+-]?[0-9]{1,3}))?", re.ASCII
)


def file_text(path: Path, cure: str, part: str, most_bytes: int = LARGEST_TEXT_BYTES) -> str:
    """Return the text of the file at ``path``, decoded as ``decoded_text`` does it.

    cure: what to name instead of a file that cannot be read. Raises UsageError for such a file, and for one
    of more than ``most_bytes``.
    """
    try:
        with open_file(path) as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be read ({reason}); name {cure}") from None
    return times_text(path.name, content) or decoded_text(
        content, str(path), part, UsageError, most_bytes
    )


def decoded_text(
    content: bytes,
    place: str,
    part: str,
    raises: type[CcbenchError],
    most_bytes: int = LARGEST_TEXT_BYTES,
) -> str:
    """Return ``content`` as text, from UTF-8 or, where its mark says so, UTF-16; without the mark.

    Stray bytes are kept visible rather than refused. part: what of a text of more than ``most_bytes`` is
    enough, for the error of the type ``raises``, which begins with ``place``.
    """
    if len(content) > most_bytes:
        raise raises(f"{place}: larger than {most_bytes >> 20} MiB; cut out the part {part}")
    encoding = "utf-16" if content[:2] in UTF_16 else "utf-8"
    return content.decode(encoding, "backslashreplace").removeprefix("\ufeff")


def is_description(text: str) -> bool:
    """Return whether ``text`` is a YAML list of mappings, which quotes a tool's words in its sentences only.

    What a tool prints begins at the margin, where such a list has keys, items and comments. A block of text
    (``log: |``) may be a whole output, so a document with one is not meant.
    """
    return (
        _YAML_ITEM.search(text) is not None
        and _YAML_BLOCK.search(text) is None
        and all(
            line[0].isspace() or _YAML_MARGIN.match(line) for line in text.splitlines() if line
        )
    )


JUDGED_BYTES = 2**16


def may_be_output(file: Path) -> bool:
    """False for binary files and for descriptions of others; true where it cannot be read, which is told later."""
    try:
        with file.open("rb") as opened:
            head = opened.read(JUDGED_BYTES)
    except OSError:
        return True
    if b"\0" in head and head[:2] not in UTF_16:
        return file.name.endswith("_perf.parquet")
    return not is_description(head.decode("utf-8", "replace"))


def plain(text: str) -> str:
    """Return ``text`` without terminal escapes and other control characters, its lines ended by ``\\n``."""
    if text.isprintable():
        return _COLOUR.sub("", text)
    return _TERMINAL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def searches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a text has ``pattern`` in it."""
    return lambda text: pattern.search(text) is not None


def plain_lines(text: str) -> list[str]:
    """Return the lines of ``plain(text)``; index + 1 is the line number."""
    return plain(text).split("\n")


def without_tags(line: str) -> str:
    """Return ``line`` without what launchers wrote before it in forms that nothing else has.

    Other forms show by what all lines of a text repeat (``repeated_tags``).
    """
    # Launchers start each other, so a line may carry the tags of several.
    for _ in range(_MOST_TAGS):
        match = _TAG.match(line)
        if match is None:
            break
        line = line[match.end() :]
    return line


# -- tags by what repeats -----------------------------------------------------------------------------------

_CONTENT = re.compile(
    r"#|(?:[\w.-]{1,80}:\d{1,10}:\d{1,10} )?\[\d{1,5}\] [NRM]CCL (?:INFO|WARN|TRACE|ERROR)\b"
)
"""Openings that are a tool's own: marks of comments, and speakers of a library's messages."""

_FIELDS = (
    re.compile(
        r"(?P<open>[\[({<]\s*)|(?P<gap>\s+)|(?P<number>[^\W\d]*\d\w*(?:[.,]\d\w*)?)|[^\W\d]+|\W"
    ),
    re.compile(r"(?P<open>[\[({<]\s*)|(?P<gap>\s+)|(?P<name>\w[\w./@-]*)|\W"),
)
"""Fields of a beginning: numbers as a class beside words as they are, then words as a class, too."""

_PATTERNS = {
    "gap": r"[ \t]+",
    "number": r"[^\W\d]*\d\w*(?!\w)(?:[.,]\d\w*(?!\w)|(?![.,]\d))",
    "name": r"\w[\w./@-]*(?![\w./@-])",
}
"""No field can end in two places: a pattern of many that fits a line but for its end would try them all."""

_ENDS = tuple("])>}:|")
_LONGEST_TAG = 200
_MOST_FIELDS = 48
_SAMPLED_LINES = 1000
_FEWEST_TAGGED = 3
_SMALLEST_SHARE = 0.1
_FEWEST_CANDIDATES, _MOST_CANDIDATES = 4, 48
_MOST_CHARACTERS = 8_000_000
"""Of all lines together, with each candidate: every one costs a reading of them."""


@dataclass(frozen=True)
class Tag:
    """Beginning that many lines share but for numbers or names.

    example: as the first of them has it. share: how many of the lines have it, 0 to 1.
    """

    pattern: re.Pattern[str]
    example: str
    share: float

    def removed(self, lines: Iterable[str]) -> list[str]:
        """Return ``lines`` without it; what was tagged keeps its indentation."""
        return [self.pattern.sub("", _TERMINAL.sub("", line)) for line in lines]


def repeated_tags(lines: Sequence[str]) -> tuple[Tag, ...]:
    """Return the beginnings that may be tags, those of the most lines first, then the shortest.

    A tag ends in a blank or a closing sign and is more than figures and blanks, with which rows of tables
    begin. Several may fit, and parts of each: whoever knows the content judges by what each uncovers.
    """
    begun = [line for line in lines if line.strip()]
    sampled = begun[:: max(1, len(begun) // _SAMPLED_LINES)]
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for line in sampled:
        beginnings = dict(_beginnings(_TERMINAL.sub("", line[: 2 * _LONGEST_TAG]).lstrip()))
        counts.update(beginnings.keys())
        examples = beginnings | examples
    fewest = max(_FEWEST_TAGGED, _SMALLEST_SHARE * len(sampled))
    often = [pattern for pattern, count in counts.items() if count >= fewest]
    often.sort(key=lambda pattern: (-counts[pattern], len(examples[pattern])))
    affordable = _MOST_CHARACTERS // (1 + sum(map(len, lines)))
    tried = min(max(affordable, _FEWEST_CANDIDATES), _MOST_CANDIDATES)
    return tuple(
        Tag(
            re.compile(rf"\A[ \t]*{pattern}"), examples[pattern], counts[pattern] / len(sampled)
        )
        for pattern in often[:tried]
    )


def _beginnings(line: str) -> Iterator[tuple[str, str]]:
    """(pattern, text) of every beginning of ``line`` that may be a tag."""
    content = _CONTENT.search(line)
    end = min(content.start() if content else len(line), _LONGEST_TAG)
    for fields in _FIELDS:
        pattern = ""
        has_sign = False
        for number, field in enumerate(fields.finditer(line, 0, end)):
            if number == _MOST_FIELDS:
                break
            kind = field.lastgroup
            has_sign = has_sign or kind in (None, "open")
            closes = field[0] in _ENDS and not line[field.end() : field.end() + 1].isspace()
            if has_sign and (kind == "gap" or closes):
                # One blank belongs to the tag, more are the indentation behind it; where nothing follows,
                # programs and editors leave the blank out.
                text = line[: field.start() + 1]
                yield (
                    (f"{pattern}[ \t]?" if kind == "gap" else pattern + re.escape(field[0])),
                    text,
                )
            if kind == "open":
                pattern += re.escape(field[0][0]) + r"\s*"
            else:
                pattern += _PATTERNS.get(kind or "") or re.escape(field[0])


def unquoted(lines: Sequence[str]) -> list[str]:
    """Return the texts of records, a line each: JSON objects, or CSV with text in quotes.

    Of a record's fields the text is the one with the longest value. Other lines stay; all do where records
    are not most of the lines.
    """
    records = [_record(line) for line in lines]
    longest: Counter[str] = Counter()
    for record in records:
        for name, value in record.items():
            longest[name] = max(longest[name], len(value))
    if 2 * sum(map(bool, records)) <= sum(bool(line.strip()) for line in lines):
        return list(lines)
    ((name, _),) = longest.most_common(1)
    return [
        record.get(name, line).rstrip("\r\n") if record else line
        for line, record in zip(lines, records, strict=True)
    ]


def _record(line: str) -> dict[str, str]:
    """The texts of the JSON object or of the CSV with quotes that ``line`` is, by name or column."""
    stripped = line.strip().removesuffix(",")
    try:
        if stripped.startswith("{"):
            members = json.loads(stripped)
            return {name: value for name, value in members.items() if isinstance(value, str)}
        cells = next(csv.reader([stripped], skipinitialspace=True)) if '"' in stripped else []
    except (ValueError, RecursionError, csv.Error):
        return {}
    return dict(zip(map(str, range(len(cells))), cells, strict=True))


# -- numbers ------------------------------------------------------------------------------------------------


def whole(text: str) -> int | None:
    """Return the whole number that ``text`` spells in at most 18 digits; None for anything else."""
    return int(text) if _WHOLE.fullmatch(text) else None


@dataclass(frozen=True)
class PrintedFigure:
    """A number as printed, times its unit; ``half_unit`` is what rounding may have changed it by."""

    value: float
    half_unit: float

    def times(self, factor: float) -> PrintedFigure:
        """Return the same figure in a unit that is ``factor`` times smaller."""
        return PrintedFigure(self.value * factor, self.half_unit * factor)

    def over(self, divisor: float) -> PrintedFigure:
        """Return the same figure in a larger unit: rounded once only, unlike ``times(1 / divisor)``."""
        return PrintedFigure(self.value / divisor, self.half_unit / divisor)


def figure(text: str) -> PrintedFigure | None:
    """Return the figure that ``text`` spells; None for none, a negative one, and one too large to hold."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    value, exponent = float(text), int(match[2] or 0) - len(match[1] or "")
    if not math.isfinite(value) or value < 0 or not -300 < exponent < 300:
        return None
    # Half a unit of the last digit: 10.50 is known to 0.005, 1e3 to 500.
    return PrintedFigure(value, 0.5 * 10.0**exponent)


def decimal(text: str) -> float | None:
    """Return the value of ``figure(text)``."""
    number = figure(text)
    return number.value if number else None


def ranges(text: str) -> tuple[tuple[int, int], ...] | None:
    """Return a Linux list such as ``0-13,28-41`` as (first, last) pairs; None where it is none.

    Ranges are not expanded, so that a damaged number cannot fill the memory.
    """
    pairs = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            return None
        pairs.append((int(match[1]), int(match[2] or match[1])))
    return tuple(pairs)
