"""Results of a case: its status, its samples and what is known of the machine meanwhile.

Fields that are columns of a run's table say so: their meaning, unit and merging of rounds stand there alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from ccbench.cases.axes import Case
from ccbench.columns import column, described
from ccbench.exit_codes import HUNG, PARTIAL, PROBLEM

MORE_ROUNDS = "more rounds planned"
"""The stop reason of a case that was measured, but not yet as often as asked."""


NO_TEAM = "no team could be started for further rounds"
"""The stop reason of a round that never began, and of a case that has the rounds before it alone."""


class Status(str, Enum):
    """End of a case. Only ``OK`` and ``WRONG`` carry samples; only ``OK`` has a speed."""

    OK = "ok"
    WRONG = "wrong"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    SKIPPED = "skipped"


FAILURES = (Status.TIMED_OUT, Status.FAILED, Status.OUT_OF_MEMORY)


EXIT_CODES = {
    Status.WRONG: PROBLEM,
    Status.TIMED_OUT: HUNG,
    Status.FAILED: PARTIAL,
    Status.OUT_OF_MEMORY: PARTIAL,
    Status.SKIPPED: PARTIAL,
}
"""Exit code of a run with such a case, the gravest first; without one it is 0."""


@dataclass(frozen=True)
class Sampling:
    """Rules by which a case has been measured well enough, and by which it is given up.

    A case is measured in ``rounds`` rounds, all other cases in between, and in up to twice as many while its
    interval is wider than the target, never where that is 1. Samples, warm-up and budget are those of all
    ``rounds`` together. launches: launches per sample, 0 to find out. fresh_ranks: each round has ranks that
    are started for it.
    """

    confidence: float = 0.95
    rounds: int = 6
    target_relative_width: float = 0.05
    minimum_samples: int = 10
    maximum_samples: int = 400
    warmup_seconds: float = 0.02
    minimum_sample_seconds: float = 0.001
    budget_seconds: float = 0.5
    time_limit_seconds: float = 60.0
    launches: int = 0
    fresh_ranks: bool = False

    def of_one_round(self, launches: int) -> Sampling:
        """The rules inside one round, with ``launches`` per sample where an earlier round found them.

        Of several rounds none stops early: samples of one round resemble each other, so that their
        interval says little. Between rounds the interval decides.
        """
        return replace(
            self,
            target_relative_width=self.target_relative_width if self.rounds == 1 else 0.0,
            minimum_samples=-(-self.minimum_samples // self.rounds),
            maximum_samples=max(1, self.maximum_samples // self.rounds),
            warmup_seconds=self.warmup_seconds / self.rounds,
            budget_seconds=self.budget_seconds / self.rounds,
            launches=launches,
        )


_UNKNOWN = "not known on this machine"
_NOT_MEASURED = "no sample was taken"
_NO_PRICE = "another backend than cpu or simulated, or a launch that is not made of these"
_NO_GROUPS = "one collective ran alone, or what ran at the same time was not timed apart"
_ONE_HOST = "all ranks ran on the host of the run"
_NO_LIBRARY = "nothing was measured, or the backend has no library of its own"
_LAUNCH = "seconds per launch"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """State of the machine around one case.

    The two shares are of ``watched_cpu_seconds`` (all processors together). The system counts in ticks of
    10 ms, so over short times they are rough and may even be a little negative.
    """

    core_latency_before_seconds: float | None = column(
        None,
        "a flag from core to core, before the case",
        "seconds",
        _UNKNOWN,
        rounds="first",
    )
    core_latency_after_seconds: float | None = column(
        None, "the same, after the case", "seconds", _UNKNOWN
    )
    other_cpu_share: float | None = column(
        None,
        "processor time of other programs; of hosts the largest",
        "fraction",
        _UNKNOWN,
        rounds="share",
    )
    steal_share: float | None = column(
        None,
        "processor time of the hypervisor; of hosts the largest",
        "fraction",
        _UNKNOWN,
        rounds="share",
    )
    watched_cpu_seconds: float = column(
        0.0,
        "what both shares are of; below 0.1 s they are rough",
        "seconds",
        _UNKNOWN,
        rounds="total",
    )
    binding: tuple[int, ...] = column(
        (), "logical processor of each rank", null_when="ranks were not bound"
    )
    oversubscribed: bool = column(False, "ranks shared processors or devices")
    flags: tuple[str, ...] = column((), "what makes the figures doubtful")


@dataclass(frozen=True)
class CaseFacts:
    """Facts that a rank knows about the case just measured, besides its samples.

    Fields with the name of one of Measurement's mean the same.
    """

    algorithm_used: str = ""
    protocol_used: str = ""
    channels_used: int = 0
    library_estimate_seconds: float | None = None
    path_counts: tuple[float, ...] = ()
    path_costs_seconds: tuple[tuple[float, ...], ...] = ()
    parts: tuple[str, ...] = ()
    group_samples_seconds: tuple[tuple[float, ...], ...] = ()
    devices: str = ""
    """JSON of the devices' state before and after the case."""
    flags: tuple[str, ...] = ()
    """Of this case alone."""
    blocked_launches: int | None = None
    library_version: str = ""
    library_path: str = ""
    library_sha256: str = ""
    library_settings: str = ""


