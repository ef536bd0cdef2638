"""Constants learned on many systems at once, each held near its start by its spread.

Least squares of log(predicted / measured) with a soft-L1 loss (Huber-like, so that one sick row does not
count much) plus ((log value - log start) / spread)^2, which stays square, so that no constant runs away: the
maximum of a posterior with normal priors. Rows of one system count less the more there are, so that no log
rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.model.library import LibrarySystem
from ccbench.model.library.calibration import LOSS_SCALE, Observation
from ccbench.model.library.constants import (
    CONSTANTS,
    SHIPPED_FILE,
    Domain,
    LibraryConstants,
    constants_of,
    kinds_of,
    shipped,
)
from ccbench.model.library.predictor import seconds_of

Floats = NDArray[np.float64]

PRIOR_WEIGHT = 6.0
"""A departure by one spread weighs as much as a row that is off by so many times LOSS_SCALE."""


FREE = tuple(constant for constant in CONSTANTS if constant.spread > 0)


def fit(
    observations: Sequence[Observation],
    learned_on: str = "",
    most_evaluations: int = 10,
    prior_weight: float = PRIOR_WEIGHT,
) -> LibraryConstants:
    """Constants that suit all ``observations``, with their domain; the starts where there are none.

    prior_weight: as PRIOR_WEIGHT; with less, systems that were left out were predicted worse.
    """
    from scipy.optimize import least_squares

    if not observations:
        return constants_of({}, learned_on)
    start = np.log([constant.start for constant in FREE])
    spread = np.array([constant.spread for constant in FREE])
    weights = _weights(observations)

    def residuals(point: Floats) -> Floats:
        table = _table(point)
        parts = [
            weight * np.log(seconds_of(one.system, one.request, table) / np.asarray(one.seconds))
            for one, weight in zip(observations, weights, strict=True)
        ]
        return np.concatenate(
            [_softened(np.concatenate(parts)), prior_weight * LOSS_SCALE * (point - start) / spread]
        )

    found = least_squares(residuals, start, max_nfev=most_evaluations)
    return constants_of(_table(found.x), learned_on, domain_of(observations))


def write_constants(constants: LibraryConstants, path: Path, learned_on: str) -> None:
    """Write ``constants`` with four digits, and ``learned_on``: logs, systems, points and date in words.

    Raises MachineError where the file cannot be written.
    """
    import yaml

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
        "values": {name: float(f"{value:.4g}") for name, value in constants.values},
    }
    try:
        path.write_text(yaml.safe_dump(plain, sort_keys=False, width=110), encoding="utf-8")
    except OSError as error:
        raise MachineError(f"{path}: cannot be written ({error.strerror}); name another file") from None
    if path == SHIPPED_FILE:
        shipped.cache_clear()


def _softened(residuals: Floats) -> Floats:
    """Residuals whose squares are the soft-L1 losses 2 s^2 (sqrt(1 + (r / s)^2) - 1), s being LOSS_SCALE."""
    root = np.sqrt(1.0 + (residuals / LOSS_SCALE) ** 2)
    return np.asarray(residuals * np.sqrt(2.0 / (1.0 + root)))


def domain_of(observations: Sequence[Observation]) -> Domain:
    """What ``observations`` are of: kinds of machine, numbers of nodes, sizes."""
    nodes: dict[tuple[str, str], int] = {}
    inside: dict[str, int] = {}
    for one in observations:
        system = one.system
        for key in kinds_of(system, one.request):
            nodes[key] = max(nodes.get(key, 0), system.nodes)
        intra = system.intra.value
        inside[intra] = max(inside.get(intra, 0), system.ranks_per_node)
    largest = max((size for one in observations for size in one.request.size_bytes), default=0)
    return Domain(tuple(sorted(nodes.items())), tuple(sorted(inside.items())), largest)


def _table(point: Floats) -> dict[str, float]:
    fixed = {constant.name: constant.start for constant in CONSTANTS if constant.spread == 0}
    return fixed | {constant.name: float(np.exp(x)) for constant, x in zip(FREE, point, strict=True)}


def _weights(observations: Sequence[Observation]) -> list[float]:
    rows: dict[LibrarySystem, int] = defaultdict(int)
    for one in observations:
        rows[one.system] += len(one.seconds)
    return [float(np.sqrt(3.0 / np.sqrt(rows[one.system]))) for one in observations]
