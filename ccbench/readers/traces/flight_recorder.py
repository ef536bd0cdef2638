"""Dumps of PyTorch's Flight Recorder, pickles or JSON of version 2: the last calls of each rank, and how far they came.

Form: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp of github.com/pytorch/pytorch. A call's start is
when the host made it: when it began and ended on the device is only polled for, and a duration is there with
TORCH_NCCL_ENABLE_TIMING alone. A dump does not name its rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ccbench.findings import SourceWarning
from ccbench.readers.traces import pickles, torch_calls
from ccbench.readers.traces.events import (
    RECV,
    SEND,
    Communication,
    GroupProgress,
    ProcessGroup,
    Trace,
)
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.groups import Groups, rank_of
from ccbench.readers.traces.json_stream import JsonDocument
from ccbench.readers.traces.torch_calls import IN_BYTES, IN_SPLITS, NAME, OUT_BYTES, OUT_SPLITS
from ccbench.readers.traces.words import (
    collective_of,
    count,
    dtype_of,
    listed,
    members,
    number,
    text,
)
from ccbench.units import plain, plural

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
    has_key = any(
        word in head for word in (b'"profiling_name"', b'"pg_config"', b'"pg_status"')
    )
    # A pickle is not asked for its keys: what else it may be is for its own reader to refuse, by name.
    return pickles.recognises(head) or (head.lstrip().startswith(b"{") and has_key)


@dataclass(frozen=True)
class _RecordedCall:
    """A call in the words of a record. group: its name and description; facts: figures in no record."""

    words: dict[str, Any]
    group: tuple[str, str]
    facts: dict[str, Any]


def read(file: TraceFile) -> Trace:
    """Return the calls that one rank's dump holds."""
    document = (
        pickles.document(file.stream, "entries")
        if pickles.recognises(file.head)
        else JsonDocument(file.stream, "entries")
    )
    calls: list[_RecordedCall] = []
    name_of: dict[str, str] = {}
    not_taken: Counter[str] = Counter()
    not_understood = 0
    for line, entry in document:
        call = _call(entry, line)
        name_of[plain(entry.get("pg_id"))] = call.group[0]
        if collective_of(call.words[NAME]):
            calls.append(call)
        else:
            not_taken[NOT_A_COLLECTIVE] += 1
        # Without a state nothing is known of a call; one that did not complete is waited for, whatever it is.
        state = call.facts["state"]
        not_understood += not state or (calls[-1:] != [call] and state != STATES[-1])
    warnings = list(document.warnings)
    if not_understood:
        why = f"{plural(not_understood, 'recorded call')} not understood: no state, or no name of a collective"
        warnings.append(SourceWarning("damaged_line", why))
    header = document.members
    backend = next(
        (call.words[NAME].partition(":")[0] for call in calls if ":" in call.words[NAME]), ""
    )
    of_gloo = any(call.words[NAME].startswith("gloo:") for call in calls)
    if of_gloo:
        warnings.append(SourceWarning("unsupported", GLOO))
    groups = _groups(members(header.get("pg_config")), calls, warnings)
    matches = [(_PARTNERS.search(call.words[NAME]), groups[call.group[0]]) for call in calls]
    places = [(int(partners[1]), group) for partners, group in matches if partners]
    rank = rank_of(places, groups.values(), file.place, warnings)
    taken = tuple(
        torch_calls.communication(call.words, groups[call.group[0]], rank=rank, **call.facts)
        for call in calls
    )
    # Gloo counts sends too.
    status = {} if of_gloo else _status(members(header.get("pg_status")), name_of, groups, rank)
    versions = {
        "flight recorder": header.get("version"),
        backend or "library": header.get("comm_lib_version"),
        **({"nccl": header["nccl_version"]} if "nccl_version" in header else {}),  # older
    }
    return Trace(
        communications=taken,
        ranks=() if rank is None else (rank,),
        world_size=max(
            (group.size for group in groups.values() if group.description == "default_pg"),
            default=0,
        ),
        backend=backend,
        groups=tuple(groups.values()),
        not_taken=not_taken,
        progress=()
        if rank is None
        else _progress(rank, plain(file.place, 200), taken, status, groups),
        versions={name: plain(version) for name, version in versions.items() if version},
        warnings=tuple(warnings),
    )


