"""Measure this machine in a second or two: what prices and bounds on its CPU need.

The measuring is done by ``calibration_worker`` in a clean interpreter of its own; here its samples become
a Machine. Lower quartiles of many short tries make prices, extremes make bounds. What was measured best is
kept in the user's cache, so that a run on a machine that is busy now knows what the machine can do.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from ccbench.cases.measurement import Conditions
from ccbench.errors import HostBusy, MachineError
from ccbench.machine.files import Files, cache_folder
from ccbench.machine.host import (
    allowed_cpus,
    module_command,
    read_host,
    read_processor,
    single_threaded,
)
from ccbench.machine.readings import QUARTILE, contention_limit, read_cpu_times, watched
from ccbench.model.calibration_worker import BLOCK_BYTES, COPY, REDUCE, payload_bytes
from ccbench.model.machine import (
    COPY_TRAFFIC,
    REDUCE_TRAFFIC,
    SECONDS_FIELDS,
    Machine,
    RatePoint,
    Rates,
    SharedMemory,
    calls_of,
    load_machine,
    save_machine,
)
from ccbench.version import __version__

QUICK_SECONDS = 0.8
AGAIN_SECONDS = 0.3
"""Time for a host that was measured before: today's tries can only improve its figures."""

GRACE_SECONDS = 30.0
"""Time beyond that asked for which the measuring may last, on a machine that is busy, before it is killed."""

PEAK_MARGIN = 1.15
"""The best of a second's samples is not the best there is, so bounds are given this much more: without
it, the fastest of some hundred samples of a run beat the bound by a few percent now and then."""

SPREAD_LIMIT = 3.0
"""Lower quartile of the tries of an operation over the least, beyond which they do not tell what it takes."""

LEAST_SHARE_OF_WORK = 0.25
"""The fixed cost of a call is taken off an operation's time, but at least this share is left as work."""

ASSUMED_YIELD_SECONDS = 4e-6
"""Reason given where processes cannot be pinned to one core: handing it over cannot be timed."""

MOST_DAYS = 30
"""Age after which this host is measured anew, and other figures are said to be old: settings of power and, in
clouds, the hardware below change, and no name does."""

KEPT_FORM = 1
"""Changes when figures that were kept mean another thing than today's."""


@dataclass(frozen=True)
class Calibration:
    """A machine as just measured. disturbed: what was in the way, in words; '' where nothing was."""

    machine: Machine
    disturbed: str = ""


def measure_machine(seconds: float = 2.0) -> Calibration:
    """Return this machine, measured for about ``seconds`` on every core this process may use.

    Costs up to 1 GiB of memory for that time. Whatever ends this process ends the measuring processes
    too. Raises MachineError when the measuring fails or hangs.
    """
    files = Files()
    began, cpu_began = read_cpu_times(files), _children_cpu_seconds()
    samples = _measured(time.monotonic() + seconds, seconds + GRACE_SECONDS)
    ended, own_seconds = read_cpu_times(files), _children_cpu_seconds() - cpu_began
    load = watched(began, ended, own_seconds) if began and ended else Conditions()
    virtual = read_host(files).hypervisor is not None
    machine = machine_from_samples(samples, datetime.now(timezone.utc), virtual)
    origins = {**machine.origins, "cores": f"{machine.origins['cores']}; {_this_host()}"}
    return Calibration(replace(machine, origins=origins), disturbance(samples, load))


def _this_host() -> str:
    """Return host, processor, kernel and releases, which figures are of; a colon ends the host's name."""
    host, processor = read_host(Files()), read_processor(Files())
    return (
        f"host {host.name}: {processor.model}, kernel {host.kernel}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, ccbench {__version__}"
    )


def stale(machine: Machine) -> str:
    """Return why the figures of ``machine`` may no longer hold, and the cure; '' where nothing says so.

    They are old, or this is the host of that name with another processor, kernel or release.
    """
    measured_on, here = (
        machine.origins["cores"].rpartition("; host ")[2],
        _this_host().removeprefix("host "),
    )
    cure = "calibrate again (ccbench calibrate -o FILE)"
    if measured_on != here and measured_on.partition(":")[0] == here.partition(":")[0]:
        return f"{machine.name} was measured on {measured_on}; now it is {here}; {cure}"
    return too_old(machine.name, machine.origins.values(), cure)


def too_old(name: str, origins: Iterable[str], cure: str) -> str:
    """Return that ``name`` was measured more than MOST_DAYS ago, by the days in ``origins``, or ''."""
    # Without a day (shipped machines have theirs in the catalog's pages) nothing is old.
    days = sorted(
        day
        for text in origins
        for day in re.findall(r"\b2[0-9]{3}-[01][0-9]-[0-3][0-9](?![0-9])", text)
    )
    with suppress(ValueError, IndexError):  # somebody edited the file
        age = (datetime.now(timezone.utc).date() - date.fromisoformat(days[0])).days
        if age > MOST_DAYS:
            return f"{name} was measured on {days[0]}, {age} days ago; {cure}"
    return ""


