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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.findings import SourceWarning
from ccbench.readers.traces import torch_calls as calls
from ccbench.readers.traces.events import RECV, SEND, Communication, ProcessGroup, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.groups import Groups, rank_of
from ccbench.readers.traces.json_stream import JsonDocument
from ccbench.readers.traces.words import collective_of, count, figures, listed, members, text
from ccbench.units import plain

SENDS_NOTHING = "waits, initialisations and marks of coalesced calls, which send nothing"
NO_SIGNATURE = "operators of c10d without their signature"
UNKNOWN = "calls that are no collective known to ccbench"
DAMAGED_GROUPS = "lists of process groups that are damaged"

ADDRESS = "at "
"""Begins the name of a group that the trace calls by its address in memory, as schema 1.0.1 does."""

_QUIET = ("wait", "init", "coalesced", "start_coalescing", "end_coalescing")
_TENSOR = re.compile(r"Tensor\(([^()]{1,60})\)")
_OF_INTEREST = re.compile(
    r"record_param_comms$|c10d::|.{0,9}process_group:init|[a-z]{2,8}:[a-z_]"
)
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
        # A trace has millions of nodes; all but those that communicate are passed over by their name.
        if _OF_INTEREST.match(text(item.get("name"))):
            inputs, outputs = item.get("inputs"), item.get("outputs")
            attributes = map(members, listed(item.get("attrs")))
            identifier = count(item.get("id"))
            job.take(
                {
                    **{
                        text(attribute.get("name")): attribute.get("value")
                        for attribute in attributes
                    },
                    **item,
                    "id": number if identifier is None else identifier,
                    "caller": count(item.get("ctrl_deps", item.get("parent"))),
                    "inputs": listed(members(inputs).get("values", inputs)),
                    "types": " ".join(
                        map(text, listed(members(inputs).get("types", item.get("input_types"))))
                    ),
                    "outputs": listed(members(outputs).get("values", outputs)),
                }
            )
    warnings = list(document.warnings)
    communications = job.communications(file.place, warnings)
    groups = tuple(job.groups.listed.values())
    schema = plain(text(document.members.get("schema")))
    return Trace(
        communications=communications,
        ranks=tuple(
            {
                communication.rank
                for communication in communications
                if communication.rank is not None
            }
        ),
        world_size=max(
            (group.size for group in groups if group.description == "default_pg"), default=0
        ),
        backend=job.backend,
        groups=groups,
        not_taken=job.not_taken,
        versions={"chakra": schema} if schema else {},
        warnings=tuple(warnings),
    )


@dataclass(frozen=True)
class _ChakraCall:
    """A call in the words of a record; the ranks of its group may not be known yet. caller: its operator."""

    line: int
    caller: int | None
    group: ProcessGroup
    words: dict[str, Any]

    @property
    def place(self) -> int | None:
        """Return this rank's place in the group; None where the record has that of the root or the partner."""
        collective = collective_of(self.words[calls.NAME])
        rooted = collective in (SEND, RECV) or COLLECTIVES[collective].rooted
        return None if rooted else count(self.words.get("Rank"))


