"""Traces of the PyTorch profiler (Kineto): JSON with "traceEvents", of CUDA, ROCm and other devices and of Gloo.

A communication is the kernel that ran, or Gloo's event on its worker thread, with what the host asked for: the
``record_param_comms`` around the launch, written by PyTorch from 2.2 on, else the shapes of the operators around
it. Sources: pytorch/kineto libkineto/src/output_json.cpp; pytorch/pytorch torch/csrc/profiler/util.cpp,
torch/csrc/distributed/c10d/Ops.cpp and ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ccbench.collectives import COLLECTIVES
from ccbench.results.traces.events import BARRIER, RECV, SEND, Communication, Intervals, ProcessGroup, Trace
from ccbench.results.traces.json_stream import JsonDocument
from ccbench.results.traces.reading import LARGEST_WORLD, TraceFile, count, merged, number
from ccbench.results.traces.words import collective_of, dtype_of, rank_named, uneven
from ccbench.topology.graph import SourceWarning
from ccbench.units import plain, plural

RECORD = "record_param_comms"
_LIBRARY = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)
_COMMUNICATES = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|cross_device_reduce|multimem|lamport|deep_ep"
    rf"|nvshmem|{_LIBRARY.pattern}",
    re.IGNORECASE,
)
_FUSED_NAMES = re.compile(r"triton_[a-z]{3}_fused")
"""Inductor names a kernel by all operators near it, also those that run elsewhere."""

_LIBRARY_EVENT = re.compile(r"(?:[a-z]?ccl|nccl|[a-z]{1,3}ccl|gloo|ucc|mpi):")
_OUTPUT_FIRST = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}
"""Operators ``c10d::`` of these take (output, input, ...)."""


def recognises(head: bytes) -> bool:
    """Tell whether a file begins as a trace of Chrome's format; a bare array of events is one, too."""
    if head.lstrip()[:1] == b"[":
        return b'"ph"' in head
    return any(word in head for word in (b'"traceEvents"', b'"distributedInfo"', b'"deviceProperties"'))


def read(file: TraceFile) -> Trace:
    """Return what one file says: one rank's communications in the order in which they were asked for."""
    document = JsonDocument(file.stream, "traceEvents")
    events = _Events()
    for number_, event in document:
        events.take(number_, event)
    return _Rank(file.place, document.members, events).trace(document.warnings)


# -- events -------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Call:
    """An operator or annotation of the host that asks for communication; ``outer`` encloses it.

    answered: its kernel or library event was found.
    """

    number: int
    start: float
    end: float
    name: str
    thread: tuple[Any, Any]
    args: Mapping[str, Any]
    outer: _Call | None = None
    answered: bool = False

    def chain(self, at: float) -> Iterator[_Call]:
        """Give the call and those around it, from the innermost, that last until ``at`` or longer."""
        call: _Call | None = self
        for _ in range(64):
            if call is None:
                return
            if call.end >= at:
                yield call
            call = call.outer


@dataclass(slots=True)
class _Kernel:
    number: int
    start: float
    end: float
    name: str
    stream: str
    args: Mapping[str, Any]


@lru_cache(1 << 16)
def _communicates(name: str) -> bool:
    return _COMMUNICATES.search(name) is not None and not _FUSED_NAMES.match(name)


@lru_cache(1 << 16)
def _asks(name: str) -> bool:
    return name == RECORD or name.startswith("c10d::") or ("::" in name and _communicates(name))


def _id(value: object) -> int | str | None:
    return value if isinstance(value, (int, str)) else None


