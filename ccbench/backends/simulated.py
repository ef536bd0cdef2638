"""The backend whose times come from the model: the whole way through ccbench in milliseconds, anywhere.

Times are the price of the schedule on the team's machine, times lognormal noise of NOISE_SIGMA, repeatable
by seed. Results are not simulated: the schedule is executed on small buffers and every element checked.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccbench.algorithms import algorithms_of, parse_algorithm, schedule_for
from ccbench.algorithms.schedule import Schedule, Step
from ccbench.backends.base import PlainTeams, Team, TeamRequest
from ccbench.cases import NO_OP, NO_ROOT, Case, Measurement, Sampling, Status
from ccbench.collectives import collective
from ccbench.dtypes import CPU_DTYPES, item_bytes, numpy_dtype
from ccbench.errors import CcbenchError, ScheduleError
from ccbench.measure import StopRule
from ccbench.model.cluster import Cluster
from ccbench.model.cluster_points import schedule_points
from ccbench.model.loads import StepLoad, step_loads
from ccbench.model.machine import Machine
from ccbench.model.pricing import price_sizes
from ccbench.verification import Array, check, fill, poison

Floats = NDArray[np.float64]

NOISE_SIGMA = 0.02
"""Standard deviation of the logarithm of a sample: about 2 %, with no outliers and no drift."""

CLUSTER_SKEW_SHARE = 0.01
"""Of a launch: how far apart simulated ranks of a cluster start, for which no machine gives a figure."""

MOST_RANKS = 1024
"""Above this the samples of every rank alone would fill a disk; ``ccbench predict`` has no such limit."""

CHECKED_ELEMENTS = 4096
"""Most elements of a rank's buffer on which a schedule is executed."""

MOST_PROVEN_RANKS = 128
"""Larger schedules are only executed: a proof takes as long as ranks squared."""

MOST_LAUNCHES = 1 << 20

OPS = ("sum", "prod", "min", "max", "avg")

_UFUNCS = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


class SimulatedBackend(PlainTeams):
    """See the module."""

    name = "simulated"

    def unavailable(self) -> str | None:
        """Never: it needs nothing but NumPy."""
        return None

    def version(self) -> str:
        """What the times come from; a measurement also names the machine."""
        return "model"

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """Every algorithm there is."""
        return algorithms_of(collective)

    def unsupported(self, case: Case) -> str | None:
        """Why the model cannot say anything about ``case``, or None."""
        try:
            row = collective(case.collective)
            item_bytes(case.dtype)
            if case.algorithm != "default":
                _schedule(case, case.algorithm)
        except CcbenchError as error:
            return str(error)
        if case.dtype not in CPU_DTYPES:
            return f"dtype {case.dtype} cannot be checked with NumPy; one of {', '.join(CPU_DTYPES)}"
        if row.reduces and case.op not in OPS:
            return f"op {case.op!r} is not known; one of {', '.join(OPS)}"
        if case.protocol != "default":
            return f"protocol {case.protocol!r}: shared memory has none; ask for 'default'"
        if case.ranks > MOST_RANKS:
            return f"{case.ranks} ranks: at most {MOST_RANKS} are simulated; 'ccbench predict' prices more"
        return None

    def open_team(self, request: TeamRequest) -> Team:
        """A team without processes."""
        return SimulatedTeam(request)


BACKEND = SimulatedBackend()
"""The one instance; it has no state."""


def backend() -> SimulatedBackend:
    """The backend, as ``open_backend("simulated")`` gives it."""
    return BACKEND


def _schedule(case: Case, algorithm: str) -> Schedule:
    root = 0 if case.root == NO_ROOT else case.root
    prove = case.ranks <= MOST_PROVEN_RANKS
    return schedule_for(case.collective, algorithm, case.ranks, root, size_bytes=case.size_bytes, prove=prove)


@dataclass(frozen=True)
class _Choice:
    """What runs, and how long one launch of it takes without noise."""

    schedule: Schedule
    algorithm: str
    seconds: float