class _Job:
    """Words of nodes, one after the other; an operator's comes when it returns, after those it called."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.backend = ""
        self.not_taken: Counter[str] = Counter()
        self._sizes: Counter[str] = Counter()
        self._records: list[_ChakraCall] = []
        self._operators: dict[int, _ChakraCall] = {}

    def take(self, node: Mapping[str, Any]) -> None:
        """Keep what ``node`` says about communication."""
        if node["name"] == calls.RECORD:
            call = _record(node, self.groups)
            if isinstance(call, str):
                self.not_taken[call] += 1
            else:
                self._records.append(call)
                self._sizes[call.group.name] = max(
                    call.group.size, self._sizes[call.group.name]
                )
        elif node["name"].startswith(calls.OPERATOR) and collective_of(node["name"]):
            operator = _operator(node)
            if operator is None:
                self.not_taken[NO_SIGNATURE] += 1
            else:
                self._operators[node["id"]] = operator
        elif "process_group:init" in node["name"]:
            try:
                self.groups.take(json.loads(text(next(iter(node["inputs"]), ""))))
            except (ValueError, RecursionError):
                self.not_taken[DAMAGED_GROUPS] += 1
        elif not self.backend and collective_of(node["name"]):
            self.backend = node["name"].partition(":")[0]

    def communications(
        self, place: str, warnings: list[SourceWarning]
    ) -> tuple[Communication, ...]:
        """All of them, in the order of the calls; what is assumed is told."""
        # Records do not say whether they are asynchronous; their operator does.
        for call in self._records:
            if operator := self._operators.get(call.caller or -1):
                call.words[calls.ASYNCHRONOUS] = operator.words[calls.ASYNCHRONOUS]
        # An operator with a record inside it is the same call, and is told by the record.
        recorded = {call.caller for call in self._records}
        alone = [call for number, call in self._operators.items() if number not in recorded]
        ordered = sorted([*self._records, *alone], key=lambda call: call.line)
        placed = []
        for call in ordered:
            stated = call.group
            if stated.name.startswith(ADDRESS):
                # It tells groups of this rank apart, and is another one on each rank.
                group = ProcessGroup("", self._sizes[stated.name])
            elif stated.name:
                group = self.groups.listed.get(stated.name, stated)
            else:
                # Without a name it is the only listed one that can be meant.
                group = self.groups.only(stated.size)
            placed.append((call, group))
        if assumed := {group for call, group in placed if group.name and not call.group.name}:
            names = ", ".join(
                sorted(f"{group.name!r} ({group.description})" for group in assumed)
            )
            reason = f"operators of c10d name no group: they are of {names}, the only one of its size"
            warnings.append(SourceWarning("assumed", reason))
        own = [(call.place, group) for call, group in placed if call.place is not None]
        rank = rank_of(own, self.groups.listed.values(), place, warnings)
        return tuple(
            calls.communication(call.words, group, rank=rank, line=call.line)
            for call, group in placed
        )


def _record(node: Mapping[str, Any], groups: Groups) -> _ChakraCall | str:
    """Return the call in a ``record_param_comms``, or why it is not taken.

    Its values: tensors where there are some, sequence number, group, rank, name, splits in and out, then, in
    later schemas, start, stride and size of the group. A sequence number may have a mark of sends beside it.
    """
    # The name is the first text among the values; all else is found by its distance from it.
    at = next(
        (place for place, value in enumerate(node["inputs"]) if isinstance(value, str)), -1
    )
    if at < 3:
        return UNKNOWN
    sequence, named, rank = node["inputs"][at - 3 : at]
    *splits, start, stride, size = [*node["inputs"][at + 1 :], *[None] * 5][:5]
    name = text(node.get("collective_name", node["inputs"][at]))
    if not collective_of(name):
        return SENDS_NOTHING if name in _QUIET else UNKNOWN
    words = _words(node, name, [node["inputs"][: at - 3], node["outputs"]], splits)
    words |= {"Rank": rank, "Seq": next(iter(listed(sequence)), sequence)}
    names = [text(part) for part in listed(named)] or [f"{ADDRESS}{plain(named)}"]
    first, apart = (
        -1 if (number := count(figure)) is None else number for figure in (start, stride)
    )
    ranks = count(size) or calls.group_size(words)
    group = groups.of(names[0], ranks, "", first, apart, "".join(names[1:2]))
    return _ChakraCall(node["id"], node["caller"], group, words)


def _operator(node: Mapping[str, Any]) -> _ChakraCall | None:
    """Return the call of an operator of c10d by the names of its arguments; None where these are not told."""
    signature = text(node.get("op_schema")).partition("(")[2].partition(") ->")[0]
    names = [
        _ARGUMENT.fullmatch(argument.rpartition(" ")[2]) for argument in signature.split(", ")
    ]
    values = {
        name[1]: value for name, value in zip(names, node["inputs"], strict=False) if name
    }
    if not values:
        return None
    tensors = [
        [value for name, value in values.items() if way not in name]
        for way in ("output", "input")
    ]
    splits = [values.get(f"{way}_split_sizes") for way in ("input", "output")]
    words = _words(node, node["name"], tensors, splits)
    words["Rank"] = next(
        (values[name] for name in ("root_rank", "dst", "src") if name in values), None
    )
    words[calls.ASYNCHRONOUS] = values.get("async_op", values.get("asyncOp"))
    return _ChakraCall(
        node["id"], node["caller"], ProcessGroup("", calls.group_size(words)), words
    )


def _words(
    node: Mapping[str, Any], name: str, tensors: list[list[Any]], splits: list[Any]
) -> dict[str, Any]:
    """Words of a record on its data, as the node has it or its tensors do. tensors, splits: of in, of out."""
    types = _TENSOR.search(node["types"])
    words = {calls.NAME: name, "dtype": text(node.get("dtype")) or (types[1] if types else "")}
    elements = node.get("in_msg_nelems"), node.get("out_msg_nelems")
    words |= zip((calls.INPUT, calls.OUTPUT), elements, strict=True)
    for values, rows, size, split in zip(
        tensors,
        splits,
        (calls.IN_BYTES, calls.OUT_BYTES),
        (calls.IN_SPLITS, calls.OUT_SPLITS),
        strict=True,
    ):
        amounts = list(_tensors(values))
        words[size] = sum(amounts) if amounts else None
        # Splits count rows of one tensor, or there is a tensor for each rank.
        lists = (
            collective_of(name) == "all_to_all" and len(amounts) > 1 and not figures(rows)[0]
        )
        words[split] = amounts if lists else rows
    return words


def _tensors(value: object, depth: int = 0) -> Iterator[int]:
    """Bytes of each tensor in a value: [tensor, storage, offset, elements, bytes of one, device]."""
    if not isinstance(value, list) or depth > 3:
        return
    # The device's name at the end tells a tensor from six numbers.
    if len(value) == 6 and isinstance(value[5], str):
        elements, each = count(value[3]), count(value[4])
        if elements is not None and each is not None:
            yield elements * each
        return
    for member in value:
        yield from _tensors(member, depth + 1)