class _Events:
    """What is kept of the events of a file. Times are in microseconds."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.kernels: list[_Kernel] = []
        self.launches: dict[int | str, tuple[float, tuple[Any, Any]]] = {}
        self.steps: list[tuple[float, float]] = []
        self.computing = array("d")
        self.worked: dict[tuple[Any, Any], array[float]] = defaultdict(lambda: array("d"))

    def take(self, number_: int, event: Mapping[str, Any]) -> None:
        """One event; most are of a kind that says nothing about communication."""
        kind = event.get("cat")
        if not isinstance(kind, str):
            return
        kind = kind.lower()
        launch = kind.endswith(("runtime", "driver"))
        if not launch and kind not in ("kernel", "cpu_op", "operator", "user_annotation"):
            return
        start, duration, name = number(event.get("ts")), number(event.get("dur")), event.get("name")
        if start is None or not isinstance(name, str):
            return
        end = start + max(duration or 0.0, 0.0)
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        thread = _id(event.get("pid")), _id(event.get("tid"))
        if launch:
            if (correlation := _id(args.get("correlation"))) is not None:
                self.launches[correlation] = start, thread
        elif kind == "kernel":
            if "Collective name" in args or _communicates(name):
                stream = f"{args.get('device', thread[0])}:{args.get('stream', thread[1])}"
                self.kernels.append(_Kernel(number_, start, end, name, plain(stream), args))
            else:
                self.computing.extend((start, end))
        elif name.startswith("ProfilerStep#"):
            self.steps.append((start, end))
        elif _LIBRARY_EVENT.match(name) if kind == "user_annotation" else _asks(name):
            self.calls.append(_Call(number_, start, end, name, thread, args))
        elif kind != "user_annotation":
            self.worked[thread].extend((start, end))


def _nested(calls: Sequence[_Call]) -> dict[tuple[Any, Any], tuple[list[float], list[_Call]]]:
    """Return the calls of each thread by their start, (starts, calls), each with the one around it."""
    threads: dict[tuple[Any, Any], tuple[list[float], list[_Call]]] = {}
    around: dict[tuple[Any, Any], _Call] = {}
    for call in sorted(calls, key=lambda call: (call.start, -call.end)):
        outer = around.get(call.thread)
        while outer is not None and outer.end < call.end:
            outer = outer.outer
        call.outer = outer
        around[call.thread] = call
        starts, own = threads.setdefault(call.thread, ([], []))
        starts.append(call.start)
        own.append(call)
    return threads


# -- what was asked for -------------------------------------------------------------------------------------


def _tensors(call: _Call) -> list[tuple[int, int, str]]:
    """(place, elements, element type) of the arguments that are tensors or lists of tensors."""
    dims, types = call.args.get("Input Dims"), call.args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    found = []
    for place, (shape, word) in enumerate(zip(dims, types, strict=False)):
        if not isinstance(shape, list) or not isinstance(word, str):
            continue
        one_element = not shape and dtype_of(word)[1] is not None
        shapes = [one for one in shape if isinstance(one, list)] if word == "TensorList" else [shape]
        sizes = [_elements(one) for one in shapes if one or one_element]
        if sizes and None not in sizes:
            found.append((place, sum(size for size in sizes if size is not None), word))
    return found


def _elements(shape: Sequence[Any]) -> int | None:
    total = 1
    for length in shape:
        factor = count(length)
        total = count(total * factor) if factor is not None else None  # type: ignore[assignment]
        if total is None:
            return None
    return total


_ROOT_AT = {"broadcast": 2, SEND: 2, RECV: 2, "reduce": 3, "gather": 3, "scatter": 3}
"""Place of the root or peer among the arguments of ``c10d::`` operators."""


def _from_shapes(chain: Sequence[_Call], kernel: str) -> dict[str, Any]:
    """Return what a record would say, from the operators around a launch, innermost first, and the kernel."""
    operator = next((call for call in chain if call.name.startswith("c10d::")), None)
    names = [call.name for call in ([operator] if operator else []) + list(chain)]
    word = next((name for name in names if collective_of(name)), _kernel_word(kernel))
    said: dict[str, Any] = {"Collective name": word}
    if operator is not None:
        _add_arguments(said, operator)
    for call in chain:
        tensors = _tensors(call)
        if not tensors:
            continue
        if call is operator and collective_of(word) in _OUTPUT_FIRST:
            for place, elements, _ in tensors[:2]:
                said[("Out msg nelems", "In msg nelems")[place > 0]] = elements
        elif "In msg nelems" not in said:
            # Events of libraries have all inputs; operators of others take outputs and buffers after the first.
            taken = tensors if _LIBRARY_EVENT.match(call.name) else tensors[:1]
            said["In msg nelems"] = sum(elements for _, elements, _ in taken)
            if collective_of(word) in ("all_reduce", "broadcast"):
                said["Out msg nelems"] = said["In msg nelems"]
        if dtype_of(tensors[0][2])[1] is not None:
            said.setdefault("dtype", tensors[0][2])
    if collective_of(word) == RECV:
        said["Out msg nelems"] = said.pop("In msg nelems", None)
    return said


def _add_arguments(said: dict[str, Any], operator: _Call) -> None:
    """Add root, splits and whether it is asynchronous from a ``c10d::`` operator (their schemas: Ops.cpp)."""
    values = operator.args.get("Concrete Inputs")
    if not isinstance(values, list):
        return
    place = _ROOT_AT.get(collective_of(operator.name), len(values))
    if place < len(values):
        said["Rank"] = values[place]
    if operator.name == "c10d::alltoall_base_" and len(values) > 4:
        said |= {"Out split size": values[3], "In split size": values[4]}
    flags = [value == "True" for value in values if value in ("True", "False")]
    if flags:
        said["Is asynchronized op"] = flags[-1]


def _kernel_word(name: str) -> str:
    """The collective in the name of a kernel, "" where it has none (SendRecv, Generic).

    Algorithm and protocol in NCCL's names are not what ran: one kernel per collective dispatches to the others.
    """
    found = re.search(r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|broadcast|_reduce_", name, re.I)
    if found:
        return found[0]
    return "allreduce" if re.search(r"cross_device_reduce|multimem|lamport", name) else ""


def _figures(value: object) -> tuple[list[int], bool]:
    """(whole numbers of a list, as text or not; whether its middle was cut out, as from 31 numbers on)."""
    parts = value.strip("[] ").split(",") if isinstance(value, str) else value
    if not isinstance(parts, list):
        return [], False
    figures = [count(part) for part in parts]
    return [figure for figure in figures if figure is not None], "..." in str(parts[-2:-1])


def _rank_tuple(value: object, size: int) -> tuple[int, ...]:
    """Global ranks of a group of ``size``; a cut list is continued where its last rank shows that this is right.

    () where it is not.
    """
    ranks, cut = _figures(value)
    if cut and len(ranks) > 2 and size <= LARGEST_WORLD:
        whole = range(ranks[0], ranks[0] + size * (ranks[1] - ranks[0]), (ranks[1] - ranks[0]) or 1)
        ranks = [*whole] if [*whole[: len(ranks) - 1], *whole[-1:]] == ranks else []
    return tuple(ranks) if len(ranks) == size and len(set(ranks)) == size else ()


# -- one rank -----------------------------------------------------------------------------------------------


class _Rank:
    """Puts the events of one file together."""

    def __init__(self, place: str, members: Mapping[str, Any], events: _Events) -> None:
        info = members.get("distributedInfo")
        self.info: Mapping[str, Any] = info if isinstance(info, dict) else {}
        self.place, self.members, self.events = place, members, events
        self.warnings: list[SourceWarning] = []
        self.not_taken: Counter[str] = Counter()
        self.world = min(count(self.info.get("world_size")) or 0, LARGEST_WORLD)
        self.rank = self._own_rank()
        self.groups: dict[tuple[str, int], ProcessGroup] = {}
        listed = self.info.get("pg_config")
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict):
                self._group(one.get("pg_name"), one.get("pg_size"), one.get("ranks"), one.get("pg_desc"))
        self.threads = _nested(events.calls)
        self.found: list[tuple[float, Communication]] = []

    def _own_rank(self) -> int:
        rank = count(self.info.get("rank"))
        if rank is not None and rank < LARGEST_WORLD:
            return rank
        named = rank_named(self.place)
        source = "by its name" if named is not None else "for want of any other"
        self.warnings.append(
            SourceWarning("assumed", f"the file does not say its rank; taken as {named or 0} {source}")
        )
        return named or 0

    def _group(self, name: object, size: object, ranks: object, description: object) -> ProcessGroup:
        """The group of that name and size, listed before or new."""
        key = plain(name if isinstance(name, str) else ""), min(count(size) or 0, LARGEST_WORLD)
        known = self.groups.get(key)
        if known is None or not known.ranks:
            listed = _rank_tuple(ranks, key[1])
            if not listed and key[1] == self.world and not _figures(ranks)[0]:
                listed = tuple(range(self.world))
            word = plain(description) if isinstance(description, str) and description != "undefined" else ""
            known = self.groups[key] = ProcessGroup(*key, listed, word)
        return known

    def _only_group(self, size: int) -> ProcessGroup:
        """The group of an event that names none: where all that fit are of the same ranks, those."""
        fit = [one for one in self.groups.values() if one.size == size or (not size and one.size > 1)]
        fit = [one for one in fit if not one.ranks or self.rank in one.ranks]
        if len({one.ranks or one.name for one in fit}) != 1:
            return ProcessGroup("", size)
        return fit[0] if len(fit) == 1 else ProcessGroup("", fit[0].size, fit[0].ranks)

    def _communication(self, said: Mapping[str, Any], event: _Kernel | _Call, size: int = 0) -> Communication:
        """The communication that a record, or what stands for one, describes. size: of its group, 0 unknown."""
        word = said.get("Collective name")
        word = plain(word) if isinstance(word, str) else ""
        collective = collective_of(word)
        dtype, item = dtype_of(str(said.get("dtype") or "")[:40])
        inside, outside = (count(said.get(f"{way} msg nelems")) for way in ("In", "Out"))
        if "Group size" in said:
            group = self._group(*(said.get(k) for k in ("Process Group Name", "Group size", "Process Group Ranks", "Process Group Description")))
        else:
            group = self._only_group(size or _size_of_ratio(collective, inside, outside))
        ...
