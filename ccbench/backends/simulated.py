"""The backend whose times come from the model: the whole way through ccbench in milliseconds, anywhere.

Times are the price of the schedule on the links of the team's machine, or on a host at COSTS, times lognormal
noise of NOISE_SIGMA, repeatable by seed. Results are not simulated: the schedule is executed on small buffers and
every element checked. Groups march in step, so that each takes as long as all, but for the noise of its own end.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import Backend, Team, TeamRequest
from ccbench.backends.cpu.endpoint import amounts_of
from ccbench.backends.cpu.execution import REDUCTIONS
from ccbench.backends.launch_price import CALL, COPIED, FLAG, GROUP, REDUCED, TERMS
from ccbench.backends.rank_endpoint import group_parts
from ccbench.cases.axes import NO_OP, NO_ROOT, Case
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes, numpy_dtype
from ccbench.errors import CcbenchError, ScheduleError
from ccbench.groups import format_ranks
from ccbench.model.concurrent import schedules_at_once
from ccbench.model.context import schedule_prediction
from ccbench.model.rank_subset import flow_weights, schedule_of, subset_of
from ccbench.schedules import algorithms_of, parse_algorithm
from ccbench.schedules.placement import SlotLayout
from ccbench.schedules.schedule import Schedule
from ccbench.stats import stop_reason
from ccbench.verification import GROUP_SEEDS, Array, fill, part_of, poison

Floats = NDArray[np.float64]

NOISE_SIGMA = 0.02
"""Standard deviation of the logarithm of a sample: about 2 %, with no outliers and no drift."""

END_SIGMA = 0.005
"""Scatter of how much earlier than the last of them others end that run at the same time."""

SKEW_SHARE = 0.01
"""Of a launch: how far apart simulated ranks start."""

HOST = "cpu-shared-memory"
COSTS = (4e-7, 3e-7, 2e-6, 8e-11, 1.2e-10)
"""Seconds of the five costs of ranks on processors (``cpu.price``): assumed, no real host has them."""

MOST_UNEVEN_RANKS = 128
"""Of an all_to_all_v, whose every block takes as much memory as its largest."""

MOST_PROVEN_RANKS = 128
"""Larger schedules are only executed: a proof takes as long as ranks squared."""

MOST_LAUNCHES = 1 << 20

CHECKED_ELEMENTS = 4096
"""Most elements of a rank's buffer on which a schedule is executed."""

SEED = 1
"""Which of a case's data are taken."""


