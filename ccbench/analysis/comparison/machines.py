"""What the environments of two runs say: whether the machines are the same, and what else differs.

Other hardware makes times incomparable; another name alone does not, since containers and the nodes of a
cluster get names of their own. Versions and settings may be the very thing that is compared: they are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ccbench.results import Run
from ccbench.results.importers.same_machine import is_other_model

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
