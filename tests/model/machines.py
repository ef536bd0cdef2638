"""Machines for tests: one whose prices can be worked out by hand, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.model import Prediction
from ccbench.model.calibration_worker import KEYS
from ccbench.model.machine import Machine, RatePoint, Rates, SharedMemory
from ccbench.model.pricing import price_sizes
from ccbench.schedules.schedule import Schedule


def flat(one_process: float, all_cores: float) -> Rates:
    """Rates that no working set changes."""
    return Rates((RatePoint(1, one_process),), (RatePoint(1, all_cores),))


def machine_of(fabric: SharedMemory, name: str = "toy") -> Machine:
    return Machine(name, fabric, {entry.name: "made up for a test" for entry in fields(fabric)})


def toy(cores: int = 4, arithmetic: Mapping[str, float] | None = None) -> Machine:
    """Copies 1e9, adds 5e8 bytes per second and core; cores do not disturb each other."""
    fabric = SharedMemory(
        cores=cores,
        flag_latency_seconds=1e-6,
        best_flag_latency_seconds=5e-7,
        flag_check_seconds=1e-7,
        yield_seconds=1e-5,
        operation_seconds=2e-6,
        copy=flat(1e9, cores * 1e9),
        reduce=flat(5e8, cores * 5e8),
        peak_traffic=flat(2e9, cores * 2e9),
        operation_bytes_per_second=arithmetic or {},
    )
    return machine_of(fabric)


SIZES = (1 << 10, 1 << 16, 1 << 22, 1 << 26)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Any valid machine: rates fall with the working set, and peaks lie above everything else."""
    cores = draw(st.integers(1, 9))
    rate = st.floats(1e6, 1e12)
    falling = st.lists(st.floats(0.05, 1.0), min_size=len(SIZES), max_size=len(SIZES))

    def curve(first: float) -> list[float]:
        rates = [first]
        for factor in draw(falling)[1:]:
            rates.append(rates[-1] * factor)
        return rates

    def rates_of(one: list[float], every: list[float]) -> Rates:
        pairs = [zip(SIZES, curve, strict=True) for curve in (one, every)]
        return Rates(*(tuple(RatePoint(size, rate) for size, rate in pair) for pair in pairs))

    copies, sums = ([curve(draw(rate)), curve(draw(rate))] for _ in range(2))
    room = draw(st.floats(1.0, 4.0))
    peaks = [
        [room * max(2 * c, 3 * s) for c, s in zip(copy, reduce, strict=True)]
        for copy, reduce in zip(copies, sums, strict=True)
    ]
    peaks[1] = [max(pair) for pair in zip(*peaks, strict=True)]
    seconds = st.floats(0.0, 1e-3)
    flag = draw(seconds)
    fabric = SharedMemory(
        cores=cores,
        flag_latency_seconds=flag,
        best_flag_latency_seconds=flag * draw(st.floats(0.0, 1.0)),
        flag_check_seconds=draw(seconds),
        yield_seconds=draw(seconds),
        operation_seconds=draw(st.floats(1e-9, 1e-3)),
        copy=rates_of(*copies),
        reduce=rates_of(*sums),
        peak_traffic=rates_of(*peaks),
        operation_bytes_per_second=draw(st.dictionaries(st.sampled_from(KEYS), rate)),
    )
    return machine_of(fabric, "random")


def price(
    schedule: Schedule, count: int, item_bytes: int, machine: Machine, **asked: Any
) -> Prediction:
    """The prediction for one launch of ``schedule``; asked: as ``price_sizes`` has it."""
    return price_sizes(schedule, [count], item_bytes, machine, **asked).prediction(0)


def refusal(load: Callable[[Path], object], file: Path) -> str:
    """What is said of a file that is no machine: one line that begins with the file."""
    with pytest.raises(MachineError) as caught:
        load(file)
    message = str(caught.value)
    assert message.startswith(f"{file}:")
    assert "\n" not in message
    return message
