"""YAML text to a plain tree of dicts, lists and scalars, with the line of every key and item.

A suite needs a small part of YAML, and every other part is a way to surprise: aliases can make a kilobyte
expand to gigabytes, tags can name Python objects, YAML 1.1 reads ``8:30`` as 510 and ``no`` as false,
and parsers let a later duplicate key win in silence. So the events of the parser are composed here,
strictly, with the scalars of YAML 1.2's core schema. The bounds below keep any input under a second.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import SuiteError
from ccbench.units import shown

MOST_BYTES = 256 * 1024
DEEPEST_NESTING = 20
MOST_NODES = 10_000
MOST_DIGITS = 18


@dataclass(frozen=True)
class FileKind:
    """What a file holds, for what is said about it. name: of one such file; least: what it must say."""

    name: str
    least: str


SUITE_FILE = FileKind("suite", "at least 'sweep:' with a collective")

Path = tuple[str | int, ...]
"""Where a value sits in the tree: ``("sweep", "size", 3)``."""

_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


def path_text(path: Path) -> str:
    """``("sweep", "size", 3)`` as ``sweep.size[3]``; keys that are no plain words are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            word = step if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", step) else shown(step)
            text += f".{word}" if text else word
    return text


@dataclass(frozen=True)
class Origin:
    """Which file a suite or plan came from, and on which line each of its values stands.

    Two origins are always equal: the same suite read from two places is the same suite.
    """

    place: str = field(default="suite", compare=False)
    lines: Mapping[Path, int] = field(default_factory=dict, compare=False)

    def _in_file(self, path: Path) -> Path:
        """``path`` without the index of a sweep that the file writes as one mapping, not as a list."""
        listed = path[:2] != ("sweep", 0) or not self.lines or ("sweep", 0) in self.lines
        return path if listed else ("sweep", *path[2:])

    def line(self, path: Path) -> int | None:
        """The line of the value at ``path``, or of its nearest parent."""
        path = self._in_file(path)
        ends = range(len(path), -1, -1)
        return next((self.lines[path[:end]] for end in ends if path[:end] in self.lines), None)

    def error(self, path: Path, message: str) -> SuiteError:
        """``suites/x.yaml:7: sweep.size[3]: message``, with the line of the nearest known parent."""
        line = self.line(path)
        where = self.place if line is None else f"{self.place}:{line}"
        return SuiteError(
            ": ".join(part for part in (where, path_text(self._in_file(path)), message) if part)
        )


@dataclass(frozen=True)
class Document:
    """What a suite file says: a tree of dicts, lists, str, int, float, bool and None, and its origin."""

    tree: Any
    origin: Origin


def read_document(content: bytes, place: str, kind: FileKind = SUITE_FILE) -> Document:
    """Parse the bytes of a suite file, or of another kind that is written like one.

    SuiteError (one line, beginning with ``place``) for anything odd.
    """
    composer = _Composer(place, kind)
    try:
        tree = composer.document(_decoded(content, place, kind))
    except SuiteError:
        raise
    # A parser fed with arbitrary text may fail in ways of its own; for a user it is one thing.
    except (ValueError, RecursionError, OverflowError) as problem:
        raise SuiteError(f"{place}: is not YAML: {shown(str(problem))}") from None
    return Document(tree, Origin(place, composer.lines))


def _decoded(content: bytes, place: str, kind: FileKind) -> str:
    if len(content) > MOST_BYTES:
        raise SuiteError(f"{place}: is larger than {MOST_BYTES // 1024} KiB; a {kind.name} is a page of YAML")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise SuiteError(f"{place}:{line}: is not UTF-8 text; save the file as UTF-8") from None
    for line, row in enumerate(text.split("\n"), 1):
        if not row.isprintable():
            _refuse_control_characters(row.removesuffix("\r"), f"{place}:{line}")
    return text


def _refuse_control_characters(row: str, where: str) -> None:
    for character in row:
        # Cf holds the invisible marks that reorder or hide text; line separators end a YAML line.
        if character != "\t" and unicodedata.category(character) in (
            "Cc",
            "Cf",
            "Cs",
            "Co",
            "Cn",
            "Zl",
            "Zp",
        ):
            raise SuiteError(f"{where}: holds the invisible character U+{ord(character):04X}; delete it")


