"""The backend whose times come from the model: the whole way through ccbench in milliseconds, anywhere.

Times are the price of the schedule on the team's machine, times lognormal noise of NOISE_SIGMA, repeatable
by seed. Results are not simulated: the schedule is executed on small buffers and every element checked.
Groups march in step, so that each takes as long as all, but for the noise of its own end.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import Backend, Team, TeamRequest
from ccbench.backends.executing import wrong_elements
from ccbench.backends.rank_buffers import group_names
from ccbench.cases import Case, Measurement, Sampling, Status
from ccbench.errors import CcbenchError, ScheduleError
from ccbench.groups import format_ranks
from ccbench.model.cluster import Cluster
from ccbench.model.context import schedule_prediction
from ccbench.model.group_points import schedules_at_once
from ccbench.model.loads import StepLoad, step_loads
from ccbench.model.machine import Machine
from ccbench.model.pricing import case_prices
from ccbench.model.rank_subset import schedule_of, subset_of
from ccbench.schedules import algorithms_of, parse_algorithm
from ccbench.schedules.schedule import Schedule
from ccbench.stats import stop_reason
from ccbench.verification import GROUP_SEEDS

Floats = NDArray[np.float64]

NOISE_SIGMA = 0.02
"""Standard deviation of the logarithm of a sample: about 2 %, with no outliers and no drift."""

END_SIGMA = 0.005
"""The same of how much earlier than the last of them others end that run at the same time."""

CLUSTER_SKEW_SHARE = 0.01
"""Of a launch: how far apart simulated ranks of a cluster start, for which no machine gives a figure."""

MOST_UNEVEN_RANKS = 128
"""Of an all_to_all_v, whose every block takes as much memory as its largest."""

MOST_PROVEN_RANKS = 128
"""Larger schedules are only executed: a proof takes as long as ranks squared."""

MOST_LAUNCHES = 1 << 20


class SimulatedBackend(Backend):
    """See the module."""

    name = "simulated"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Never: it needs nothing but NumPy."""
        return None

    def version(self) -> str:
        """What the times come from; a measurement also names the machine."""
        return "model"

    def unsupported(self, case: Case) -> str | None:
        """Why the model cannot say anything about ``case``, or None."""
        try:
            return super().unsupported(case)
        except CcbenchError as error:
            return str(error)

    def refused(self, case: Case) -> str | None:
        """Why the model cannot say anything about ``case``, or None; CcbenchError says it as well."""
        if case.algorithm != "default":
            _schedule(case, case.algorithm)
        subset_of(case).weights(case.group_ranks)  # UsageError where groups or traffic are for others
        if case.traffic and case.group_ranks > MOST_UNEVEN_RANKS:
            return f"{case.group_ranks} ranks with uneven blocks: at most {MOST_UNEVEN_RANKS} are simulated"
        return None

    def open_team(self, request: TeamRequest) -> Team:
        """A team without processes."""
        return SimulatedTeam(request)


BACKEND = SimulatedBackend()
"""The one instance; it has no state."""


def _schedule(case: Case, algorithm: str) -> Schedule:
    return schedule_of(case, algorithm, prove=case.group_ranks <= MOST_PROVEN_RANKS)


@dataclass(frozen=True)
class _Choice:
    """What runs, and how long one launch of it takes without noise.

    concurrent: of what runs at the same time, its schedule. shares: of ``seconds``, what the case's own
    collective and the concurrent one take.
    """

    schedule: Schedule
    algorithm: str
    seconds: float
    concurrent: Schedule | None = None
    shares: tuple[float, float] = (1.0, 1.0)


