"""A Topology as a JSON or YAML file and back, without loss.

The file says ``ccbench_topology: 1`` and then what the Topology holds, field by field; the matrix is a list
of [from, to, label]. Fields with their default may be left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

from ccbench.errors import MachineError
from ccbench.suite.documents import check_plain, parse_json, parse_yaml, yaml_text
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    LinkState,
    SourceWarning,
    Topology,
    TopologyClass,
)
from ccbench.units import shown

VERSION = 1
"""Of the file's form; a reader refuses any other."""

VERSION_KEY = "ccbench_topology"

MOST_LINKS = 1_000_000
"""Equal links between two devices; a trunk between switches of the largest fabrics has thousands."""

LARGEST_QUANTITY = 1e18
"""Bytes per second of a million links of a terabyte per second each."""

MOST_MACHINES = 100_000_000
"""Machines that a file may say its graph stands for."""

Check = Callable[[Any, str], Any]


def topology_json(topology: Topology) -> str:
    """JSON text that ``read_json`` reads back; MachineError where a value has no JSON form."""
    return json.dumps(to_plain(topology), indent=1) + "\n"


def topology_yaml(topology: Topology) -> str:
    """YAML text that ``read_yaml`` reads back; MachineError where a value has no JSON form."""
    return yaml_text(to_plain(topology))


def read_json(text: str, place: str = "JSON text") -> Topology:
    """The topology in JSON text. Raises MachineError whose line begins with ``place``."""
    return from_plain(parse_json(text, place), place)


def read_yaml(text: str, place: str = "YAML text") -> Topology:
    """The topology in YAML text. Raises MachineError whose line begins with ``place``."""
    return from_plain(parse_yaml(text, place), place)


def to_plain(topology: Topology) -> dict[str, Any]:
    """The topology as dicts, lists, text and numbers; defaults are left out."""
    plain: dict[str, Any] = {VERSION_KEY: VERSION, **_sparse(topology)}
    if topology.matrix:
        plain["matrix"] = [[*pair, label] for pair, label in topology.matrix.items()]
    for name in ("devices", "links", "warnings"):
        if name in plain:
            plain[name] = [_sparse(entry) for entry in plain[name]]
    check_plain(plain, f"topology {shown(topology.name)}")
    # What cannot be read back must not be written.
    from_plain(plain, f"topology {shown(topology.name)}")
    return plain


def _sparse(value: Any) -> dict[str, Any]:
    """Fields that differ from their default; 1 and 1.0 and True are told apart, as JSON does."""
    plain: dict[str, Any] = {}
    for entry in fields(value):
        content = getattr(value, entry.name)
        if isinstance(content, Mapping):
            if content:
                plain[entry.name] = dict(content)
        elif entry.default is MISSING or content != entry.default:
            plain[entry.name] = content.value if isinstance(content, Enum) else content
    return plain


def from_plain(plain: Any, place: str) -> Topology:
    """The topology that ``to_plain`` took apart. Raises MachineError whose line begins with ``place``."""
    mapping = dict(_mapping(plain, place))
    if VERSION_KEY not in mapping:
        raise MachineError(
            f"{place}: the key {VERSION_KEY} is missing; this release reads '{VERSION_KEY}: {VERSION}'"
        )
    version = mapping.pop(VERSION_KEY)
    if type(version) is not int or version != VERSION:
        raise MachineError(
            f"{place}: {VERSION_KEY} is {shown(version)}; this release reads '{VERSION_KEY}: {VERSION}'"
        )
    topology = Topology(**_checked(mapping, TOPOLOGY, ("name", "devices"), place))
    machines = topology.facts.get("machines", 1)
    if type(machines) is int and machines > MOST_MACHINES:
        raise _wrong(machines, f"{place}.facts.machines", f"a whole number up to {MOST_MACHINES}")
    # Names are looked up by every reader of a graph, so each is there once and no link leads to nowhere.
    names: set[str] = set()
    for index, device in enumerate(topology.devices):
        if device.name in names:
            raise MachineError(
                f"{place}.devices[{index}].name: {shown(device.name)} is given twice; rename it"
            )
        names.add(device.name)
    for index, link in enumerate(topology.links):
        for end in ("source", "target"):
            if getattr(link, end) not in names:
                seen = shown(getattr(link, end))
                raise MachineError(
                    f"{place}.links[{index}].{end}: {seen} is not a device; name one of devices"
                )
    return topology


