"""Points of runs as a report names them, and where they come from in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ccbench.cases import NO_ROOT, SETTINGS, Status, setting_words
from ccbench.machine.flags import Flag
from ccbench.results import Point, Run
from ccbench.units import plural

SIMULATED = "SIMULATED"
EMULATION = Flag.EMULATION.upper()

LEFT_OUT = (
    "in no ranking, ratio, peak, crossover or prediction: times of an emulation say nothing about any device"
)
"""Where emulated times are, and why."""


def points_of(run: Run, *, name: str = "", baseline: bool = False) -> tuple[Point, ...]:
    """Every case of ``run``, in the run's order. ``name`` tells runs apart where there are several.

    Imported cases that would else be one line, though they come from different tables, get the name of their
    source added.
    """
    labels = table_labels(run.points)
    if not name and not baseline and not any(labels):
        return run.points
    return tuple(
        replace(point, run=" ".join(part for part in (name, label) if part), baseline=baseline)
        for point, label in zip(run.points, labels, strict=True)
    )


def provenance(points: Iterable[Point]) -> str:
    """``SIMULATED`` or ``EMULATION`` when every point is, ``PARTLY ...`` when some are, or nothing.

    Points that were not even started do not count where there are others.
    """
    points = list(points)
    begun = [point for point in points if point.status is not Status.UNSUPPORTED]
    kinds = {_kind(point) for point in begun or points}
    named = " AND ".join(sorted(kinds - {""}, reverse=True))
    return f"PARTLY {named}" if "" in kinds and named else named


def meaning_of(label: str) -> str:
    """What times under a label of ``provenance`` are, for the small print."""
    if label == EMULATION:
        return "GPU kernels ran on a CPU; times say nothing about any device"
    return "times come from a model" + (" or from a CPU in a GPU's place" if EMULATION in label else "")


def _kind(point: Point) -> str:
    if point.emulated:
        return EMULATION
    return SIMULATED if point.simulated else ""


def imported_from(points: Iterable[Point]) -> str:
    """``imported from FILE (nccl-tests 2.13.8)``, the number of files where there are several; or nothing."""
    sources = list(
        dict.fromkeys((point.source, point.tool_and_version) for point in points if point.imported)
    )
    if not sources:
        return ""
    tools = list(dict.fromkeys(tool for _, tool in sources if tool))
    if len(tools) > 1:  # the versions are in the CSV file
        tools = list(dict.fromkeys(tool.split()[0] for tool in tools))
    files = list(dict.fromkeys(source for source, _ in sources))
    where = files[0] if len(files) == 1 else plural(len(files), "source")
    return f"imported from {where}" + (f" ({', '.join(tools)})" if tools else "")


def is_loopback(points: Iterable[Point]) -> bool:
    """Whether a flag says that ranks talked to themselves (several ranks on one device or over loopback)."""
    return any(Flag.LOOPBACK in point.flags for point in points)


_SETTINGS = tuple(axis.name for axis in SETTINGS)
SERIES_FIELDS = ("run", "backend", "algorithm", "protocol", "mode", "root", "in_place", *_SETTINGS)
"""What may tell one line of a figure from another; the name shows those that differ."""


SeriesKey = tuple[object, ...]


def settings_of(point: Point) -> tuple[object, ...]:
    """The settings of a case, in the order of SETTINGS."""
    return tuple(getattr(point, axis.name) for axis in SETTINGS)


def series_key(point: Point) -> SeriesKey:
    """What all points of one line have in common."""
    return tuple(getattr(point, name) for name in SERIES_FIELDS)


def series_names(points: Sequence[Point]) -> dict[SeriesKey, str]:
    """Series key -> the shortest words that tell it from the others among ``points``."""
    keys = sorted({series_key(point) for point in points}, key=str)
    varying = {name for index, name in enumerate(SERIES_FIELDS) if len({key[index] for key in keys}) > 1}
    return {key: _series_name(dict(zip(SERIES_FIELDS, key, strict=True)), varying) for key in keys}


def _series_name(fields: Mapping[str, Any], varying: set[str]) -> str:
    words = [str(fields["run"])] if "run" in varying and fields["run"] else []
    if "backend" in varying:
        words.append(str(fields["backend"]))
    words.append(str(fields["algorithm"]))
    if "protocol" in varying or fields["protocol"] != "default":
        words.append(str(fields["protocol"]))
    if "mode" in varying:
        words.append(str(fields["mode"]))
    if "root" in varying and fields["root"] != NO_ROOT:
        words.append(f"root {fields['root']}")
    if "in_place" in varying:
        words.append("in place" if fields["in_place"] else "out of place")
    words += setting_words(fields, varying)
    return " ".join(words)


Table = tuple[str, int]


def table_labels(points: Sequence[Point]) -> list[str]:
    """One label for each point: empty for measured ones, and for imported ones that cannot be mixed up."""
    lines: dict[tuple[object, ...], dict[Table, None]] = defaultdict(dict)
    for point in points:
        if point.imported:
            lines[point.curve][point.source, point.source_table] = None
    mixed = {table for tables in lines.values() if len(tables) > 1 for table in tables}
    names = _names(sorted(mixed))
    return [_label(point, names.get((point.source, point.source_table), "")) for point in points]


def _names(tables: Sequence[Table]) -> dict[Table, str]:
    """Short names, numbered where they are the same."""
    found: dict[str, list[Table]] = defaultdict(list)
    for table in tables:
        found[short_source(table[0])].append(table)
    return {
        table: name if len(members) == 1 else f"{name} #{place}"
        for name, members in found.items()
        for place, table in enumerate(members, start=1)
    }


def short_source(source: str) -> str:
    """``owner/repository`` of a repository and path, the name without its suffix of a file."""
    repository, separator, _ = source.partition(":")
    if separator and repository.count("/") == 1 and not any(one.isspace() for one in repository):
        return repository
    return PurePosixPath(source).stem or source


def _label(point: Point, name: str) -> str:
    shown = point.network.partition(" (")[0] if name and point.nodes != 1 else ""
    return " ".join(part for part in (name, shown) if part)
