"""From the communications of a job to the cases that cost what they cost, each once, and to a suite of them.

Equal collectives on groups of one shape are one case, with a count. The groups of one shape are taken to
run at the same time, as the replicas of a training job do. What is left open stays at ccbench's default: a
trace does not say whether buffers are the same (out of place), nor, mostly, what reductions do (sum).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ccbench.cases.axes import NO_OP, NO_ROOT, UNEVEN, Case
from ccbench.collectives import COLLECTIVES, LONGEST_MATRIX
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import UsageError
from ccbench.findings import SourceWarning
from ccbench.groups import LONGEST_LIST, parse_groups, parse_pair
from ccbench.readers.traces.events import RECV, SEND, Communication, ProcessGroup, Trace
from ccbench.readers.traces.join import Instance, instances
from ccbench.readers.traces.together import OverlappingCases, overlaps_of
from ccbench.units import plain, plural

JOB = "job"
"""Suite of the cases of a job, and their backend where the trace names none."""

SEND_RECV = "send_recv"

MOST_WORLD = 2**17
"""Ranks of a job that are told apart in groups."""


@dataclass(frozen=True)
class JobCase:
    """A case, and the collectives of the job that it stands for.

    remarks: in what the case differs from what the job did, in words.
    """

    case: Case
    instances: tuple[Instance, ...]
    remarks: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of times that it ran in the part of the job that the trace shows."""
        return sum(instance.count for instance in self.instances)


@dataclass(frozen=True)
class Fold:
    """All cases of a job, those that ran most often first, and why others are none: reason -> how many.

    overlaps: what the job has at the same time.
    """

    cases: tuple[JobCase, ...]
    not_folded: Mapping[str, int]
    overlaps: tuple[OverlappingCases, ...] = ()
    warnings: tuple[SourceWarning, ...] = ()


class _Unfit(Exception):
    """A communication is no case of ccbench; the message says why."""


def fold(trace: Trace, ranks: int = 0) -> Fold:
    """Return the cases that the communications of ``trace`` are.

    ranks: of the job, where the trace says neither that nor anything of groups; 0 where nobody knows.
    """
    # What the trace says of ranks counts; the caller's number only fills in for nothing at all.
    if ranks and _says_no_ranks(trace):
        everybody = ProcessGroup("", ranks, tuple(range(ranks)))
        records = (
            communication
            if communication.group.size
            else replace(communication, group=everybody)
            for communication in trace.communications
        )
        trace = replace(trace, world_size=ranks, communications=tuple(records))
    joined, warnings = instances(trace)
    cases: dict[Case, list[Instance]] = defaultdict(list)
    remarks: dict[Case, dict[str, None]] = defaultdict(dict)
    reasons = Counter(trace.not_taken)
    known_groups = _KnownGroups(trace)
    for instance in joined:
        try:
            case, remark = _case(instance, trace, known_groups)
        except _Unfit as reason:
            reasons[str(reason)] += instance.count
            continue
        cases[case].append(instance)
        remarks[case] |= dict.fromkeys(remark)
    made = [
        JobCase(case, tuple(case_instances), tuple(remarks[case]))
        for case, case_instances in cases.items()
    ]
    ordered = sorted(
        made,
        key=lambda job_case: (-job_case.count, -job_case.case.size_bytes, job_case.case.label),
    )
    return Fold(tuple(ordered), dict(reasons), overlaps_of(cases), warnings)


def _says_no_ranks(trace: Trace) -> bool:
    return not trace.world_size and not any(group.size for group in trace.groups)


