"""Chakra host execution traces: JSON of PyTorch's ExecutionTraceObserver, schemas 1.0.1 to 1.1.1.

They tell what was asked, and no time. Backends that record ``record_param_comms`` (NCCL) tell each collective
with its group: by position since 1.0.1, in named attributes too from 1.1.0 on. Of others (Gloo) there are the
operators of c10d, whose group is an object without a name. Form: in github.com/pytorch/pytorch
torch/csrc/profiler/standalone/execution_trace_observer.cpp, torch/csrc/distributed/c10d/ParamCommsUtils.hpp.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.words import capped
from ccbench.results.traces.events import BARRIER, RECV, SEND, Communication, ProcessGroup, Trace
from ccbench.results.traces.groups import Groups, rank_of
from ccbench.results.traces.json_stream import JsonDocument
from ccbench.results.traces.reading import TraceFile, count
from ccbench.results.traces.words import collective_of, dtype_of, uneven
from ccbench.topology.graph import SourceWarning
from ccbench.units import plain

SENDS_NOTHING = "waits, initialisations and marks of coalesced calls, which send nothing"
NO_SIGNATURE = "operators of c10d without their signature"
UNKNOWN = "calls that are no collective known to ccbench"

ADDRESS = "at "
"""Begins the name of a group that the trace calls by its address in memory, as schema 1.0.1 does."""

_QUIET = ("wait", "init", "coalesced", "start_coalescing", "end_coalescing")
_TENSOR = re.compile(r"Tensor\(([^()]{1,60})\)")
_OF_INTEREST = re.compile(r"record_param_comms$|c10d::|.{0,9}process_group:init|([a-z]{2,8}):[a-z_]")
_ARGUMENT = re.compile(r"(\w+)(?:=[^=]*)?")


def recognises(head: bytes) -> bool:
    """Tell whether a file begins as such a trace does: with its schema and nodes."""
    begin = head[:2000].lstrip()
    return begin.startswith(b"{") and b'"schema"' in begin and b'"nodes"' in begin


def read(file: TraceFile) -> Trace:
    """Return the communications of one rank."""
    document = JsonDocument(file.stream, "nodes")
    job = _Job()
    for number, item in document:
        if _OF_INTEREST.match(str(item.get("name"))):
            job.take(_Node.of(item, number))
    warnings = list(document.warnings)
    communications = job.communications(file.place, warnings)
    used = [one.group for one in communications if one.group.name]
    schema = document.members.get("schema")
    return Trace(
        kinds=("chakra",),
        sources=(file.place,),
        communications=communications,
        ranks=tuple({one.rank for one in communications if one.rank is not None}),
        world_size=max(
            (one.size for one in job.listed.values() if one.description == "default_pg"), default=0
        ),
        backend=job.backend,
        groups=tuple(dict.fromkeys([*job.listed.values(), *used])),
        not_taken=job.not_taken,
        versions={"chakra": plain(schema)} if isinstance(schema, str) else {},
        warnings=capped(warnings),
    )


@dataclass(frozen=True)
class _Node:
    """An operator: its number, that of the operator that called it, values in and out, attributes."""

    number: int
    name: str
    caller: int | None
    inputs: list[Any]
    types: str
    outputs: list[Any]
    attributes: Mapping[str, Any]

    @staticmethod
    def of(item: Mapping[str, Any], number: int) -> _Node:
        """The node that ``item`` is; in 1.0.1 attributes and types are members of it like all else."""
        (inputs, types), (outputs, _) = _values(item, "input"), _values(item, "output")
        told = [one for one in _list(item.get("attrs")) if isinstance(one, dict)]
        known = count(item.get("id"))
        return _Node(
            number=number if known is None else known,
            name=str(item.get("name")),
            caller=count(item.get("ctrl_deps", item.get("parent"))),
            inputs=inputs,
            types=" ".join(one for one in types if isinstance(one, str)),
            outputs=outputs,
            attributes={str(one.get("name")): one.get("value") for one in told} or item,
        )


def _values(item: Mapping[str, Any], way: str) -> tuple[list[Any], list[Any]]:
    """(values, their types) that go in or out of a node."""
    there = item.get(f"{way}s")
    if isinstance(there, dict):
        return _list(there.get("values")), _list(there.get("types"))
    return _list(there), _list(item.get(f"{way}_types"))


@dataclass
class _Call:
    """A communication whose group's ranks are not known yet.

    own: this rank's place in the group; other: the root's, the receiver's or the sender's; None if not told.
    """

    communication: Communication
    own: int | None
    other: int | None
    caller: int | None


@dataclass
class _Job:
    """What nodes say one after the other. An operator's node comes when it returns, after those it called."""

    listed: dict[str, ProcessGroup] = field(default_factory=dict)
    backend: str = ""
    not_taken: Counter[str] = field(default_factory=Counter)
    _known: Groups = field(default_factory=Groups)
    _sizes: dict[str, int] = field(default_factory=dict)
    _records: list[_Call] = field(default_factory=list)
    _operators: dict[int, _Call] = field(default_factory=dict)

    def take(self, node: _Node) -> None:
        """Keep what ``node`` says about communication."""
        if node.name == "record_param_comms":
            found = _record(node, self._known)
            if isinstance(found, str):
                self.not_taken[found] += 1
            else:
                self._records.append(found)
                group = found.communication.group
                self._sizes[group.name] = max(group.size, self._sizes.get(group.name, 0))
        elif node.name.startswith("c10d::") and (collective := collective_of(node.name)):
            operator = _operator(node, collective)
            if operator is None:
                self.not_taken[NO_SIGNATURE] += 1
            else:
                self._operators[node.number] = operator
        elif "process_group:init" in node.name and node.inputs:
            self.listed |= _listed(node.inputs[0], self._known)
        elif not self.backend and collective_of(node.name):
            self.backend = node.name.partition(":")[0]

    def communications(self, place: str, warnings: list[SourceWarning]) -> tuple[Communication, ...]:
        """All of them, in the order of the calls; what is assumed is told."""
        recorded = {call.caller for call in self._records}
        alone = [call for number, call in self._operators.items() if number not in recorded]
        calls = sorted([*self._records, *alone], key=lambda call: call.communication.line)
        assumed = set()
        for call in calls:
            group = self._group(call.communication.group)
            if group.name and not call.communication.group.name:
                assumed.add(group)
            operator = self._operators.get(call.caller) if call.caller is not None else None
            asynchronous = (operator or call).communication.asynchronous
            call.communication = replace(call.communication, group=group, asynchronous=asynchronous)
        if assumed:
            names = ", ".join(sorted(f"{one.name!r} ({one.description})" for one in assumed))
            text = f"operators of c10d name no group: they are of {names}, the only one of its size"
            warnings.append(SourceWarning("assumed", text))
        places = [(call.own, call.communication.group) for call in calls if call.own is not None]
        rank = rank_of(places, self.listed.values(), place, warnings)
        return tuple(_placed(call, rank) for call in calls)

    def _group(self, told: ProcessGroup) -> ProcessGroup:
        """The listed group of that name; where there is no name, the only one that can be meant."""
        if told.name.startswith(ADDRESS):  # tells groups apart, yet is another one on each rank
            return ProcessGroup("", self._sizes.get(told.name, 0))
        if told.name:
            return self.listed.get(told.name, told)
        alike = [one for one in self.listed.values() if told.size in (0, one.size)]
        return alike[0] if len(alike) == 1 else told


