"""Documents that people write: strict YAML and JSON to plain dicts, lists and scalars, and back.

Files need a small part of YAML, and every other part is a way to surprise: aliases can make a kilobyte expand
to gigabytes, tags can name Python objects, YAML 1.1 reads ``8:30`` as 510 and ``no`` as false, and parsers
let a later duplicate key win in silence. So the events of the parser are composed here, strictly, with the
scalars of YAML 1.2's core schema and the line of every key and item. Bounds of size, depth and digits keep
any suite under a second.
"""

from __future__ import annotations

import errno
import io
import json
import math
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeVar

from ccbench.errors import CcbenchError, MachineError, SuiteError
from ccbench.units import shown

T = TypeVar("T")

MOST_BYTES = 256 * 1024
MOST_NODES = 10_000
DEEPEST = 64
"""Levels of nesting in JSON; attributes of a device need two or three."""

LARGEST_JSON_BYTES = 64 << 20
"""A cluster of 4,096 vertices with all its links stays below this."""

LARGEST_YAML_BYTES = 4 << 20
"""Of a machine. YAML is for people; it is read about twenty times slower than JSON."""


@dataclass(frozen=True)
class FileKind:
    """Kind of contents of a file, for words about it, and its bounds.

    name: of one such file; least: what it must say; usual: its size; raises: the error for anything odd.
    """

    name: str
    least: str
    usual: str = "a page of YAML"
    raises: type[CcbenchError] = SuiteError
    most_bytes: int = MOST_BYTES
    most_nodes: int = MOST_NODES
    most_digits: int = 18
    deepest: int = 20


SUITE_FILE = FileKind("suite", "at least 'sweep:' with a collective")

MACHINE_FILE = FileKind(
    "description of a machine",
    "keys with values",
    "smaller",
    MachineError,
    most_bytes=LARGEST_YAML_BYTES,
    most_nodes=LARGEST_YAML_BYTES,
    most_digits=4000,
    deepest=DEEPEST,
)
"""Of topologies, machines and clusters."""

Steps = tuple[str | int, ...]
"""Path of a value in the tree: ``("sweep", "size", 3)``."""