class _KnownGroups:
    """Spelling of the groups of a job: those of one shape together, as ``ccbench.groups`` writes them."""

    def __init__(self, trace: Trace) -> None:
        listed = [group.ranks for group in trace.groups if group.ranks]
        listed += [
            communication.group.ranks
            for communication in trace.communications
            if communication.group.ranks
        ]
        # A trace of some ranks may not say how many there are: at least as many as the highest one named.
        highest = max((max(ranks) for ranks in listed), default=-1)
        self.world = min(max(trace.world_size, highest + 1), MOST_WORLD)
        self.unknown = "the trace does not say between which ranks"
        self.unknown += "; --ranks says how many take part" if _says_no_ranks(trace) else ""
        self._listed = tuple(dict.fromkeys(listed))
        self._spelled: dict[tuple[int, ...], str] = {}

    def spelling(self, group: ProcessGroup) -> tuple[int, str]:
        """Return (ranks of the case, its groups) for ``group``."""
        if not group.ranks:
            # Nobody knows whose neighbours they are: as if they were alone, side by side.
            return group.size, ""
        if group.ranks not in self._spelled:
            self._spelled[group.ranks] = self._spell(group.ranks)
        return self.world, self._spelled[group.ranks]

    def _spell(self, ranks: tuple[int, ...]) -> str:
        size, world = len(ranks), self.world
        stride = ranks[1] - ranks[0] if size > 1 else 1
        if ranks == tuple(range(world)):
            return ""
        if stride > 0 and ranks == tuple(range(ranks[0], ranks[0] + size * stride, stride)):
            # The pattern must make this very group: one that is shifted against it only looks alike.
            for text in regular_groups(size, stride, world):
                if ranks in parse_groups(text, world):
                    return text
        # Others of the same shape, shifted, as far as the trace lists them.
        alike = {
            group
            for group in self._listed
            if [r - group[0] for r in group] == [r - ranks[0] for r in ranks]
        }
        apart: list[tuple[int, ...]] = [ranks]
        for group in sorted(alike):
            if not any(set(group) & set(chosen) for chosen in apart):
                apart.append(group)
        text = json.dumps(sorted(map(list, apart)))
        if len(text) > LONGEST_LIST:
            raise _Unfit(f"its groups of {size} ranks have no pattern and are too many to list")
        return text


def regular_groups(size: int, stride: int, world: int) -> Iterator[str]:
    """Spell groups of ``size`` ranks, ``stride`` apart, that cover ``world`` ranks; nothing if none do."""
    if world % (size * stride) == 0:
        if stride == 1:
            yield f"rank // {size}"
        elif size * stride == world:
            yield f"rank % {stride}"
        else:
            yield f"dp of tp{stride}-cp1-ep1-dp{size}-pp{world // (size * stride)}"


def _case(
    instance: Instance, trace: Trace, known_groups: _KnownGroups
) -> tuple[Case, list[str]]:
    """Return the case that a collective or message is, with remarks; _Unfit where it is none."""
    first = instance.records[0]
    if first.collective in (SEND, RECV):
        return _message(instance, trace, known_groups)
    if first.collective not in COLLECTIVES:
        raise _Unfit(f"{plain(first.name)}: no collective that ccbench measures")
    if not first.group.size:
        raise _Unfit(known_groups.unknown)
    ranks, groups = known_groups.spelling(first.group)
    if ranks < 2 or first.group.size < 2:
        raise _Unfit("of one rank, which sends nothing")
    name, traffic, remarks = _traffic(instance, first.collective)
    row = COLLECTIVES[name]
    dtype, item_bytes = _dtype(first, remarks) if row.moves_data else ("uint8", 1)
    size = _size_bytes(instance, name) if row.moves_data else 0
    count = row.count_for(size, first.group.size, item_bytes)
    # Whole elements in equal blocks, as a case has them; what that leaves out is told.
    exact = row.size_bytes(count, first.group.size, item_bytes)
    if exact < size:
        remarks.append(
            f"up to {plural(first.group.size * item_bytes - 1, 'byte')} less, in whole blocks"
        )
    root = NO_ROOT
    if row.rooted:
        root = first.group.ranks.index(first.root) if first.root in first.group.ranks else 0
        if first.root is None:
            remarks.append("from or to the first rank: the trace does not name the root")
    op = (first.op or "sum") if row.reduces else NO_OP
    return Case(
        JOB,
        trace.backend or JOB,
        name,
        "default",
        dtype,
        op,
        exact,
        count,
        ranks,
        root=root,
        groups=groups,
        traffic=traffic,
    ), remarks


