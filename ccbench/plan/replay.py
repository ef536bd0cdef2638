"""Breakdown of a job's communication time: transfer, waiting, competing; the time of each case alone.

The time of a collective on a rank is transfer and waiting for the ranks that came later. The rank that came
last does not wait, so the shortest of the ranks' times is the transfer, whatever their clocks say; what
others took longer they waited. Where ranks do unequal work the shortest may be that of the rank with least to
do: there the last start ends the waiting, if the ranks have one clock. All sums are of one step, the mean
over its steps and over the ranks that were recorded.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import Case
from ccbench.errors import UsageError
from ccbench.findings import Finding
from ccbench.readers.traces.events import Communication, Intervals, Trace
from ccbench.readers.traces.fold import Fold, JobCase, fitted, suite_text
from ccbench.readers.traces.hang import Hang, hang_of
from ccbench.readers.traces.intervals import common, merged
from ccbench.readers.traces.join import have_one_clock
from ccbench.readers.traces.lag import lag
from ccbench.units import format_seconds, plural

Floats = NDArray[np.float64]

NOTHING = "no communication is recorded here"

UNTOLD_SHARE = 0.01
"""Calls that are no case and take less than this, of the communication, stay out of the verdict."""

MOSTLY, ALL_BUT = 0.5, 0.95
"""Shares from which on one rank, or one reason, is named for most, and a rank for all."""


@dataclass(frozen=True)
class Alone:
    """Seconds that one case takes without the job around it; None where that is not known.

    Measured: here. Predicted and bound: by the model. remark: in what this case differs from the job's, or why
    it has no time.
    """

    measured_seconds: float | None = None
    predicted_seconds: float | None = None
    bound_seconds: float | None = None
    remark: str = ""

    @property
    def seconds(self) -> float | None:
        """The measured time, else the predicted one."""
        return (
            self.predicted_seconds if self.measured_seconds is None else self.measured_seconds
        )


@dataclass(frozen=True)
class CaseTime:
    """A case of the job. Seconds are of one launch, shares of the job's communication time.

    seconds: median of the longest time among the ranks, with waiting. transfer_seconds: median of the longest
    without, None where one rank alone was recorded. waiting_share: of ``seconds`` summed up. last: rank that
    came last most often, with how often; of ``decided`` collectives in which one clearly did.
    """

    job: JobCase
    alone: Alone
    share: float | None = None
    seconds: float | None = None
    transfer_seconds: float | None = None
    waiting_share: float | None = None
    last: tuple[int, int] | None = None
    decided: int = 0

    @property
    def ratio(self) -> float | None:
        """Time of the transfer in the job over the time alone; where ranks are missing with their waiting."""
        job = self.transfer_seconds if self.transfer_seconds is not None else self.seconds
        return job / self.alone.seconds if job is not None and self.alone.seconds else None


@dataclass(frozen=True)
class StepTime:
    """One step of the job, in seconds: the mean over steps and recorded ranks.

    communication = waiting + competing + slower + wire + untold; the first four are None where nothing tells
    them apart. untold: of collectives that one rank alone recorded. waiting: for ranks that came later. wire:
    what the transfers take alone, as measured or predicted; without either the whole transfer. competing:
    longer than that while the rank computed or another collective ran; slower: longer without. exposed:
    communication while the rank did not compute; computing: all of it. waiting_for: rank -> its part of
    ``waiting``. no_case: of calls that are no case, beside communication.
    """

    steps: int
    ranks: int
    communication_seconds: float
    exposed_seconds: float | None = None
    computing_seconds: float | None = None
    waiting_seconds: float | None = None
    competing_seconds: float | None = None
    slower_seconds: float | None = None
    wire_seconds: float | None = None
    untold_seconds: float = 0.0
    waiting_for: Mapping[int, float] = field(default_factory=dict)
    no_case_seconds: float = 0.0

    @property
    def waits(self) -> str:
        """Words for the ranks that others wait for: one rank where it has most of it, else each other."""
        total, waiting = sum(self.waiting_for.values()), self.waiting_seconds or 0.0
        rank, seconds = max(
            self.waiting_for.items(), key=lambda item: item[1], default=(-1, 0.0)
        )
        if seconds > MOSTLY * waiting:
            part = "" if seconds > ALL_BUT * waiting else f", {format_seconds(seconds)} of it"
            return f"waiting{part} for rank {rank}"
        # Of most waiting nobody may be known to have come last; of the rest one rank can still have most.
        mostly = f", mostly for rank {rank}" if seconds > MOSTLY * total else ""
        return f"waiting for late ranks{mostly}"


@dataclass(frozen=True)
class Replay:
    """A job's communication, taken apart.

    step: None where the trace has no times. what_if: (what, seconds of transfer a step). compared: what
    ``Alone`` is from, in words, '' for nothing. one_clock: the ranks' clocks can be compared.
    hang, findings: of a job that hung or hangs, what it waits for.
    """

    trace: Trace
    fold: Fold
    cases: tuple[CaseTime, ...]
    step: StepTime | None
    what_if: tuple[tuple[str, float], ...] = ()
    compared: str = ""
    one_clock: bool = False
    findings: tuple[Finding, ...] = ()
    hang: Hang | None = None

    @property
    def verdict(self) -> str:
        """One sentence: why the job hangs, else how long a step communicates, and where that goes."""
        if self.hang is not None:
            return f"the job hangs: {self.hang.sentence}"
        ran = sum(case.job.count for case in self.cases)
        if not ran:
            not_cases = sum(self.fold.not_folded.values())
            return (
                f"{plural(not_cases, 'communication')}, none of which is a case"
                if not_cases
                else NOTHING
            )
        if self.step is None:
            return f"{plural(ran, 'communication')} in {plural(len(self.cases), 'case')}; the trace has no times"
        step = self.step
        whole = format_seconds(step.communication_seconds)
        begin = f"{whole} of communication{' a step' if step.steps > 1 else ''}"
        exposed = step.exposed_seconds
        hidden = ""
        if exposed is not None and step.computing_seconds:
            hidden = f". {format_seconds(exposed)} not overlapped with computing"
        if step.no_case_seconds > UNTOLD_SHARE * step.communication_seconds:
            hidden += f". {format_seconds(step.no_case_seconds)} more of calls that are not listed here"
        if step.waiting_seconds is None:
            why = "only one rank" if step.ranks < 2 else "of each collective one rank alone"
            why += " was recorded"
            return f"{begin}; waiting unknown: {why}{hidden}"
        parts = []
        if round(step.waiting_seconds, 9) > 0:
            parts.append(f"{format_seconds(step.waiting_seconds)} {step.waits}")
        if step.competing_seconds:
            parts.append(
                f"{format_seconds(step.competing_seconds)} competing with computing or each other"
            )
        if step.slower_seconds:
            measured = any(case.alone.measured_seconds for case in self.cases)
            than = "alone" if measured else "predicted"
            parts.append(
                f"{format_seconds(step.slower_seconds)} longer than {than} for no visible reason"
            )
        compared = [
            case.alone.seconds is not None for case in self.cases if case.seconds is not None
        ]
        name = "transfer"
        if any(compared):
            name = (
                "on the wire"
                if all(compared)
                else "on the wire, or transfer with nothing to compare with"
            )
        else:
            hidden += ". To judge the transfer add --backend or --machine"
        parts.append(f"{format_seconds(step.wire_seconds or 0.0)} {name}")
        if step.untold_seconds:
            untold = format_seconds(step.untold_seconds)
            parts.append(
                f"{untold} of collectives that one rank alone recorded, with its waiting"
            )
        return f"{begin}: {', '.join(parts)}{hidden}"


def replay(
    trace: Trace,
    fold: Fold,
    alone: Mapping[Case, Alone],
    compared: str = "",
    machine: str = "",
) -> Replay:
    """Return where the time of the communication of ``trace`` went.

    alone: of cases of the fold. compared: see Replay. machine: of the predictions.
    """
    timed = [instance for job in fold.cases for instance in job.instances if instance.seconds]
    total = sum(sum(instance.seconds) * instance.count for instance in timed)
    # Asked once for the job: a single collective that looks possible proves nothing about clocks.
    clock = have_one_clock(timed)
    cases = tuple(
        _case_time(job, alone.get(job.case, Alone()), total, clock) for job in fold.cases
    )
    step = _step_time(trace, fold, alone, clock) if total > 0 else None
    each = step.steps * step.ranks if step else max(1, len(trace.ranks))
    # How often each case runs in the job's steps, counted for each rank that recorded it; of a trace with
    # times only what has one, as in the step.
    often = []
    for job in fold.cases:
        of_rank: dict[int, list[Communication]] = defaultdict(list)
        for record in (record for instance in job.instances for record in instance.records):
            if step is None or record.duration_seconds is not None:
                of_rank[-1 if record.rank is None else record.rank].append(record)
        marked = (_inside(rows, trace.steps.get(rank)) for rank, rows in of_rank.items())
        often.append(sum(record.count for rows in marked for record in rows))
    what_if = []
    for name, attribute in (
        ("every collective takes what it takes alone", "measured_seconds"),
        ("every collective takes its bound", "bound_seconds"),
        (f"on {machine}, by the model", "predicted_seconds"),
    ):
        seconds = [getattr(alone.get(job.case), attribute, None) for job in fold.cases]
        # A sum that lacks a case would promise too much.
        if seconds and all(case_seconds is not None for case_seconds in seconds):
            spent = sum(
                n * (case_seconds or 0.0)
                for n, case_seconds in zip(often, seconds, strict=True)
            )
            what_if.append((name, spent / each))
    hang = hang_of(trace)
    findings = lag(trace, hang)
    return Replay(trace, fold, cases, step, tuple(what_if), compared, clock, findings, hang)


def suite_of(replay: Replay, name: str, ranks: int | None) -> str:
    """Return a suite file of all cases, also of those that the job has at the same time, with their shares.

    ranks: at most; a case on fewer than the job's is marked, and one that means nothing there is left out,
    with a comment. Raises UsageError where none is left.
    """
    fold = replay.fold
    both = (
        JobCase(overlap.concurrent, overlap.instances)
        for overlap in fold.overlaps
        if overlap.concurrent
    )
    jobs = [*fold.cases, *both]
    here, refused = fitted(jobs, ranks)
    if not here:
        reason = next(
            iter(refused.values()),
            "no communication of the job is one; the lines above say why",
        )
        raise UsageError(f"no case for a suite: {reason}")
    fits = [
        replace(
            job,
            case=here[job.case][0],
            remarks=(*job.remarks, *filter(None, here[job.case][1:])),
        )
        for job in jobs
        if job.case in here
    ]
    shares = {time_of_case.job.case: time_of_case.share for time_of_case in replay.cases}
    comments = {
        here[case][0]: f"{share:.1%} of the communication"
        for case, share in shares.items()
        if share is not None and case in here
    }
    left_out = "".join(f"# left out: {case.label}: {why}\n" for case, why in refused.items())
    return suite_text(fits, name, comments) + left_out


def _case_time(job: JobCase, alone: Alone, total_seconds: float, one_clock: bool) -> CaseTime:
    timed = [(instance, instance.seconds) for instance in job.instances if instance.seconds]
    if not timed:
        return CaseTime(job, alone)
    spent = sum(sum(seconds) * instance.count for instance, seconds in timed)
    # One rank alone tells its time, but not how much of that it waited.
    joined = [
        (instance, np.array(seconds), instance.waits(one_clock))
        for instance, seconds in timed
        if len(seconds) > 1
    ]
    last = Counter(
        rank for instance, _, _ in joined if (rank := instance.last_rank(one_clock)) is not None
    )
    joined_spent = sum(float(seconds.sum()) for _, seconds, _ in joined)
    return CaseTime(
        job,
        alone,
        share=spent / total_seconds if total_seconds else None,
        # Of the same instances and by the longest rank, as the transfer: no part is longer than the whole.
        seconds=median(
            max(seconds)
            for _, seconds in [(instance, seconds) for instance, seconds, _ in joined] or timed
        ),
        transfer_seconds=median(
            float((seconds - waited).max()) for _, seconds, waited in joined
        )
        if joined
        else None,
        waiting_share=sum(sum(waited) for _, _, waited in joined) / joined_spent
        if joined_spent
        else None,
        last=last.most_common(1)[0] if last else None,
        decided=last.total(),
    )


# -- one step -----------------------------------------------------------------------------------------------


def _step_time(
    trace: Trace, fold: Fold, alone: Mapping[Case, Alone], one_clock: bool
) -> StepTime:
    """Take apart the mean step; of a trace without steps, all of it as one."""
    # Identity of a record -> (its case, how long its rank waited, which rank came last).
    where: dict[int, tuple[Case, float | None, int | None]] = {}
    for job in fold.cases:
        for instance in job.instances:
            last = instance.last_rank(one_clock)
            # Of a rank that was recorded alone there is no waiting to tell.
            for record, waited in zip_longest(instance.timed, instance.waits(one_clock)):
                where[id(record)] = job.case, waited, last
    by_rank: dict[int | None, list[Communication]] = defaultdict(list)
    no_case: dict[int | None, list[Communication]] = defaultdict(list)
    for record in trace.communications:
        if record.duration_seconds is not None:
            (by_rank if id(record) in where else no_case)[record.rank].append(record)
    ranks = len(by_rank)
    sums: dict[str | int, float] = defaultdict(float)
    computes = True
    for rank, records in by_rank.items():
        within = trace.steps.get(rank) if rank is not None else None
        inside = _inside(records, within)
        busy = trace.computing.get(rank) if rank is not None else None
        has_times = all(record.start_seconds is not None for record in inside)
        # One rank of which it is not known spoils the mean over ranks, and so the figure.
        computes &= busy is not None and has_times
        spans = _spans(inside) if has_times else np.empty((0, 2))
        computing_spans = busy if busy is not None else np.empty((0, 2))
        moved = merged(spans)
        sums["exposed"] += length(moved) - float(overlaps(moved, computing_spans).sum())
        sums["computing"] += length(
            computing_spans
            if within is None or not len(within)
            else common(computing_spans, within)
        )
        unlisted = _inside(no_case[rank], within)
        sums["no_case"] += sum(record.duration_seconds or 0.0 for record in unlisted)
        beside = np.zeros(len(inside))
        if has_times:
            # What runs while a rank waits takes nothing from the transfer after it.
            moving = spans.copy()
            moving[:, 0] += [where[id(record)][1] or 0.0 for record in inside]
            beside = _covered(moving, [*inside, *unlisted], computing_spans)
        for record, covered in zip(inside, beside, strict=True):
            case, waited, last = where[id(record)]
            for part, seconds in _parts(
                record, covered, waited, last, alone.get(case, Alone()).seconds
            ):
                sums[part] += seconds
    marked = [len(trace.steps.get(rank, ())) for rank in by_rank if rank is not None]
    # The trace of a rank may have been cut off before its last steps.
    steps, mean = max(marked, default=0), max(sum(marked), ranks, 1)
    each = {name: seconds / mean for name, seconds in sums.items()}
    named = {rank: seconds for rank, seconds in each.items() if isinstance(rank, int)}
    names = ("waiting", "competing", "slower", "wire") if "waiting" in each else ()
    parts = {f"{name}_seconds": each.get(name, 0.0) for name in names}
    return StepTime(
        steps=max(steps, 1),
        ranks=ranks,
        communication_seconds=each.get("communication", 0.0),
        exposed_seconds=each["exposed"] if computes else None,
        computing_seconds=each["computing"] if computes else None,
        untold_seconds=each.get("untold", 0.0),
        waiting_for=named,
        no_case_seconds=each.get("no_case", 0.0),
        **parts,
    )


def _parts(
    record: Communication,
    covered: float,
    waited: float | None,
    last: int | None,
    usual: float | None,
) -> Iterator[tuple[str | int, float]]:
    """Give what a record adds to the parts of a step; a number is the rank that it waited for.

    covered: seconds in which something else ran. waited: None where nobody knows. usual: seconds alone.
    """
    taken = (record.duration_seconds or 0.0) * record.count
    yield "communication", taken
    if waited is None:
        yield "untold", taken
        return
    waited *= record.count
    yield "waiting", waited
    if last is not None and last != record.rank:
        yield last, waited
    # Shorter than alone is all wire: what one call gains pays for no other.
    wire = taken - waited if usual is None else min(taken - waited, usual * record.count)
    yield "wire", wire
    # All of the excess is booked to one cause, by what ran for most of the transfer.
    competes = covered * record.count > MOSTLY * (taken - waited)
    yield "competing" if competes else "slower", taken - waited - wire


def _inside(records: Sequence[Communication], steps: Intervals | None) -> list[Communication]:
    """Records that began in a step; all where there are none, or without times."""
    if (
        steps is None
        or not len(steps)
        or any(record.start_seconds is None for record in records)
    ):
        return list(records)
    # By the start, so that a call across the border of two steps counts once.
    begins = np.array([record.start_seconds for record in records], float)
    place = np.searchsorted(steps[:, 0], begins, side="right") - 1
    inside = (place >= 0) & (begins < steps[np.maximum(place, 0), 1])
    return [record for record, is_inside in zip(records, inside, strict=True) if is_inside]


def _spans(records: Iterable[Communication]) -> Intervals:
    spans = [
        (
            record.start_seconds or 0.0,
            (record.start_seconds or 0.0) + (record.duration_seconds or 0.0),
        )
        for record in records
    ]
    return np.array(spans, float).reshape(-1, 2)


def _covered(
    moving: Intervals, records: Iterable[Communication], computing: Intervals
) -> Floats:
    """Seconds of each of ``moving``, transfers of the first ``records``, that something else covers.

    That is a computation of the rank or a transfer on another stream; records without times cover nothing.
    """
    timed = [record for record in records if record.start_seconds is not None]
    spans, covered = _spans(timed), np.zeros(len(moving))
    streams = np.array([record.stream for record in timed], object)
    for stream in {*streams}:
        own = streams == stream
        covered[own[: len(moving)]] = overlaps(moving[own[: len(moving)]], merged(spans[~own]))
    return np.maximum(covered, overlaps(moving, computing))


def length(intervals: Intervals) -> float:
    """Sum of the lengths, in seconds."""
    return float(np.diff(intervals).sum())


def overlaps(spans: Intervals, covering: Intervals) -> Floats:
    """Seconds of each of ``spans`` that lie in ``covering``, which are sorted and apart."""
    if not len(spans) or not len(covering):
        return np.zeros(len(spans))
    # Sums up to each interval make every span two look-ups, however many intervals it covers.
    before = np.concatenate(([0.0], np.cumsum(covering[:, 1] - covering[:, 0])))

    def covered(moments: Floats) -> Floats:
        """Return the seconds of ``covering`` before each moment."""
        place = np.maximum(np.searchsorted(covering[:, 0], moments, side="right") - 1, 0)
        inside = np.minimum(moments, covering[place, 1]) - covering[place, 0]
        seconds: Floats = np.where(moments > covering[0, 0], before[place] + inside, 0.0)
        return seconds

    return covered(spans[:, 1]) - covered(spans[:, 0])