_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Cf holds the marks that reorder or hide text; line separators, Zl and Zp, end a YAML line."""


def path_text(path: Steps) -> str:
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
class FileOrigin:
    """File that a suite or plan came from, and the line on which each of its values stands.

    Two origins are always equal: the same suite read from two places is the same suite.
    """

    place: str = field(default="suite", compare=False)
    lines: Mapping[Steps, int] = field(default_factory=dict, compare=False)
    raises: type[CcbenchError] = field(default=SuiteError, compare=False)

    def _in_file(self, path: Steps) -> Steps:
        """``path`` without the index of a sweep that the file writes as one mapping, not as a list."""
        listed = path[:2] != ("sweep", 0) or not self.lines or ("sweep", 0) in self.lines
        return path if listed else ("sweep", *path[2:])

    def line(self, path: Steps) -> int | None:
        """The line of the value at ``path``, or of its nearest parent."""
        path = self._in_file(path)
        ends = range(len(path), -1, -1)
        return next((self.lines[path[:end]] for end in ends if path[:end] in self.lines), None)

    def error(self, path: Steps, message: str) -> CcbenchError:
        """``suites/x.yaml:7: sweep.size[3]: message``, with the line of the nearest known parent."""
        line = self.line(path)
        where = self.place if line is None else f"{self.place}:{line}"
        text = ": ".join(
            part for part in (where, path_text(self._in_file(path)), message) if part
        )
        return self.raises(text)


@dataclass(frozen=True)
class Document:
    """Contents of a suite file: a tree of dicts, lists, str, int, float, bool and None, and its origin."""

    tree: Any
    origin: FileOrigin


def read_document(content: bytes, place: str, kind: FileKind = SUITE_FILE) -> Document:
    """Parse the bytes of a YAML file; its kind's error, one line that begins with ``place``, for anything
    odd.
    """
    if len(content) > kind.most_bytes:
        limit = f"{kind.most_bytes // 1024} KiB"
        raise kind.raises(f"{place}: is larger than {limit}; a {kind.name} is {kind.usual}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise kind.raises(
            f"{place}:{line}: is not UTF-8 text; save the file as UTF-8"
        ) from None
    for line, row in enumerate(text.split("\n"), 1):
        for character in "" if row.isprintable() else row.removesuffix("\r"):
            if character != "\t" and unicodedata.category(character) in _INVISIBLE:
                code = f"U+{ord(character):04X}"
                raise kind.raises(
                    f"{place}:{line}: holds the invisible character {code}; delete it"
                )
    composer = _Composer(place, kind)
    try:
        tree = composer.document(text)
    except CcbenchError:
        raise
    # A parser fed with arbitrary text may fail in ways of its own; for a user it is one thing.
    except (ValueError, RecursionError, OverflowError) as problem:
        raise kind.raises(f"{place}: is not YAML: {shown(str(problem))}") from None
    return Document(tree, FileOrigin(place, composer.lines, kind.raises))


class _Composer:
    """Builds the tree from the parser's events; ``lines`` fills up on the way."""

    def __init__(self, place: str, kind: FileKind) -> None:
        self.place = place
        self.kind = kind
        self.lines: dict[Steps, int] = {}
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
            raise self.syntax_error(problem, text) from None
        except yaml.YAMLError as problem:
            raise self.kind.raises(
                f"{self.place}: is not YAML: {shown(str(problem))}"
            ) from None
        if not documents:
            raise self.kind.raises(f"{self.place}: is empty; write {self.kind.least}")
        return tree

    def syntax_error(self, problem: Any, text: str) -> CcbenchError:
        mark = problem.problem_mark or problem.context_mark
        where = f"{self.place}:{mark.line + 1}" if mark else self.place
        # Parsers read ahead, and some have a limit of nesting of their own, which they reach before ``node``.
        steps = (
            (letter in "[{") - (letter in "]}")
            for letter in text[: mark.index if mark else None]
        )
        if max(accumulate(steps), default=0) > self.kind.deepest:
            return self.kind.raises(f"{where}: {self.too_deep()}")
        parts = [text for text in (problem.context, problem.problem) if text]
        return self.kind.raises(
            f"{where}: is not YAML: {', '.join(parts)[:200]}; check indentation and quotes"
        )

    def too_deep(self) -> str:
        return f"nested deeper than {self.kind.deepest} levels; a {self.kind.name} needs 4"

    def error(self, path: Steps, event: Any, message: str) -> CcbenchError:
        lines = {**self.lines, path: _line(event)}
        return FileOrigin(self.place, lines, self.kind.raises).error(path, message)

    def node(self, event: Any, events: Iterator[Any], path: Steps) -> Any:
        import yaml

        self.nodes += 1
        if self.nodes > self.kind.most_nodes:
            raise self.error(
                path,
                event,
                f"more than {self.kind.most_nodes} values; write ranges instead of lists",
            )
        if len(path) > self.kind.deepest:
            raise self.error((), event, self.too_deep())
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self.error(
                path, event, "anchors and aliases are not read; write the value out"
            )
        if event.tag is not None:
            tag = shown(event.tag.replace("tag:yaml.org,2002:", "!!"))
            raise self.error(path, event, f"the tag {tag} is not read; write the plain value")
        self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            return [
                self.node(item, events, (*path, index))
                for index, item in enumerate(_until_end(events))
            ]
        return self.mapping(events, path)

    def mapping(self, events: Iterator[Any], path: Steps) -> dict[str, Any]:
        import yaml

        tree: dict[str, Any] = {}
        for key in _until_end(events):
            if (
                not isinstance(key, yaml.ScalarEvent)
                or key.anchor is not None
                or key.tag is not None
            ):
                raise self.error(path, key, "a key is not a plain word; write 'key: value'")
            here = (*path, key.value)
            if key.value in tree:
                first = self.lines[here]
                self.lines[here] = _line(key)
                raise self.error(
                    here, key, f"the key is given twice, first on line {first}; keep one"
                )
            self.lines[here] = _line(key)
            tree[key.value] = self.node(next(events), events, here)
        return tree

    def scalar(self, event: Any, path: Steps) -> Any:
        text = event.value
        if not event.implicit[0]:
            return text  # quoted: text, whatever it looks like
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return int(self.bounded(text, event, path))
        if _NOT_FINITE.fullmatch(text):
            raise self.error(
                path, event, f"{shown(text)} is not a number to work with; write a finite one"
            )
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                raise self.error(
                    path, event, f"{shown(text)} is too large; write a finite number"
                )
            return number
        return text

    def bounded(self, text: str, event: Any, path: Steps) -> str:
        most = self.kind.most_digits
        if len(text.lstrip("+-0")) > most:
            raise self.error(
                path, event, f"a number of more than {most} digits; write a smaller one"
            )
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


