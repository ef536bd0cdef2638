"""Dumps of PyTorch's Flight Recorder, JSON of version 2: the last calls of each rank, and how far they came.

Form: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp of github.com/pytorch/pytorch. A call's start is
when the host made it: when it began and ended on the device is only polled for, and a duration is there with
TORCH_NCCL_ENABLE_TIMING alone. A dump does not name its rank.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ccbench.results.importers.words import capped
from ccbench.results.traces.events import BARRIER, RECV, SEND, Communication, ProcessGroup, Progress, Trace
from ccbench.results.traces.groups import Groups, rank_of
from ccbench.results.traces.json_stream import JsonDocument
from ccbench.results.traces.reading import TraceFile, count, number
from ccbench.results.traces.words import collective_of, dtype_of, uneven
from ccbench.topology.graph import SourceWarning
from ccbench.units import plain

NOT_A_COLLECTIVE = "marks of coalesced calls, and calls that are no collective known to ccbench"

STATES = ("scheduled", "started", "completed")

_PARTNERS = re.compile(r" ([0-9]{1,7})(?:->|<-)([0-9]{1,7})$")
"""Places in the group: this rank's, the other's."""

GLOO = (
    "Gloo's calls: sends are missing, a reduce_scatter is recorded as the all_reduce that does it, "
    "no time of beginning or end is recorded"
)


def recognises(head: bytes) -> bool:
    """Tell whether a file begins as a dump does."""
    known = any(word in head for word in (b'"profiling_name"', b'"pg_config"', b'"pg_status"'))
    return head.lstrip().startswith(b"{") and known


def read(file: TraceFile) -> Trace:
    """Return the calls that one rank's dump holds."""
    document = JsonDocument(file.stream, "entries")
    calls: list[Communication] = []
    name_of: dict[str, str] = {}
    not_taken: Counter[str] = Counter()
    for line, entry in document:
        call = _call(entry, line)
        name_of[str(entry.get("pg_id"))] = call.group.name
        if call.collective:
            calls.append(call)
        else:
            not_taken[NOT_A_COLLECTIVE] += 1
    warnings = list(document.warnings)
    members = document.members
    backend = next((call.name.partition(":")[0] for call in calls if ":" in call.name), "")
    if backend == "gloo":
        warnings.append(SourceWarning("unsupported", GLOO))
    groups = _groups(members.get("pg_config"), calls, warnings)
    places = [
        (int(found[1]), groups[call.group.name]) for call in calls if (found := _PARTNERS.search(call.name))
    ]
    rank = rank_of(places, groups.values(), file.place, warnings)
    versions = {
        "flight recorder": members.get("version"),
        backend or "library": members.get("comm_lib_version"),
    }
    calls = [_placed(call, groups[call.group.name], rank) for call in calls]
    return Trace(
        kinds=("flight-recorder",),
        sources=(file.place,),
        communications=tuple(calls),
        ranks=() if rank is None else (rank,),
        world_size=max((one.size for one in groups.values() if one.description == "default_pg"), default=0),
        backend=backend,
        groups=tuple(groups.values()),
        not_taken=not_taken,
        progress=()
        if rank is None
        else _progress(rank, file.place, calls, members.get("pg_status"), name_of),
        versions={name: plain(version) for name, version in versions.items() if version},
        warnings=capped(warnings),
    )


def _call(entry: Mapping[str, Any], line: int) -> Communication:
    """The call of an entry, of no rank yet and its group by name alone; collective "" where it is none."""
    told = entry.get("process_group")
    names = [plain(one) for one in (told if isinstance(told, list) else [told]) if isinstance(one, str)]
    name = plain(entry.get("profiling_name"))
    collective = collective_of(name)
    (dtype, sent), (_, received) = _buffers(entry, "input"), _buffers(entry, "output")
    lists = collective == "all_to_all" and len(sent) > 1  # a tensor for each rank
    apart = collective in (SEND, RECV) or entry.get("is_p2p") is True
    created, duration = number(entry.get("time_created_ns")), number(entry.get("duration_ms"))
    state = "completed" if entry.get("retired") is True else entry.get("state")
    return Communication(
        rank=None,
        collective=collective,
        name=name,
        group=ProcessGroup(names[0] if names else "", 0, (), names[1] if len(names) > 1 else ""),
        dtype=dtype,
        input_bytes=_sum(sent) if collective != BARRIER else 0,
        output_bytes=_sum(received) if collective != BARRIER else 0,
        input_splits=uneven([one or 0 for one in sent]) if lists else (),
        output_splits=uneven([one or 0 for one in received]) if lists else (),
        sequence=count(entry.get("p2p_seq_id" if apart else "collective_seq_id")),
        start_seconds=created / 1e9 if created else None,
        duration_seconds=duration / 1e3 if duration and duration > 0 else None,
        state=state if state in STATES else "",
        line=line,
    )


