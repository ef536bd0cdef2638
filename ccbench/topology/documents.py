"""Strict YAML and JSON: text in, plain values out, every problem one line with its place.

Strict means: no key twice, no anchors or merges (a few lines of them can stand for gigabytes), no NaN, no
dates or binary, nothing above a size limit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.errors import MachineError
from ccbench.units import shown

if TYPE_CHECKING:
    import yaml

LARGEST_JSON_BYTES = 64 << 20
"""A cluster of 4,096 vertices with all its links stays below this."""

LARGEST_YAML_BYTES = 4 << 20
"""YAML is for people; it is read about twenty times slower than JSON."""

DEEPEST = 64
"""Levels of nesting; attributes of a device need two or three."""


def read_document(path: str | Path) -> Any:
    """The plain value of a ``.json``, ``.yaml`` or ``.yml`` file. Raises MachineError."""
    where = Path(path)
    is_json = where.suffix.lower() == ".json"
    if not is_json and where.suffix.lower() not in {".yaml", ".yml"}:
        raise MachineError(f"{where}: is neither .json nor .yaml; name a topology file of one of these kinds")
    limit = LARGEST_JSON_BYTES if is_json else LARGEST_YAML_BYTES
    try:
        with where.open("rb") as file:
            content = file.read(limit + 1)
        text = content.decode()
    except OSError as error:
        raise MachineError(f"{where}: cannot be read ({error.strerror}); name a topology file") from None
    except (UnicodeDecodeError, ValueError):
        raise MachineError(f"{where}: is not UTF-8 text; a topology file is JSON or YAML") from None
    return parse_json(text, str(where)) if is_json else parse_yaml(text, str(where))


def parse_json(text: str, place: str) -> Any:
    """Plain value of JSON text; ``place`` begins every error. Raises MachineError."""
    _check_length(text, LARGEST_JSON_BYTES, place)

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number of JSON")

    try:
        plain = json.loads(text, object_pairs_hook=_unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        problem = _spoken(problem)
        raise MachineError(f"{place}: not valid JSON ({problem}); mend the text there") from None
    check_plain(plain, place)
    return plain


def parse_yaml(text: str, place: str) -> Any:
    """Plain value of YAML text; ``place`` begins every error. Raises MachineError."""
    plain = strict_yaml(text, place)
    check_plain(plain, place)
    return plain


def strict_yaml(text: str, place: str) -> Any:
    """The same with whatever YAML can say: numbers that are not finite, too."""
    import yaml

    _check_length(text, LARGEST_YAML_BYTES, place)
    try:
        _check_events(text, place)
        return yaml.load(text, Loader=_strict_loader())
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        problem = _spoken(" ".join(str(getattr(error, "problem", None) or error).split()))
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark is not None else ""
        raise MachineError(f"{place}:{line} not valid YAML ({problem}); mend the text there") from None


def yaml_text(plain: Any) -> str:
    """YAML that ``parse_yaml`` reads back."""
    import yaml

    class Plain(yaml.SafeDumper):
        """The safe dumper without anchors, which the reader refuses."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    # Everything but ASCII is escaped, so that no editor or locale can change a name. Width: no folded lines.
    return yaml.dump(plain, Dumper=Plain, sort_keys=False, allow_unicode=False, width=10**9)


def _spoken(problem: str) -> str:
    """Python's own words for a number of too many digits advise its programmer, not the file's author."""
    return "a number has more digits than any quantity" if "int_max_str_digits" in problem else problem


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
                    raise MachineError(f"{where}: key {shown(key)} is not text; write it in quotes")
            waiting += [(part[key], f"{where}.{key}", depth + 1) for key in part]
        elif isinstance(part, list):
            waiting += [(entry, f"{where}[{index}]", depth + 1) for index, entry in enumerate(part)]
        elif isinstance(part, float):
            if not math.isfinite(part):
                raise MachineError(f"{where}: {part} is not a finite number; leave it out or write null")
        elif not (part is None or type(part) in {str, bool, int}):
            raise MachineError(f"{where}: {shown(part)} is not a JSON value; write text in quotes")


def _check_length(text: str, limit: int, place: str) -> None:
    if len(text) > limit:
        raise MachineError(f"{place}: is larger than {limit} bytes; a topology file is not")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"{shown(twice)} is given twice")
    return mapping


def _check_events(text: str, place: str) -> None:
    """Depth and anchors are looked at event by event, for building the value recurses without a limit."""
    import yaml

    # The C parser refuses nothing that the Python one takes, and is some ten times faster.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        line = event.start_mark.line + 1 if event.start_mark else 0
        if depth > DEEPEST:
            raise MachineError(f"{place}: line {line}: nested more than {DEEPEST} levels deep; flatten it")
        if isinstance(event, yaml.AliasEvent):
            raise MachineError(f"{place}: line {line}: aliases (*name) are not read; write the value out")


def _strict_loader() -> type[yaml.SafeLoader]:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class StrictLoader(base):  # type: ignore[misc]  # which of the two loaders is known at run time only
        """The safe loader, which would let the last of two equal keys win, made to refuse them."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[Hashable] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, Hashable) or key in seen:
                    problem = "is given twice" if isinstance(key, Hashable) else "cannot be a key"
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{shown(key)} {problem}", key_node.start_mark
                    )
                seen.add(key)
            mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
            return mapping

    loader: type[yaml.SafeLoader] = StrictLoader
    return loader