class SimulatedBackend(Backend):
    """The model in place of a machine."""

    name = "simulated"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Return None: it needs nothing but NumPy."""
        return None

    def version(self) -> str:
        """Return what the times come from; a measurement also names the machine."""
        return "model"

    def unsupported(self, case: Case) -> str | None:
        """Return why the model cannot say anything about ``case``, or None."""
        try:
            return super().unsupported(case)
        except CcbenchError as error:
            return str(error)

    def refused(self, case: Case) -> str | None:
        """Return why the model cannot say anything about ``case``, or None; CcbenchError says it as well."""
        if case.algorithm != "default":
            _schedule(case, case.algorithm)
        subset_of(case).weights(
            case.group_ranks
        )  # UsageError where groups or traffic are for others
        if case.traffic and case.group_ranks > MOST_UNEVEN_RANKS:
            return f"{case.group_ranks} ranks with uneven blocks: at most {MOST_UNEVEN_RANKS} are simulated"
        return None

    def open_team(self, request: TeamRequest) -> Team:
        """Return a team without processes."""
        return SimulatedTeam(request)


BACKEND = SimulatedBackend()
"""The one instance; it has no state."""


def _schedule(case: Case, algorithm: str) -> Schedule:
    return schedule_of(case, algorithm, prove=case.group_ranks <= MOST_PROVEN_RANKS)


@dataclass(frozen=True)
class _Choice:
    """A schedule that runs, and the time of one launch of it without noise.

    counts: what the launch is made of, by TERMS; () on links. concurrent: schedule of the concurrent
    collective. shares: of ``seconds``, what the case's own collective and the concurrent one take.
    """

    schedule: Schedule
    algorithm: str
    seconds: float
    counts: tuple[float, ...] = ()
    concurrent: Schedule | None = None
    shares: tuple[float, float] = (1.0, 1.0)


class SimulatedTeam:
    """Prices, draws samples and checks.

    A case is drawn anew at each round: the same seed and order of cases give the same samples again.
    """

    def __init__(self, request: TeamRequest) -> None:
        self._ranks = request.ranks
        self._machine = request.machine
        self._seed = request.seed
        self._rounds: Counter[str] = Counter()

    def usable(self) -> bool:
        """Return True: nothing here can die."""
        return True

    def close(self) -> None:
        """Return: there is nothing to end."""

    def run(self, case: Case, sampling: Sampling) -> Measurement:
        """Return a measurement whose times are the model's; unsupported and failed cases say why."""
        blank = Measurement(
            case=case,
            status=Status.UNSUPPORTED,
            backend_version=f"model of {self._machine.name if self._machine else HOST}",
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
            wrong, checked = wrong_elements(choice.schedule, case)
            if case.concurrent_case and choice.concurrent:
                # Numbered after the case's own groups, as other backends have it.
                seeds = len(case.members) * GROUP_SEEDS
                wrong += wrong_elements(choice.concurrent, case.concurrent_case, seeds)[0]
        except CcbenchError as error:
            return replace(blank, status=Status.FAILED, detail=str(error))
        partly = f"result checked on a count of {checked} instead of {case.count}"
        return replace(
            self._sampled(blank, choice, sampling),
            status=Status.WRONG if wrong else Status.OK,
            detail="" if checked == case.count else partly,
            algorithm_used=choice.algorithm,
            path_counts=choice.counts,
            path_costs_seconds=tuple((cost,) for cost in COSTS) if choice.counts else (),
            wrong_elements=wrong,
        )

    def _sampled(self, blank: Measurement, choice: _Choice, sampling: Sampling) -> Measurement:
        """``blank`` with samples until ``sampling`` is content, on a clock that advances by themselves."""
        case, seconds = blank.case, choice.seconds
        number = self._rounds[case.case_id]
        self._rounds[case.case_id] += 1
        random = np.random.default_rng([self._seed, number, int(case.case_id, 16)])
        samples = seconds * random.lognormal(0.0, NOISE_SIGMA, max(sampling.maximum_samples, 1))
        launches = 1
        if case.mode != "isolated":
            needed = math.ceil(sampling.minimum_sample_seconds / max(seconds, 1e-12))
            launches = min(max(needed, 1), MOST_LAUNCHES)
        elapsed = np.cumsum(samples) * launches
        count = min(max(sampling.minimum_samples, 1), len(samples))
        # As a measurement does, look again whenever there is an eighth more.
        while not (reason := stop_reason(sampling, samples[:count], float(elapsed[count - 1]))):
            count = min(count + max(1, count // 8), len(samples))
        samples = samples[:count]
        warmup = seconds * random.lognormal(0.0, NOISE_SIGMA, 2)
        # The first rank to leave the barrier before a sample starts the clock.
        starts = seconds * SKEW_SHARE * random.random((len(case.communicating_ranks), count))
        starts -= starts.min(axis=0)
        # Names of what runs at the same time, groups or collectives, and each one's share of a sample.
        names = (
            tuple(f"ranks {format_ranks(members)}" for members in case.members)
            if case.groups
            else ()
        )
        shares = np.ones(len(names))
        if concurrent := case.concurrent_case:
            lanes = len(case.members), len(concurrent.members)
            names = tuple(name for name, _, _ in group_parts(case))
            shares = np.repeat(choice.shares, lanes)
        ends = np.exp(-np.abs(random.normal(0.0, END_SIGMA, (len(names), count))))
        # The last part to end ends the sample, the others a little earlier.
        parts = shares[:, None] * ends
        parts = parts / parts.max(axis=0) * samples if names else parts
        return replace(
            blank,
            launches_per_sample=launches,
            samples_seconds=tuple(samples.tolist()),
            warmup_seconds=tuple(warmup.tolist()),
            skew_seconds=tuple(starts.max(axis=0).tolist()),
            # As each rank saw them: from its own start to the common end, per launch.
            rank_samples_seconds=tuple(map(tuple, (samples - starts / launches).tolist())),
            group_names=names,
            group_samples_seconds=tuple(map(tuple, parts.tolist())),
            stop_reason=reason,
        )

    def _choose(self, case: Case) -> _Choice:
        """The algorithm asked for, or the cheapest; each collective of two chooses as if it were alone."""
        alone = self._alone(case)
        concurrent = case.concurrent_case
        if concurrent is None:
            return alone
        second = self._alone(concurrent)
        if self._machine is None:
            # Ranks do both by turns: work adds up, and goes on while one of the two waits.
            counts = np.add(alone.counts, second.counts)
            counts[FLAG] = max(alone.counts[FLAG], second.counts[FLAG])
            seconds = float(counts @ COSTS)
            longer = max(alone.seconds, second.seconds)
            mine, others = (1 - (longer - each.seconds) / seconds for each in (alone, second))
            return replace(
                alone,
                seconds=seconds,
                counts=tuple(counts.tolist()),
                concurrent=second.schedule,
                shares=(mine, others),
            )
        pairs = (case, alone.schedule), (concurrent, second.schedule)
        both = schedules_at_once(self._machine, *pairs)
        seconds = both.prediction.predicted_seconds
        shares = both.main_seconds / seconds, both.other_seconds / seconds
        return replace(alone, seconds=seconds, concurrent=second.schedule, shares=shares)

    def _alone(self, case: Case) -> _Choice:
        if case.algorithm != "default":
            return self._priced(case, case.algorithm)
        choices = []
        for name in algorithms_of(case.collective, added=False):
            with suppress(ScheduleError):  # not for this number of ranks
                choices.append(self._priced(case, name))
        if not choices:
            raise ScheduleError(
                f"{case.label}: no algorithm exists for {case.group_ranks} ranks"
            )
        return min(choices, key=lambda choice: choice.seconds)

    def _priced(self, case: Case, algorithm: str) -> _Choice:
        schedule = _schedule(case, algorithm)
        name, parameter = parse_algorithm(algorithm)
        used = f"{name}:{schedule.parameter}" if schedule.parameter or parameter else name
        if self._machine is not None:
            return _Choice(
                schedule, used, schedule_prediction(case, self._machine, used).predicted_seconds
            )
        counts = step_counts(schedule, case)
        return _Choice(schedule, used, float(counts @ COSTS), tuple(counts.tolist()))


def step_counts(schedule: Schedule, case: Case) -> Floats:
    """Return what a launch of ``case`` on one host is made of, by TERMS, where all ranks march in step.

    Of each step that of the rank with most; who waits on entry and exit waits for one flag each.
    """
    counts, blocks = np.zeros(len(TERMS)), subset_of(case).weights(case.group_ranks)
    row = collective(case.collective)
    whole = case.count * item_bytes(case.dtype)
    slot_bytes = whole if row.blocked else whole / schedule.pieces
    counts[FLAG], counts[GROUP] = 2.0 * (schedule.ranks > 1), 1.0
    for phase in schedule.phases:
        workers = phase.source if phase.executed_by_source else phase.target
        moved = phase.width if blocks is None else flow_weights(phase, schedule, blocks)
        calls = np.bincount(workers, minlength=1).max()
        most = np.bincount(workers, moved, 1).max() * slot_bytes
        counts[[FLAG, GROUP, CALL]] += phase.repeat * np.array(
            [bool(np.any(phase.source != phase.target)), 1, calls]
        )
        counts[REDUCED if phase.reduces else COPIED] += phase.repeat * most
    return counts


# -- results -----------------------------------------------------------------------------------------------


def wrong_elements(schedule: Schedule, case: Case, seed_offset: int = 0) -> tuple[int, int]:
    """Return (wrong elements over all ranks, the count on which the schedule was executed).

    Every group runs the schedule on data of its own. seed_offset: distance of these from those of the case's
    own collective, for a concurrent one.
    """
    row = collective(case.collective)
    most = max(1, CHECKED_ELEMENTS // case.group_ranks) if row.blocked else CHECKED_ELEMENTS
    count = min(case.count, most)
    size_bytes = row.size_bytes(count, case.group_ranks, item_bytes(case.dtype))
    # Two cases that differ in size alone then ask for the same check, which is made once.
    small = replace(
        case, suite="", algorithm="", mode="", backend="", count=count, size_bytes=size_bytes
    )
    return _wrong_elements(schedule, small, SEED + seed_offset), count


@lru_cache(maxsize=256)
def _wrong_elements(schedule: Schedule, case: Case, seed: int) -> int:
    wrong = 0
    for members in case.members:
        parts = [part for rank in members if (part := part_of(case, rank))]
        outputs = execute(schedule, parts[0].case, parts[0].seeded(seed))
        mismatches = [part.check(outputs[part.group_rank], seed, launches=1) for part in parts]
        wrong += sum(mismatch.wrong_elements for mismatch in mismatches if mismatch)
    return wrong


def execute(schedule: Schedule, case: Case, seed: int = SEED) -> list[NDArray[np.generic]]:
    """Return outputs of every rank, in buffer order, after running ``schedule`` on the data of ``case``.

    case: as the ranks of one group see it.

    Floating point types are computed in float64, in which their data and everything made of them are exact;
    whole numbers in int64, which wraps as they do.
    """
    row, dtype = collective(case.collective), numpy_dtype(case.dtype)
    root = 0 if case.root == NO_ROOT else case.root
    layout = SlotLayout(schedule, case.count, in_place=False, sent=amounts_of(case))
    # All ranks' memory is one array (ranks, slots, elements of the largest slot), NaN or poison at first.
    ranks = range(case.ranks) if layout.sent else range(1)
    largest = max(
        layout.slot_elements(rank, slot) for rank in ranks for slot in range(schedule.pieces)
    )
    shape = (case.ranks, schedule.slots, largest)
    memory: Array = np.full(shape, np.nan)
    if dtype.kind in "iu":
        memory = np.empty(shape, np.int64)
        poison(memory)
    for rank in range(case.ranks):
        slots = row.inputs(rank, case.ranks, schedule.pieces, root)
        sizes = [layout.slot_elements(rank, slot) for slot in slots]
        buffer = np.empty(sum(sizes), dtype)
        fill(case, rank, buffer, seed)
        begin = 0
        for slot, size in zip(slots, sizes, strict=True):
            memory[rank, slot, :size] = buffer[begin : begin + size]
            begin += size
    ufunc = REDUCTIONS[case.op if case.op != NO_OP else "max"]
    for step in schedule.expanded():
        source, read, target, written = schedule.single_slots(step)
        moved = memory[source, read]
        if step.phase.reduces:
            ufunc.at(memory, (target, written), moved)
        else:
            memory[target, written] = moved
    if case.op == "avg" and row.reduces:
        memory = memory / case.ranks if memory.dtype.kind == "f" else memory // case.ranks
    outputs: list[NDArray[np.generic]] = []
    for rank in range(case.ranks):
        slots = row.outputs(rank, case.ranks, schedule.pieces, root)
        parts = [memory[rank, slot, : layout.slot_elements(rank, slot)] for slot in slots]
        whole = np.concatenate([*parts, np.zeros(0, memory.dtype)])
        outputs.append(whole.astype(dtype))
    return outputs
