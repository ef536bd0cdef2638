"""Run folders -> series of medians, one per case and machine, in the order in which the runs began."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccbench.errors import RunFolderError
from ccbench.history.environment import changed, facts_of, machine_of
from ccbench.history.steps import FEWEST_VALUES, Level, find_levels
from ccbench.machine.flags import Flag
from ccbench.runs import Run, load_run
from ccbench.runs.folder import MANIFEST_NAME
from ccbench.runs.rows import is_null
from ccbench.units import format_size

IDENTITY = (
    "collective", "backend", "algorithm", "protocol", "dtype", "op", "ranks", "nodes", "root", "in_place",
    "mode", "channels", "transport", "registration", "aggregation", "misalignment_bytes", "pair", "groups",
    "alone", "beside", "traffic", "computing", "simulated", "source", "size_bytes",
)  # fmt: skip
"""Columns that make two rows the same case; suites may be renamed."""

USUAL = {
    "algorithm": "default", "protocol": "default", "op": "none", "nodes": "1", "root": "-1",
    "in_place": "False", "mode": "streaming", "channels": "0", "transport": "default",
    "registration": "none", "aggregation": "1", "misalignment_bytes": "0", "simulated": "False",
    "alone": "-1",
}  # fmt: skip
"""Values that a label does not say."""


@dataclass(frozen=True)
class Seen:
    """One run's median of a case. low, high: None without an interval. doubts: the case's flags."""

    run: str
    created_at: str
    median_seconds: float
    low_seconds: float | None
    high_seconds: float | None
    backend_version: str
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A step of one series. environment: what differs between the last run before and the first run after it.

    change: of the time, as a fraction; positive is slower. runs_after: how many runs confirm the new level.
    """

    series: str
    machine: str
    run: str
    created_at: str
    before_seconds: float
    after_seconds: float
    change: float
    runs_after: int
    environment: tuple[str, ...]


@dataclass(frozen=True)
class Series:
    """One case on one machine. moved: index of a run -> what differs from the run before it in this
    series."""

    label: str
    machine: str
    seen: tuple[Seen, ...]
    levels: tuple[Level, ...]
    moved: Mapping[int, tuple[str, ...]]

    @property
    def changes(self) -> tuple[Change, ...]:
        """The steps, oldest first."""
        return tuple(
            Change(
                series=self.label,
                machine=self.machine,
                run=self.seen[after.start].run,
                created_at=self.seen[after.start].created_at,
                before_seconds=before.median,
                after_seconds=after.median,
                change=after.median / before.median - 1,
                runs_after=after.end - after.start,
                environment=self.moved.get(after.start, ()),
            )
            for before, after in zip(self.levels, self.levels[1:], strict=False)
        )


