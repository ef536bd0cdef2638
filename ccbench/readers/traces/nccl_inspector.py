"""JSON lines of NCCL's Inspector plug-in (v4.0 on) and RCCL's copy: how long each collective of a job took.

A line is one call of one rank of one communicator, whose rank is not the job's. It has no start, unless the
plug-in wrote verbosely: dump_timestamp_us is when the line was written. Form: plugins/profiler/inspector/
inspector_json.cc of github.com/NVIDIA/nccl; sizes: inspector_plugin.cc there, count times bytes of a type.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.findings import SourceWarning
from ccbench.readers.traces.events import Communication, ProcessGroup, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.groups import MOST_RANKS
from ccbench.readers.traces.words import (
    buffers,
    collective_of,
    count,
    listed,
    members,
    number,
    text,
    told_damage,
)
from ccbench.units import plain, plural

LONGEST_LINE = 1 << 20
"""Bytes; a verbose line has an event for each of at most 64 channels."""

NOT_A_COLLECTIVE = "records of no collective known to ccbench"


@dataclass(frozen=True)
class _Call:
    """A call whose rank, and whose peer, is still that of its communicator.

    process: host and process id. by_host: the host took its time.
    """

    process: tuple[str, str]
    communicator: str
    by_host: bool
    communication: Communication


def recognises(head: bytes) -> bool:
    """Tell whether a file begins with a record of a call."""
    begin = head[:4000]
    return begin.lstrip().startswith(b"{") and b'"header"' in begin and b"_perf" in begin


def read(file: TraceFile) -> Trace:
    """Return the calls of the processes in one file."""
    calls: list[_Call] = []
    warnings: list[SourceWarning] = []
    not_taken: Counter[str] = Counter()
    metadata: dict[str, Any] = {}
    for line, raw in file.lines(LONGEST_LINE):
        try:
            record = members(json.loads(raw)) if raw.strip() else {}
        except (ValueError, RecursionError):
            kind = "damaged_line" if raw.endswith(b"\n") else "truncated"
            told_damage(warnings, kind, f"line {line} is no whole record", line)
            continue
        metadata = metadata or members(record.get("metadata"))
        if call := _call(record, line):
            calls.append(call)
        elif record.keys() & {
            "coll_perf",
            "p2p_perf",
        }:  # others sum up what is lost, or proxies did
            not_taken[NOT_A_COLLECTIVE] += 1
    if by_host := sum(call.by_host for call in calls):
        taken = f"{by_host} of {plural(len(calls), 'duration')} were taken by the host, not by the GPU's clock"
        warnings.append(SourceWarning("assumed", taken))
    communications = _placed(calls, warnings)
    version = plain(metadata.get("inspector_output_format_version", ""))
    # "nccl_profiler_interface"
    library = plain(text(metadata.get("rec_mechanism")).partition("_profiler")[0])
    return Trace(
        communications=communications,
        ranks=tuple(
            sorted(
                {
                    communication.rank
                    for communication in communications
                    if communication.rank is not None
                }
            )
        ),
        world_size=max(
            (communication.group.size for communication in communications), default=0
        ),
        backend=library if library.endswith("ccl") else "",
        not_taken=not_taken,
        versions={"nccl inspector": version} if version else {},
        warnings=tuple(warnings),
    )


def _call(record: Mapping[str, Any], line: int) -> _Call | None:
    header, metadata = members(record.get("header")), members(record.get("metadata"))
    kind = "p2p" if "p2p_perf" in record else "coll"
    perf = members(record.get(f"{kind}_perf"))
    name = plain(perf.get(kind, ""))
    collective = collective_of(name)
    ranks, size = count(header.get("n_ranks")), count(perf.get(f"{kind}_msg_size_bytes"))
    if not collective or not ranks or size is None:
        return None
    if collective in COLLECTIVES:  # the count is of one block where there is one for each rank
        size = COLLECTIVES[collective].size_bytes(size, ranks, 1)
    sent, received = buffers(collective, size, ranks)
    communicator, described = plain(header.get("id", "")), plain(header.get("comm_name", ""))
    micros = number(perf.get(f"{kind}_exec_time_us"))
    events = listed(members(perf.get("event_trace_ts")).get("kernel_events"))
    starts = [
        start for event in events if (start := number(members(event).get("kernel_start_ts")))
    ]
    communication = Communication(
        rank=count(header.get("rank")),
        collective=collective,
        name=name,
        # Numbers count each collective of a communicator by itself (comm->seqNumber[func] of NCCL).
        group=ProcessGroup(
            f"{communicator} {name}", ranks, (), "" if described == "unknown" else described
        ),
        input_bytes=count(sent),
        output_bytes=count(received),
        peer=count(perf.get("p2p_peer")),
        sequence=count(perf.get(f"{kind}_sn")),
        start_seconds=min(starts) / 1e6 if starts else None,
        duration_seconds=micros / 1e6 if micros and micros > 0 else None,
        algorithm=plain(perf.get("coll_algo", "")).lower(),
        protocol=plain(perf.get("coll_proto", "")).lower(),
        line=line,
    )
    by_host = perf.get(f"{kind}_timing_source", "kernel_gpu") != "kernel_gpu"
    process = plain(metadata.get("hostname")), plain(metadata.get("pid"))
    return _Call(process, communicator, by_host, communication)


def _placed(calls: Sequence[_Call], warnings: list[SourceWarning]) -> tuple[Communication, ...]:
    """The communications with global ranks: those in the largest communicator, taken for that of all ranks.

    A process has the rank that it has there. Of one with several GPUs, only its calls there have a rank.
    """
    largest = max((call.communication.group.size for call in calls), default=0)
    of_all = {call.communicator for call in calls if call.communication.group.size == largest}
    world = of_all.pop() if len(of_all) == 1 else None
    if world is not None:
        assumed = f"communicator {world} of {largest} ranks is taken for that of all"
        warnings.append(SourceWarning("assumed", assumed))
    elif of_all:
        several = f"{len(of_all)} communicators of {largest} ranks: nobody can tell which ranks of the job"
        warnings.append(SourceWarning("not_visible", several))
    ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
    for call in calls:
        if call.communicator == world and call.communication.rank is not None:
            ranks[call.process].add(call.communication.rank)
    everyone = tuple(range(largest)) if largest <= MOST_RANKS else ()
    placed = []
    for call in calls:
        communication, own = call.communication, ranks[call.process]
        if call.communicator == world:
            placed.append(
                replace(communication, group=replace(communication.group, ranks=everyone))
            )
        else:
            placed.append(
                replace(communication, rank=min(own) if len(own) == 1 else None, peer=None)
            )
    return tuple(placed)