class SimulatedTeam:
    """Prices, draws samples and checks; keeps the loads of the schedules it has priced.

    A case is drawn anew at each visit: the same seed and order of cases give the same samples again.
    """

    def __init__(self, request: TeamRequest) -> None:
        self._ranks = request.ranks
        self._machine = request.machine
        self._seed = request.seed
        self._visits: Counter[str] = Counter()
        self._loads: dict[tuple[str, str, int, int, int, bool], list[StepLoad]] = {}

    def usable(self) -> bool:
        """Always: nothing here can die."""
        return True

    def close(self) -> None:
        """Nothing to end."""

    def run(self, case: Case, sampling: Sampling) -> Measurement:
        """A measurement whose times are the model's; unsupported and failed cases say why."""
        blank = Measurement(
            case=case,
            status=Status.UNSUPPORTED,
            backend_version=f"model of {self._machine.name}",
            started_at=datetime.now(timezone.utc).isoformat(),
            simulated=True,
        )
        reason = BACKEND.unsupported(case)
        if reason is None and case.ranks != self._ranks:
            reason = f"{case.ranks} ranks asked of a team of {self._ranks}; open another team"
        if reason is not None:
            return replace(blank, detail=reason)
        try:
            choice = self._choose(case)
            wrong, checked = _wrong_elements(choice.schedule, case)
        except CcbenchError as error:
            return replace(blank, status=Status.FAILED, detail=str(error))
        visit = self._visits[case.case_id]
        self._visits[case.case_id] += 1
        drawn = _draw(choice.seconds, case, sampling, [self._seed, visit], self._exit_seconds(choice.seconds))
        return replace(
            blank,
            status=Status.WRONG if wrong else Status.OK,
            detail=_detail(case, checked),
            algorithm_used=choice.algorithm,
            wrong_elements=wrong,
            launches_per_sample=drawn.launches,
            samples_seconds=tuple(drawn.samples.tolist()),
            warmup_seconds=tuple(drawn.warmup.tolist()),
            skew_seconds=tuple(drawn.starts.max(axis=0).tolist()),
            rank_samples_seconds=tuple(map(tuple, drawn.of_ranks().tolist())),
            stop_reason=drawn.stop_reason,
        )

    def _exit_seconds(self, launch_seconds: float) -> float:
        """By how much ranks may leave the barrier before a sample one after the other."""
        if isinstance(self._machine, Cluster):
            return launch_seconds * CLUSTER_SKEW_SHARE
        return min(self._machine.fabric.flag_latency_seconds, launch_seconds / 2)

    def _choose(self, case: Case) -> _Choice:
        if case.algorithm != "default":
            return self._priced(case, case.algorithm)
        names = algorithms_of(case.collective)
        choices = [choice for name in names if (choice := self._priced_if_possible(case, name))]
        if not choices:
            raise ScheduleError(f"{case.label}: no algorithm exists for {case.ranks} ranks")
        return min(choices, key=lambda choice: choice.seconds)

    def _priced_if_possible(self, case: Case, algorithm: str) -> _Choice | None:
        try:
            return self._priced(case, algorithm)
        except ScheduleError:
            return None  # not for this number of ranks

    def _priced(self, case: Case, algorithm: str) -> _Choice:
        schedule = _schedule(case, algorithm)
        name, asked = parse_algorithm(algorithm)
        used = f"{name}:{schedule.parameter}" if schedule.parameter or asked else name
        if isinstance(self._machine, Cluster):
            root = max(case.root, 0)
            (point,) = schedule_points(self._machine, case.collective, used, (case.size_bytes,), root)
            return _Choice(schedule, used, point.prediction.predicted_seconds)
        return _Choice(schedule, used, self._host_seconds(case, schedule, self._machine))

    def _host_seconds(self, case: Case, schedule: Schedule, machine: Machine) -> float:
        key = (
            schedule.collective,
            schedule.algorithm,
            schedule.ranks,
            schedule.root,
            schedule.parameter,
            case.in_place,
        )
        if key not in self._loads:
            self._loads[key] = step_loads(schedule, machine.fabric.cores, case.in_place)
        prices = price_sizes(
            schedule,
            [case.count],
            item_bytes(case.dtype),
            machine,
            case.in_place,
            self._loads[key],
            case.dtype,
            case.op,
        )
        return float(prices.seconds[0])


def _detail(case: Case, checked_count: int) -> str:
    if checked_count == case.count:
        return ""
    return f"result checked on a count of {checked_count} instead of {case.count}"


@dataclass(frozen=True)
class _Drawn:
    """Samples in seconds per launch, shape (samples,); ``starts``: each rank's delay, (ranks, samples)."""

    samples: Floats
    warmup: Floats
    starts: Floats
    launches: int
    stop_reason: str

    def of_ranks(self) -> Floats:
        """The samples as each rank saw them: from its own start to the common end, per launch."""
        return np.asarray(self.samples - self.starts / self.launches)


def _draw(seconds: float, case: Case, sampling: Sampling, seeds: list[int], exit_seconds: float) -> _Drawn:
    """Samples until ``sampling`` is content, on a clock that advances by the samples themselves."""
    random = np.random.default_rng([*seeds, int(case.case_id, 16)])
    most = max(sampling.maximum_samples, 1)
    samples = seconds * random.lognormal(0.0, NOISE_SIGMA, most)
    launches = 1
    if case.mode != "isolated":
        wanted = math.ceil(sampling.minimum_sample_seconds / max(seconds, 1e-12))
        launches = min(max(wanted, 1), MOST_LAUNCHES)
    count, reason = _stop(samples, launches, sampling)
    warmup = seconds * random.lognormal(0.0, NOISE_SIGMA, 2)
    # Ranks leave the barrier before a sample as they see its flag; the first of them starts the clock.
    starts = exit_seconds * random.random((case.ranks, count))
    starts -= starts.min(axis=0)
    return _Drawn(samples[:count], warmup, starts, launches, reason)