def _children_cpu_seconds() -> float:
    used = os.times()
    return used.children_user + used.children_system


def disturbance(samples: Mapping[str, Any], load: Conditions) -> str:
    """Say what disturbed more tries than a lower quartile stands, or ''.

    samples: as ``calibration_worker.Samples`` describes them. load: of the processors meanwhile.
    """
    other_share, steal = load.other_cpu_share or 0.0, load.steal_share or 0.0
    if other_share + steal > contention_limit(samples["cores"], QUARTILE):
        return (
            f"other programs took {other_share:.0%} of the processors' time and the hypervisor {steal:.0%} while "
            "this machine was measured"
        )
    # Tries disagree, too, where what disturbs them is not in the system's books.
    key, spread = max(
        (
            (key, _lower_quartile(tries) / min(tries))
            for key, tries in samples["operations"].items()
        ),
        key=lambda pair: pair[1],
    )
    if spread > SPREAD_LIMIT:
        kind, working_set, processes = key.split("/")
        return (
            f"of tries of the same {kind} ({int(working_set) >> 10} KiB, {processes} at once) three quarters "
            f"took more than {spread:.1f} times as long as the quickest"
        )
    return ""


def quick_machine() -> Machine:
    """Return this machine as it was measured best: now, in less than a second, or in earlier calls.

    What is found is kept for later calls (``kept_file``), for MOST_DAYS, and longer while the host is too
    busy to be measured (``stale`` then says so). Raises HostBusy where other load is in the way and no
    earlier call had better luck, MachineError when the measuring fails or hangs.
    """
    file = kept_file()
    earlier = None
    with suppress(MachineError):  # nothing is kept, or it is damaged
        earlier = load_machine(file)
    old = earlier is not None and bool(stale(earlier))
    now = measure_machine(AGAIN_SECONDS if earlier and not old else QUICK_SECONDS)
    earlier = None if old and not now.disturbed else earlier
    if now.disturbed and earlier is None:
        raise HostBusy(
            f"cannot say how fast this machine should be: {now.disturbed}; measure again when it is quiet, "
            "or name a machine that was, with --machine FILE (ccbench calibrate -o FILE)"
        )
    best = now.machine
    if earlier is not None:
        best = earlier if now.disturbed else best
        with suppress(
            MachineError
        ):  # a file that somebody has edited may contradict today's figures
            best = better_of(earlier, now)
    # Where nothing can be kept each call stands alone.
    with suppress(OSError, MachineError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            draft = Path(folder) / file.name
            save_machine(best, draft)
            os.replace(draft, file)
    return best


def kept_file() -> Path:
    """Return the machine file that holds the best of all calibrations of a host like this one.

    One for each host name, processor, set of usable processors, kernel, and release of what measures.
    """
    facts = _this_host(), allowed_cpus(), KEPT_FORM
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return cache_folder() / "machines" / f"{name}.yaml"


def better_of(earlier: Machine, now: Calibration) -> Machine:
    """Return ``earlier`` with every figure in which ``now`` is better.

    Load makes nothing faster than it can be, so what bounds are made of counts even where tries were
    disturbed; prices then stay as they are.
    """
    old, new = earlier.fabric, now.machine.fabric
    names = ["best_flag_latency_seconds", "peak_traffic"]
    if not now.disturbed:
        names += [*SECONDS_FIELDS, "copy", "reduce", "operation_bytes_per_second"]
    changed: dict[str, Any] = {}
    for name in names:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Rates):
            changed[name] = _faster(before, after)
        elif isinstance(before, Mapping):
            changed[name] = {
                key: max(rate, after.get(key, rate))
                for key, rate in {**after, **before}.items()
            }
        else:
            changed[name] = min(before, after)
    fabric = replace(old, **changed)
    # A figure that stayed is of the day that it was measured on.
    origins = {
        name: f"{now.machine.origins[name].removesuffix(OR_EARLIER)}{OR_EARLIER}"
        if getattr(fabric, name) != getattr(old, name)
        else origin
        for name, origin in earlier.origins.items()
    }
    return Machine(earlier.name, fabric, origins)


OR_EARLIER = "; the best of this and earlier calibrations"


def _faster(earlier: Rates, now: Rates) -> Rates:
    """Return the higher rate at each working set: the least time of two, which still grows with it."""

    def curve(name: str) -> tuple[RatePoint, ...]:
        before = {point.working_set_bytes: point for point in getattr(earlier, name)}
        points = (
            (before.get(point.working_set_bytes, point), point) for point in getattr(now, name)
        )
        return tuple(max(pair, key=lambda point: point.bytes_per_second) for pair in points)

    return Rates(curve("one_process"), curve("all_cores"))


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