_EXACT = "the suite asks for no accuracy, or the result is exact in any order"


BY_BLOCKS = "another one in each block"
"""End of an accumulation whose order depends on where in the message an element is."""


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """Results of launches on inexact data: how far from right, and where bits differ.

    Shares are of elements that were looked at whose bits differ; 0 says that none did.
    """

    inexact_data: str = column(
        "", "distribution of the inexact data", null_when=_EXACT, rounds="first"
    )
    correctly_rounded_share: float | None = column(
        None, "results that are the exact ones, rounded once", "fraction", _EXACT
    )
    median_error_ulp: float | None = column(
        None, "median distance from the exact result", "units in the last place", _EXACT
    )
    largest_error_ulp: float | None = column(
        None,
        "largest distance from the exact result",
        "units in the last place",
        _EXACT,
        rounds="worst",
    )
    relative_l2_error: float | None = column(
        None,
        "norm of the errors over that of the exact results",
        "fraction",
        _EXACT,
    )
    accumulation: str = column(
        "",
        "type and order of additions that give the bits; else `unknown`",
        null_when=_EXACT + ", or there are too few results to tell",
        rounds="first",
    )
    differing_over_launches: float | None = column(
        None,
        "elements that differ between launches on the same buffers",
        "fraction",
        _EXACT,
        rounds="worst",
    )
    differing_over_rounds: float | None = column(
        None,
        "between rounds, with new buffers",
        "fraction",
        _EXACT + ", or one round",
        rounds="worst",
    )
    differing_over_starts: float | None = column(
        None,
        "between rounds whose ranks were started anew",
        "fraction",
        _EXACT + ", or all rounds had the same ranks",
        rounds="worst",
    )
    differing_over_ranks: float | None = column(
        None,
        "between ranks that should hold the same",
        "fraction",
        _EXACT + ", or no two ranks should",
        rounds="worst",
    )
    differing_over_positions: float | None = column(
        None,
        "between places of a message with the same numbers",
        "fraction",
        _EXACT + ", or the message is hardly longer than a period of the data",
        rounds="worst",
    )
    first_difference: str = column(
        "",
        "where bits differ first",
        null_when=_EXACT + ", or they differ nowhere",
        rounds="earliest",
    )
    result_digests: tuple[str, ...] = column(
        (),
        "hash of each rank's bits",
        null_when=_EXACT,
        rounds="first",
    )
    result_bits: tuple[int, ...] = column(
        (),
        "bits of the first period, as whole numbers",
        null_when=_EXACT,
        rounds="first",
    )


