"""Runs that look like real ones: alpha-beta times, noise, outliers, a slow rank, a few failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ccbench.cases.axes import NO_OP, Case
from ccbench.cases.measurement import Conditions, Measurement, Status
from ccbench.collectives import COLLECTIVES, collective
from ccbench.model import Prediction
from ccbench.report.figure import Figure, Grid
from ccbench.results import Run, RunFolder, load_run

MANIFEST: Mapping[str, Any] = {
    "suite": {"name": "allreduce"},
    "machine": {"name": "epyc-2x64"},
    "environment": {"host": {"name": "node7"}},
    "versions": {"ccbench": "0.1.0"},
}

ALPHA_SECONDS = 1.5e-6
BYTES_PER_SECOND = 9e9

Edit = Callable[[Measurement], Measurement]


def case(name: str, algorithm: str, size_bytes: int, ranks: int = 4, **changes: Any) -> Case:
    row = collective(name)
    count = row.count_for(size_bytes, ranks, 4)
    plain = Case(
        "allreduce",
        "cpu",
        name,
        algorithm,
        "float32",
        "sum" if row.reduces else NO_OP,
        row.size_bytes(count, ranks, 4),
        count,
        ranks,
        root=0 if row.rooted else -1,
    )
    return replace(plain, **changes)


def prediction(case: Case) -> Prediction:
    """An alpha-beta price: tree pays the whole buffer each level, the others a share each step."""
    steps = {"tree": 2 * np.log2(case.ranks), "halving_doubling": 2 * np.log2(case.ranks)}
    latency = ALPHA_SECONDS * float(steps.get(case.algorithm, 2 * (case.ranks - 1)))
    factor = (
        2.6
        if case.algorithm == "tree"
        else 1.12
        if case.algorithm == "halving_doubling"
        else 1.0
    )
    share = COLLECTIVES[case.collective].bus_factor(case.ranks)
    ideal = share * case.size_bytes / BYTES_PER_SECOND
    bound = ALPHA_SECONDS * float(np.log2(case.ranks)) + ideal * 0.8
    return Prediction(
        bound, latency + factor * ideal, latency, factor * ideal, "link between cores 1 and 2"
    )


def measurement(case: Case, random: np.random.Generator, slow_rank: int = 2) -> Measurement:
    """Samples 5 to 20 % above the prediction, skewed to the right, one outlier in thirty."""
    centre = prediction(case).predicted_seconds * float(random.uniform(1.02, 1.18))
    samples = centre * (1 + random.gamma(2.0, 0.02, size=30))
    samples[11] *= 1.6
    shares = (
        0.97 - 0.02 * random.random((case.ranks, 1)) - 0.01 * random.random((case.ranks, 30))
    )
    shares[min(slow_rank, case.ranks - 1)] = 1.0
    return Measurement(
        case=case,
        status=Status.OK,
        backend_version="numpy 2.1",
        algorithm_used=case.algorithm,
        launches_per_sample=16,
        samples_seconds=tuple(samples.tolist()),
        skew_seconds=tuple((0.02 * samples).tolist()),
        rank_samples_seconds=tuple(tuple(row) for row in (shares * samples).tolist()),
        round_samples=(5,) * 6,
        wrong_elements=0,
        stop_reason="interval narrow enough",
        started_at="2026-03-04T05:06:07Z",
    )


def failed(measurement: Measurement, status: Status, detail: str) -> Measurement:
    return Measurement(
        measurement.case,
        status,
        detail=detail,
        backend_version=measurement.backend_version,
        simulated=measurement.simulated,
    )


def flagged(measurement: Measurement, *flags: str) -> Measurement:
    return replace(measurement, conditions=Conditions(flags=flags))


def emulated(measurement: Measurement) -> Measurement:
    """As of a device that a processor stands in for."""
    return replace(flagged(measurement, "emulation"), simulated=True)


def write_run(
    path: Path,
    cases: Iterable[Case],
    edits: Mapping[int, Edit] | None = None,
    manifest: Mapping[str, Any] = MANIFEST,
    simulated: bool = False,
    priced: bool = True,
    slowdown: float = 1.0,
) -> Run:
    """Write and load a run; ``edits`` changes the measurement with that number."""
    random = np.random.default_rng(7)
    with RunFolder.create(path, manifest) as folder:
        for number, one in enumerate(cases):
            got = measurement(one, random)
            times = tuple(slowdown * sample for sample in got.samples_seconds)
            got = replace(got, simulated=simulated, samples_seconds=times)
            edit = (edits or {}).get(number)
            got = edit(got) if edit is not None else got
            folder.write(got, prediction(one) if priced else None)
    return load_run(path)


def sweep(
    name: str = "all_reduce",
    algorithms: Iterable[str] = ("ring",),
    last: int = 26,
    **changes: Any,
) -> list[Case]:
    """Sizes 1 KiB to 2**last, factor 4, for every algorithm."""
    return [
        case(name, algorithm, 2**power, **changes)
        for algorithm in algorithms
        for power in range(10, last + 1, 2)
    ]


def grid_of(figure: Figure) -> Grid:
    assert figure.grid is not None
    return figure.grid