def _checked(
    mapping: Mapping[str, Any], checks: Mapping[str, Check], required: tuple[str, ...], place: str
) -> dict[str, Any]:
    missing = [name for name in required if name not in mapping]
    if missing:
        raise MachineError(f"{place}: {missing[0]} is missing; give it")
    for name in mapping:
        if name not in checks:
            raise MachineError(f"{place}: {shown(name)} is not a field; one of {', '.join(checks)}")
    return {name: checks[name](value, f"{place}.{name}") for name, value in mapping.items()}


def _wrong(value: Any, place: str, expected: str) -> MachineError:
    return MachineError(f"{place}: {shown(value)} is not {expected}; write {expected}")


def _mapping(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(type(key) is str for key in value):
        raise _wrong(value, place, "a mapping with names as keys")
    return dict(value)


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, place, "text")
    return value


def _name(value: Any, place: str) -> str:
    if not _text(value, place):
        raise MachineError(f"{place}: empty; give a name")
    return str(value)


def _whole(lowest: int | None, most: int | None = None) -> Check:
    bounds = "" if lowest is None else f", {lowest} or more" if most is None else f", {lowest} to {most}"

    def check(value: Any, place: str) -> int:
        # JSON tells true from 1, so a truth value is no number.
        if type(value) is not int or not (-math.inf if lowest is None else lowest) <= value <= (
            most or math.inf
        ):
            raise _wrong(value, place, f"a whole number{bounds}")
        return value

    return check


def _quantity(value: Any, place: str) -> float:
    """Return a number, zero or more."""
    # The usual slip: quotes make text of a number.
    cure = ", without quotes" if isinstance(value, str) else ""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, OverflowError):
        number = math.nan
    if not (number >= 0 and math.isfinite(number)):
        raise _wrong(value, place, f"a number, zero or more{cure}")
    if number > LARGEST_QUANTITY:
        raise _wrong(value, place, f"a number up to {LARGEST_QUANTITY:g}, in bytes per second or seconds")
    return number


def _or_none(check: Check) -> Check:
    return lambda value, place: None if value is None else check(value, place)


def _one_of(kind: type[Enum]) -> Check:
    def check(value: Any, place: str) -> Enum:
        words = [str(member.value) for member in kind]
        if not isinstance(value, str) or value not in words:
            raise MachineError(f"{place}: {shown(value)} is not known; one of {', '.join(words)}")
        return kind(value)

    return check


def _list_of(entry_check: Check) -> Check:
    def check(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise _wrong(value, place, "a list")
        return tuple(entry_check(entry, f"{place}[{index}]") for index, entry in enumerate(value))

    return check


def _matrix(value: Any, place: str) -> dict[tuple[str, str], str]:
    matrix: dict[tuple[str, str], str] = {}
    for index, words in enumerate(_list_of(_list_of(_text))(value, place)):
        if len(words) != 3:
            raise _wrong(list(words), f"{place}[{index}]", "[from, to, label]")
        if words[:2] in matrix:
            raise MachineError(f"{place}[{index}]: {words[0]} to {words[1]} is given twice; keep one")
        matrix[words[:2]] = words[2]
    return matrix


def _built(kind: Callable[..., Any], checks: Mapping[str, Check], required: tuple[str, ...]) -> Check:
    return lambda value, place: kind(**_checked(_mapping(value, place), checks, required, place))


DEVICE: Mapping[str, Check] = {
    "name": _name,
    "kind": _one_of(DeviceKind),
    "node": _whole(-1),
    "bus_id": _text,
    "numa_node": _or_none(_whole(None)),
    "attributes": _mapping,
}

LINK: Mapping[str, Check] = {
    "source": _name,
    "target": _name,
    "kind": _one_of(LinkKind),
    "bytes_per_second": _or_none(_quantity),
    "latency_seconds": _or_none(_quantity),
    "count": _whole(1, MOST_LINKS),
    "state": _one_of(LinkState),
    "origin": _text,
    "attributes": _mapping,
}

SOURCE_WARNING: Mapping[str, Check] = {"kind": _name, "text": _text, "line": _or_none(_whole(0))}

TOPOLOGY: Mapping[str, Check] = {
    "name": _text,
    "devices": _list_of(_built(Device, DEVICE, ("name", "kind"))),
    "links": _list_of(_built(Link, LINK, ("source", "target", "kind"))),
    "topology_class": _one_of(TopologyClass),
    "source": _text,
    "warnings": _list_of(_built(SourceWarning, SOURCE_WARNING, ("kind", "text"))),
    "facts": _mapping,
    "matrix": _matrix,
}
