"""Traces of the PyTorch profiler (Kineto): JSON with "traceEvents", of CUDA, ROCm, other devices and Gloo.

A communication is the kernel that ran, or Gloo's event on its worker thread, with what the host asked for.
Source of names and places: pytorch/kineto libkineto/src/output_json.cpp.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from sys import intern
from typing import Any

import numpy as np

from ccbench.findings import SourceWarning
from ccbench.readers.traces import torch_calls
from ccbench.readers.traces.events import (
    BARRIER,
    RECV,
    SEND,
    Communication,
    ProcessGroup,
    Trace,
)
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.groups import MOST_RANKS, Groups
from ccbench.readers.traces.intervals import merged, without
from ccbench.readers.traces.json_stream import JsonDocument
from ccbench.readers.traces.torch_calls import LIBRARY_EVENT, NAME, OPERATOR, TorchCall
from ccbench.readers.traces.words import (
    count,
    figures,
    listed,
    members,
    number,
    rank_of_file,
    text,
)
from ccbench.units import plain, plural

_LIBRARY = re.compile(r"[nr]ccl|msccl|oneccl", re.IGNORECASE)
_COMMUNICATES = re.compile(
    r"(?<!sm)all_?(?:reduce|gather|to_?all)|reduce_?scatter|cross_device_reduce|multimem|lamport|deep_ep"
    rf"|nvshmem|{_LIBRARY.pattern}",
    re.IGNORECASE,
)
_FUSED = re.compile(r"triton_[a-z]{3}_fused")
"""Inductor names a kernel by all operators near it, also by those that run elsewhere."""

CORRELATION = "correlation"

_DURING_EVENT = re.compile(r"(gloo|mpi):")
"""Libraries whose events last as long as the transfer; those of others end when it is launched."""


def recognises(head: bytes) -> bool:
    """Tell whether a file begins as a trace in Chrome's format; a bare array of events is one, too."""
    if head.lstrip()[:1] == b"[":
        return b'"ph"' in head
    return any(
        word in head for word in (b'"traceEvents"', b'"distributedInfo"', b'"deviceProperties"')
    )


def read(file: TraceFile) -> Trace:
    """Return what one file says: one rank's communications in the order in which they were asked for."""
    document, events = JsonDocument(file.stream, "traceEvents"), _Events()
    for place, event in document:
        events.take(place, event)
    rank = _Rank(file.place, document.members, events)
    rank.warnings += document.warnings
    rank.take_kernels()
    rank.take_library_events()
    return rank.trace()


# -- events -------------------------------------------------------------------------------------------------


@lru_cache(1 << 16)
def _communicates(name: str) -> bool:
    return _COMMUNICATES.search(name) is not None and not _FUSED.match(name)


@lru_cache(1 << 16)
def _asks(kind: str, name: str) -> bool:
    """Tell whether an event of the host asks for communication."""
    if LIBRARY_EVENT.match(name):
        return True
    named = (
        name == torch_calls.RECORD
        or name.startswith(OPERATOR)
        or ("::" in name and _communicates(name))
    )
    return named and kind == "cpu_op"


@lru_cache(1 << 10)
def _kind(category: str) -> str:
    """The kind of events of a category, "" of those that say nothing about communication."""
    kind = category.lower().replace("operator", "cpu_op")
    if kind.endswith(("runtime", "driver")):
        return "launch"
    return kind if kind in ("kernel", "cpu_op", "user_annotation") else ""


def _id(value: object) -> int | str | None:
    return value if isinstance(value, (int, str)) else None