# -- descriptions of machines, in YAML or JSON -------------------------------------------------------------


def open_file(path: Path) -> io.BufferedReader:
    """Open a file to read its bytes; OSError of a pipe or a device too, which may never come to an end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "a pipe or a device and no file")
    return path.open("rb")


def read_machine_document(path: str | Path) -> Any:
    """The plain value of a ``.json``, ``.yaml`` or ``.yml`` file. Raises MachineError."""
    where = Path(path)
    is_json = where.suffix.lower() == ".json"
    if not is_json and where.suffix.lower() not in {".yaml", ".yml"}:
        raise MachineError(
            f"{where}: is neither .json nor .yaml; name a file of one of these kinds"
        )
    limit = LARGEST_JSON_BYTES if is_json else LARGEST_YAML_BYTES
    try:
        with open_file(where) as file:
            content = file.read(limit + 1)
        text = content.decode()
    except OSError as error:
        raise MachineError(
            f"{where}: cannot be read ({error.strerror}); name a machine's file"
        ) from None
    except (UnicodeDecodeError, ValueError):
        raise MachineError(
            f"{where}: is not UTF-8 text; a {MACHINE_FILE.name} is JSON or YAML"
        ) from None
    try:
        return parse_json(text, str(where)) if is_json else parse_yaml(text, str(where))
    except MachineError as error:
        ships = "; it is part of ccbench: reinstall that" if PACKAGE in where.parents else ""
        raise MachineError(f"{error}{ships}") from None


def parse_json(text: str, place: str) -> Any:
    """Plain value of JSON text; ``place`` begins every error. Raises MachineError."""
    if len(text) > LARGEST_JSON_BYTES:
        raise MachineError(
            f"{place}: is larger than {LARGEST_JSON_BYTES} bytes; no {MACHINE_FILE.name} is"
        )

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number of JSON")

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1:
                raise ValueError(f"{shown(key)} is given twice")
        return dict(pairs)

    try:
        plain = json.loads(text, object_pairs_hook=mapping, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        problem = (
            "nested too deeply"
            if isinstance(error, RecursionError)
            else " ".join(str(error).split())
        )
        if (
            "int_max_str_digits" in problem
        ):  # Python's own words advise its programmer, not the file's author
            problem = "a number has more digits than any quantity"
        raise MachineError(
            f"{place}: not valid JSON ({problem}); mend the text there"
        ) from None
    check_plain(plain, place)
    return plain


def parse_yaml(text: str, place: str) -> Any:
    """Plain value of YAML text about a machine; ``place`` begins every error. Raises MachineError."""
    return read_document(text.encode("utf-8", "surrogatepass"), place, MACHINE_FILE).tree


def yaml_text(plain: Any) -> str:
    """YAML that ``parse_yaml`` reads back."""
    import yaml

    class Plain(yaml.SafeDumper):
        """The safe dumper without anchors, which the reader refuses."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def quoted(dumper: Any, text: str) -> Any:
        # PyYAML's own rules are those of YAML 1.1, which takes 1e3 for text.
        number = (
            _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text)
        )
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style='"' if number else None
        )

    Plain.add_representer(str, quoted)
    # Everything but ASCII is escaped, so that no editor or locale can change a name. Width: no folded lines.
    return yaml.dump(plain, Dumper=Plain, sort_keys=False, allow_unicode=False, width=10**9)


