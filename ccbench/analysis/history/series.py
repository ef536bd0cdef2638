"""What of a run's manifest may explain a step: versions, kernel, driver, settings; and which machine it
was.

Run folders -> series of medians, one per case and machine, in the order in which the runs began.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccbench.analysis.history.steps import FEWEST_VALUES, Level, find_levels
from ccbench.errors import RunFolderError
from ccbench.results import Manifest, Point, Run, load_run
from ccbench.results.folder import MANIFEST_NAME
from ccbench.units import plain

LONGEST_VALUE = 80


def facts_of(manifest: Manifest) -> dict[str, str]:
    """Name -> value of everything that may change between two runs on one machine, as text.

    Names are those people use: ``kernel``, ``driver``, ``numpy``, ``NCCL_ALGO``. What a run did not record is
    absent.
    """

    def some(part: str, *names: str) -> dict[str, Any]:
        return {name: manifest.at("environment", part, name) for name in names}

    found: dict[str, Any] = {
        "machine": manifest.machine,
        **some("host", "kernel", "system", "hypervisor", "container"),
        **some("accelerators", "driver", "cuda_driver", "iommu", "modules"),
        **some("software", "python", "git_revision"),
        **manifest.mapping("environment", "software", "libraries"),
        **manifest.mapping("versions"),
        **some("processor", "governors", "boost", "smt_active", "clock_source"),
        **some("memory", "huge_pages"),
        **{f"GPU {name}": value for name, value in _gpu_settings(manifest.gpus).items()},
        **manifest.mapping("environment", "variables"),
    }
    return {name: _text(value) for name, value in found.items() if value not in (None, "", {}, [], ())}


def machine_of(manifest: Manifest, group_by_hardware: bool = False) -> str:
    """What tells machines apart: processor, cores, GPUs, and the host's name unless ``group_by_hardware``."""
    words = [] if group_by_hardware else [manifest.host]
    model, cores = manifest.processor, manifest.at("environment", "processor", "cores")
    words.append(f"{model}, {cores} cores" if model and cores else model)
    names = [_text(gpu.get("name") or "GPU") for gpu in manifest.gpus]
    words += [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return ", ".join(filter(None, words)) or manifest.machine or "machine not named"


def _gpu_settings(gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Settings of all GPUs by name, where a run recorded them."""
    found: dict[str, list[Any]] = {}
    for gpu in gpus:
        for name, value in gpu.items():
            if name not in ("name", "uuid", "bus_id", "index", "serial"):
                found.setdefault(str(name), []).append(value)
    return {
        name: values[0] if values.count(values[0]) == len(values) else values
        for name, values in found.items()
    }


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """One line for every fact that differs: ``kernel 6.1 -> 6.8``."""
    names = sorted({*before, *after}, key=str.casefold)
    return tuple(
        f"{name} {before.get(name, 'not recorded')} -> {after.get(name, 'not recorded')}"
        for name in names
        if before.get(name) != after.get(name)
    )


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return plain(text, LONGEST_VALUE)


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
    folders: Sequence[Path], minimum_change: float = 0.03, group_by_hardware: bool = False, only: str = ""
) -> History:
    """The history that ``folders`` tell. only: text that a series' label must contain.

    Cases without a speed and times of an emulation are left out; a run that cannot be read is a problem, and
    the rest is told. minimum_change: steps below this fraction are not told.
    """
    found: dict[tuple[str, str], list[tuple[Seen, dict[str, str]]]] = defaultdict(list)
    runs, problems = 0, list[str]()
    for folder in folders:
        try:
            run = load_run(folder, details=False)
        except RunFolderError as error:
            problems.append(str(error))
            continue
        runs += 1
        problems += run.problems
        machine, facts = machine_of(run.manifest, group_by_hardware), facts_of(run.manifest)
        for label, seen in _seen(run, only).items():
            library = {"library": seen.backend_version} if seen.backend_version else {}
            found[label, machine].append((seen, {**facts, **library}))
    series = [_series(label, machine, members, minimum_change) for (label, machine), members in found.items()]
    series.sort(key=lambda one: (one.label, one.machine))
    series.sort(key=lambda one: max((change.created_at for change in one.changes), default=""), reverse=True)
    return History(runs, tuple(series), tuple(problems))


def _seen(run: Run, only: str) -> dict[str, Seen]:
    """The median of each case, by label; samples are not held while other runs are read."""
    told: dict[str, list[Point]] = defaultdict(list)
    for point in run.points:
        label = _label(point)
        if point.is_timed and not point.emulated and only in label:
            told[label].append(point)
    found = {}
    for label, several in told.items():
        # Imports of repeated tables hold a case several times, but a run is one value.
        several.sort(key=lambda one: one.median_seconds or 0.0)
        point = several[(len(several) - 1) // 2]
        found[label] = Seen(
            run=run.path.name,
            created_at=run.manifest.created_at,
            median_seconds=point.median_seconds or 0.0,
            low_seconds=point.low_seconds,
            high_seconds=point.high_seconds,
            backend_version=point.backend_version,
            doubts=point.flags,
        )
    return found


def _label(point: Point) -> str:
    words = (point.label, "simulated" * point.simulated, f"source {point.source}" * point.imported)
    return " ".join(word for word in words if word)


def _series(
    label: str, machine: str, members: Sequence[tuple[Seen, dict[str, str]]], minimum_change: float
) -> Series:
    members = sorted(members, key=lambda one: (one[0].created_at, one[0].run))
    seen = tuple(one for one, _ in members)
    moved = {
        index: lines
        for index in range(1, len(members))
        if (lines := changed(members[index - 1][1], members[index][1]))
    }
    levels = find_levels([one.median_seconds for one in seen], minimum_change)
    return Series(label, machine, seen, levels, moved)