@dataclass(frozen=True)
class History:
    """All series, those with the newest steps first. problems: files and folders that could not be read."""

    runs: int
    series: tuple[Series, ...]
    problems: tuple[str, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        """The steps of all series, newest first."""
        found = [change for one in self.series for change in one.changes]
        return tuple(sorted(found, key=lambda one: (one.created_at, abs(one.change)), reverse=True))

    @property
    def long_enough(self) -> bool:
        """Whether any series is long enough for a step to be found."""
        return any(len(one.seen) >= FEWEST_VALUES for one in self.series)


def run_folders(roots: Iterable[Path]) -> tuple[Path, ...]:
    """Every run folder that is one of ``roots`` or lies below one, each once. Raises RunFolderError for no
    folder."""
    found: dict[Path, Path] = {}
    for root in roots:
        if not root.is_dir():
            raise RunFolderError(f"{root}: not a folder; name one that holds run folders, such as results")
        for folder, below, files in os.walk(root):
            if MANIFEST_NAME in files:
                below.clear()  # a run folder holds no other
                found.setdefault(Path(folder).resolve(), Path(folder))
            else:
                below.sort()
    return tuple(found.values())


def history_of(
    folders: Sequence[Path], minimum_change: float = 0.03, any_host: bool = False, only: str = ""
) -> History:
    """The history that ``folders`` tell. only: text that a series' label must contain.

    Cases without a speed and times of an emulation are left out; a run that cannot be read is a problem, and
    the rest is told. minimum_change: steps below this fraction are not told.
    """
    found: dict[tuple[str, str], list[tuple[Seen, dict[str, str]]]] = defaultdict(list)
    problems: list[str] = []
    visits = [one for folder in folders if (one := _visited(folder, any_host, only, problems)) is not None]
    for visit in sorted(visits, key=lambda one: (one.created_at, one.name)):
        for label, seen in visit.seen:
            library = {"library": seen.backend_version} if seen.backend_version else {}
            found[label, visit.machine].append((seen, {**visit.facts, **library}))
    series = [_series(label, machine, members, minimum_change) for (label, machine), members in found.items()]
    series.sort(key=lambda one: (one.label, one.machine))
    series.sort(key=lambda one: max((change.created_at for change in one.changes), default=""), reverse=True)
    return History(len(visits), tuple(series), tuple(problems))


@dataclass(frozen=True)
class _Visit:
    """What a history keeps of one run: its samples are not held while the others are read."""

    name: str
    created_at: str
    machine: str
    facts: dict[str, str]
    seen: tuple[tuple[str, Seen], ...]


def _visited(folder: Path, any_host: bool, only: str, problems: list[str]) -> _Visit | None:
    try:
        run = load_run(folder)
    except RunFolderError as error:
        problems.append(str(error))
        return None
    problems.extend(run.problems)
    told: dict[str, list[Seen]] = defaultdict(list)
    for row in run.cases.to_dict("records"):
        label = _label(row)
        seen = _seen(run, row) if only in label else None
        if seen is not None:
            told[label].append(seen)
    return _Visit(
        run.path.name,
        str(run.manifest.get("created_at", "")),
        machine_of(run.manifest, any_host),
        facts_of(run.manifest),
        tuple((label, _middle(several)) for label, several in told.items()),
    )


def _middle(several: Sequence[Seen]) -> Seen:
    """Of a case that a run holds several times, as imports of repeated tables do: a run is one value."""
    return sorted(several, key=lambda one: one.median_seconds)[(len(several) - 1) // 2]


def _seen(run: Run, row: Mapping[Any, Any]) -> Seen | None:
    median = row["median_seconds"]
    flags = () if is_null(row["flags"]) else tuple(str(flag) for flag in row["flags"])
    if row["status"] != "ok" or is_null(median) or Flag.EMULATION in flags:
        return None
    if not (math.isfinite(float(median)) and float(median) > 0):
        return None  # no time that a clock gives
    low, high = row["low_seconds"], row["high_seconds"]
    return Seen(
        run=run.path.name,
        created_at=str(run.manifest.get("created_at", "")),
        median_seconds=float(median),
        low_seconds=None if is_null(low) else float(low),
        high_seconds=None if is_null(high) else float(high),
        backend_version=str(row["backend_version"]),
        doubts=flags,
    )


def _label(row: Mapping[Any, Any]) -> str:
    words = []
    for name in IDENTITY:
        text = str(row[name])
        if not text or USUAL.get(name) == text:
            continue
        if name == "size_bytes":
            words.append(format_size(int(row[name])))
        elif name in ("collective", "backend", "algorithm", "protocol", "dtype", "op", "mode"):
            words.append(text)
        elif name in ("ranks", "nodes", "channels"):
            words.append(f"{text} {name}")
        elif name in ("in_place", "simulated"):
            words.append(name.replace("_", " "))
        else:
            words.append(f"{name.replace('_', ' ')} {text}")
    return " ".join("".join(one if one.isprintable() else "?" for one in word) for word in words)


def _series(
    label: str, machine: str, members: Sequence[tuple[Seen, dict[str, str]]], minimum_change: float
) -> Series:
    seen = tuple(one for one, _ in members)
    moved = {
        index: lines
        for index in range(1, len(members))
        if (lines := changed(members[index - 1][1], members[index][1]))
    }
    levels = find_levels([one.median_seconds for one in seen], minimum_change)
    return Series(label, machine, seen, levels, moved)