def _placed(call: _Call, rank: int | None) -> Communication:
    """The communication, of ``rank`` and with the global rank of its root or partner."""
    ranks = call.communication.group.ranks
    other = ranks[call.other] if call.other is not None and call.other < len(ranks) else None
    if call.communication.collective in (SEND, RECV):
        return replace(call.communication, rank=rank, peer=other)
    return replace(call.communication, rank=rank, root=other)


def _listed(text: object, known: Groups) -> dict[str, ProcessGroup]:
    """Name -> group in the text of a ``process_group:init`` node; an empty list of ranks means all."""
    try:
        told = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return {}
    found = {}
    for one in _list(told):
        if isinstance(one, dict) and isinstance(one.get("pg_name"), str):
            size, ranks = count(one.get("group_size")) or 0, _list(one.get("ranks"))
            start, stride = (-1, -1) if ranks else (0, 1)
            description = str(one.get("pg_desc", ""))
            group = known.of(one["pg_name"], size, json.dumps(ranks), start, stride, description)
            found[group.name] = group
    return found


def _record(node: _Node, known: Groups) -> _Call | str:
    """Return the call in a ``record_param_comms``, or why it is not taken.

    Its values: tensors where there are some, sequence number, group, rank, name, splits in and out, then, in
    later schemas, start, stride and size of the group. A sequence number may have a mark of sends beside it.
    """
    at = next((place for place, one in enumerate(node.inputs) if isinstance(one, str)), -1)
    if at < 3:
        return UNKNOWN
    sequence, group, place = node.inputs[at - 3 : at]
    in_splits, out_splits, start, stride, size = [*node.inputs[at + 1 :], *[None] * 5][:5]
    told = node.attributes
    name = str(told.get("collective_name", node.inputs[at]))
    collective = collective_of(name)
    if not collective:
        return SENDS_NOTHING if name in _QUIET else UNKNOWN
    names = [str(one) for one in _list(group)]
    splits = _counts(in_splits), _counts(out_splits)
    rooted = collective in (SEND, RECV) or COLLECTIVES[collective].rooted
    communication = Communication(
        rank=None,
        collective=collective,
        name=plain(name),
        group=known.of(
            names[0] if names else f"{ADDRESS}{group}",
            count(size) or len(splits[0]),
            start=_place(start),
            stride=_place(stride),
            description=names[1] if len(names) > 1 else "",
        ),
        sequence=count(sequence[0] if isinstance(sequence, list) and sequence else sequence),
        line=node.number,
        **_data(
            collective, node, list(_tensors(node.inputs[: at - 3])), list(_tensors(node.outputs)), splits
        ),
    )
    return _Call(
        communication, None if rooted else count(place), count(place) if rooted else None, node.caller
    )


