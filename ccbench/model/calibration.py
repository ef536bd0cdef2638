"""Measure this machine in a second or two: what prices and bounds on its CPU need.

The measuring is done by ``calibration_worker`` in a clean interpreter of its own; here its samples become
a Machine. Medians make prices, extremes make bounds.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from ccbench.errors import MachineError
from ccbench.machine.host import module_command, single_threaded
from ccbench.model.calibration_worker import BLOCK_BYTES, COPY, REDUCE, payload_bytes
from ccbench.model.machine import (
    COPY_TRAFFIC,
    REDUCE_TRAFFIC,
    Machine,
    RatePoint,
    Rates,
    SharedMemory,
    calls_of,
)

QUICK_SECONDS = 1.2

GRACE_SECONDS = 30.0
"""Time beyond that asked for which the measuring may last, on a machine that is busy, before it is killed."""

PEAK_MARGIN = 1.15
"""The best of a second's samples is not the best there is, so bounds are given this much more: without
it, the fastest of some hundred samples of a run beat the bound by a few percent now and then."""

LEAST_SHARE_OF_WORK = 0.25
"""The fixed cost of a call is taken off an operation's time, but at least this share is left as work."""

ASSUMED_YIELD_SECONDS = 4e-6
"""Where processes cannot be pinned to one core, so that handing it over cannot be timed."""


def measure_machine(seconds: float = 2.0) -> Machine:
    """Return this machine, measured for about ``seconds`` on every core this process may use.

    Costs up to 1 GiB of memory for that time. Whatever ends this process ends the measuring processes
    too. Raises MachineError when the measuring fails or hangs.
    """
    samples = _measured(time.monotonic() + seconds, seconds + GRACE_SECONDS)
    return machine_from_samples(samples, datetime.now(timezone.utc))


def quick_machine() -> Machine:
    """``measure_machine`` in at most a second and a half, start of its processes included."""
    return measure_machine(QUICK_SECONDS)


def _measured(until_seconds: float, limit_seconds: float) -> Mapping[str, Any]:
    try:
        done = subprocess.run(
            module_command("ccbench.model.calibration_worker", repr(until_seconds)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            # One process per core works; a library's own threads would only disturb it.
            env=single_threaded(os.environ),
            start_new_session=True,
            text=True,
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        why = f"killed: it had not ended after {limit_seconds:.0f} s"
    else:
        if done.returncode == 0:
            samples: dict[str, Any] = json.loads(done.stdout)
            return samples
        why = f"exit status {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    raise MachineError(
        f"measuring this machine failed ({why}); name a machine instead, such as --machine cpu-shared-memory"
    )


def machine_from_samples(samples: Mapping[str, Any], measured_at: datetime) -> Machine:
    """A Machine from the samples that ``calibration_worker.Samples`` describes.

    Medians become prices. The shortest flag and, per working set, the operation that moved most bytes per
    second become the figures of bounds.
    """
    cores: int = samples["cores"]
    call_seconds = statistics.median(samples["call"])
    # (kind, working set, processes) -> seconds per operation, without the fixed cost of its call.
    times: dict[tuple[str, int, int], list[float]] = {}
    for key, values in samples["operations"].items():
        kind, working_set, processes = key.split("/")
        seconds = [_without_call(value, call_seconds) for value in values]
        times[kind, int(working_set), int(processes)] = seconds
    copy, reduce, peak = _rates(times, cores)
    flags: Sequence[float] = samples["flag"]
    shared: Sequence[float] = samples["shared_core"]
    fabric = SharedMemory(
        cores=cores,
        flag_latency_seconds=statistics.median(flags),
        best_flag_latency_seconds=min(flags),
        flag_check_seconds=statistics.median(samples["check"]),
        yield_seconds=statistics.median(shared) if shared else ASSUMED_YIELD_SECONDS,
        operation_seconds=statistics.median(samples["operation"]),
        copy=copy,
        reduce=reduce,
        peak_traffic=peak,
        operation_bytes_per_second={
            key: BLOCK_BYTES / _without_call(statistics.median(seconds), calls_of(key) * call_seconds)
            for key, seconds in samples["arithmetic"].items()
        },
    )
    when, rounds = f"measured {measured_at:%Y-%m-%d %H:%M} UTC", len(flags)
    # Far above 1, something else was using the machine, and the rates are too low.
    spread = statistics.median(statistics.median(values) / min(values) for values in times.values())
    usual = f"cost of the call taken off; median took {spread:.2f} times the best"
    median, numpy = f"{when}, median of {rounds}", f"NumPy {np.__version__}"
    on_one_core = f"{median} windows, ping-pong of two processes on one core"
    origins = {
        "cores": f"{when}, processors this process may use",
        "flag_latency_seconds": f"{median} windows, ping-pong of two pinned processes, half a round trip",
        "best_flag_latency_seconds": f"{when}, least of {rounds} windows of the same ping-pong",
        "flag_check_seconds": f"{median} windows",
        "yield_seconds": on_one_core if shared else "assumed, for processes cannot be pinned here",
        "operation_seconds": f"{median} windows, {numpy}, one element",
        "copy": f"{median}, {numpy} copyto on shared memory, {usual}",
        "reduce": f"{median}, {numpy} add with out= on shared memory, {usual}",
        "operation_bytes_per_second": f"{median}, {numpy}, one process, blocks of {BLOCK_BYTES >> 10} KiB in "
        "cache, cost of the calls taken off",
        "peak_traffic": f"{when}, best of {rounds} copies and additions times {PEAK_MARGIN}",
    }
    return Machine(f"measured-{cores}-cores", fabric, origins)


def _without_call(seconds: float, call_seconds: float) -> float:
    return max(seconds - call_seconds, LEAST_SHARE_OF_WORK * seconds)


def _rates(times: Mapping[tuple[str, int, int], Sequence[float]], cores: int) -> tuple[Rates, Rates, Rates]:
    """(copy, reduce, peak traffic), from seconds per operation by (kind, working set, processes).

    Noise is not allowed to break what Machine demands of its curves: no working set takes less time than a
    smaller one, and no price exceeds a peak.
    """
    sizes = sorted({working_set for _, working_set, _ in times})
    usual: dict[str, list[list[float]]] = {COPY: [], REDUCE: []}
    peaks: list[list[float]] = []
    for processes in (1, cores):
        best = [0.0] * len(sizes)
        for kind, traffic in ((COPY, COPY_TRAFFIC), (REDUCE, REDUCE_TRAFFIC)):
            rates, least_seconds = [], 0.0
            for place, size in enumerate(sizes):
                seconds = times[kind, size, processes]
                payload = payload_bytes(kind, size) * processes
                best[place] = max(best[place], PEAK_MARGIN * traffic * (payload / min(seconds)))
                # Prices are lowered where a larger working set seemed to be quicker.
                least_seconds = max(least_seconds, size / (payload / statistics.median(seconds)))
                rates.append(size / least_seconds)
            usual[kind].append(rates)
        # Peaks are raised there: the smaller working set's gives way.
        most_seconds = math.inf
        for place in reversed(range(len(sizes))):
            most_seconds = min(most_seconds, sizes[place] / best[place])
            best[place] = sizes[place] / most_seconds
        peaks.append(best)
    # All cores together see at least what one of them does alone.
    peaks[1] = [max(pair) for pair in zip(*peaks, strict=True)]
    copy, reduce, peak = (
        Rates(*(tuple(map(RatePoint, sizes, rates)) for rates in curves))
        for curves in (usual[COPY], usual[REDUCE], peaks)
    )
    return copy, reduce, peak
