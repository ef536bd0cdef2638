"""Pairs of runs whose truth is known: samples of rounds made up by a seeded generator, without any file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.results import Run
from ccbench.results.schema import row_of
from tests.results.samples import run_of_rows

ROUNDS = 6

MANIFEST: Mapping[str, Any] = {
    "environment": {
        "host": {"name": "node7"},
        "processor": {"model": "EPYC 7763", "cores_allowed": 64},
    }
}


def case(place: int, **changes: Any) -> Case:
    """One of many cases: all_reduce of growing sizes, three algorithms."""
    size = 4 * 2 ** (place % 20)
    algorithm = ("ring", "tree", "two_shot")[place // 20 % 3]
    plain = Case(
        "made-up", "cpu", "all_reduce", algorithm, "float32", "sum", size, size // 4, 4
    )
    return replace(plain, **changes)


def measured(
    measured_case: Case, rounds: Sequence[Sequence[float]], **changes: Any
) -> Measurement:
    """An OK measurement with these samples, one list a round."""
    plain = Measurement(
        measured_case,
        Status.OK,
        backend_version="numpy 2",
        samples_seconds=tuple(sample for one_round in rounds for sample in one_round),
        round_samples=tuple(len(one_round) for one_round in rounds),
        wrong_elements=0,
        stop_reason="interval narrow enough",
    )
    return replace(plain, **changes)


def run_of(
    measurements: Sequence[Measurement],
    name: str = "run",
    manifest: Mapping[str, Any] = MANIFEST,
    **columns: Any,
) -> Run:
    """A run as it would be loaded; ``columns`` are set in every row."""
    return run_of_rows(
        [{**row_of(measurement, None, 0.95), **columns} for measurement in measurements],
        manifest,
        name,
    )


@dataclass(frozen=True)
class Noise:
    """Logarithmic noise: of rounds and of samples, times on top of 1.

    modes: how much slower the rounds in the other of two modes are. drift: change from first round to last.
    """

    one_round: float = 0.01
    sample: float = 0.03
    samples: int = 8
    modes: float = 0.0
    drift: float = 0.0

    def draw(self, random: np.random.Generator, points: int) -> NDArray[np.float64]:
        """Factors on the true time, [point, round, sample]."""
        logarithm = random.normal(0, self.one_round, (points, ROUNDS))
        logarithm += (random.random((points, ROUNDS)) < 0.5) * np.log1p(self.modes)
        logarithm += np.linspace(0, self.drift, ROUNDS)
        samples = random.gamma(2.0, self.sample / np.sqrt(2), (points, ROUNDS, self.samples))
        return np.asarray(np.exp(logarithm[:, :, None] + samples))


_TEMPLATE = measured(case(0), [[1.0]])


def made_up(
    random: np.random.Generator, changes: Sequence[float], noise: Noise, name: str
) -> Run:
    """A run of as many points as ``changes``, each slower by that fraction than it would be."""
    factors = noise.draw(random, len(changes))
    rows = []
    template = row_of(_TEMPLATE, None, 0.95)
    for place, change in enumerate(changes):
        point_case = case(place)
        seconds = 1e-5 * (1 + place) * (1 + change) * factors[place]
        rows.append(
            {
                **template,
                "case_id": point_case.case_id,
                "algorithm": point_case.algorithm,
                "size_bytes": point_case.size_bytes,
                "samples_seconds": seconds.ravel(),
                "round_samples": np.full(ROUNDS, noise.samples),
                "median_seconds": float(np.median(np.median(seconds, axis=1))),
            }
        )
    return run_of_rows(rows, MANIFEST, name)