def _message(
    instance: Instance, trace: Trace, known_groups: _KnownGroups
) -> tuple[Case, list[str]]:
    """Return the case of one message: between the first two ranks that are as far apart."""
    first, remarks = instance.records[0], list[str]()
    if first.rank is None or first.peer is None or first.rank == first.peer:
        raise _Unfit("a message whose two ranks the trace does not name")
    source, target = (
        (first.rank, first.peer) if first.collective == SEND else (first.peer, first.rank)
    )
    distance = target - source
    world = max(known_groups.world, source + 1, target + 1)
    dtype, item_bytes = _dtype(first, remarks)
    size = max(first.input_bytes or 0, first.output_bytes or 0)
    # Pairs that are as far apart are taken to cost the same, and so become one case.
    pair = f"0>{distance}" if distance > 0 else f"{-distance}>0"
    count = size // item_bytes
    return Case(
        JOB,
        trace.backend or JOB,
        SEND_RECV,
        "default",
        dtype,
        NO_OP,
        count * item_bytes,
        count,
        world,
        pair=pair,
    ), remarks


def _dtype(communication: Communication, remarks: list[str]) -> tuple[str, int]:
    """Return the type to measure with and its bytes; one of the same width where ccbench lacks it."""
    if communication.dtype in ITEM_BYTES:
        return communication.dtype, ITEM_BYTES[communication.dtype]
    # Bytes are copied alike whatever they mean; a sum needs arithmetic that every library has.
    row = COLLECTIVES.get(communication.collective)
    stands_for = "float32" if row is not None and row.reduces else "uint8"
    words = (
        f"{plain(communication.dtype)} elements"
        if communication.dtype
        else "the trace does not say the type:"
    )
    remarks.append(f"{words} measured as {stands_for}")
    return stands_for, ITEM_BYTES[stands_for]


def _size_bytes(instance: Instance, name: str) -> int:
    """nccl-tests' size: the largest buffer of one rank, of all_to_all_v the largest input."""
    ranks = instance.records[0].group.size
    size = 0
    for record in instance.records:
        sent, received = record.input_bytes, record.output_bytes
        if name == UNEVEN:
            size = max(size, sent or 0)
            continue
        size = max(size, sent or 0, received or 0)
        # A rank that is not the root, or a trace that names one side, has one block of the larger buffer.
        blocks = [sent if name in ("all_gather", "gather") else None]
        blocks += [received if name in ("reduce_scatter", "scatter") else None]
        size = max([size, *(ranks * block for block in blocks if block)])
    stated = {side for row in instance.records for side in (row.input_bytes, row.output_bytes)}
    if stated == {None}:
        raise _Unfit("the trace does not say how many bytes")
    return size


