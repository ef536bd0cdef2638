"""One point over many runs: where its level changed, and what changed on the machine with it.

Run folders become series of medians, one per case and machine, in the order in which the runs began. Steps
are those of the piecewise constant curve that fits a series best, with as few steps as noise allows.

The fit is the one that asv uses (airspeed-velocity/asv: asv/step_detect.py, after F. Friedrich et al.,
"Complexity Penalized M-Estimation: Fast Computation", J. Comput. Graph. Statist. 17 (2008) 201, and Y.-C.
Yao, Statist. Probab. Lett. 6 (1988) 181): the sum of absolute distances from each segment's median, so that
single outliers move nothing, and a penalty per step on the logarithm of that sum. Here the sum is minimised
exactly for every number of steps, by dynamic programming over the costs of all segments; a segment has at
least two values, so one value is never a step.

The penalty: for noise alone the best single step lowers m * ln(sum) by less than 10.7 in 99.8 % of the
series, for m from 6 to 100 values of normal, Laplace, t(3) and gamma noise and of normal noise with 5 % gross
outliers (4,000 to 20,000 simulated series each; 11.8 for normal noise with outliers at 50 values, 11.7 for
gamma noise at 100). PENALTY lies above.
"""

from __future__ import annotations

import heapq
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import RunFolderError
from ccbench.results import Manifest, Point, Run, load_run
from ccbench.results.files import MANIFEST_NAME
from ccbench.units import format_change, format_seconds, plain, plural

PENALTY = 12.0
"""Amount by which a step must lower m * ln(sum of absolute distances); see above."""

FEWEST_VALUES = 6
"""Shorter series have no steps: two values on either side of one are too easily alike by chance."""

SHORTEST_SEGMENT = 2

MOST_STEPS = 12
"""Looked for in one series; more is not a history of steps but a series that wanders."""

LONGEST_SERIES = 240
"""Newest values that are looked at: costs grow with the square."""

NOISE_FLOOR = 0.001
"""Noise below this fraction of the value is taken for this much: no clock and no machine is that steady."""


@dataclass(frozen=True)
class Level:
    """Values from ``start`` to before ``end`` around one median."""

    start: int
    end: int
    median: float


def find_levels(values: Sequence[float], minimum_change: float = 0.03) -> tuple[Level, ...]:
    """The levels of a series of positive values in time order; one level where nothing changed.

    Neighbouring levels that differ by less than ``minimum_change`` (a fraction) are one. Of a longer series
    than LONGEST_SERIES only the newest values are looked at, so the first level may begin after 0. Raises
    ValueError for values that are not finite and positive.
    """
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError(
            "values must be finite and above 0; leave out runs that have no median"
        )
    if not values:
        return ()
    offset = max(0, len(values) - LONGEST_SERIES)
    recent = list(values[offset:])
    borders = [0, len(recent)] if len(recent) < FEWEST_VALUES else _borders(np.log(recent))
    # The smallest step goes again and again until all reach ``minimum_change``: each removal moves medians.
    while len(borders) > 2:
        medians = [float(np.median(recent[start:end])) for start, end in pairwise(borders)]
        sizes = [abs(math.log(after / before)) for before, after in pairwise(medians)]
        smallest = min(range(len(sizes)), key=sizes.__getitem__)
        if sizes[smallest] >= math.log1p(minimum_change):
            break
        borders = [*borders[: smallest + 1], *borders[smallest + 2 :]]
    return tuple(
        Level(offset + start, offset + end, float(np.median(recent[start:end])))
        for start, end in pairwise(borders)
    )


