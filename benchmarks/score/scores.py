"""Predictions against the observations of published logs: errors of each log, and of all healthy ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.score.logs import LogPoints
from benchmarks.score.manifest import ManifestEntry
from benchmarks.score.statistics import Score, score
from ccbench.errors import CcbenchError
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation

Predictor = Callable[[LibrarySystem, LibraryRequest], Sequence[float]]
"""Seconds for every size of a request; a CcbenchError where it has none."""


@dataclass(frozen=True)
class LogScore:
    """One log. reason: why it has no points, "" where it has. comparison: the other predictors', by name."""

    entry: ManifestEntry
    systems: tuple[LibrarySystem, ...]
    score: Score
    comparison: Mapping[str, Score]
    reason: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def counted(self) -> bool:
        """Whether its points are in the total: known to be healthy, and modelled."""
        return self.entry.healthy is True and not self.reason


@dataclass(frozen=True)
class Scores:
    """logs: all of the manifest, in its order. total: of the points of those that count."""

    logs: tuple[LogScore, ...]
    total: Score
    comparison: Mapping[str, Score]

    @property
    def not_modelled(self) -> tuple[LogScore, ...]:
        """Logs without a point."""
        return tuple(log for log in self.logs if log.reason)


@dataclass(frozen=True)
class Errors:
    """Relative errors of one predictor along the sizes of some observations; NaN where it has no answer."""

    size_bytes: tuple[int, ...] = ()
    errors: tuple[float, ...] = ()

    def __add__(self, other: Errors) -> Errors:
        return Errors(self.size_bytes + other.size_bytes, self.errors + other.errors)

    @property
    def score(self) -> Score:
        """Their figures."""
        return score(self.size_bytes, self.errors)


def errors_of(
    observations: Sequence[Observation], predict: Predictor
) -> tuple[Errors, tuple[str, ...]]:
    """The errors of ``predict``, and the reasons for what it could not answer, each once."""
    found, reasons = Errors(), dict[str, None]()
    for observation in observations:
        measured = np.asarray(observation.seconds, dtype=np.float64)
        try:
            predicted = np.asarray(
                predict(observation.system, observation.request), dtype=np.float64
            )
        except CcbenchError as error:
            reasons[str(error)] = None
            predicted = np.full(len(measured), np.nan)
        found += Errors(
            observation.request.size_bytes, tuple((predicted / measured - 1).tolist())
        )
    return found, tuple(reasons)


def scored(
    logs: Sequence[LogPoints], model: Predictor, comparisons: Mapping[str, Predictor]
) -> Scores:
    """Errors by ``model`` and by each of ``comparisons``: of every log, and of all healthy ones together."""
    total, others = Errors(), dict.fromkeys(comparisons, Errors())
    found = []
    for log in logs:
        errors, missing = errors_of(log.observations, model)
        compared = {
            name: errors_of(log.observations, predict)[0]
            for name, predict in comparisons.items()
        }
        one = _log_score(log, errors, missing, compared)
        found.append(one)
        if one.counted:
            total += errors
            others = {name: others[name] + compared[name] for name in others}
    return Scores(
        tuple(found), total.score, {name: errors.score for name, errors in others.items()}
    )


def _log_score(
    log: LogPoints, errors: Errors, missing: tuple[str, ...], compared: Mapping[str, Errors]
) -> LogScore:
    own = errors.score
    left_out = (*log.left_out, *missing)
    reason = (
        "" if own.overall.points else "; ".join(left_out) or "nothing in it can be compared"
    )
    comparison = {name: found.score for name, found in compared.items()}
    return LogScore(log.entry, log.systems, own, comparison, reason, () if reason else left_out)
