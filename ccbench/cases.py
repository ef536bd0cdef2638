"""What is asked (Case, Sampling) and what came back (Measurement): plain frozen values.

They cross process boundaries, so nothing but the standard library is imported for them (NumPy only where an
all_to_all_v asks for amounts).
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum

from ccbench.collectives import collective
from ccbench.dtypes import item_bytes
from ccbench.groups import Pair, parse_beside, parse_groups, parse_pair
from ccbench.traffic_matrix import sent_elements
from ccbench.units import plural

NO_ROOT = -1
"""The root of a case whose collective has none."""

NO_OP = "none"
"""The op of a case whose collective does not reduce."""

EMULATION = "emulation"
"""Flag of measurements whose device was emulated: their times say nothing about any device."""

LOOPBACK = "loopback"
"""Flag of measurements in which several ranks shared a device: no link was measured."""


ALL_GROUPS = -1
"""All groups run at once."""

UNEVEN = "all_to_all_v"
"""The collective whose blocks differ in size."""

OVERLAP = "overlap"
"""The mode in which something is computed meanwhile."""

OVERLAP_PARTS = (
    "computation alone",
    "collective alone",
    "computation while communicating",
    "collective while computing",
)
"""Parts of a measurement in mode overlap; its samples are of both together, first start to last end."""


MORE_VISITS = "more visits planned"
"""The stop reason of a case that was measured, but not yet as often as asked."""

PROBE = "network probe"
"""The suite of cases that are measured for predictions, before those that were asked for."""


class Status(str, Enum):
    """How a case ended. Only ``OK`` and ``WRONG`` carry samples; only ``OK`` has a speed."""

    OK = "ok"
    WRONG = "wrong"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Case:
    """One point of a suite.

    ``count`` is in elements: of the whole buffer for all_reduce, broadcast, reduce and send_recv;
    of one rank's block for all_gather, reduce_scatter, all_to_all, gather and scatter (nccl-tests'
    "count"); of the mean block that the busiest rank of an all_to_all_v sends. ``size_bytes`` is nccl-tests'
    "size": the largest buffer of one rank (of an all_to_all_v, the largest input).
    ``algorithm`` is a name, a name with a parameter (``hierarchical:4``), or ``default``.

    channels: 0 leaves their number to the library. transport: ``default``, ``host`` (through pinned memory of
    the host) or ``network`` (even inside a node). registration: of buffers, ``none``, ``local`` or
    ``symmetric``. aggregation: collectives in one group call, timed together. misalignment_bytes: how far
    buffers start off their alignment. pair: of send_recv, ``0>3`` or ``0<>3`` instead of the ring.
    groups: who communicates with whom (``ccbench.groups``), '' all together; count and size are those of one
    group. beside: a collective that runs at the same time on a communicator of its own.
    """

    suite: str
    backend: str
    collective: str
    algorithm: str
    dtype: str
    op: str
    size_bytes: int
    count: int
    ranks: int
    root: int = NO_ROOT
    in_place: bool = False
    mode: str = "streaming"
    protocol: str = "default"
    nodes: int = 1
    channels: int = 0
    transport: str = "default"
    registration: str = "none"
    aggregation: int = 1
    misalignment_bytes: int = 0
    pair: str = ""
    groups: str = ""
    beside: str = ""
    alone: int = ALL_GROUPS
    traffic: str = ""
    computing: str = ""

    @property
    def case_id(self) -> str:
        """Sixteen hex digits that depend on everything asked of the case, but not on the suite's name.

        What came with later versions counts only where it is asked for, so that ids stay what they were.
        """
        asked = asdict(self)
        names = [name for name in asked if name != "suite" and asked[name] != _LATER.get(name)]
        canonical = ";".join(f"{name}={asked[name]}" for name in sorted(names))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def one_pair(self) -> Pair | None:
        """The pair of ranks that alone communicates, if it is one."""
        return parse_pair(self.pair) if self.pair else None

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each group that runs, in group order; of a pair its two ranks."""
        pair = self.one_pair
        if pair:
            return ((pair.source, pair.target),)
        groups = parse_groups(self.groups, self.ranks)
        return groups if self.alone == ALL_GROUPS else (groups[self.alone],)

    @property
    def everybody(self) -> bool:
        """Whether every rank communicates: no pair, and no group alone."""
        return not self.pair and self.alone == ALL_GROUPS

    @property
    def group_ranks(self) -> int:
        """Ranks that communicate with each other: all of them, those of one group, or the two of a pair."""
        return len(self.members[0]) if self.pair or self.groups else self.ranks

    @property
    def beside_case(self) -> Case | None:
        """What runs beside this case, as a case of its own; of about the same size in its own groups."""
        if not self.beside:
            return None
        asked = parse_beside(self.beside)
        row = collective(asked.collective)
        other = replace(
            self,
            collective=asked.collective,
            algorithm="default",
            op=(self.op if self.op != NO_OP else "sum") if row.reduces else NO_OP,
            root=0 if row.rooted else NO_ROOT,
            groups=asked.groups if asked.own_groups else self.groups,
            alone=ALL_GROUPS if asked.own_groups else self.alone,
            beside="",
            traffic="",
            in_place=False,
        )
        item = item_bytes(self.dtype)
        count = row.count_for(self.size_bytes, other.group_ranks, item)
        return replace(other, count=count, size_bytes=row.size_bytes(count, other.group_ranks, item))

    def input_count(self, seat: int) -> int:
        """Elements of the input buffer of rank ``seat`` of a group."""
        if self.collective == UNEVEN:
            return int(sent_elements(self.traffic, self.count, self.group_ranks)[seat].sum())
        row = collective(self.collective)
        return row.input_count(self.count, self.group_ranks, seat, max(self.root, 0))

    def output_count(self, seat: int) -> int:
        """Elements of the output buffer of rank ``seat`` of a group."""
        if self.collective == UNEVEN:
            return int(sent_elements(self.traffic, self.count, self.group_ranks)[:, seat].sum())
        row = collective(self.collective)
        return row.output_count(self.count, self.group_ranks, seat, max(self.root, 0))

    @property
    def by_last_starter(self) -> bool:
        """Whether a sample is the time of the rank that took least, by the clocks of the ranks' devices.

        One launch alone, of all ranks, that none can end before all have begun, on hosts that let their
        devices go each by itself: what others took more, they waited for who started last. On one host all
        start together, and who took least only ended first, as a tree's root ends before its leaves.
        """
        waits = self.collective in WAITED_FOR_BY_ALL and not (self.groups or self.beside)
        return waits and self.nodes > 1 and self.mode in ALONE and self.backend in DEVICE_TIMED

    @property
    def label(self) -> str:
        """One line for people: ``all_reduce ring float32 sum 1048576 B, 4 ranks, cpu``."""
        words = [self.collective, self.algorithm, self.dtype]
        if self.op != NO_OP:
            words.append(self.op)
        words.append(f"{self.size_bytes} B")
        extra = [plural(self.ranks, "rank"), self.backend]
        if self.root not in (NO_ROOT, 0):
            extra.append(f"root {self.root}")
        if self.in_place:
            extra.append("in place")
        if self.mode != "streaming":
            extra.append(self.mode)
        extra.extend(self._variation())
        return " ".join(words) + ", " + ", ".join(extra)

    def _variation(self) -> list[str]:
        """Words for what differs from a plain case."""
        asked = (
            (self.protocol != "default", f"protocol {self.protocol}"),
            (self.channels > 0, f"{self.channels} channels"),
            (self.transport != "default", f"transport {self.transport}"),
            (self.registration != "none", f"registration {self.registration}"),
            (self.aggregation > 1, f"{self.aggregation} at once"),
            (self.misalignment_bytes > 0, f"{self.misalignment_bytes} B off"),
            (bool(self.pair), f"pair {self.pair}"),
            (bool(self.groups), f"groups {self.groups}"),
            (self.alone != ALL_GROUPS, f"group {self.alone} alone"),
            (bool(self.beside), f"beside {self.beside}"),
            (bool(self.traffic), f"traffic {self.traffic}"),
            (bool(self.computing), f"computing {self.computing}"),
        )
        return [text for is_so, text in asked if is_so]