def _traffic(instance: Instance, name: str) -> tuple[str, str, list[str]]:
    """Return (collective, traffic, remarks): all_to_all_v where blocks differ and all ranks' are known."""
    first = instance.records[0]
    ranks = first.group.size
    if not any(record.input_splits or record.output_splits for record in instance.records):
        return ("all_to_all" if name == UNEVEN else name), "", []
    if name not in ("all_to_all", UNEVEN):
        # Blocks of an all_gather or reduce_scatter that differ: as if each were the largest.
        return name, "", ["blocks of different sizes measured as equal ones, of the same sum"]
    place = {rank: number for number, rank in enumerate(first.group.ranks)}
    rows: list[Sequence[int]] = [()] * ranks
    for record in instance.records:
        number = place.get(record.rank if record.rank is not None else -1)
        splits = record.input_splits or ((record.input_bytes or 0) // ranks,) * ranks
        if number is not None and len(splits) == ranks:
            rows[number] = splits
    if not all(rows) or not any(map(sum, rows)):
        text = (
            "uneven blocks measured as equal ones: the trace does not show what all ranks send"
        )
        return "all_to_all", "", [text]
    written = json.dumps([list(row) for row in rows])
    if len(written) > LONGEST_MATRIX:
        return (
            "all_to_all",
            "",
            ["uneven blocks measured as equal ones: too many ranks for a matrix"],
        )
    return UNEVEN, written, []


# -- fewer ranks, and a suite -------------------------------------------------------------------------------


def fitted(
    cases: Iterable[JobCase], ranks: int | None
) -> tuple[dict[Case, tuple[Case, str]], dict[Case, str]]:
    """Return case -> (as it is on at most ``ranks`` ranks, in what that differs), and case -> why it is not.

    ranks: None for as many as each has.
    """
    here, refused = {}, {}
    for case in (job_case.case for job_case in cases):
        try:
            here[case] = on_fewer(case, ranks or case.ranks)
        except UsageError as error:  # noqa: PERF203  # each case that does not fit is told
            refused[case] = str(error)
    return here, refused


def on_fewer(case: Case, ranks: int) -> tuple[Case, str]:
    """Return ``case`` on at most ``ranks`` ranks, and in what it differs; '' where it fits as it is.

    Groups keep their size where that fits, and their stride where that does too; a group that is too large
    becomes one of all ranks, with as many bytes a rank. UsageError where it means nothing on so few.
    """
    if case.ranks <= ranks:
        return case, ""
    whole = case.groups == "" and not case.pair
    size = case.group_ranks
    if case.traffic and size > ranks:
        raise UsageError(f"uneven traffic of {size} ranks; there are {ranks}: --ranks {size}")
    if case.concurrent:
        raise UsageError("two collectives at the same time on fewer ranks are not the job's")
    of = f"of the job's {case.ranks} ranks"
    if case.pair:
        pair = parse_pair(case.pair)
        near = abs(pair.source - pair.target) < ranks
        return replace(
            case, ranks=ranks, pair=case.pair if near else "0>1"
        ), f"{ranks} {of}" + (
            "" if near else ", between neighbours instead of ranks further apart"
        )
    if whole or size >= ranks:
        row, item_bytes = COLLECTIVES[case.collective], ITEM_BYTES[case.dtype]
        count = row.count_for(case.size_bytes, ranks, item_bytes)
        smaller = replace(
            case, ranks=ranks, groups="", root=min(case.root, ranks - 1), count=count
        )
        kept = "" if whole or size == ranks else f"groups of {ranks} instead of {size}; "
        return replace(
            smaller, size_bytes=row.size_bytes(count, ranks, item_bytes)
        ), f"{kept}{ranks} {of}"
    first = parse_groups(case.groups, case.ranks)[0]
    stride = first[1] - first[0]
    fewer = ranks // (size * stride) * size * stride
    spelled = next(regular_groups(size, stride, fewer), "") if fewer else ""
    if not spelled or case.groups.startswith("["):
        fewer, spelled = ranks // size * size, f"rank // {size}"
        stride = 1 if stride == 1 else 0
    apart = "" if stride else ", neighbours instead of ranks further apart"
    groups = "" if fewer == size else spelled
    return replace(case, ranks=fewer, groups=groups), f"{fewer} {of}{apart}"


def suite_text(
    cases: Sequence[JobCase], name: str, comments: Mapping[Case, str] | None = None
) -> str:
    """Return a suite file that asks for exactly ``cases``; comments: what else to say of one."""
    alike: dict[Case, list[JobCase]] = defaultdict(list)
    for job_case in cases:
        alike[replace(job_case.case, size_bytes=0, count=0)].append(job_case)
    lines = [
        "# Question: what does the communication of this job cost here?",
        "# Each case is a collective of the job, once; beside each size stands how often it ran.",
        f"question: {json.dumps(f'What does the communication of {plain(name)} cost here?')}",
        "sweep:",
    ]
    for blank, members in alike.items():
        moves_data = COLLECTIVES[blank.collective].moves_data
        is_list = blank.groups.startswith("[")
        optional = {
            "dtype": blank.dtype if moves_data else "",
            "op": "" if blank.op == NO_OP else blank.op,
            "root": max(blank.root, 0),
            "groups": json.loads(blank.groups) if is_list else blank.groups,
            "concurrent": blank.concurrent,
            "pairs": blank.pair,
            "traffic": [json.loads(blank.traffic)] if blank.traffic else [],
        }
        entry = {"collective": blank.collective, "ranks": blank.ranks}
        entry |= {key: value for key, value in optional.items() if value}
        prefix = "  - "
        for key, value in entry.items():
            lines.append(
                f"{prefix}{key}: {value if isinstance(value, int) else json.dumps(value)}"
            )
            prefix = "    "
        if not moves_data:
            continue
        lines.append("    size:")
        for job_case in sorted(members, key=lambda job_case: job_case.case.size_bytes):
            notes = [
                f"{job_case.count} x",
                *filter(None, [(comments or {}).get(job_case.case)]),
                *job_case.remarks,
            ]
            lines.append(f"      - {job_case.case.size_bytes} B  # {'; '.join(notes)}")
    return "\n".join(lines) + "\n"
