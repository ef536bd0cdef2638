"""What the environments of two runs say: whether the machines are the same, and what else differs.

Other hardware makes times incomparable; another name alone does not, since containers and the nodes of a
cluster get names of their own. Versions and settings may be the very thing that is compared: they are told.

Which published figures stand for the same work as a run's points.

The same collective, ranks, placement, size and settings, and the same nodes, element type and op as far as
both say, over a network of the kind and rate that the run declares; another element type stands in where none
of the same is there and bytes are all that counts. The library and its choice of algorithm may differ: what
such a machine gives is the question.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ccbench.cases import NO_OP, WORK
from ccbench.collectives import moves_alike
from ccbench.results import Point, Run
from ccbench.results.importers.runs import UNKNOWN_COLLECTIVE
from ccbench.results.importers.same_machine import is_other_model
from ccbench.topology.node_nics import is_other_network

_HARDWARE = {
    "processor": ("processor", "model"),
    "processors": ("processor", "cores_allowed"),
    "sockets": ("processor", "sockets"),
    "threads a core": ("processor", "threads_per_core"),
}
"""What makes a machine, where both runs say it."""

_TOLD = {
    "host": ("host", "name"),
    "kernel": ("host", "kernel"),
    "kernel options": ("host", "kernel_options"),
    "governors": ("processor", "governors"),
    "boost": ("processor", "boost"),
    "Python": ("software", "python"),
    "libraries": ("software", "libraries"),
    "driver": ("accelerators", "driver"),
    "variables": ("variables",),
}
"""What is told where it differs."""

_BESIDE_THE_POINT = frozenset(
    ("click", "matplotlib", "pandas", "pyarrow", "pydantic", "PyYAML", "rich", "scipy")
)
"""Libraries that no timed launch uses."""

MOST_SHOWN = 60
"""Characters of a value in a note."""


def hardware_difference(base: Run, new: Run) -> str:
    """Words for the first part of the hardware that surely differs; empty where none does or nobody says."""
    for words, path in _HARDWARE.items():
        left, right = (run.manifest.at("environment", *path) for run in (base, new))
        if left is not None and right is not None and left != right:
            return f"{words}: {_short(left)} in base, {_short(right)} in new"
    models = [sorted(run.devices) for run in (base, new)]
    if all(models):
        if all(is_other_model(a, b) for a in models[0] for b in models[1]):
            return f"devices: {', '.join(models[0])} in base, {', '.join(models[1])} in new"
        counts = [len(run.manifest.gpus) for run in (base, new)]
        if all(counts) and counts[0] != counts[1]:
            return f"number of devices: {counts[0]} in base, {counts[1]} in new"
    return ""


def notes_on(base: Run, new: Run) -> tuple[str, ...]:
    """One line for everything else that differs."""
    lines = [
        line
        for words, path in _TOLD.items()
        for line in _differences(words, *(run.manifest.at("environment", *path) for run in (base, new)))
    ]
    return (*_versions(base, new), *lines)


def _versions(base: Run, new: Run) -> Iterator[str]:
    """Backends whose library has another version in the other run."""
    found = [_of_backends(run) for run in (base, new)]
    for backend in sorted(found[0].keys() & found[1].keys()):
        left, right = (", ".join(sorted(one[backend])) for one in found)
        if left != right:
            yield f"{backend}: {_short(left)} in base, {_short(right)} in new"


def _of_backends(run: Run) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for point in run.points:
        if point.backend_version:
            found.setdefault(point.backend, set()).add(point.backend_version)
    return found


def _differences(words: str, left: Any, right: Any) -> Iterator[str]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted({*left, *right} - _BESIDE_THE_POINT, key=str):
            yield from _differences(f"{words}: {key}", left.get(key, "not set"), right.get(key, "not set"))
    elif left is not None and right is not None and left != right:
        yield f"{words}: {_short(left)} in base, {_short(right)} in new"


def _short(value: Any) -> str:
    text = "".join(letter if letter.isprintable() else "?" for letter in str(value))
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


Face = tuple[Sequence[Point], Sequence[Point], str]
"""What the base and the new run have of a case, () where nothing, and what to say about the pair."""


def facing_published(base: Run, cases: Iterable[Sequence[Point]]) -> list[Face]:
    """Every case of a run with the point that is most like it of ``base``, published results of a machine."""
    published: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in base.points:
        published[_surely(point)].append(point)
    return [_face(points, published.get(_surely(points[0]), ())) for points in cases]


def _face(points: Sequence[Point], published: Sequence[Point]) -> Face:
    point = points[0]
    found = [other for other in published if may_be_alike(other, point)]
    found = [other for other in found if other.dtype in (point.dtype, "")] or found
    if not found:
        return (), points, ""
    middle, others = middle_of(found, point)
    return (middle,), points, _told(middle, point, others + 1)


def _surely(point: Point) -> tuple[object, ...]:
    names = ("collective", "ranks", "in_place", "size_bytes", *(axis.name for axis in WORK))
    return tuple(getattr(point, name) for name in names)


def may_be_alike(other: Point, point: Point) -> bool:
    """Whether nothing that both say of collective, op, nodes, network and type tells the two apart."""
    known = other.collective == point.collective != UNKNOWN_COLLECTIVE
    same_op = other.op == point.op or NO_OP in (other.op, point.op)  # as where an all-reduce names none
    same_nodes = other.nodes == point.nodes or not other.nodes or not point.nodes
    over = 1 in (other.nodes, point.nodes) or not is_other_network(point.network, other.network)
    alike = moves_alike(point.collective, (other.backend, point.backend), (other.dtype, point.dtype))
    return known and same_op and same_nodes and over and alike


def middle_of(found: Sequence[Point], point: Point) -> tuple[Point, int]:
    """The middle one by time, and how many others there are beside it.

    Of those of the same algorithm and protocol, else of those left to the library, else of all.
    """
    alike = [one for one in found if (one.algorithm, one.protocol) == (point.algorithm, point.protocol)]
    left = [one for one in found if (one.algorithm, one.protocol) == ("default", "default")]
    chosen = alike or left or found
    ordered = sorted(chosen, key=lambda one: (one.median_seconds or math.inf, one.source, one.run))
    return ordered[(len(ordered) - 1) // 2], len(ordered) - 1


def library_of(point: Point) -> str:
    """Library, choice of algorithm, and where a point was published or measured."""
    chosen = " ".join(word for word in (point.algorithm, point.protocol) if word != "default")
    words = (point.backend_version or point.backend, chosen, point.source or point.run)
    return ", ".join(filter(None, words))


def _told(other: Point, point: Point, count: int) -> str:
    parts = [f"base: {library_of(other)}"]
    parts += [f"the middle of {count} like it"] * (count > 1)
    parts += ["nodes not stated"] * (not other.nodes or not point.nodes)
    parts += [f"over {other.network}"] * bool(other.network and other.nodes != 1)
    parts += [f"measured with {other.dtype}"] * (other.dtype not in (point.dtype, ""))
    return ", ".join(parts)
