"""The catalog of machines: short YAML files, expanded to graphs.

A file has ``description``, ``class``, ``gpus: {count, model, peer_access}`` and sections that join the GPUs:

    nvswitch: {links_to_switches: [5, 4, 4, 5], planes: 1, trunk_links: 0, per_link: 25 GB/s, source: ...}
    mesh:     {kind: nvlink, pairs: "0-1:2 ..." or all_pairs: 1, per_link: 25 GB/s, source: ...}
    pcie:     {cpus: 2, switches_per_cpu: 2, port: 31.5 GB/s, between_cpus: 108 GB/s, source: ...}

Rates are per direction. Every section says where its numbers come from; that text is its links' origin.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ccbench.errors import MachineError
from ccbench.suite.documents import read_machine_document
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass
from ccbench.units import shown

CATALOG_FOLDER = Path(__file__).parent / "catalog"
"""One ``<name>.yaml`` for each machine."""

MOST_GPUS = 1024

_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) GB/s", re.ASCII)
_PAIR = re.compile(r"([0-9]{1,4})-([0-9]{1,4}):([0-9]{1,3})", re.ASCII)


def catalog_names() -> tuple[str, ...]:
    """Names of the machines that ship."""
    return tuple(sorted(path.stem for path in CATALOG_FOLDER.glob("*.yaml")))


def load_catalog(name: str) -> Topology:
    """The machine called ``name``. Raises MachineError, with the nearest names, for an unknown one."""
    known = catalog_names()
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.4)
        cure = f"did you mean {' or '.join(near)}" if near else f"one of {', '.join(known)}"
        raise MachineError(f"machine: {shown(name)} is not in the catalog; {cure}")
    return load_compact(CATALOG_FOLDER / f"{name}.yaml")


def load_compact(path: str | Path) -> Topology:
    """A machine of the catalog's short form in any file. Raises MachineError with path and place."""
    where = Path(path)
    return expand(read_machine_document(where), where.stem, str(path))


class _Section:
    """A mapping read field by field, every error with its place, unknown fields refused at the end."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            raise MachineError(f"{place}: {shown(value)} is not a mapping; write fields with values")
        self.fields = dict(value)
        self.place = place

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        """The field's value; without a default it must be there."""
        if name not in self.fields:
            if default is None:
                raise MachineError(f"{self.place}: {name} is missing; give it")
            return default
        value = self.fields.pop(name)
        # True is a number to Python and a slip in a file, so that types are compared exactly.
        if type(value) is not kind:
            words = {int: "a whole number", str: "text", list: "a list", bool: "true or false"}
            raise MachineError(f"{self.place}.{name}: {shown(value)} is not {words[kind]}; write that")
        return value

    def count(self, name: str, default: int | None = None, lowest: int = 0) -> int:
        """A whole number from ``lowest`` to 1,024."""
        number = int(self.take(name, int, default))
        if not lowest <= number <= MOST_GPUS:
            raise MachineError(
                f"{self.place}.{name}: {number} is out of range; write {lowest} to {MOST_GPUS}"
            )
        return number

    def rate(self, name: str) -> float:
        """Bytes per second of text such as ``25 GB/s``."""
        text = self.take(name, str)
        match = _RATE.fullmatch(text)
        if match is None or float(match[1]) == 0:
            raise MachineError(
                f"{self.place}.{name}: {shown(text)} is not a rate; write for example '25 GB/s'"
            )
        return float(match[1]) * 1e9

    def source(self) -> str:
        """Source of the section's numbers; every number needs one."""
        text = str(self.take("source", str))
        if not text.strip():
            raise MachineError(f"{self.place}.source: empty; say where the numbers come from")
        return text

    def close(self) -> None:
        """Refuse what was not asked for."""
        if self.fields:
            raise MachineError(
                f"{self.place}: {shown(next(iter(self.fields)))} is not a field here; remove it"
            )


def expand(plain: Any, name: str, place: str) -> Topology:
    """The graph that the short form ``plain`` stands for. Raises MachineError."""
    top = _Section(plain, place)
    description, kind = top.take("description", str), top.take("class", str)
    classes = [member.value for member in TopologyClass]
    if kind not in classes:
        raise MachineError(f"{place}.class: {shown(kind)} is not known; one of {', '.join(classes)}")
    gpus = _Section(top.fields.pop("gpus", None), f"{place}.gpus")
    count, model = gpus.count("count"), gpus.take("model", str)
    peer_access = bool(gpus.take("peer_access", bool, True))
    gpus.close()
    devices = [Device(f"gpu{rank}", DeviceKind.GPU, attributes={"model": model}) for rank in range(count)]
    devices += [
        Device(f"cpu{index}", DeviceKind.CPU, numa_node=index) for index in range(top.count("cpus", 0))
    ]
    links: list[Link] = []
    sources: list[str] = []
    omits = top.take("omits", str, "nothing")
    # In the order of the table, not the file's: equal machines give equal graphs.
    for section, build in _BUILDERS.items():
        if section in top.fields:
            part = _Section(top.fields.pop(section), f"{place}.{section}")
            sources.append(part.fields.get("source", ""))
            more, joined = build(part, count)
            part.close()
            devices, links = [*devices, *more], [*links, *joined]
    top.close()
    nvlinks = dict.fromkeys((f"gpu{rank}" for rank in range(count)), 0)
    for link in links:
        if link.kind is LinkKind.NVLINK and link.source in nvlinks:
            nvlinks[link.source] += link.count
    facts = {
        "description": description,
        "gpu_count": count,
        "gpu_model": model,
        "peer_access": peer_access,
        "omits": omits,
        "sources": sources,
        "nvlinks_per_gpu": list(nvlinks.values()),
        "nvswitch_count": sum(device.kind is DeviceKind.NVSWITCH for device in devices),
        "cpu_count": sum(device.kind is DeviceKind.CPU for device in devices),
        "nic_count": 0,
    }
    return Topology(name, tuple(devices), tuple(links), TopologyClass(kind), f"catalog: {name}", facts=facts)


