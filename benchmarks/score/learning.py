"""Levels of the model that many published logs suit best at once.

A system weighs as much as any other, whatever its number of rows, and the loss of a row is bounded: some
systems are twice as slow at small sizes as all others, for reasons that no description names, and must not
move what holds for the rest. Levels are pulled to one by normal priors on their logarithms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.score.holdout import Report, system_key
from benchmarks.score.logs import LogPoints
from ccbench.errors import MachineError
from ccbench.model.library.calibration import Observation, log_ratios
from ccbench.model.library.constants import (
    LEVELS,
    SHIPPED_FILE,
    Domain,
    LibraryConstants,
    constants_of,
    kinds_of,
    scaled,
)
from ccbench.model.library.intervals import ANCHORED_FILE, BETWEEN_FILE, RESIDUALS_FILE
from ccbench.suite.documents import read_installed

Floats = NDArray[np.float64]

STEP = 1e-2
"""In log scale, for slopes: wide enough that a choice of algorithm may change."""

OFF = 0.15
"""Logarithm of an error from which the loss flattens: rows that are off by much more pull no more."""

PRIOR_WEIGHT = 0.01
"""A departure by one spread costs a hundredth of what one system costs that is wholly off."""

FREE = tuple(level for level in LEVELS.values() if level.learned_spread > 0)


def fit(
    observations: Sequence[Observation],
    learned_on: str = "",
    most_evaluations: int = 8,
    prior_weight: float = PRIOR_WEIGHT,
) -> LibraryConstants:
    """Constants that suit all ``observations``, with their domain; as published where there are none."""
    from scipy.optimize import least_squares

    if not observations:
        return constants_of({}, learned_on)
    published = constants_of({}).table
    spread = np.array([level.learned_spread for level in FREE])
    rows: dict[Hashable, int] = defaultdict(int)
    for observation in observations:
        rows[system_key(observation.system)] += len(observation.seconds)
    weights = np.concatenate(
        [
            np.full(len(observation.seconds), 1 / np.sqrt(rows[system_key(observation.system)]))
            for observation in observations
        ]
    )

    def residuals(point: Floats) -> Floats:
        off = np.concatenate(log_ratios(observations, scaled(published, _levels(point)))) / OFF
        # Squares are z^2 / (1 + z^2) (Geman and McClure, 1985), weighed so that every system has one in all.
        prior = np.sqrt(prior_weight) * point / spread
        return np.concatenate([weights * off / np.sqrt(1.0 + off**2), prior])

    found = least_squares(
        residuals, np.zeros(len(FREE)), max_nfev=most_evaluations, diff_step=[STEP] * len(FREE)
    )
    return constants_of(_levels(found.x), learned_on, domain_of(observations))


def _levels(point: Floats) -> dict[str, float]:
    return {level.name: float(np.exp(x)) for level, x in zip(FREE, point, strict=True)}


def learn_from(logs: Sequence[LogPoints], report: Report) -> None:
    """Learn the shipped levels and residuals from the healthy ones of ``logs``, and write all four files.

    Raises MachineError where a file cannot be written.
    """
    from benchmarks.score.validation import (
        anchored_systems,
        between_systems,
        folds,
        held_out_systems,
        plain_residuals,
        pooled,
        residuals_of,
    )

    healthy = [log for log in logs if log.entry.healthy and log.observations]
    observations = [observation for log in healthy for observation in log.observations]
    systems = len({system_key(observation.system) for observation in observations})
    points = sum(len(observation.seconds) for observation in observations)
    learned_on = (
        f"{len(healthy)} published logs of healthy machines, {systems} systems, {points} points, in and "
        f"out of place, {date.today().isoformat()}"
    )
    write_constants(fit(observations), SHIPPED_FILE, learned_on)
    left_out = folds(logs, system_key, report, fit)
    for path, tested in (
        (RESIDUALS_FILE, held_out_systems(left_out)),
        (ANCHORED_FILE, pooled(anchored_systems(left_out))),
        (BETWEEN_FILE, between_systems(left_out)),
    ):
        told = f"{len(tested)} systems of {learned_on}"
        _write(
            path, plain_residuals(residuals_of(tested), told), width=118, default_flow_style=None
        )


def write_constants(constants: LibraryConstants, path: Path, learned_on: str) -> None:
    """Write ``constants`` with four digits, and ``learned_on``: logs, systems, points and date in words.

    Raises MachineError where the file cannot be written.
    """
    domain = constants.domain
    most_nodes: dict[str, dict[str, int]] = {}
    for (kind, word), nodes in domain.most_nodes:
        most_nodes.setdefault(kind, {})[word] = nodes
    plain = {
        "learned_on": learned_on,
        "domain": {
            "most_nodes": most_nodes,
            "most_ranks_per_node": dict(domain.most_ranks_per_node),
            "largest_bytes": domain.largest_bytes,
        },
        "levels": {name: float(f"{scale:.4g}") for name, scale in constants.levels},
    }
    _write(path, plain, width=110)


def _write(path: Path, plain: Mapping[str, Any], **style: Any) -> None:
    import yaml

    try:
        read_installed.cache_clear()
        path.write_text(
            yaml.safe_dump(plain, sort_keys=False, explicit_end=True, **style), encoding="utf-8"
        )
    except OSError as error:
        raise MachineError(
            f"{path}: cannot be written ({error.strerror}); name another file"
        ) from None


def domain_of(observations: Sequence[Observation]) -> Domain:
    """What ``observations`` are of: kinds of machine, numbers of nodes, sizes."""
    nodes: dict[tuple[str, str], int] = {}
    inside: dict[str, int] = {}
    for observation in observations:
        system = observation.system
        for key in kinds_of(system, observation.request):
            nodes[key] = max(nodes.get(key, 0), system.nodes)
        intra = system.intra.value
        inside[intra] = max(inside.get(intra, 0), system.ranks_per_node)
    largest = max(
        (size for observation in observations for size in observation.request.size_bytes), default=0
    )
    return Domain(tuple(sorted(nodes.items())), tuple(sorted(inside.items())), largest)
