"""Runs in memory: every pair, collectives and groups of a machine, with faults planted in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ccbench.cases.axes import NO_OP, Case
from ccbench.cases.measurement import Conditions, Measurement, Status
from ccbench.collectives import collective
from ccbench.groups import Pair, every_pair, format_ranks, parse_groups
from ccbench.results import Run
from ccbench.results.schema import row_of
from ccbench.topology.files import load_catalog, to_plain
from tests.results.samples import run_of_rows

LATENCY_SECONDS = 4e-6
ROUNDS = 6

Slower = Callable[[Pair], float]
"""How many times as long a pair takes as it should."""


def evenly(pair: Pair) -> float:
    return 1.0


def manifest(machine: str = "hgx-h100", verdict: str = "health") -> dict[str, Any]:
    topology = to_plain(load_catalog(machine)) if machine else None
    return {
        "suite": {"name": "health", "verdict": verdict},
        "topology": topology,
        "options": {},
    }


def run_of(measurements: Sequence[Measurement], stored: Mapping[str, Any] | None = None) -> Run:
    rows = [row_of(measurement, None, 0.95) for measurement in measurements]
    return run_of_rows(rows, manifest() if stored is None else stored, "somewhere")


def case(name: str, size_bytes: int, ranks: int = 8, **changes: Any) -> Case:
    row = collective(name)
    count = row.count_for(size_bytes, ranks, 4)
    plain = Case(
        "health",
        "nccl",
        name,
        "default",
        "float32",
        "sum" if row.reduces else NO_OP,
        row.size_bytes(count, ranks, 4),
        count,
        ranks,
        root=0 if row.rooted else -1,
    )
    return replace(plain, **changes)


def measured(
    measured_case: Case,
    seconds: float,
    random: np.random.Generator,
    noise: float = 0.02,
    **changes: Any,
) -> Measurement:
    """Six rounds of five samples, some noise between them and within."""
    rounds = seconds * (1 + noise * random.normal(size=ROUNDS))[:, None]
    samples = rounds * (1 + noise * np.abs(random.normal(size=(ROUNDS, 5))))
    plain = Measurement(
        case=measured_case,
        status=Status.OK,
        backend_version="NCCL 2.27",
        wrong_elements=0,
        samples_seconds=tuple(samples.ravel().tolist()),
        round_samples=(5,) * ROUNDS,
    )
    return replace(plain, **changes)


def pairs(
    random: np.random.Generator,
    ranks: int = 8,
    slower: Slower = evenly,
    sizes: Sequence[int] = (8, 1 << 26),
    rate: Callable[[Pair], float] = lambda pair: 380e9,
    noise: float = 0.02,
    **changes: Any,
) -> list[Measurement]:
    """Every pair one way and both ways, at latency and bandwidth."""
    measurements = []
    for both in (False, True):
        for pair in every_pair(ranks, both):
            for size in sizes:
                seconds = (LATENCY_SECONDS + size / rate(pair)) * slower(pair)
                pair_case = case("send_recv", size, ranks, pair=str(pair), **changes)
                measurements.append(measured(pair_case, seconds, random, noise))
    return measurements


def collectives(
    random: np.random.Generator, ranks: int = 8, late: int | None = None, noise: float = 0.02
) -> list[Measurement]:
    """Collectives in which nobody waits longer than others, but for the one rank that is late."""
    measurements = []
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for size in (4096, 1 << 20, 1 << 24):
            seconds = 2e-5 + size / 2e11
            waiting = 0.3 * seconds * (1 + 0.1 * random.random(ranks))
            if late is not None:
                waiting[late] = 0.0
            measurements.append(
                measured(
                    case(name, size, ranks),
                    seconds,
                    random,
                    noise,
                    rank_samples_seconds=((seconds,) * 3,) * ranks,
                    rank_waiting_seconds=tuple((float(waited),) * ROUNDS for waited in waiting),
                )
            )
    return measurements


def groups(
    random: np.random.Generator,
    ranks: int = 8,
    slow: int | None = None,
    expression: str = "rank // 2",
    slower: Callable[[tuple[int, ...]], float] = lambda members: 1.0,
    noise: float = 0.01,
    **changes: Any,
) -> list[Measurement]:
    """All groups at once, neighbours in twos unless said; ``slow`` is one of them by number."""
    measurements = []
    members = parse_groups(expression, ranks)
    for size in (4096, 1 << 19, 1 << 22):
        group_case = case("all_reduce", size, len(members[0]), groups=expression)
        group_case = replace(group_case, ranks=ranks, **changes)
        seconds = 1e-5 + size / 3e11
        parts = [
            seconds
            * (1.5 if place == slow else 1.0)
            * slower(members[place])
            * (1 + noise * random.normal(size=30))
            for place in range(len(members))
        ]
        measurements.append(
            measured(
                group_case,
                seconds,
                random,
                group_names=tuple(f"ranks {format_ranks(group)}" for group in members),
                group_samples_seconds=tuple(tuple(part.tolist()) for part in parts),
            )
        )
    return measurements


def flagged(measurement: Measurement, *flags: str) -> Measurement:
    return replace(measurement, conditions=Conditions(flags=flags))


def hot_readings() -> str:
    """Two devices, of which the second was too hot."""

    def device(bus: str, reasons: list[str]) -> dict[str, object]:
        look: dict[str, object] = {"at_seconds": 1.0, "clock_reasons": reasons}
        after = {**look, "at_seconds": 2.0}
        return {
            "bus_id": bus,
            "vendor": "nvidia",
            "model": "H100",
            "before": look,
            "after": after,
        }

    return json.dumps(
        [device("0000:1a:00.0", []), device("0000:3b:00.0", ["hw_thermal_slowdown"])]
    )
