"""hwloc's distance matrices: bandwidths of NVLinks and XGMI links, latencies between NUMA nodes.

hwloc's topology-nvml.c fills NVLinkBandwidth per link and direction with 20000 MB/s (NVLink 1), 25000 (2 to
4) or 50000 (5), added up per pair, 1000000 for a GPU to itself; topology-rsmi.c fills XGMIBandwidth likewise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ccbench.topology.graph import Link, LinkKind, Notice
from ccbench.topology.nvlink_shape import connected_groups
from ccbench.topology.readers.hwloc_tree import Tree
from ccbench.topology.xml import Element

MOST_OBJECTS = 256
"""A matrix of more is damage; a rack of 72 GPUs has fewer."""

_KINDS = {"NVLinkBandwidth": LinkKind.NVLINK, "XGMIBandwidth": LinkKind.XGMI}
_WHOLE = re.compile(r"\d{1,15}")

_MEGABYTES_OF_MODEL = (
    (re.compile(r"P100"), 20_000),
    (re.compile(r"\bG?B[123]00|\bR100|Rubin"), 50_000),
    (re.compile(r"[VAH]100|[AH]800|H20|A30|A40|A6000|3090|QUADRO|Quadro|TITAN|L40"), 25_000),
)
"""MB/s that hwloc counts for one link of a GPU, by its model: to divide by, not what the link carries."""


@dataclass
class Matrix:
    """A square matrix: ``keys`` name its objects as hwloc does (``OSDev:802``), ``values`` by row."""

    name: str
    keys: list[str]
    values: list[int]
    line: int

    def value(self, row: int, column: int) -> int:
        """What leads from one object to another."""
        return self.values[row * len(self.keys) + column]

    def row(self, index: int) -> list[int]:
        """What leads from object ``index`` to each."""
        return self.values[index * len(self.keys) : (index + 1) * len(self.keys)]


@dataclass
class Bandwidths:
    """Links of the matrices. ``direct``: pairs of GPUs; ``per_gpu``: links of each, None if not countable."""

    matrices: list[Matrix] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    direct: set[tuple[str, str]] = field(default_factory=set)
    reaches_cpus: bool = False
    per_gpu: dict[str, int | None] = field(default_factory=dict)


def _matrices(root: Element, notices: list[Notice]) -> list[Matrix]:
    found = []
    for element in root.children:
        if element.tag not in {"distances2", "distances2hetero"}:
            continue
        words = " ".join(part.text for part in element.named("indexes")).split()
        values = " ".join(part.text for part in element.named("u64values")).split()
        name = element.attributes.get("name", "")
        if element.tag == "distances2":
            words = [f"{element.attributes.get('type', '')}:{word}" for word in words]
        size = len(words)
        if size > MOST_OBJECTS or len(values) != size * size or not all(map(_WHOLE.fullmatch, values)):
            text = f"the matrix {name[:40]!r} has {size} objects and {len(values)} values; left out"
            notices.append(Notice("damaged_line", text, element.line))
        elif size:
            found.append(Matrix(name, words, [int(value) for value in values], element.line))
    return found


def numa_latencies(root: Element) -> dict[tuple[int | None, int | None], int]:
    """(NUMA node, NUMA node) -> the kernel's relative distance; 10 is the node itself.

    Says nothing of damage: read_bandwidths has looked at the same matrices.
    """
    found: dict[tuple[int | None, int | None], int] = {}
    for matrix in _matrices(root, notices=[]):
        if matrix.name != "NUMALatency":
            continue
        nodes = [key.partition(":")[2] for key in matrix.keys]
        for row, source in enumerate(nodes):
            for value, target in zip(matrix.row(row), nodes, strict=True):
                if source.isdecimal() and target.isdecimal() and len(source) < 9 and len(target) < 9:
                    found[int(source), int(target)] = value
    return found


def read_bandwidths(
    root: Element, names: dict[str, str], models: dict[str, str], notices: list[Notice]
) -> Bandwidths:
    """Links of every bandwidth matrix; an object that stands nowhere in the tree is named in a notice."""
    bandwidths = Bandwidths()
    for matrix in _matrices(root, notices):
        kind = _KINDS.get(matrix.name)
        if kind is None:
            continue
        bandwidths.matrices.append(matrix)
        for key in matrix.keys:
            if key not in names:
                text = f"{matrix.name} names {key[:40]}, which is not in the tree"
                notices.append(Notice("missing_peer", text, matrix.line))
        for row, key in enumerate(matrix.keys):
            for other, megabytes in zip(matrix.keys, matrix.row(row), strict=True):
                ends = names.get(key), names.get(other)
                if key != other and megabytes and ends[0] and ends[1] and ends[0] != ends[1]:
                    _add_link(bandwidths, matrix, kind, (ends[0], ends[1]), megabytes, models)
    return bandwidths


def _add_link(
    bandwidths: Bandwidths,
    matrix: Matrix,
    kind: LinkKind,
    ends: tuple[str, str],
    megabytes: int,
    models: dict[str, str],
) -> None:
    source, target = ends
    count = _link_count(megabytes, models.get(source) or models.get(target) or "")
    bandwidths.links.append(
        Link(
            source,
            target,
            kind,
            megabytes * 1e6,
            count=count or 1,
            origin=f"hwloc {matrix.name}, line {matrix.line}: {megabytes} MB/s",
            attributes={} if count else {"count_known": False},
        )
    )
    if source.startswith("gpu"):
        before = bandwidths.per_gpu.get(source, 0)
        bandwidths.per_gpu[source] = None if count is None or before is None else before + count
        if target.startswith("gpu"):
            bandwidths.direct.add((min(ends), max(ends)))
    bandwidths.reaches_cpus = bandwidths.reaches_cpus or target.startswith("cpu")


def _link_count(megabytes: int, model: str) -> int | None:
    """Links behind a rate; None where the model does not tell the rate of one."""
    per_link = next((rate for pattern, rate in _MEGABYTES_OF_MODEL if pattern.search(model)), None)
    return megabytes // per_link if per_link and megabytes % per_link == 0 else None


def facts_of(bandwidths: Bandwidths, tree: Tree) -> dict[str, Any]:
    """Facts of the first bandwidth matrix, and links per GPU."""
    if not bandwidths.matrices:
        return {"nvlinks_per_gpu": None}
    gpus = [device.name for device in tree.devices if device.name in bandwidths.per_gpu]
    per_gpu = [bandwidths.per_gpu[gpu] for gpu in gpus]
    facts: dict[str, Any] = {
        "nvlinks_per_gpu": per_gpu if per_gpu and None not in per_gpu else None,
        "distances": _distances(bandwidths.matrices[0], tree),
    }
    if bandwidths.direct:
        facts["gpu_groups"] = _groups(bandwidths.matrices[0], tree)
    return facts


def _one_or_all(values: Sequence[int]) -> int | list[int] | None:
    if not values:
        return None
    return values[0] if len(set(values)) == 1 else list(values)


def _distances(matrix: Matrix, tree: Tree) -> dict[str, Any]:
    """The matrix in short: with switches the sums of the rows, without every pair that has a link."""
    where = [tree.names.get(key, "") for key in matrix.keys]
    gpus = [index for index, name in enumerate(where) if name.startswith("gpu")]
    switches = [index for index, name in enumerate(where) if name.startswith("nvswitch")]
    summary: dict[str, Any] = {
        "name": matrix.name,
        "objects": len(matrix.keys),
        "unit": "MB/s per direction",
    }
    if switches:
        used = [
            [matrix.value(gpu, switch) for switch in switches if matrix.value(gpu, switch)] for gpu in gpus
        ]
        reached = _one_or_all([len(row) for row in used])
        summary[f"gpu_to_each_of_its_{reached}_switches"] = _one_or_all(
            [rate for row in used for rate in row]
        )
        summary["gpu_row_sum"] = _one_or_all([sum(matrix.row(gpu)) for gpu in gpus])
        summary["switch_row_sum"] = _one_or_all([sum(matrix.row(switch)) for switch in switches])
        summary["gpu_to_gpu"] = _one_or_all([matrix.value(gpu, other) for gpu in gpus for other in gpus])
        return summary
    labels = [tree.os_names.get(key, key) for key in matrix.keys]
    pairs, others = {}, []
    for left in range(len(labels)):
        for right in range(left + 1, len(labels)):
            value = matrix.value(left, right)
            if value:
                pairs[f"{labels[left]}-{labels[right]}"] = value
            else:
                others.append(value)
    diagonal = [matrix.value(index, index) for index in range(len(labels))]
    return {**summary, "pairs": pairs, "self": _one_or_all(diagonal), "other": _one_or_all(others)}


def _groups(matrix: Matrix, tree: Tree) -> list[list[str]]:
    """GPUs that reach each other over direct links, by hwloc's names, in the order of the matrix."""
    gpus = [index for index, key in enumerate(matrix.keys) if tree.names.get(key, "").startswith("gpu")]
    peers = {
        gpu: [
            other for other in gpus if other != gpu and (matrix.value(gpu, other) or matrix.value(other, gpu))
        ]
        for gpu in gpus
    }
    return [
        [tree.os_names.get(matrix.keys[gpu], matrix.keys[gpu]) for gpu in sorted(group)]
        for group in connected_groups(peers)
    ]