def _buffers(entry: Mapping[str, Any], way: str) -> tuple[str, list[int | None]]:
    """(element type, bytes of each tensor) that go in or out; None where type or sizes are not known."""
    sizes, words = entry.get(f"{way}_sizes"), entry.get(f"{way}_dtypes")
    types = [dtype_of(one) for one in words if isinstance(one, str)] if isinstance(words, list) else []
    found: list[int | None] = []
    for at, dims in enumerate(sizes if isinstance(sizes, list) else ()):
        each = types[at][1] if at < len(types) else None
        counts = [count(one) for one in dims] if isinstance(dims, list) else [None]
        known = [one for one in counts if one is not None]
        found.append(count(math.prod(known) * each) if each and len(known) == len(counts) < 64 else None)
    return plain(types[0][0]) if types else "", found


def _sum(sizes: Sequence[int | None]) -> int | None:
    known = [one for one in sizes if one is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _groups(
    config: object, calls: Sequence[Communication], warnings: list[SourceWarning]
) -> dict[str, ProcessGroup]:
    """Name -> group: with the ranks that the dump lists, else of the size that gathering calls tell."""
    told = {plain(name): one for name, one in config.items()} if isinstance(config, dict) else {}
    if told.pop("", None) is not None:
        text = "process groups are listed without their names: the ranks of each are not known"
        warnings.append(SourceWarning("unsupported", text))
    names: dict[str, tuple[str, int, str]] = {}
    for call in calls:
        small, large = sorted((call.input_bytes or 0, call.output_bytes or 0))
        tells = call.collective in ("all_gather", "reduce_scatter") and small and large % small == 0
        size = names.get(call.group.name, ("", 0, ""))[1] or (large // small if tells else 0)
        names[call.group.name] = call.group.description, size, ""
    for name, one in told.items():
        if isinstance(one, dict):
            ranks = one.get("ranks")
            names[name] = (
                plain(one.get("desc", "")),
                0,
                ranks if isinstance(ranks, str) else json.dumps(ranks),
            )
    known = Groups()
    # The default group is of all ranks, in their order.
    return {
        name: known.of(name, size, listed, 0 if described == "default_pg" else -1, 1, described)
        for name, (described, size, listed) in names.items()
    }


def _placed(call: Communication, group: ProcessGroup, rank: int | None) -> Communication:
    partners = _PARTNERS.search(call.name)
    other = int(partners[2]) if partners else len(group.ranks)
    return replace(
        call, rank=rank, group=group, peer=group.ranks[other] if other < len(group.ranks) else None
    )


def _progress(
    rank: int, place: str, calls: Sequence[Communication], status: object, name_of: Mapping[str, str]
) -> tuple[Progress, ...]:
    """How far ``rank`` came in each group: by its calls, and by the status of groups whose calls are gone."""
    found: dict[str, Progress] = {}
    for call in calls:
        if call.sequence is None or call.collective in (SEND, RECV):
            continue
        before = Progress(rank, call.group, "", call.sequence, call.sequence - 1, plain(place, 200))
        before = found.get(call.group.name, before)
        done = call.sequence if call.state == "completed" else 0
        found[call.group.name] = _furthest(before, call.sequence, done)
    gloo = any(call.name.startswith("gloo:") for call in calls)
    for group_id, one in (
        status.items() if isinstance(status, dict) and not gloo else ()
    ):  # Gloo counts sends too
        name = name_of.get(str(group_id), "")
        if name in found and isinstance(one, dict):
            enqueued, completed = (one.get(f"last_{what}_collective") for what in ("enqueued", "completed"))
            found[name] = _furthest(found[name], count(enqueued) or 0, count(completed) or 0)
    return tuple(found.values())


def _furthest(before: Progress, enqueued: int, completed: int) -> Progress:
    return replace(
        before,
        enqueued=max(before.enqueued or 0, enqueued),
        completed=max(before.completed or 0, completed),
    )