def _operator(node: _Node, collective: str) -> _Call | None:
    """Return the call of an operator of c10d by the names of its arguments; None where it has no signature.

    The size of the group is how many times the larger buffer holds the smaller one.
    """
    signature = str(node.attributes.get("op_schema", "")).partition("(")[2].partition(") ->")[0]
    names = [_ARGUMENT.fullmatch(one.rpartition(" ")[2]) for one in signature.split(", ")]
    values = {name[1]: value for name, value in zip(names, node.inputs, strict=False) if name}
    if not values:
        return None
    sent = list(_tensors([value for name, value in values.items() if "output" not in name]))
    received = list(_tensors([value for name, value in values.items() if "input" not in name]))
    splits = _counts(values.get("input_split_sizes")), _counts(values.get("output_split_sizes"))
    data = _data(collective, node, sent, received, splits)
    amounts = sorted((data["input_bytes"] or 0, data["output_bytes"] or 0))
    size = len(splits[0])
    if collective in ("all_gather", "reduce_scatter") and amounts[0] and amounts[1] % amounts[0] == 0:
        size = amounts[1] // amounts[0]
    asynchronous = values.get("async_op", values.get("asyncOp"))
    communication = Communication(
        rank=None,
        collective=collective,
        name=plain(node.name),
        group=ProcessGroup("", size),
        asynchronous=asynchronous if isinstance(asynchronous, bool) else None,
        line=node.number,
        **data,
    )
    others = (count(values.get(name)) for name in ("root_rank", "dst", "src"))
    return _Call(communication, None, next((one for one in others if one is not None), None), None)


def _data(
    collective: str,
    node: _Node,
    sent: Sequence[int],
    received: Sequence[int],
    splits: tuple[Sequence[int], Sequence[int]],
) -> dict[str, Any]:
    """Element type, bytes and splits as fields of Communication: as the node says, else of its tensors."""
    if collective == BARRIER:
        return {"input_bytes": 0, "output_bytes": 0}
    types = _TENSOR.search(node.types)
    word = node.attributes.get("dtype")
    dtype, each = dtype_of(word if isinstance(word, str) else types[1] if types else "")
    found: dict[str, Any] = {"dtype": plain(dtype)}
    ways: tuple[tuple[str, Sequence[int], str, Sequence[int]], ...] = (
        ("input", sent, "in_msg_nelems", splits[0]),
        ("output", received, "out_msg_nelems", splits[1]),
    )
    for way, tensors, name, amounts in ways:
        elements = count(node.attributes.get(name))
        if elements is not None and each is not None:
            size: int | None = elements * each
        else:
            size = sum(tensors) if tensors else None
        if not amounts and collective == "all_to_all" and len(tensors) > 1:
            amounts = tensors  # one for each rank
        found[f"{way}_bytes"] = size
        # Splits count rows of the tensor, whatever a row holds.
        if size is not None and (total := sum(amounts)):
            found[f"{way}_splits"] = uneven([size * one // total for one in amounts])
    return found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _counts(value: object) -> list[int]:
    """The counts in a list; [] where one of them is none."""
    found = [count(one) for one in _list(value)]
    return [one for one in found if one is not None] if None not in found else []


def _place(value: object) -> int:
    found = count(value)
    return -1 if found is None else found


def _tensors(value: object, depth: int = 0) -> Iterator[int]:
    """Bytes of each tensor in a value: [tensor, storage, offset, elements, bytes of one, device]."""
    if not isinstance(value, list) or depth > 3:
        return
    if len(value) == 6 and isinstance(value[5], str):
        elements, each = count(value[3]), count(value[4])
        if elements is not None and each is not None:
            yield elements * each
        return
    for one in value:
        yield from _tensors(one, depth + 1)
