"""What a run was made under, as rows of text, and what differs from another run's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ccbench.results import Manifest
from ccbench.units import plain

PARTS = ("environment", "versions", "options", "machine", "notes")
"""Entries of a manifest that are shown; the topology has its picture, and the suite its points."""

LONGEST_VALUE = 300
MOST_ROWS = 400

ALWAYS_DIFFERENT = (
    "environment.host.load_1_minute", "environment.memory.available_bytes",
    "environment.memory.swap_used_bytes", "environment.limits.memory_free_bytes",
)  # fmt: skip
"""Readings that change from minute to minute and tell nothing about a set-up."""

Rows = tuple[tuple[str, str], ...]


def environment_rows(manifest: Manifest) -> Rows:
    """(name with dots, value) of everything a manifest says about its making; unknown facts are left out."""
    found = [("created_at", manifest.created_at)] * bool(manifest.created_at)
    for part in PARTS:
        found += list(_flat(part, manifest.at(part)))
    return tuple(found[:MOST_ROWS])


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{plain(key, 80)}", inner)
    elif isinstance(value, (list, tuple)):
        if any(isinstance(one, (Mapping, list, tuple)) for one in value):
            for place, inner in enumerate(value):
                yield from _flat(f"{name}[{place}]", inner)
        elif value:
            yield name, plain(", ".join(str(one) for one in value), LONGEST_VALUE)
    elif value not in (None, ""):
        yield name, plain(value, LONGEST_VALUE)


def differences(manifest: Manifest, other: Manifest) -> tuple[tuple[str, str, str], ...]:
    """(name, here, there) of every row that is not alike; '' where one side says nothing."""
    here, there = dict(environment_rows(manifest)), dict(environment_rows(other))
    names = [*here, *(name for name in there if name not in here)]
    return tuple(
        (name, here.get(name, ""), there.get(name, ""))
        for name in names
        if here.get(name, "") != there.get(name, "") and name not in ALWAYS_DIFFERENT and name != "created_at"
    )