def machine_from_samples(
    samples: Mapping[str, Any], measured_at: datetime, virtual: bool = False
) -> Machine:
    """A Machine from the samples that ``calibration_worker.Samples`` describes.

    Lower quartiles become prices: whatever else runs only adds time, but the least of many tries is luck. The
    shortest flag and, per working set, the operation that moved most bytes per second become the figures of
    bounds. virtual: a hypervisor may move processors apart, where each has a memory and caches of its own.
    """
    cores: int = samples["cores"]
    call_seconds = _lower_quartile(samples["call"])
    # (kind, working set, processes) -> seconds per operation, without the fixed cost of its call.
    times: dict[tuple[str, int, int], list[float]] = {}
    for key, values in samples["operations"].items():
        kind, working_set, processes = key.split("/")
        seconds = [_without_call(value, call_seconds) for value in values]
        times[kind, int(working_set), int(processes)] = seconds
    copy, reduce, peak = _rates(times, cores, virtual)
    flags: Sequence[float] = samples["flag"]
    shared: Sequence[float] = samples["shared_core"]
    fabric = SharedMemory(
        cores=cores,
        flag_latency_seconds=_lower_quartile(flags),
        best_flag_latency_seconds=min(flags),
        flag_check_seconds=_lower_quartile(samples["check"]),
        yield_seconds=_lower_quartile(shared) if shared else ASSUMED_YIELD_SECONDS,
        operation_seconds=_lower_quartile(samples["operation"]),
        copy=copy,
        reduce=reduce,
        peak_traffic=peak,
        operation_bytes_per_second={
            key: BLOCK_BYTES
            / _without_call(_lower_quartile(seconds), calls_of(key) * call_seconds)
            for key, seconds in samples["arithmetic"].items()
        },
    )
    when, rounds = f"measured {measured_at:%Y-%m-%d %H:%M} UTC", len(flags)
    usual, numpy = f"{when}, lower quartile of {rounds}", f"NumPy {np.__version__}"
    on_one_core = f"{usual} windows, ping-pong of two processes on one core"
    origins = {
        "cores": f"{when}, processors this process may use",
        "flag_latency_seconds": f"{usual} windows, ping-pong of two pinned processes, half a round trip",
        "best_flag_latency_seconds": f"{when}, least of {rounds} windows of the same ping-pong",
        "flag_check_seconds": f"{usual} windows",
        "yield_seconds": on_one_core
        if shared
        else "assumed, for processes cannot be pinned here",
        "operation_seconds": f"{usual} windows, {numpy}, one element",
        "copy": f"{usual}, {numpy} copyto on shared memory, cost of the call taken off",
        "reduce": f"{usual}, {numpy} add with out= on shared memory, cost of the call taken off",
        "operation_bytes_per_second": f"{usual}, {numpy}, one process, blocks of {BLOCK_BYTES >> 10} KiB in "
        "cache, cost of the calls taken off",
        "peak_traffic": f"{when}, best of {rounds} copies and additions times {PEAK_MARGIN}"
        + ", of all cores at least one core's times their number, since a hypervisor may move them"
        * virtual,
    }
    return Machine(f"measured-{cores}-cores", fabric, origins)


def _lower_quartile(tries: Sequence[float]) -> float:
    return sorted(tries)[(len(tries) - 1) // 4]


def _without_call(seconds: float, call_seconds: float) -> float:
    return max(seconds - call_seconds, LEAST_SHARE_OF_WORK * seconds)


def _rates(
    times: Mapping[tuple[str, int, int], Sequence[float]], cores: int, virtual: bool
) -> tuple[Rates, Rates, Rates]:
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
                least_seconds = max(least_seconds, size / (payload / _lower_quartile(seconds)))
                rates.append(size / least_seconds)
            usual[kind].append(rates)
        # Peaks are raised there: the smaller working set's gives way.
        most_seconds = math.inf
        for place in reversed(range(len(sizes))):
            most_seconds = min(most_seconds, sizes[place] / best[place])
            best[place] = sizes[place] / most_seconds
        peaks.append(best)
    # All cores together see at least what one of them does alone; apart from each other, each sees that.
    apart = cores if virtual else 1
    peaks[1] = [max(apart * single, every) for single, every in zip(*peaks, strict=True)]
    copy, reduce, peak = (
        Rates(*(tuple(map(RatePoint, sizes, rates)) for rates in curves))
        for curves in (usual[COPY], usual[REDUCE], peaks)
    )
    return copy, reduce, peak
