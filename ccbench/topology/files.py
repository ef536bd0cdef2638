"""Topologies as files: JSON or YAML without loss, and the catalog's short YAML, expanded to graphs.

A file without loss says ``ccbench_topology: 1`` and then what the Topology holds, field by field; the matrix
is a list of [from, to, label]. Fields with their default may be left out.

A file of the catalog has ``description``, ``class``, ``gpus: {count, model, peer_access}`` and sections that
join the GPUs:

    nvswitch: {links_to_switches: [5, 4, 4, 5], planes: 1, trunk_links: 0, per_link: 25 GB/s, source: ...}
    mesh:     {kind: nvlink, pairs: "0-1:2 ..." or all_pairs: 1, per_link: 25 GB/s, source: ...}
    pcie:     {cpus: 2, switches_per_cpu: 2, port: 31.5 GB/s, between_cpus: 108 GB/s, source: ...}

Rates are per direction. Every section says where its numbers come from; that text is its links' origin. These
files ship with ccbench, so a damaged one is answered with how to mend the installation, not field by field.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from ccbench.documents import (
    check_plain,
    parse_json,
    parse_yaml,
    read_installed,
    typed,
    yaml_text,
)
from ccbench.errors import MachineError
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
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
    if not isinstance(plain, Mapping):
        raise MachineError(f"{place}: {shown(plain)} is not a mapping; write keys and values")
    version = plain.get(VERSION_KEY)
    if type(version) is not int or version != VERSION:
        is_missing = VERSION_KEY not in plain
        seen = (
            f"the key {VERSION_KEY} is missing"
            if is_missing
            else f"{VERSION_KEY} is {shown(version)}"
        )
        raise MachineError(f"{place}: {seen}; this release reads '{VERSION_KEY}: {VERSION}'")
    fields_given = {key: plain[key] for key in plain if key not in (VERSION_KEY, "matrix")}
    topology = typed(Topology, fields_given, place)
    _check_bounds(topology, place)
    matrix = typed(
        tuple[tuple[str, str, str], ...], plain.get("matrix", ()), f"{place}: matrix"
    )
    labels = {(row, column): label for row, column, label in matrix}
    if len(labels) < len(matrix):
        raise MachineError(f"{place}: matrix: two labels of one pair are given; keep one")
    return replace(topology, matrix=labels)


def _check_bounds(topology: Topology, place: str) -> None:
    """MachineError where a number is out of its bounds, a name is missing or twice there, or leads nowhere."""
    bounds: list[tuple[str, float | None, float, float]] = []
    machines = topology.facts.get("machines")
    if type(machines) is int:
        bounds.append(("facts.machines", machines, -math.inf, MOST_MACHINES))
    names: set[str] = set()
    for index, device in enumerate(topology.devices):
        where = f"devices[{index}]"
        bounds.append((f"{where}.node", device.node, -1, math.inf))
        if not device.name or device.name in names:
            why = "is given twice; rename it" if device.name else "is empty; give a name"
            raise MachineError(f"{place}: {where}.name: {shown(device.name)} {why}")
        names.add(device.name)
    for index, link in enumerate(topology.links):
        where = f"links[{index}]"
        for end in ("source", "target"):
            if getattr(link, end) not in names:
                raise MachineError(
                    f"{place}: {where}.{end}: {shown(getattr(link, end))} is not a device; name one of devices"
                )
        bounds += (
            (f"{where}.count", link.count, 1, MOST_LINKS),
            (f"{where}.bytes_per_second", link.bytes_per_second, 0, LARGEST_QUANTITY),
            (f"{where}.latency_seconds", link.latency_seconds, 0, LARGEST_QUANTITY),
        )
    for where, number, lowest, most in bounds:
        if number is not None and not lowest <= number <= most:
            raise MachineError(
                f"{place}: {where}: {shown(number)} is not a number from {lowest:g} to {most:g}; write one"
            )


CATALOG_FOLDER = Path(__file__).parent / "catalog"
"""One ``<name>.yaml`` for each machine."""


def catalog_names() -> tuple[str, ...]:
    """Names of the machines that ship."""
    return tuple(sorted(path.stem for path in CATALOG_FOLDER.glob("*.yaml")))


def load_catalog(name: str) -> Topology:
    """The machine called ``name``. Raises MachineError, with the nearest names, for an unknown one."""
    names = catalog_names()
    if name not in names:
        near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4)
        cure = f"did you mean {' or '.join(near)}" if near else f"one of {', '.join(names)}"
        raise MachineError(f"machine: {shown(name)} is not in the catalog; {cure}")
    return expand(read_installed(CATALOG_FOLDER / f"{name}.yaml"), name)


def expand(plain: Mapping[str, Any], name: str) -> Topology:
    """The graph that the short form ``plain`` stands for.

    Raises MachineError where GPUs do not spread evenly over their switches and processors.
    """
    gpus, count = plain["gpus"], plain["gpus"]["count"]
    attributes = {"model": gpus["model"]}
    devices = [
        Device(f"gpu{rank}", DeviceKind.GPU, attributes=attributes) for rank in range(count)
    ]
    devices += _cpus(plain.get("cpus", 0))
    links: list[Link] = []
    sources: list[str] = []
    for section, build in SECTIONS.items():
        if section in plain:
            sources.append(plain[section]["source"])
            more, joined = build(count, **plain[section])
            devices, links = [*devices, *more], [*links, *joined]
    shape = TopologyClass(plain["class"])
    machine = Topology(name, tuple(devices), tuple(links), shape, f"catalog: {name}")
    nvlinks = machine.link_counts(LinkKind.NVLINK)
    facts = {
        "description": plain["description"],
        "gpu_model": gpus["model"],
        "peer_access": gpus.get("peer_access", True),
        "omits": plain.get("omits", "nothing"),
        "sources": sources,
        "nvlinks_per_gpu": [nvlinks[gpu.name] for gpu in machine.gpus],
    }
    return replace(machine, facts=facts)


def _cpus(count: int) -> list[Device]:
    return [Device(f"cpu{index}", DeviceKind.CPU, numa_node=index) for index in range(count)]


def _joined(
    a: str, b: str, kind: LinkKind, each: str, count: int, origin: str
) -> tuple[Link, Link]:
    """``count`` links in both directions; each: the rate of one, such as ``25 GB/s``."""
    rate = float(each.removesuffix(" GB/s")) * 1e9 * count
    return Link(a, b, kind, rate, None, count, origin=origin).both_ways()


Parts = tuple[list[Device], list[Link]]


def with_switches(
    gpus: int,
    *,
    links_to_switches: Sequence[int],
    per_link: str,
    source: str,
    planes: int = 1,
    trunk_links: int = 0,
) -> Parts:
    """GPUs in one or two equal planes, each with its own switches; trunks join opposite switches."""
    switches = len(links_to_switches)
    devices = [
        Device(f"nvswitch{index}", DeviceKind.NVSWITCH) for index in range(planes * switches)
    ]
    links: list[Link] = []
    for rank in range(gpus):
        # A GPU reaches the switches of its own half only, as on the boards of a DGX-2.
        first = rank // (gpus // planes) * switches
        for index, count in enumerate(links_to_switches):
            switch = f"nvswitch{first + index}"
            links += _joined(f"gpu{rank}", switch, LinkKind.NVLINK, per_link, count, source)
    for index in range(switches if planes == 2 else 0):
        opposite = f"nvswitch{switches + index}"
        links += _joined(
            f"nvswitch{index}", opposite, LinkKind.NVLINK, per_link, trunk_links, source
        )
    return devices, links


def with_mesh(
    gpus: int, *, kind: str, per_link: str, source: str, pairs: str = "", all_pairs: int = 0
) -> Parts:
    """Links between pairs of GPUs: ``all_pairs`` between any two, or ``pairs`` such as ``0-1:2 0-2:1``."""
    counts = {(a, b): all_pairs for b in range(gpus) for a in range(b) if all_pairs}
    for text in pairs.split():
        a, b, count = map(int, re.split("[-:]", text))
        counts[a, b] = count
    links: list[Link] = []
    for (a, b), count in sorted(counts.items()):
        links += _joined(f"gpu{a}", f"gpu{b}", LinkKind(kind), per_link, count, source)
    return [], links


def with_pcie(
    gpus: int,
    *,
    cpus: int,
    port: str,
    source: str,
    switches_per_cpu: int = 0,
    between_cpus: str = "0",
) -> Parts:
    """GPUs dealt in equal runs to the switches, or to the CPUs where there are none; CPUs all joined."""
    holders = cpus * max(1, switches_per_cpu)
    if gpus % holders:
        raise MachineError(
            f"{gpus} GPUs do not spread evenly over {holders} places; change one"
        )
    devices = _cpus(cpus)
    links: list[Link] = []
    for index in range(cpus * switches_per_cpu):
        numa = index // switches_per_cpu
        devices.append(Device(f"pcie{index}", DeviceKind.PCIE_SWITCH, numa_node=numa))
        links += _joined(f"pcie{index}", f"cpu{numa}", LinkKind.PCIE, port, 1, source)
    for rank in range(gpus):
        holder = f"{'pcie' if switches_per_cpu else 'cpu'}{rank // (gpus // holders)}"
        links += _joined(f"gpu{rank}", holder, LinkKind.PCIE, port, 1, source)
    for b in range(cpus):
        for a in range(b):
            links += _joined(
                f"cpu{a}", f"cpu{b}", LinkKind.INTER_SOCKET, between_cpus, 1, source
            )
    return devices, links


SECTIONS: Mapping[str, Callable[..., Parts]] = {
    "nvswitch": with_switches,
    "mesh": with_mesh,
    "pcie": with_pcie,
}
"""Section -> the function that builds it; in this order, so that equal machines give equal graphs."""
