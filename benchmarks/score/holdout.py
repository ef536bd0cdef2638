"""Calibrations of one machine, tested on sizes that they did not see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from benchmarks.score.logs import LogPoints
from benchmarks.score.scores import Errors, Predictor, errors_of
from benchmarks.score.statistics import Score
from ccbench.errors import CcbenchError
from ccbench.model.library import LibrarySystem
from ccbench.model.library.calibration import Observation

FEWEST_SIZES = 4
"""A calibration needs two sizes for its scale of latency and its scale of rate, and the test some others."""

Fitter = Callable[[Sequence[Observation]], Predictor]
"""From observations to a predictor that is fitted to them."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class HeldOut:
    """The error on one group that a fit did not see. files: its logs. reason: why there is none, or ""."""

    name: str
    files: tuple[str, ...]
    score: Score
    reason: str = ""


@dataclass(frozen=True)
class HoldoutScores:
    """groups: one each. total: of all their held-out points together."""

    groups: tuple[HeldOut, ...]
    total: Score


@dataclass(frozen=True)
class _Group:
    name: str
    files: tuple[str, ...]
    observations: tuple[Observation, ...]


def on_other_sizes(
    logs: Sequence[LogPoints], calibrate: Fitter, report: Report
) -> HoldoutScores:
    """A calibration of each described machine on every other of its sizes, tested on the rest.

    Only healthy logs. ``calibrate`` gets the observations of one machine at sizes 1, 3, 5 ... of those that
    it was measured at, in order; the errors are those at sizes 2, 4, 6 ...
    """
    groups = _groups(logs, lambda log, one: (log.entry.machine_words, system_key(one.system)))
    found, total = [], Errors()
    for number, group in enumerate(groups, start=1):
        report(f"calibrating {number} of {len(groups)}: {group.name}")
        held, errors = _calibrated(group, calibrate)
        found.append(held)
        total += errors
    return HoldoutScores(tuple(found), total.score)


def system_key(system: LibrarySystem) -> tuple[Hashable, ...]:
    """The figures of a system: not its name, their origins, nor the processors, which are often assumed."""
    return (
        system.generation,
        system.ranks_per_node,
        system.nodes,
        system.intra,
        round(system.intra_bytes_per_second),
        system.network,
    )


def machine_key(system: LibrarySystem) -> tuple[Hashable, ...]:
    """What systems share that are more or less of one kind of machine, or of one cluster."""
    network = system.network
    return (
        system.generation,
        system.intra,
        round(system.intra_bytes_per_second),
        None if network is None else (network.word, round(network.bytes_per_second)),
    )


def _groups(
    logs: Sequence[LogPoints], key: Callable[[LogPoints, Observation], Hashable]
) -> tuple[_Group, ...]:
    observations: dict[Hashable, list[Observation]] = defaultdict(list)
    files: dict[Hashable, dict[str, None]] = defaultdict(dict)
    for log in logs:
        for observation in log.observations if log.entry.healthy else ():
            group = key(log, observation)
            observations[group].append(observation)
            files[group][log.entry.file] = None
    return tuple(
        _Group(found[0].system.name, tuple(files[group]), tuple(found))
        for group, found in observations.items()
    )


def _calibrated(group: _Group, calibrate: Fitter) -> tuple[HeldOut, Errors]:
    same = group.observations[0].system  # the others' names and origins may be worded otherwise
    observations = [replace(observation, system=same) for observation in group.observations]
    sizes = sorted(
        {size for observation in observations for size in observation.request.size_bytes}
    )
    if len(sizes) < FEWEST_SIZES:
        reason = f"{len(sizes)} sizes; {FEWEST_SIZES} are needed"
        return HeldOut(group.name, group.files, Errors().score, reason), Errors()
    seen, unseen = (
        at_sizes(observations, set(sizes[::2])),
        at_sizes(observations, set(sizes[1::2])),
    )
    try:
        errors, reasons = errors_of(unseen, calibrate(seen))
    except CcbenchError as error:
        return HeldOut(group.name, group.files, Errors().score, str(error)), Errors()
    return HeldOut(group.name, group.files, errors.score, "; ".join(reasons)), errors


def at_sizes(observations: Sequence[Observation], sizes: set[int]) -> list[Observation]:
    """``observations`` at those of their sizes that are among ``sizes``; without those that have none."""
    found = []
    for observation in observations:
        places = [
            place for place, size in enumerate(observation.request.size_bytes) if size in sizes
        ]
        if places:
            found.append(observation.taking(places))
    return found