def _words(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of an event's arguments that are read later."""
    # Equal texts are one object: a trace of nothing but collectives has a million of each.
    kept = ((name, args[name]) for name in torch_calls.WORDS if name in args)
    return {name: intern(value) if type(value) is str else value for name, value in kept}


class _Events:
    """Events of a file, as far as they are kept. Times are in microseconds."""

    def __init__(self) -> None:
        self.calls: list[TorchCall] = []
        self.kernels: list[TorchCall] = []
        self.launches: dict[object, tuple[float, tuple[object, object]]] = {}
        self.steps: list[tuple[float, float]] = []
        self.computing = array("d")
        self.worked: dict[object, array[float]] = defaultdict(lambda: array("d"))

    def take(self, place: int, event: Mapping[str, Any]) -> None:
        """Keep what an event says about communication, computing or steps; most say nothing."""
        category = event.get("cat")
        if not isinstance(category, str) or not (kind := _kind(category)):
            return
        start, duration, name = (
            number(event.get("ts")),
            number(event.get("dur")),
            event.get("name"),
        )
        # Instants have no duration, and damaged ones a negative: neither may end before it begins.
        end = None if start is None else number(start + max(duration or 0.0, 0.0))
        if start is None or end is None or not isinstance(name, str):
            return
        args = members(event.get("args"))
        thread = _id(event.get("pid")), _id(event.get("tid"))
        if kind == "launch":
            self.launches[_id(args.get(CORRELATION))] = start, thread
        elif kind == "kernel":
            # From torch 2.2 on a kernel of NCCL carries the record itself; others are known by name alone.
            if NAME in args or _communicates(name):
                stream = plain(
                    f"{_id(args.get('device'))}:{_id(args.get('stream', thread[1]))}"
                )
                correlation = _id(args.get(CORRELATION))
                self.kernels.append(
                    TorchCall(
                        place,
                        start,
                        end,
                        name,
                        thread,
                        {**_words(args), CORRELATION: correlation},
                        stream,
                    )
                )
            else:
                self.computing.extend((start, end))
        elif name.startswith("ProfilerStep#"):
            self.steps.append((start, end))
        elif _asks(kind, name):
            self.calls.append(TorchCall(place, start, end, intern(name), thread, _words(args)))
        elif kind == "cpu_op":
            # Under Gloo operators are the computing; a job on GPUs is judged by its kernels.
            self.worked[thread].extend((start, end))


# -- one rank -----------------------------------------------------------------------------------------------


class _Rank:
    """Puts the events of one file together."""

    def __init__(self, place: str, header: Mapping[str, Any], events: _Events) -> None:
        self.info, self.devices = (
            members(header.get("distributedInfo")),
            listed(header.get("deviceProperties")),
        )
        self.events = events
        self.warnings: list[SourceWarning] = []
        self.not_taken: Counter[str] = Counter()
        self.cut_splits = 0
        rank = count(self.info.get("rank"))
        self.rank = (
            rank_of_file(place, self.warnings) or 0 if rank is None else min(rank, MOST_RANKS)
        )
        self.world = min(count(self.info.get("world_size")) or 0, MOST_RANKS)
        self.groups = Groups()
        self.groups.take(self.info.get("pg_config"))
        self.threads = torch_calls.by_thread(events.calls)
        self.taken: dict[int, tuple[float, Communication]] = {}
        """Number of an event -> when it was asked for, and what it is."""

    def _communication(
        self, words: Mapping[str, Any], event: TorchCall, timed: bool = True, size: int = 0
    ) -> Communication:
        """The communication of a record, or of what stands for one. size: of its group, 0 if not known."""
        self.cut_splits += any(
            figures(words.get(key))[1]
            for key in (torch_calls.IN_SPLITS, torch_calls.OUT_SPLITS)
        )
        if "Group size" in words:
            name, described = (
                text(words.get(f"Process Group {what}")) for what in ("Name", "Description")
            )
            listed_size = min(count(words["Group size"]) or 0, MOST_RANKS)
            # A group as large as the job is of all its ranks, so that its list may be missing.
            start = 0 if listed_size == self.world else -1
            ranks = words.get("Process Group Ranks")
            described = described.replace("undefined", "")
            group = self.groups.of(name, listed_size, ranks, start, 1, described)
        else:
            group = self.groups.only(size)
        return torch_calls.communication(
            {**words, NAME: text(words.get(NAME)) or event.name},
            group,
            rank=self.rank,
            start_seconds=event.start / 1e6 if timed else None,
            duration_seconds=(event.end - event.start) / 1e6 if timed else None,
            stream=event.stream or plain(f"thread {event.thread[1]}"),
            line=event.number,
        )

    # -- kernels

    def take_kernels(self) -> None:
        """Take each kernel with the record, or the operators, around its launch."""
        # Launches without a correlation would all be taken for the last of them.
        self.events.launches.pop(None, None)
        places: list[tuple[float, object, list[TorchCall], TorchCall]] = []
        for kernel in self.events.kernels:
            launch = self.events.launches.get(kernel.args[CORRELATION])
            if launch is None:
                # By its own time, where the trace has no launch.
                places.append((kernel.start, None, [], kernel))
                continue
            # Only calls on the launching thread can be around it; those of others are there by chance.
            calls = self.threads.get(launch[1], [])
            last = bisect_right(calls, launch[0], key=lambda call: call.start) - 1
            places.append((*launch, calls[last].chain(launch[0]) if last >= 0 else [], kernel))
        before: dict[object, float] = {}
        # In the order of the launches: ranks agree on that, while kernels of several streams overtake.
        for launched_at, thread, chain, kernel in sorted(places, key=lambda place: place[0]):
            call = next(
                (candidate for candidate in chain if candidate.recorded),
                chain[0] if chain else None,
            )
            number = kernel.number if call is None else call.number
            if number in self.taken:  # one call, several kernels
                began, taken = self.taken[number]
                start = taken.start_seconds or 0.0
                end = max(kernel.end / 1e6, start + (taken.duration_seconds or 0.0))
                self.taken[number] = began, replace(taken, duration_seconds=end - start)
                continue
            # What the kernel says of itself counts more than what the calls around its launch say.
            own = kernel.args if NAME in kernel.args else {}
            grouped: list[TorchCall] = []
            if (
                not own
                and not any(candidate.recorded for candidate in chain)
                and _LIBRARY.search(kernel.name)
            ):
                # Calls of a group are launched as one, when it ends: they are those that the thread
                # recorded since its last launch.
                calls, since = self.threads.get(thread, []), before.get(thread, -1.0)
                first, last = (
                    bisect_right(calls, at, key=lambda call: call.start)
                    for at in (since, launched_at)
                )
                grouped = [
                    call for call in calls[first:last] if call.recorded and not call.answered
                ]
            if grouped:
                taken = _together(
                    [self._communication(member.args, kernel) for member in grouped]
                )
            else:
                words = {**torch_calls.record_words(chain, kernel.name), **own}
                taken = self._communication(words, kernel, size=torch_calls.group_size(words))
            # What ran for these is found; the events that are left are of libraries on the host.
            for member in (*chain, *grouped):
                member.answered = True
            before[thread] = launched_at
            self.taken[number] = launched_at, taken

    # -- events of libraries on the host

    def take_library_events(self) -> None:
        """Take events of Gloo, which runs on the host; of others what was asked for, without kernels."""
        on_device = bool(self.events.kernels or self.events.computing)
        around = {id(call.outer) for call in self.events.calls}
        waiting: dict[object, deque[TorchCall]] = defaultdict(deque)
        sizes: dict[object, int] = {}
        described = []
        for call in sorted(self.events.calls, key=lambda call: call.start):
            if call.answered or not (call.recorded or LIBRARY_EVENT.match(call.name)):
                # An operator with calls inside it has its event there, and waits for no other thread.
                if call.name.startswith(OPERATOR) and id(call) not in around:
                    waiting[torch_calls.fit(call)].append(call)
                continue
            chain = call.chain(call.start)
            if len(chain) == 1 and (operators := waiting.get(torch_calls.fit(call))):
                chain.append(operators.popleft())  # it handed the work to this event's thread
            words = torch_calls.record_words(chain)
            described.append((call, min(enclosing.start for enclosing in chain), words))
            # A worker thread of Gloo belongs to one process group.
            sizes[call.thread] = torch_calls.group_size(words) or sizes.get(call.thread, 0)
        for call, began, words in described:
            timed = _DURING_EVENT.match(call.name) is not None
            taken = self._communication(words, call, timed, sizes[call.thread])
            # Where there are kernels, a call without one is told: its event ends with the launch, so that
            # nothing says how long it took.
            if timed or not on_device:
                self.taken[call.number] = began, taken
            elif taken.collective not in ("", BARRIER):
                self.not_taken["asked for on the host, no kernel in the trace"] += 1

    # -- the whole

    def trace(self) -> Trace:
        """Return all that was taken."""
        if self.cut_splits:
            reason = (
                f"{plural(self.cut_splits, 'list')} of splits cut after 30 ranks; taken as even"
            )
            self.warnings.append(SourceWarning("assumed", reason))
        ordered = sorted(self.taken.values(), key=lambda entry: (entry[0], entry[1].line))
        taken = tuple(communication for _, communication in ordered)
        nccl = plain(text(self.info.get("nccl_version")))
        models = Counter(plain(members(device).get("name", "")) for device in self.devices)
        computing = merged(np.array(self.events.computing).reshape(-1, 2) / 1e6)
        if not len(computing):
            # Without kernels operators are the computing, but for the time in calls that communicate.
            parts = [np.empty((0, 2))]
            for thread, times in self.events.worked.items():
                own = self.threads.get(thread, [])
                calls = merged((call.start, call.end) for call in own if call.outer is None)
                parts.append(without(merged(np.array(times).reshape(-1, 2)), calls))
            computing = merged(np.concatenate(parts) / 1e6)
        return Trace(
            communications=taken,
            ranks=(self.rank,),
            world_size=self.world,
            backend=plain(text(self.info.get("backend"))),
            groups=tuple(self.groups.listed.values()),
            computing={self.rank: computing},
            steps={self.rank: np.array(sorted(self.events.steps), float).reshape(-1, 2) / 1e6},
            not_taken=dict(self.not_taken),
            versions={"NCCL": nccl} if nccl else {},
            facts={"devices": ", ".join(f"{n} x {name}" for name, n in models.items())}
            if models
            else {},
            warnings=tuple(self.warnings),
        )


def _together(parts: Sequence[Communication]) -> Communication:
    """Return what one kernel ran for several calls as one: amounts added, send_recv where both ways went."""
    first = parts[0]
    if len(parts) == 1:
        return first
    # One kernel has one time, which nobody can divide among its calls; where they differ nothing is claimed.
    names, peers = {part.collective for part in parts}, {part.peer for part in parts}
    return replace(
        first,
        collective=first.collective
        if len(names) == 1
        else "send_recv"
        if names == {SEND, RECV}
        else "",
        name=plain(f"{first.name} and {len(parts) - 1} more"),
        group=first.group if len({part.group for part in parts}) == 1 else ProcessGroup("", 0),
        dtype=first.dtype if len({part.dtype for part in parts}) == 1 else "",
        input_bytes=sum(part.input_bytes or 0 for part in parts) or None,
        output_bytes=sum(part.output_bytes or 0 for part in parts) or None,
        input_splits=(),
        output_splits=(),
        peer=peers.pop() if len(peers) == 1 else None,
    )