def _stop(samples: Floats, launches: int, sampling: Sampling) -> tuple[int, str]:
    """(number of samples, why no more): looks again whenever there is an eighth more."""
    elapsed = np.cumsum(samples) * launches
    count = min(max(sampling.minimum_samples, 1), len(samples))
    rule = StopRule(sampling)
    while not (reason := rule.reason(samples[:count], float(elapsed[count - 1]))):
        count = min(count + max(1, count // 8), len(samples))
    return count, reason


def _wrong_elements(schedule: Schedule, case: Case) -> tuple[int, int]:
    """(wrong elements over all ranks, the count on which the schedule was executed)."""
    row = collective(case.collective)
    most = max(1, CHECKED_ELEMENTS // case.ranks) if row.blocked else CHECKED_ELEMENTS
    count = min(case.count, most)
    size_bytes = row.size_bytes(count, case.ranks, item_bytes(case.dtype))
    # Two cases that differ in size alone then ask for the same check, which is made once.
    small = replace(case, suite="", algorithm="", mode="", backend="", count=count, size_bytes=size_bytes)
    return _checked(_ByIdentity(schedule), small), count


@dataclass(frozen=True)
class _ByIdentity:
    """A schedule as a key: arrays have no hash, but ``schedule_for`` gives the same object again."""

    schedule: Schedule

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.schedule is other.schedule

    def __hash__(self) -> int:
        return id(self.schedule)


@lru_cache(maxsize=256)
def _checked(key: _ByIdentity, case: Case) -> int:
    outputs = execute(key.schedule, case)
    found = [check(case, rank, output, salt=1, launches=1) for rank, output in enumerate(outputs)]
    return sum(mismatch.wrong_elements for mismatch in found if mismatch is not None)


def execute(schedule: Schedule, case: Case) -> list[NDArray[np.generic]]:
    """Outputs of every rank, in buffer order, after running ``schedule`` on the data of ``case``.

    Floating point types are computed in float64, in which their data and everything made of them are exact;
    whole numbers in int64, which wraps as they do.
    """
    row = collective(case.collective)
    dtype = numpy_dtype(case.dtype)
    root = 0 if case.root == NO_ROOT else case.root
    memory = _filled(schedule, case)
    ufunc = _UFUNCS[case.op if case.op != NO_OP else "max"]
    for step in schedule.expanded():
        _execute_step(step, schedule, memory, ufunc)
    if case.op == "avg" and row.reduces:
        memory = memory / case.ranks if memory.dtype.kind == "f" else memory // case.ranks
    outputs: list[NDArray[np.generic]] = []
    for rank in range(case.ranks):
        slots = row.outputs(rank, case.ranks, schedule.pieces, root)
        parts = [memory[rank, slot, : _elements(schedule, case, slot)] for slot in slots]
        whole = np.concatenate([*parts, np.zeros(0, memory.dtype)])
        outputs.append(whole.astype(dtype))
    return outputs


def _elements(schedule: Schedule, case: Case, slot: int) -> int:
    """Elements of a slot: a block, or as even a share of the buffer as whole elements allow."""
    row = collective(case.collective)
    if not row.moves_data:
        return 0
    if row.blocked:
        return case.count
    piece = slot % schedule.pieces
    return case.count * (piece + 1) // schedule.pieces - case.count * piece // schedule.pieces


def _filled(schedule: Schedule, case: Case) -> Array:
    """Memory of shape (ranks, slots, elements of the largest slot): inputs filled, the rest NaN or poison."""
    row = collective(case.collective)
    root = 0 if case.root == NO_ROOT else case.root
    largest = max(_elements(schedule, case, slot) for slot in range(schedule.pieces))
    shape = (case.ranks, schedule.slots, largest)
    if numpy_dtype(case.dtype).kind in "iu":
        memory: Array = np.empty(shape, np.int64)
        poison(memory)
    else:
        memory = np.full(shape, np.nan)
    for rank in range(case.ranks):
        slots = row.inputs(rank, case.ranks, schedule.pieces, root)
        sizes = [_elements(schedule, case, slot) for slot in slots]
        buffer = np.empty(sum(sizes), numpy_dtype(case.dtype))
        fill(case, rank, buffer, salt=1)
        begin = 0
        for slot, size in zip(slots, sizes, strict=True):
            memory[rank, slot, :size] = buffer[begin : begin + size]
            begin += size
    return memory


def _execute_step(step: Step, schedule: Schedule, memory: Array, ufunc: np.ufunc) -> None:
    width = step.phase.width
    flow = np.repeat(np.arange(len(width)), width)
    within = np.arange(len(flow)) - np.repeat(np.cumsum(width) - width, width)
    sources = step.source_slot[flow], step.source[flow]
    targets = step.target_slot[flow], step.target[flow]
    moved = memory[sources[1], _following(sources[0], within, schedule.pieces)]
    place = targets[1], _following(targets[0], within, schedule.pieces)
    if step.phase.reduces:
        ufunc.at(memory, place, moved)
    else:
        memory[place] = moved


def _following(slot: NDArray[np.int32], within: NDArray[np.int64], pieces: int) -> NDArray[np.int64]:
    """The slot ``within`` places on, inside its region of ``pieces`` slots."""
    return np.asarray(slot - slot % pieces + (slot % pieces + within) % pieces, dtype=np.int64)