class _Composer:
    """Builds the tree from the parser's events; ``lines`` fills up on the way."""

    def __init__(self, place: str, kind: FileKind) -> None:
        self.place = place
        self.kind = kind
        self.lines: dict[Path, int] = {}
        self.nodes = 0

    def document(self, text: str) -> Any:
        import yaml

        # libyaml's parser where PyYAML was built with it, else the same grammar in Python, 10 times slower.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            events = yaml.parse(text, Loader=loader)
            documents = 0
            tree: Any = None
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        message = f"a second document starts; a file holds one {self.kind.name}"
                        raise self.error((), event, message)
                elif isinstance(event, yaml.NodeEvent):
                    tree = self.node(event, events, ())
        except yaml.MarkedYAMLError as problem:
            raise self.syntax_error(problem) from None
        except yaml.YAMLError as problem:
            raise SuiteError(f"{self.place}: is not YAML: {shown(str(problem))}") from None
        if not documents:
            raise SuiteError(f"{self.place}: is empty; write {self.kind.least}")
        return tree

    def syntax_error(self, problem: Any) -> SuiteError:
        mark = problem.problem_mark or problem.context_mark
        where = f"{self.place}:{mark.line + 1}" if mark else self.place
        parts = [text for text in (problem.context, problem.problem) if text]
        return SuiteError(f"{where}: is not YAML: {', '.join(parts)[:200]}; check indentation and quotes")

    def error(self, path: Path, event: Any, message: str) -> SuiteError:
        lines = {**self.lines, path: _line(event)}
        return Origin(self.place, lines).error(path, message)

    def node(self, event: Any, events: Iterator[Any], path: Path) -> Any:
        import yaml

        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise self.error(path, event, f"more than {MOST_NODES} values; write ranges instead of lists")
        if len(path) > DEEPEST_NESTING:
            message = f"nested deeper than {DEEPEST_NESTING} levels; a {self.kind.name} needs 4"
            raise self.error((), event, message)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self.error(path, event, "anchors and aliases are not read; write the value out")
        if event.tag is not None:
            tag = shown(event.tag.replace("tag:yaml.org,2002:", "!!"))
            raise self.error(path, event, f"the tag {tag} is not read; write the plain value")
        self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self.node(item, events, (*path, index)) for index, item in enumerate(_until_end(events))]
        return self.mapping(events, path)

    def mapping(self, events: Iterator[Any], path: Path) -> dict[str, Any]:
        import yaml

        tree: dict[str, Any] = {}
        for key in _until_end(events):
            if not isinstance(key, yaml.ScalarEvent) or key.anchor is not None or key.tag is not None:
                raise self.error(path, key, "a key is not a plain word; write 'key: value'")
            here = (*path, key.value)
            if key.value in tree:
                first = self.lines[here]
                self.lines[here] = _line(key)
                raise self.error(here, key, f"the key is given twice, first on line {first}; keep one")
            self.lines[here] = _line(key)
            tree[key.value] = self.node(next(events), events, here)
        return tree

    def scalar(self, event: Any, path: Path) -> Any:
        text = event.value
        if not event.implicit[0]:
            return text  # quoted: text, whatever it looks like
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return int(self.bounded(text, event, path))
        if _NOT_FINITE.fullmatch(text):
            raise self.error(path, event, f"{shown(text)} is not a number to work with; write a finite one")
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                raise self.error(path, event, f"{shown(text)} is too large; write a finite number")
            return number
        return text

    def bounded(self, text: str, event: Any, path: Path) -> str:
        if len(text.lstrip("+-0")) > MOST_DIGITS:
            raise self.error(path, event, f"a number of more than {MOST_DIGITS} digits; write a smaller one")
        return text


def _until_end(events: Iterator[Any]) -> Iterator[Any]:
    """The next events up to the end of the collection; the caller takes an event's own inside from them."""
    import yaml

    for event in events:
        if isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            return
        yield event


def _line(event: Any) -> int:
    """The event's line, counted from 1."""
    return int(event.start_mark.line) + 1