def _borders(logarithms: NDArray[np.float64]) -> list[int]:
    """The starts of segments, and the end, for the number of segments with the least penalised cost."""
    count = len(logarithms)
    costs = _segment_costs(logarithms)
    most = min(MOST_STEPS + 1, count // SHORTEST_SEGMENT)
    # best[end]: least cost of the values before ``end`` in so many segments; origin: where the last began.
    best = costs[0, :].copy()
    origins: list[NDArray[np.int64]] = []
    chosen, least = 1, _penalised(best[count], count, 0)
    for segments in range(2, most + 1):
        totals = best[:, None] + costs
        origin = np.argmin(totals, axis=0)
        best = totals[origin, np.arange(count + 1)]
        origins.append(origin)
        score = _penalised(best[count], count, segments - 1)
        if score < least:
            chosen, least = segments, score
    borders = [count]
    for segments in range(chosen, 1, -1):
        borders.append(int(origins[segments - 2][borders[-1]]))
    return [0, *reversed(borders)]


def _penalised(cost: float, count: int, steps: int) -> float:
    return count * math.log(cost / count + NOISE_FLOOR) + PENALTY * steps


def _segment_costs(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[start, end]: sum of absolute distances of values[start:end] from their median; inf where too short.

    n**2 / 2 steps.
    """
    # A running median in two heaps, the lower and the upper half, each with its sum.
    count = len(values)
    costs = np.full((count + 1, count + 1), math.inf)
    plain = values.tolist()
    for start in range(count):
        # The lower half is negated, so that its largest comes first.
        lower: list[float] = []
        upper: list[float] = []
        low_sum = high_sum = 0.0
        for end in range(start + 1, count + 1):
            value = plain[end - 1]
            if lower and value > -lower[0]:
                heapq.heappush(upper, value)
                high_sum += value
            else:
                heapq.heappush(lower, -value)
                low_sum += value
            if len(upper) > len(lower):
                moved = heapq.heappop(upper)
                heapq.heappush(lower, -moved)
                high_sum, low_sum = high_sum - moved, low_sum + moved
            elif len(lower) > len(upper) + 1:
                moved = -heapq.heappop(lower)
                heapq.heappush(upper, moved)
                high_sum, low_sum = high_sum + moved, low_sum - moved
            if end - start >= SHORTEST_SEGMENT:
                middle = -lower[0] if len(lower) > len(upper) else 0.0
                costs[start, end] = max(0.0, high_sum - low_sum + middle)
    return costs


LONGEST_VALUE = 80


def facts_of(manifest: Manifest) -> dict[str, str]:
    """Name -> value of everything that may change between two runs on one machine, as text.

    Names are those people use: ``kernel``, ``driver``, ``numpy``, ``NCCL_ALGO``. What a run did not record is
    absent.
    """

    def some(part: str, *names: str) -> dict[str, Any]:
        return {name: manifest.at("environment", part, name) for name in names}

    gpus: dict[str, list[Any]] = defaultdict(list)
    for gpu in manifest.gpus:
        for name, value in gpu.items():
            if name not in ("name", "uuid", "bus_id", "index", "serial"):
                gpus[f"GPU {name}"].append(value)
    # One value stands for all GPUs that have the same.
    of_all = {
        name: all_of[0]
        for name, all_of in gpus.items()
        if all_of.count(all_of[0]) == len(all_of)
    }

    facts: dict[str, Any] = {
        "machine": manifest.machine,
        **some("host", "kernel", "system", "hypervisor", "container"),
        **some("accelerators", "driver", "cuda_driver", "iommu", "modules"),
        **some("software", "python", "git_revision"),
        **manifest.mapping("environment", "software", "libraries"),
        **manifest.mapping("versions"),
        **some("processor", "governors", "boost", "smt_active", "clock_source"),
        **some("memory", "huge_pages"),
        **gpus,
        **of_all,
        **manifest.mapping("environment", "variables"),
    }
    return {
        name: _text(value)
        for name, value in facts.items()
        if value not in (None, "", {}, [], ())
    }


def machine_of(manifest: Manifest, group_by_hardware: bool = False) -> str:
    """Return words for a machine: processor, cores, GPUs, and its host unless ``group_by_hardware``."""
    words = [] if group_by_hardware else [manifest.host]
    model, cores = manifest.processor, manifest.at("environment", "processor", "cores")
    words.append(f"{model}, {cores} cores" if model and cores else model)
    names = [_text(gpu.get("name") or "GPU") for gpu in manifest.gpus]
    words += [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return ", ".join(filter(None, words)) or manifest.machine or "machine not named"


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
class CaseHistory:
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
    series: tuple[CaseHistory, ...]
    problems: tuple[str, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        """The steps of all series, newest first."""
        changes = [change for series in self.series for change in series.changes]
        return tuple(
            sorted(
                changes,
                key=lambda change: (change.created_at, abs(change.change)),
                reverse=True,
            )
        )

    @property
    def long_enough(self) -> bool:
        """True if any series is long enough for a step to be found."""
        return any(len(series.seen) >= FEWEST_VALUES for series in self.series)

    @property
    def too_short(self) -> str:
        """Why no step can be found, ``CANNOT SAY: 1 run, 6 needed ...``; "" where one can."""
        if self.long_enough:
            return ""
        longest = max((len(series.seen) for series in self.series), default=0)
        return f"CANNOT SAY: {plural(longest, 'run')}, {FEWEST_VALUES} needed of the same case on the same machine"


def run_folders(roots: Iterable[Path]) -> tuple[Path, ...]:
    """Every run folder that is one of ``roots`` or lies below one, each once. Raises RunFolderError for no
    folder."""
    folders_by_path: dict[Path, Path] = {}
    for root in roots:
        if not root.is_dir():
            raise RunFolderError(
                f"{root}: not a folder; name one that holds run folders, such as results"
            )
        for folder, below, files in os.walk(root):
            if MANIFEST_NAME in files:
                below.clear()  # a run folder holds no other
                folders_by_path.setdefault(Path(folder).resolve(), Path(folder))
            else:
                below.sort()
    return tuple(folders_by_path.values())


def history_of(
    folders: Sequence[Path],
    minimum_change: float = 0.03,
    group_by_hardware: bool = False,
    only: str = "",
) -> History:
    """The history that ``folders`` tell. only: text that a series' label must contain.

    Cases without a speed and times of an emulation are left out; a run that cannot be read is a problem, and
    the rest is told. minimum_change: steps below this fraction are not told.
    """
    histories: dict[tuple[str, str], list[tuple[Seen, dict[str, str]]]] = defaultdict(list)
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
        for label, value in _seen(run, only).items():
            library = {"library": value.backend_version} if value.backend_version else {}
            histories[label, machine].append((value, {**facts, **library}))
    series = []
    for (label, machine), members in histories.items():
        members.sort(key=lambda member: (member[0].created_at, member[0].run))
        moved = {
            index: lines
            for index, ((_, before), (_, after)) in enumerate(pairwise(members), start=1)
            if (lines := changed(before, after))
        }
        levels = find_levels([value.median_seconds for value, _ in members], minimum_change)
        series.append(
            CaseHistory(label, machine, tuple(value for value, _ in members), levels, moved)
        )
    # By label, and before that those with the newest steps.
    series.sort(key=lambda series_of_case: (series_of_case.label, series_of_case.machine))
    series.sort(
        key=lambda series_of_case: max(
            (change.created_at for change in series_of_case.changes), default=""
        ),
        reverse=True,
    )
    return History(runs, tuple(series), tuple(problems))


def _seen(run: Run, only: str) -> dict[str, Seen]:
    """The median of each case, by label; samples are not held while other runs are read."""
    points_by_label: dict[str, list[Point]] = defaultdict(list)
    for point in run.points:
        words = (
            point.label,
            "simulated" * point.simulated,
            f"source {point.source}" * point.imported,
        )
        label = " ".join(filter(None, words))
        if point.is_timed and not point.emulated and only in label:
            points_by_label[label].append(point)
    medians = {}
    for label, several in points_by_label.items():
        # Imports of repeated tables hold a case several times, but a run is one value.
        several.sort(key=lambda member: member.median_seconds or 0.0)
        point = several[(len(several) - 1) // 2]
        medians[label] = Seen(
            run=run.path.name,
            created_at=run.manifest.created_at,
            median_seconds=point.median_seconds or 0.0,
            low_seconds=point.low_seconds,
            high_seconds=point.high_seconds,
            backend_version=point.backend_version,
            doubts=point.flags,
        )
    return medians


DOCUMENT_VERSION = 1
"""Of the JSON document; it changes when a key is dropped or means another thing."""

MOST_LINES = 20
"""Steps that the screen shows; the page and the JSON have all."""


def history_lines(history: History) -> list[str]:
    """The newest steps, each with its size, when, and what changed on the machine with it."""
    lines = []
    for change in history.changes[:MOST_LINES]:
        lines.append(f"{when(change.created_at)}  {change_text(change)}  {change.series}")
        lines.append(
            f"    {change.machine}; run {change.run}, {plural(change.runs_after, 'run')} on the new level"
        )
        lines += [f"    {line}" for line in change.environment] or [
            "    nothing that was recorded changed"
        ]
    if len(history.changes) > MOST_LINES:
        lines.append(f"and {len(history.changes) - MOST_LINES} older steps")
    words = f"{plural(history.runs, 'run')}, {len(history.series)} series"
    words += f", {plural(len(history.changes), 'step')}"
    return [*lines, f"{history.too_short}; {words}" if history.too_short else words]


def change_text(change: Change) -> str:
    """``+12.3% slower (1.00 ms -> 1.12 ms)``."""
    word = "slower" if change.change > 0 else "faster"
    times = f"{format_seconds(change.before_seconds)} -> {format_seconds(change.after_seconds)}"
    return f"{format_change(change.change)} {word} ({times})"


def when(created_at: str) -> str:
    """Date and minute of an ISO time; printable whatever it holds."""
    return plain(created_at)[:16].replace("T", " ") or "time not known"


def history_document(history: History) -> dict[str, Any]:
    """``history`` as JSON: times in seconds, changes as fractions of the time before."""
    series = []
    for history_of_case in history.series:
        runs = []
        for index, value in enumerate(history_of_case.seen):
            run = asdict(value)
            del run["backend_version"], run["doubts"]
            moved = list(history_of_case.moved.get(index, ()))
            runs.append({**run, "flags": list(value.doubts), "environment_changes": moved})
        levels = [
            {
                "first_run": level.start,
                "last_run": level.end - 1,
                "median_seconds": level.median,
            }
            for level in history_of_case.levels
        ]
        series.append(
            {
                "label": history_of_case.label,
                "machine": history_of_case.machine,
                "runs": runs,
                "levels": levels,
            }
        )
    return {
        "version": DOCUMENT_VERSION,
        "runs": history.runs,
        "steps": [asdict(change) for change in history.changes],
        "series": series,
        "problems": list(history.problems),
    }
