"""Contents of a job's trace, whichever tool recorded it: communications, computing and steps of each rank.

Every figure is as recorded; what a kind of trace cannot say is None, and nothing is filled in. Readers build
these values, ``reading`` joins the files of several ranks, ``fold`` makes cases of them, and
``ccbench.plan.replay`` says where the time went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ccbench.findings import SourceWarning

Intervals = npt.NDArray[np.float64]
"""[n, 2]: start and end in seconds, sorted by start."""

BARRIER = "barrier"
SEND, RECV = "send", "recv"
"""Of one rank; ``collective`` of a communication is one of these or a name of ``ccbench.collectives``."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Ranks that communicate with each other.

    name, description: the job's own ("1", "tp"); "" where the trace has none. size: 0 where not known.
    ranks: global ranks in the order of the group, () where the trace does not list them.
    """

    name: str
    size: int
    ranks: tuple[int, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class Communication:
    """One collective, send or receive, as one rank recorded it.

    rank: global; None where the trace does not tell. collective: ccbench's name, or send, recv, barrier; ""
    where ccbench knows none. name: as recorded. dtype: ccbench's name, else the trace's own word; "" where
    not said. input_bytes, output_bytes: of this rank. input_splits, output_splits: bytes to and from each
    rank of the group, () where even or not said. root, peer: global ranks.
    sequence: place among the group's communications where the trace counts them (joins ranks), else None.
    start_seconds, duration_seconds: on the rank's clock; None where the trace has no times (a trace of what
    was asked, or timing was off). The duration is that of the transfer as the device or thread saw it, with
    waiting for other ranks. stream: one at a time runs on it. asynchronous: the host went on meanwhile.
    count: how often, where the trace has sums instead of single events. state: scheduled, started or
    completed, in a dump of calls that may hang. elements: of the larger buffer, where its bytes are not said.
    line: 1-based, or the event's number.
    """

    rank: int | None
    collective: str
    name: str
    group: ProcessGroup
    dtype: str = ""
    input_bytes: int | None = None
    output_bytes: int | None = None
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()
    op: str = ""
    root: int | None = None
    peer: int | None = None
    sequence: int | None = None
    start_seconds: float | None = None
    duration_seconds: float | None = None
    stream: str = ""
    asynchronous: bool | None = None
    count: int = 1
    algorithm: str = ""
    protocol: str = ""
    state: str = ""
    elements: int | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Progress of one rank in one group, in a trace of a job that hangs or runs.

    rank: global where the group lists its ranks, else the place in the group. collective: "" where the group
    counts all of its collectives together. enqueued, completed: how many, None where the trace does not say.
    place: host and process of the rank, or its file. trouble: what the trace says is wrong with the rank.
    """

    rank: int
    group: ProcessGroup
    collective: str = ""
    enqueued: int | None = None
    completed: int | None = None
    place: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class Trace:
    """The files of one job, or one file of it.

    kinds: forms of the files, such as ``kineto``. sources: files as given. communications: of each rank in
    the order of its calls, which is one for all ranks of a group. ranks: whose events are here.
    world_size: ranks of the job; 0 where not known. backend: nccl, gloo, ...; "" where not said.
    computing: rank -> intervals in which it computed (kernels or operators that are no communication).
    steps: rank -> intervals of its steps of training, where the job marked them (ProfilerStep#).
    not_taken: why communications were seen but not taken -> how many. progress: of a job that hung or runs.
    versions, facts: what the files say besides (``nccl``, device models, hosts).
    """

    kinds: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    communications: tuple[Communication, ...] = ()
    ranks: tuple[int, ...] = ()
    world_size: int = 0
    backend: str = ""
    groups: tuple[ProcessGroup, ...] = ()
    computing: Mapping[int, Intervals] = field(default_factory=dict, hash=False, compare=False)
    steps: Mapping[int, Intervals] = field(default_factory=dict, hash=False, compare=False)
    not_taken: Mapping[str, int] = field(default_factory=dict, hash=False)
    progress: tuple[GroupProgress, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)
    warnings: tuple[SourceWarning, ...] = ()