def check_plain(value: Any, place: str) -> None:
    """MachineError unless ``value`` is made of what JSON can say and give back unchanged."""
    waiting: list[tuple[Any, str, int]] = [(value, place, 0)]
    while waiting:
        part, where, depth = waiting.pop()
        if depth > DEEPEST:
            raise MachineError(f"{where}: nested more than {DEEPEST} levels deep; flatten it")
        if isinstance(part, dict):
            for key in part:
                if type(key) is not str:
                    raise MachineError(
                        f"{where}: key {shown(key)} is not text; write it in quotes"
                    )
            waiting += [(part[key], f"{where}.{key}", depth + 1) for key in part]
        elif isinstance(part, list):
            waiting += [
                (entry, f"{where}[{index}]", depth + 1) for index, entry in enumerate(part)
            ]
        elif isinstance(part, float):
            if not math.isfinite(part):
                raise MachineError(
                    f"{where}: {part} is not a finite number; leave it out or write null"
                )
        elif not (part is None or type(part) in {str, bool, int}):
            raise MachineError(
                f"{where}: {shown(part)} is not a JSON value; write text in quotes"
            )


STRICT = {"extra": "forbid", "allow_inf_nan": False}
"""Settings with which pydantic reads a dataclass from a file; a plain dict, so that importing needs no pydantic."""


def typed(kind: type[T], plain: object, place: str | Path) -> T:
    """Plain values as a dataclass, nothing converted; MachineError, one line that begins with ``place``."""
    from pydantic import TypeAdapter, ValidationError

    try:
        # Through JSON, because only there does strict checking take a list for a tuple.
        return TypeAdapter(kind).validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    except (TypeError, MachineError) as error:
        raise MachineError(f"{place}: {error}") from None
    where = path_text(first["loc"]) or "the file"
    if first["type"] == "unexpected_keyword_argument":
        raise MachineError(f"{place}: {where} is not a field; remove it")
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] != "missing":
        message += f"; seen {shown(first['input'])}"
    if isinstance(first["input"], str) and first["type"] in {"float_type", "int_type"}:
        message += "; write numbers without quotes"
    raise MachineError(f"{place}: {where}: {message}")


# -- what ships with the code ------------------------------------------------------------------------------

PACKAGE = Path(__file__).resolve().parent

END = "\n...\n"
"""Last line of the package's YAML files: the end mark of a document, by which a file that was cut shows."""


@cache
def read_installed(path: Path, make: Callable[[Any], T] = lambda plain: plain) -> T:
    """Return what ``make`` makes of the content of ``path``, a YAML file of the package.

    Raises MachineError, one line with the file and the cure, where it is missing, cut off or damaged.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        plain = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if not text.endswith(END):
            raise ValueError("its end is missing")
        return make(plain)
    except OSError as error:
        reason = str(error.strerror)
    except (
        yaml.YAMLError,
        MachineError,
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
    raise MachineError(f"{path}: missing or damaged ({reason}); reinstall ccbench")


def shipped_folder(
    name: Literal["suites", "kernels", "results"], package: Path = PACKAGE
) -> Path:
    """The folder called ``name``: the copy inside an installed package, else the one of the checkout.

    package: the folder of the ``ccbench`` package.
    Raises CcbenchError when neither is there, which means a broken installation.
    """
    installed = package / "_shipped" / name
    checkout = package.parent / name
    if installed.is_dir():
        return installed
    # Beside an installed package lies site-packages, where a folder called "results" is not ours.
    if checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return checkout
    raise CcbenchError(
        f"{installed}: the shipped folder {name!r} is missing, and {checkout} is not a checkout's; "
        "install ccbench again"
    )


OF_TIMES = {"op_name", "num_gpus", "message_size", "latency"}
"""Columns of the tables that ai-dynamo/aiconfigurator collects."""

MOST_ROWS = 200_000


def times_text(name: str, content: bytes) -> str:
    """Return a table of times in a parquet file as lines with commas; "" for any other content.

    Where it has no columns of them, device, framework and version are what ``name`` says, as in
    ``h100_sxm__nccl__2.23__nccl_perf.parquet``.
    """
    if content[:4] != b"PAR1":
        return ""
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

    try:
        with pq.ParquetFile(pa.BufferReader(content)) as parquet:
            columns, rows = parquet.schema_arrow.names, parquet.metadata.num_rows
            if not {*columns} >= OF_TIMES or rows > MOST_ROWS:
                return ""
            frame = parquet.read().to_pandas()
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        return ""
    words = name.split("__")
    for column, word in zip(("device", "framework", "version"), words[:-1], strict=False):
        if column not in columns:
            frame[column] = word.replace("_", " ")
    return str(frame.to_csv(index=False))