class SimulatedTeam:
    """Prices, draws samples and checks; keeps the loads of the schedules it has priced.

    A case is drawn anew at each round: the same seed and order of cases give the same samples again.
    """

    def __init__(self, request: TeamRequest) -> None:
        self._ranks = request.ranks
        self._machine = request.machine
        self._seed = request.seed
        self._rounds: Counter[str] = Counter()
        self._loads: dict[tuple[object, ...], list[StepLoad]] = {}

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
            wanted = math.ceil(sampling.minimum_sample_seconds / max(seconds, 1e-12))
            launches = min(max(wanted, 1), MOST_LAUNCHES)
        count, reason = _stop(samples, launches, sampling)
        samples = samples[:count]
        warmup = seconds * random.lognormal(0.0, NOISE_SIGMA, 2)
        # Ranks leave the barrier before a sample as they see its flag; the first of them starts the clock.
        starts = self._exit_seconds(seconds) * random.random((len(case.communicating_ranks), count))
        starts -= starts.min(axis=0)
        names, shares = _parts(case, choice)
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

    def _exit_seconds(self, launch_seconds: float) -> float:
        """By how much ranks may leave the barrier before a sample one after the other."""
        if isinstance(self._machine, Cluster):
            return launch_seconds * CLUSTER_SKEW_SHARE
        return min(self._machine.fabric.flag_latency_seconds, launch_seconds / 2)

    def _choose(self, case: Case) -> _Choice:
        """The algorithm asked for, or the cheapest; each collective of two chooses as if it were alone."""
        alone = self._alone(case)
        other = case.concurrent_case
        if other is None:
            return alone
        beside = self._alone(other)
        pairs = (case, alone.schedule), (other, beside.schedule)
        both = schedules_at_once(self._machine, *pairs)
        seconds = both.prediction.predicted_seconds
        shares = both.main_seconds / seconds, both.other_seconds / seconds
        return replace(alone, seconds=seconds, concurrent=beside.schedule, shares=shares)

    def _alone(self, case: Case) -> _Choice:
        if case.algorithm != "default":
            return self._priced(case, case.algorithm)
        choices = []
        for name in algorithms_of(case.collective):
            with suppress(ScheduleError):  # not for this number of ranks
                choices.append(self._priced(case, name))
        if not choices:
            raise ScheduleError(f"{case.label}: no algorithm exists for {case.group_ranks} ranks")
        return min(choices, key=lambda choice: choice.seconds)

    def _priced(self, case: Case, algorithm: str) -> _Choice:
        schedule = _schedule(case, algorithm)
        name, asked = parse_algorithm(algorithm)
        used = f"{name}:{schedule.parameter}" if schedule.parameter or asked else name
        if isinstance(self._machine, Cluster):
            return _Choice(schedule, used, schedule_prediction(case, self._machine, used).predicted_seconds)
        return _Choice(schedule, used, self._host_seconds(case, schedule, self._machine))

    def _host_seconds(self, case: Case, schedule: Schedule, machine: Machine) -> float:
        subset = subset_of(case)
        key = (schedule, case.in_place, subset)
        if key not in self._loads:
            self._loads[key] = step_loads(schedule, machine.fabric.cores, case.in_place, subset)
        return float(case_prices(case, machine, schedule, self._loads[key]).seconds[0])


def _parts(case: Case, choice: _Choice) -> tuple[tuple[str, ...], Floats]:
    """Names of what runs at the same time, groups or collectives, and each one's share of a sample."""
    other = case.concurrent_case
    if other is None:
        names = tuple(f"ranks {format_ranks(members)}" for members in case.members) if case.groups else ()
        return names, np.ones(len(names))
    return group_names(case), np.repeat(choice.shares, (len(case.members), len(other.members)))


def _stop(samples: Floats, launches: int, sampling: Sampling) -> tuple[int, str]:
    """(number of samples, why no more): looks again whenever there is an eighth more."""
    elapsed = np.cumsum(samples) * launches
    count = min(max(sampling.minimum_samples, 1), len(samples))
    while not (reason := stop_reason(sampling, samples[:count], float(elapsed[count - 1]))):
        count = min(count + max(1, count // 8), len(samples))
    return count, reason
