"""Levels of the model that many published logs suit best at once.

A system weighs as much as any other, whatever its number of rows, of which MOST_ROWS count. The loss of a row is
bounded: some systems are twice as slow at small sizes as all others, for reasons that no description names, and
must not move what holds for the rest. Levels are pulled to one by normal priors on their logarithms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.score.keys import system_key
from ccbench.model.library.calibration import Observation, log_ratios
from ccbench.model.library.constants import (
    LEVELS,
    ConstantScale,
    Domain,
    LibraryConstants,
    constants_of,
    kinds_of,
    scaled,
)

Floats = NDArray[np.float64]

STEP = 1e-2
"""In log scale, for slopes: wide enough that a choice of algorithm may change."""

SHIFT = 1.0
"""Added to logarithms of scales: the solver's steps are shares of a variable, and none may be near zero."""

OFF = 0.15
"""Logarithm of an error from which the loss flattens: rows that are off by much more pull no more."""

PRIOR_WEIGHT = 0.05
"""A departure by one spread costs so much of what one system costs that is wholly off."""

MOST_ROWS = 40
"""Rows of one system that count, evenly chosen by size."""

EVALUATIONS = 10
"""Steps of a fit, from scales of one."""

FREE = tuple(level for level in LEVELS.values() if level.learned_spread > 0)

ON_PCIE = tuple(level for level in FREE if level.name.endswith("on PCIe"))
"""Levels of nodes whose GPUs PCIe alone joins."""


def fit(
    observations: Sequence[Observation],
    learned_on: str = "",
    prior_weight: float = PRIOR_WEIGHT,
    free: Sequence[ConstantScale] = FREE,
    fixed: Mapping[str, float] | None = None,
) -> LibraryConstants:
    """Constants that suit all ``observations``, with their domain; as published where there are none.

    free: levels that are learned. fixed: others, which stay.
    """
    from scipy.optimize import least_squares

    if not observations:
        return constants_of({}, learned_on)
    published = constants_of(fixed or {}).table
    spread = np.array([level.learned_spread for level in free])
    chosen, weights = _weighed(observations)

    def residuals(shifted: Floats) -> Floats:
        point = shifted - SHIFT
        off = np.concatenate(log_ratios(chosen, scaled(published, _levels(point, free)))) / OFF
        # Squares are z^2 / (1 + z^2) (Geman and McClure, 1985), weighed so that every system has one in all.
        prior = np.sqrt(prior_weight) * point / spread
        return np.concatenate([weights * off / np.sqrt(1.0 + off**2), prior])

    found = least_squares(
        residuals,
        np.full(len(free), SHIFT),
        x_scale=spread,
        max_nfev=EVALUATIONS,
        diff_step=[STEP] * len(free),
    )
    levels = {**(fixed or {}), **_levels(found.x - SHIFT, free)}
    return constants_of(levels, learned_on, domain_of(observations))


def _weighed(observations: Sequence[Observation]) -> tuple[list[Observation], Floats]:
    """At most MOST_ROWS rows of each system, and for every row the root of its share of its system."""
    rows: dict[Hashable, list[tuple[int, int, int]]] = defaultdict(list)
    for number, one in enumerate(observations):
        rows[system_key(one.system)] += [
            (size, number, place) for place, size in enumerate(one.request.size_bytes)
        ]
    places: dict[int, list[int]] = defaultdict(list)
    shares: dict[int, float] = {}
    for of_system in rows.values():
        # By size, whatever log they are of: a few rows of each would be its smallest and largest.
        of_system.sort()
        count = min(MOST_ROWS, len(of_system))
        for at in np.linspace(0, len(of_system) - 1, count).round().astype(int):
            _, number, place = of_system[at]
            places[number].append(place)
            shares[number] = 1 / np.sqrt(count)
    chosen = [observations[number].taking(taken) for number, taken in places.items()]
    return chosen, np.repeat(list(shares.values()), [len(taken) for taken in places.values()])


def _levels(point: Floats, free: Sequence[ConstantScale]) -> dict[str, float]:
    return {level.name: float(np.exp(x)) for level, x in zip(free, point, strict=True)}


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
        (size for observation in observations for size in observation.request.size_bytes),
        default=0,
    )
    return Domain(tuple(sorted(nodes.items())), tuple(sorted(inside.items())), largest)