_LATER = {
    field.name: field.default
    for field in fields(Case)[[one.name for one in fields(Case)].index("nodes") + 1 :]
}
"""Fields that case ids did not have once, with what they were then."""


WAITED_FOR_BY_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives of which no rank has the result before every rank has started."""

ALONE = ("isolated", "cold")
"""Modes in which each launch waits for the one before."""

DEVICE_TIMED = ("cuda", "cuda-ipc", "nccl", "nccl-processes")
"""Backends whose samples are times of the devices' clocks."""


@dataclass(frozen=True)
class Sampling:
    """When a case has been measured well enough, and when to give up.

    A case is visited ``visits`` times, spread over the run with all other cases in between, and up to twice
    as often while its interval is wider than the target. Samples, warm-up and budget are those of all
    ``visits`` together. launches: launches per sample, 0 to find out.
    """

    confidence: float = 0.95
    visits: int = 6
    target_relative_width: float = 0.05
    minimum_samples: int = 10
    maximum_samples: int = 400
    warmup_seconds: float = 0.02
    minimum_sample_seconds: float = 0.001
    budget_seconds: float = 0.5
    time_limit_seconds: float = 60.0
    launches: int = 0

    def of_one_visit(self, launches: int) -> Sampling:
        """The rules inside one visit, with ``launches`` per sample where an earlier visit found them.

        Of several visits none stops early: samples of one visit resemble each other, so that their
        interval says little. Between visits the interval decides.
        """
        return replace(
            self,
            target_relative_width=self.target_relative_width if self.visits == 1 else 0.0,
            minimum_samples=-(-self.minimum_samples // self.visits),
            maximum_samples=max(1, self.maximum_samples // self.visits),
            warmup_seconds=self.warmup_seconds / self.visits,
            budget_seconds=self.budget_seconds / self.visits,
            launches=launches,
        )


@dataclass(frozen=True)
class Conditions:
    """What the machine did around one case; ``flags`` name what makes its figures doubtful.

    ``foreign_cpu_share`` and ``steal_share`` are of ``watched_cpu_seconds`` (all processors together). The
    system counts in ticks of 10 ms, so over short times they are rough and may even be a little negative.
    """

    core_latency_before_seconds: float | None = None
    core_latency_after_seconds: float | None = None
    foreign_cpu_share: float | None = None
    steal_share: float | None = None
    watched_cpu_seconds: float = 0.0
    binding: tuple[int, ...] = ()
    oversubscribed: bool = False
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseFacts:
    """What an endpoint of a backend knows about the case just measured, besides its samples; see Measurement.

    devices: JSON of the devices' state before and after the case. flags: of this case alone. gated_launches:
    of a sample, those enqueued before the devices were let go; None where devices have no clock.
    """

    protocol_used: str = ""
    channels_used: int = 0
    library_estimate_seconds: float | None = None
    parts: tuple[str, ...] = ()
    part_samples_seconds: tuple[tuple[float, ...], ...] = ()
    devices: str = ""
    flags: tuple[str, ...] = ()
    gated_launches: int | None = None


@dataclass(frozen=True)
class Measurement:
    """What one case gave. Every time is in seconds, per launch.

    ``samples_seconds``: one figure per sample, from the first rank's start to the last rank's end.
    ``rank_samples_seconds``: the same samples as each rank saw them, ``[rank][sample]``.
    ``rank_waiting_seconds``: of a launch, what each rank waited for others (of visits, the mean). Ranks end
    together, so this alone tells which one is late: it waits least.
    ``rank_processor_share``: of each rank, the processor time it had over the time that the case took, both
    from warm-up to check (of visits, the mean). Of ranks that poll, one with less than the others lacks it.
    ``launching_seconds``: time rank 0 spent in warm-up and measured launches, all together.
    ``visit_samples``: how many of the samples each visit gave, in order; they add up to all.
    ``skew_seconds``: per sample, last rank's start minus first rank's start.
    ``wrong_elements``: None when nothing was checked (the case did not run to its end).
    ``protocol_used``, ``channels_used``: what the library says it chose; empty and 0 when it does not.
    ``library_estimate_seconds``: what the library itself expected of the case.
    ``part_names``, ``part_samples_seconds``: what ran at the same time (groups, or collectives), and the same
    samples as each part saw them, ``[part][sample]``.
    ``hosts``, ``node_of_rank``: where each rank ran, when ranks were on several machines.
    ``gated_launches``: of a sample, launches that were enqueued before the devices were let go; None where
    times are the host's.
    ``device_readings``: JSON of the devices' state before and after; ``ccbench.telemetry`` writes it.
    """

    case: Case
    status: Status
    detail: str = ""
    backend_version: str = ""
    algorithm_used: str = ""
    launches_per_sample: int = 0
    samples_seconds: tuple[float, ...] = ()
    warmup_seconds: tuple[float, ...] = ()
    skew_seconds: tuple[float, ...] = ()
    rank_samples_seconds: tuple[tuple[float, ...], ...] = ()
    rank_waiting_seconds: tuple[float, ...] = ()
    rank_processor_share: tuple[float, ...] = ()
    visit_samples: tuple[int, ...] = ()
    launching_seconds: float = 0.0
    wrong_elements: int | None = None
    stop_reason: str = ""
    started_at: str = ""
    simulated: bool = False
    protocol_used: str = ""
    channels_used: int = 0
    library_estimate_seconds: float | None = None
    part_names: tuple[str, ...] = ()
    part_samples_seconds: tuple[tuple[float, ...], ...] = ()
    hosts: tuple[str, ...] = ()
    node_of_rank: tuple[int, ...] = ()
    gated_launches: int | None = None
    device_readings: str = ""
    conditions: Conditions = field(default_factory=Conditions)
