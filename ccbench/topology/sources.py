"""Where a topology can come from: this machine, the catalog, one of our files, another tool's text."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from ccbench.errors import MachineError
from ccbench.topology.graph import Notice, Topology
from ccbench.units import shown

LARGEST_TEXT_BYTES = 64 << 20
"""More than any tool prints; what is larger is not read."""

LARGEST_GRAPH = 4096
"""Vertices of the largest graph that ``composition.compose`` builds."""

LARGEST_NETWORK_PER_NODE = 17
"""NICs that a network may add to a machine, and a switch."""

BUILT_NODES = 4
"""Machines in the graph of a cluster that is too large for one."""


def load_topology(source: str = "") -> Topology:
    """The topology that ``source`` names.

    Empty or ``detect``: this machine. ``-``: the text on stdin. A name of the catalog. A path: one of our
    YAML or JSON files, or another tool's output, told apart by what it says. A file that is called like a
    machine of the catalog needs ``./`` before its name.

    Raises MachineError when there is no such thing, or nothing can be made of it.
    """
    if source in ("", "detect"):
        from ccbench.topology.detection import detect

        return detect()
    if source == "-":
        return topology_of_text(_decoded(_stdin(), "stdin"), "stdin")
    from ccbench.topology.catalog import catalog_names, load_catalog

    names = catalog_names()
    if source in names:
        return load_catalog(source)
    path = Path(source)
    if not path.exists():
        raise MachineError(_unknown(source, tuple(names)))
    return topology_of_text(_decoded(_content(path), source), path.name, source)


def load_cluster(source: str, nodes: int, network: str) -> Topology:
    """``nodes`` machines that ``source`` names, joined by ``network`` (such as ib-ndr-400x8).

    Of a cluster that is too large for a graph the first machines are built; the fact ``machines`` and a
    notice say how many there are. Raises MachineError.
    """
    from ccbench.topology.composition import compose

    node = load_topology(source)
    vertices = nodes * (len(node.devices) + LARGEST_NETWORK_PER_NODE)
    built = nodes if vertices <= LARGEST_GRAPH else min(nodes, BUILT_NODES)
    found = compose(node, built, network)
    if built == nodes:
        return found
    text = f"the graph holds {built} of {nodes} machines, which are all alike; counts are of all of them"
    return replace(
        found,
        name=found.name.replace(f"{built} x", f"{nodes} x", 1),
        notices=(*found.notices, Notice("unsupported", text)),
        facts={**found.facts, "machines": nodes},
    )


def topology_of_text(text: str, name: str, place: str = "") -> Topology:
    """The topology in ``text``: our JSON or YAML, or another tool's output.

    name: of the topology where the text gives none. place: what an error begins with; ``name`` if empty.
    """
    from ccbench.topology.files import VERSION_KEY, read_json, read_yaml
    from ccbench.topology.readers import read_text

    place = place or name
    text = text.removeprefix("\ufeff")
    begin = text.lstrip()
    if begin.startswith("{"):
        return read_json(text, place)
    if any(line.startswith(f"{VERSION_KEY}:") for line in begin[:20000].splitlines()):
        return read_yaml(text, place)
    return read_text(text, name)


def _stdin() -> bytes:
    return sys.stdin.buffer.read(LARGEST_TEXT_BYTES + 1)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_TEXT_BYTES + 1)
    except OSError as error:
        raise MachineError(
            f"{path}: cannot be read ({error.strerror}); name a topology file, or a name of the catalog"
        ) from None


def _decoded(content: bytes, place: str) -> str:
    if len(content) > LARGEST_TEXT_BYTES:
        raise MachineError(
            f"{place}: larger than {LARGEST_TEXT_BYTES >> 20} MiB; cut out the part with the topology"
        )
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    return content.decode(encoding, "backslashreplace").removeprefix("\ufeff")


def _unknown(source: str, names: tuple[str, ...]) -> str:
    import difflib

    near = difflib.get_close_matches(source, names, n=3, cutoff=0.4)
    listed = ", ".join(near) if near else ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    kind = "Did you mean" if near else "The catalog has"
    return f"{shown(source)} is neither a file nor in the catalog. {kind}: {listed}"