def _call(entry: Mapping[str, Any], line: int) -> _RecordedCall:
    group = entry.get("process_group")
    names = [plain(part) for part in (listed(group) or [group]) if isinstance(part, str)]
    name = plain(text(entry.get("profiling_name")))
    (dtype, sent), (_, received) = _buffers(entry, "input"), _buffers(entry, "output")
    words: dict[str, Any] = {
        NAME: name,
        "dtype": dtype,
        IN_BYTES: _sum(sent),
        OUT_BYTES: _sum(received),
    }
    if collective_of(name) == "all_to_all" and len(sent) > 1:  # a tensor for each rank
        words |= {IN_SPLITS: sent, OUT_SPLITS: received}
    apart = collective_of(name) in (SEND, RECV) or entry.get("is_p2p") is True
    words["Seq"] = entry.get("p2p_seq_id" if apart else "collective_seq_id")
    if partners := _PARTNERS.search(name):
        words["Rank"] = partners[2]
    created, duration = number(entry.get("time_created_ns")), number(entry.get("duration_ms"))
    state = "completed" if entry.get("retired") is True else entry.get("state")
    facts = {
        "start_seconds": created / 1e9 if created else None,
        "duration_seconds": duration / 1e3 if duration and duration > 0 else None,
        "state": state if state in STATES else "",
        "line": line,
    }
    return _RecordedCall(words, ("".join(names[:1]), "".join(names[1:2])), facts)


def _buffers(entry: Mapping[str, Any], way: str) -> tuple[str, list[int | None]]:
    """(element type, bytes of each tensor) that go in or out; None where type or sizes are not known."""
    types = [dtype_of(text(one)) for one in listed(entry.get(f"{way}_dtypes"))]
    sizes: list[int | None] = []
    for at, shape in enumerate(listed(entry.get(f"{way}_sizes"))):
        elements, each = (
            torch_calls.elements_of(shape),
            types[at][1] if at < len(types) else None,
        )
        sizes.append(None if elements is None or each is None else elements * each)
    return plain(types[0][0]) if types else "", sizes


def _sum(sizes: Sequence[int | None]) -> int | None:
    numbers = [size for size in sizes if size is not None]
    return sum(numbers) if numbers and len(numbers) == len(sizes) else None


def _groups(
    config: dict[str, Any], calls: Sequence[_RecordedCall], warnings: list[SourceWarning]
) -> dict[str, ProcessGroup]:
    """Name -> group: with the ranks that the dump lists, else of the size that gathering calls tell."""
    if "" in config:
        reason = (
            "process groups are listed without their names: the ranks of each are not known"
        )
        warnings.append(SourceWarning("unsupported", reason))
    groups, sizes = Groups(), Counter[tuple[str, str]]()
    groups.take({name: row for name, row in config.items() if name and isinstance(row, dict)})
    for call in calls:
        sizes[call.group] = sizes[call.group] or torch_calls.group_size(call.words)
    # The default group is of all ranks, in their order.
    used = {
        name: groups.of(name, size, "", 0 if described == "default_pg" else -1, 1, described)
        for (name, described), size in sizes.items()
    }
    return used | groups.listed


def _status(
    status: Mapping[str, Any],
    name_of: Mapping[str, str],
    groups: Mapping[str, ProcessGroup],
    rank: int | None,
) -> dict[str, Mapping[str, Any]]:
    """Name of a group -> its status, which has the number of the group in this process for a name.

    Records tell which is which. Of groups without records it is told by the order: both numbers grow with
    each group that is made, so that where a status stands for each group of the rank the lists agree.
    """
    own = [name for name, group in groups.items() if rank in group.ranks and name.isdecimal()]
    numbers = [number for number in status if number.isdecimal()]
    by_order = dict(zip(sorted(numbers, key=int), sorted(own, key=int), strict=False))
    recorded = {number: name for number, name in name_of.items() if name}
    agree = len(own) == len(status) and recorded.items() <= by_order.items()
    names = by_order if agree else recorded
    return {names[number]: members(status[number]) for number in status if number in names}


def _progress(
    rank: int,
    place: str,
    calls: Sequence[Communication],
    status: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, ProcessGroup],
) -> tuple[GroupProgress, ...]:
    """Progress of ``rank`` in each group: by its calls, and by the status of groups whose calls are gone.

    A status numbers collectives and messages alike, whichever came last: of a group with messages it says
    nothing of collectives, and without records none of both.
    """
    by_group: dict[str, GroupProgress] = {}
    messages = {call.group.name for call in calls if call.collective in (SEND, RECV)}
    for name, group_status in status.items():
        enqueued, completed = (
            count(group_status.get(f"last_{what}_collective"))
            for what in ("enqueued", "completed")
        )
        if name in groups and name not in messages and enqueued is not None:
            by_group[name] = GroupProgress(rank, groups[name], "", enqueued, completed, place)
    for call in calls:
        if call.sequence is None or call.collective in (SEND, RECV):
            continue
        name = call.group.name
        before = by_group.get(name) or GroupProgress(
            rank, call.group, "", 0, call.sequence - 1, place
        )
        done = call.sequence if call.state == "completed" else 0
        by_group[name] = replace(
            before,
            enqueued=max(before.enqueued or 0, call.sequence),
            completed=max(before.completed or 0, done),
        )
    return tuple(by_group.values())