@dataclass(frozen=True)
class Measurement:
    """Results of one case. Every time is in seconds, per launch."""

    case: Case
    status: Status = field(
        metadata=described("ok, wrong, unsupported, failed, timed_out, out_of_memory, skipped")
    )
    detail: str = column("", "why the status is not ok; may be empty")
    backend_version: str = column("", "library and version that ran; may be empty")
    algorithm_used: str = column("", "algorithm that ran; empty: not reported")
    launches_per_sample: int = column(
        0, "launches timed together as one sample", null_when=_NOT_MEASURED
    )
    blocked_launches: int | None = column(
        None,
        "launches of a sample enqueued before the devices were released",
        null_when=_NOT_MEASURED + ", or times are the host's",
    )
    samples_seconds: tuple[float, ...] = column(
        (),
        "each sample, from the first rank's start to the last rank's end",
        _LAUNCH,
        _NOT_MEASURED,
        rounds="joined",
    )
    warmup_seconds: tuple[float, ...] = column(
        (), "warm-up samples", _LAUNCH, _NOT_MEASURED, rounds="joined"
    )
    skew_seconds: tuple[float, ...] = column(
        (),
        "of a sample: start of the last rank minus that of the first",
        "seconds",
        _NOT_MEASURED + ", or ranks have no clock in common",
        rounds="joined",
    )
    rank_samples_seconds: tuple[tuple[float, ...], ...] = column(
        (),
        "samples of each rank, [rank][sample]",
        _LAUNCH,
        _NOT_MEASURED,
        rounds="joined by rank",
    )
    round_samples: tuple[int, ...] = column(
        (),
        "how many samples each round gave",
        "samples",
        _NOT_MEASURED,
    )
    launching_seconds: float = column(
        0.0,
        "time in warm-up and measured launches",
        "seconds",
        _NOT_MEASURED,
        rounds="total",
    )
    path_counts: tuple[float, ...] = column(
        (),
        "flags, groups of operations, calls, bytes copied, bytes reduced on the longest way",
        null_when=_NO_PRICE,
    )
    path_costs_seconds: tuple[tuple[float, ...], ...] = column(
        (),
        "cost of each of path_counts, [count][window]",
        "seconds",
        _NO_PRICE,
        rounds="joined by rank",
    )
    # Ranks end together, so this alone shows which one is late: it waits least.
    rank_waiting_seconds: tuple[tuple[float, ...], ...] = column(
        (),
        "waiting of each rank for others, [rank][round]",
        _LAUNCH,
        _NOT_MEASURED + ", or the backend does not report it",
        rounds="joined by rank",
    )
    rank_cpu_share: tuple[float, ...] = column(
        (),
        "processor time of each rank, from warm-up to check",
        "share of one processor",
        _NOT_MEASURED + ", or ranks are not processes of their own",
        rounds="mean",
    )
    rank_queued_share: tuple[float, ...] = column(
        (),
        "how long each rank waited for its processor",
        "share of the time",
        _NOT_MEASURED
        + ", or ranks are not processes of their own, or the system does not report it",
        rounds="mean",
    )
    wrong_elements: int | None = column(
        None,
        "wrong elements of the timed result",
        "elements",
        "nothing was checked",
        rounds="total",
    )
    stop_reason: str = column("", "why sampling ended; may be empty")
    started_at: str = column("", "ISO 8601 in UTC", rounds="first")
    simulated: bool = column(False, "times were computed, not measured")
    protocol_used: str = column(
        "",
        "as the library says; own kernels: `host` without peer access",
    )
    channels_used: int = column(0, "as the library says", null_when="not reported")
    library_estimate_seconds: float | None = column(
        None,
        "what the library itself expected of the case",
        "seconds",
        "the library gives none",
    )
    group_names: tuple[str, ...] = column(
        (),
        "what ran at the same time",
        null_when=_NO_GROUPS,
    )
    group_samples_seconds: tuple[tuple[float, ...], ...] = column(
        (),
        "samples of each of group_names, [name][sample]",
        _LAUNCH,
        _NO_GROUPS,
        rounds="joined by rank",
    )
    hosts: tuple[str, ...] = column((), "host of each rank", null_when=_ONE_HOST)
    node_of_rank: tuple[int, ...] = column(
        (), "machine of each rank, from 0", null_when=_ONE_HOST
    )
    device_readings: str = column(
        "",
        "JSON: state of each device before and after the case",
        rounds="device readings",
    )
    library_path: str = column(
        "", "file of the library that the ranks had loaded", null_when=_NO_LIBRARY
    )
    library_sha256: str = column("", "its SHA-256", null_when=_NO_LIBRARY)
    library_settings: str = column(
        "",
        "JSON: variables that the library reports as in effect",
        null_when="the library tells of none that is set (NCCL tells of some from 2.30 on)",
    )
    conditions: Conditions = field(default_factory=Conditions)
    rounding: Rounding = field(default_factory=Rounding)