def _joined(a: str, b: str, kind: LinkKind, rate: float, count: int, origin: str) -> tuple[Link, Link]:
    """``count`` links of ``rate`` each, in both directions."""
    return Link(a, b, kind, rate * count, None, count, origin=origin).both_ways()


def _nvswitch(section: _Section, gpus: int) -> tuple[list[Device], list[Link]]:
    """GPUs in ``planes`` equal parts, each with its own switches; trunks join opposite switches."""
    per_switch = section.take("links_to_switches", list)
    planes, trunk = section.count("planes", 1, 1), section.count("trunk_links", 0)
    rate, origin = section.rate("per_link"), section.source()
    if not per_switch or not all(type(links) is int and 0 < links <= 64 for links in per_switch):
        raise MachineError(
            f"{section.place}.links_to_switches: {shown(per_switch)} is not a list of links per switch; "
            "write for example [5, 4, 4, 5]"
        )
    if gpus % planes or (planes > 1) != (trunk > 0) or planes > 2:
        raise MachineError(
            f"{section.place}.planes: {planes} planes with {trunk} trunk links for {gpus} GPUs do not fit; "
            "write one plane, or two with trunk_links"
        )
    switches = len(per_switch)
    devices = [Device(f"nvswitch{index}", DeviceKind.NVSWITCH) for index in range(planes * switches)]
    links: list[Link] = []
    for rank in range(gpus):
        # A GPU reaches the switches of its own half only, as on the boards of a DGX-2.
        first = rank // (gpus // planes) * switches
        for index, count in enumerate(per_switch):
            switch = f"nvswitch{first + index}"
            links += _joined(f"gpu{rank}", switch, LinkKind.NVLINK, rate, count, origin)
    for index in range(switches if planes == 2 else 0):
        opposite = f"nvswitch{switches + index}"
        links += _joined(f"nvswitch{index}", opposite, LinkKind.NVLINK, rate, trunk, origin)
    return devices, links


def _mesh(section: _Section, gpus: int) -> tuple[list[Device], list[Link]]:
    """Links between pairs of GPUs."""
    word = section.take("kind", str)
    if word not in {kind.value for kind in LinkKind}:
        raise MachineError(f"{section.place}.kind: {shown(word)} is not known; write nvlink, xgmi or hccs")
    kind, rate, origin = LinkKind(word), section.rate("per_link"), section.source()
    if "all_pairs" in section.fields:
        number = section.count("all_pairs", lowest=1)
        pairs = {(a, b): number for b in range(gpus) for a in range(b)}
    else:
        pairs, place = {}, f"{section.place}.pairs"
        for text in section.take("pairs", str).split():
            match = _PAIR.fullmatch(text)
            if match is None:
                raise MachineError(
                    f"{place}: {shown(text)} is not <gpu>-<gpu>:<links>; write for example 0-1:2"
                )
            a, b, count = (int(part) for part in match.groups())
            if not (a < b < gpus and count):
                raise MachineError(
                    f"{place}: {shown(text)} does not fit {gpus} GPUs; write the lower one first"
                )
            if (a, b) in pairs:
                raise MachineError(f"{place}: {a}-{b} is given twice; keep one")
            pairs[a, b] = count
    links: list[Link] = []
    for (a, b), count in sorted(pairs.items()):
        links += _joined(f"gpu{a}", f"gpu{b}", kind, rate, count, origin)
    return [], links


def _pcie(section: _Section, gpus: int) -> tuple[list[Device], list[Link]]:
    """GPUs dealt in equal runs to the switches, or to the CPUs where there are none; CPUs all joined."""
    cpus, per_cpu = section.count("cpus", lowest=1), section.count("switches_per_cpu", 0)
    port = section.rate("port")
    # One CPU has no link to another, and no rate of it to give.
    between = section.rate("between_cpus") if cpus > 1 else 0.0
    origin = section.source()
    holders = cpus * max(1, per_cpu)
    if gpus % holders:
        raise MachineError(
            f"{section.place}: {gpus} GPUs do not spread evenly over {holders} places; change one"
        )
    devices = [Device(f"cpu{index}", DeviceKind.CPU, numa_node=index) for index in range(cpus)]
    links: list[Link] = []
    for index in range(cpus * per_cpu):
        numa = index // per_cpu
        devices.append(Device(f"pcie{index}", DeviceKind.PCIE_SWITCH, numa_node=numa))
        links += _joined(f"pcie{index}", f"cpu{numa}", LinkKind.PCIE, port, 1, origin)
    for rank in range(gpus):
        holder = f"{'pcie' if per_cpu else 'cpu'}{rank // (gpus // holders)}"
        links += _joined(f"gpu{rank}", holder, LinkKind.PCIE, port, 1, origin)
    for b in range(cpus):
        for a in range(b):
            links += _joined(f"cpu{a}", f"cpu{b}", LinkKind.INTER_SOCKET, between, 1, origin)
    return devices, links


_BUILDERS: dict[str, Callable[[_Section, int], tuple[list[Device], list[Link]]]] = {
    "nvswitch": _nvswitch,
    "mesh": _mesh,
    "pcie": _pcie,
}
