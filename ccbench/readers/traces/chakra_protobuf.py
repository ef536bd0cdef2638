"""Chakra execution traces as protobuf messages (.et): written by converters and generators, run by ASTRA-sim.

A file is a row of messages, each behind its length: one GlobalMetadata, then Nodes. Field numbers and values
are those of schema/protobuf/et_def.proto of github.com/mlcommons/chakra, unchanged since its version 0.0.4
(October 2023). The encoding: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from io import BufferedIOBase
from typing import TypeVar

from ccbench.errors import UsageError
from ccbench.findings import SourceWarning
from ccbench.readers.traces.events import RECV, SEND, Communication, ProcessGroup, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.intervals import merged
from ccbench.readers.traces.words import buffers, count, dtype_of, rank_of_file, told_damage
from ccbench.units import plain

LONGEST_MESSAGE = 64 << 20
"""Bytes of one message; nodes of real traces have some thousands."""

COMPUTING, SENDING, RECEIVING, COLLECTIVE = 4, 5, 6, 7
"""NodeType: COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE."""

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
"""CollectiveCommType from 0 on; 8 is REDUCE_SCATTER_BLOCK."""

OF_THE_HOST = "operators of the host, whose kernels are nodes of their own"

ALL = "default_pg"
"""PyTorch's name of the group of all ranks."""

_TENSOR = re.compile(r"Tensor\(([^()]{1,60})\)")

Fields = dict[int, list[int | bytes]]
"""Field number -> its values: numbers, or the bytes of texts and messages."""

Value = TypeVar("Value", int, bytes)


def recognises(head: bytes) -> bool:
    """Tell whether a file begins with a GlobalMetadata: its fields are 1, a text, and 2, attributes."""
    try:
        length, start = _varint(head, 0)
        return set(_fields(head[start : start + length])) in ({1}, {2}, {1, 2})
    except ValueError:
        return False


def read(file: TraceFile) -> Trace:
    """Return the communications of one rank, that of the file's name.

    Raises UsageError where the file is of an older schema.
    """
    warnings: list[SourceWarning] = []
    rank = rank_of_file(file.place, warnings)
    version = ""
    communications: list[Communication] = []
    computing: list[tuple[float, float]] = []
    not_taken: Counter[str] = Counter()
    for number, message in _messages(file.stream, warnings):
        try:
            fields = _fields(message)
            if number == 1:
                version = plain(_attributes(fields, 2).get("schema", _text(fields, 1)))
                continue
            if 11 in fields and 10 not in fields:
                raise UsageError(
                    "a Chakra trace of a schema before 0.0.4; convert it with a newer chakra"
                )
            kind, start = _last(fields, 3, 0), _last(fields, 6, 0)
            if kind in (SENDING, RECEIVING, COLLECTIVE):
                communication = _communication(fields, rank, number)
                if isinstance(communication, str):
                    not_taken[communication] += 1
                else:
                    communications.append(communication)
            elif kind == COMPUTING and start:
                computing.append((start / 1e6, (start + _last(fields, 7, 0)) / 1e6))
        except ValueError as problem:
            told_damage(
                warnings, "damaged_line", f"message {number} is left out: {problem}", number
            )
    return Trace(
        communications=tuple(communications),
        ranks=() if rank is None else (rank,),
        computing={} if rank is None or not computing else {rank: merged(computing)},
        not_taken=not_taken,
        versions={"chakra": version} if version else {},
        warnings=tuple(warnings),
    )


def _communication(node: Fields, rank: int | None, number: int) -> Communication | str:
    """Return what ``node`` says, or why it is not taken. Raises ValueError where it is damaged.

    comm_size is in bytes and of what one rank puts in: chakra's src/converter/pytorch_node.py sums the input
    tensors, and after an all-gather ASTRA-sim's Ring.cc leaves a rank with ranks times comm_size.
    """
    attributes = _attributes(node, 10)
    numbers = {name: value for name, value in attributes.items() if isinstance(value, int)}
    kind, type_ = _last(node, 3, 0), numbers.get("comm_type")
    if kind == SENDING:
        collective, partner = SEND, numbers.get("comm_dst")
    elif kind == RECEIVING:
        collective, partner = RECV, numbers.get("comm_src")
    elif type_ is None:
        return OF_THE_HOST
    elif 0 <= type_ < len(COLLECTIVES):
        collective, partner = COLLECTIVES[type_], None
    else:
        return "collectives of unknown types"
    size = count(numbers.get("comm_size"))
    start, duration = _last(node, 6, 0), _last(node, 7, 0)
    dtypes = {
        dtype_of(word)[0] for word in _TENSOR.findall(_text(_fields(_last(node, 8, b"")), 3))
    }
    return Communication(
        rank=rank,
        collective=collective,
        name=plain(_text(node, 2)),
        # ASTRA-sim lets all ranks take part where a node names no group; how many there are it does not say.
        group=ProcessGroup(
            plain(attributes.get("pg_name", "")), 0, (), "" if "pg_name" in attributes else ALL
        ),
        dtype=dtypes.pop() if len(dtypes) == 1 else "",
        input_bytes=size,
        output_bytes=size
        if size is not None and None not in buffers(collective, size, 0)
        else None,
        peer=count(partner),
        start_seconds=start / 1e6 if start else None,
        duration_seconds=duration / 1e6 if duration else None,
        stream=str(numbers.get("stream", "")),
        line=number,
    )


# -- protobuf's encoding ------------------------------------------------------------------------------------


def _messages(
    stream: BufferedIOBase, warnings: list[SourceWarning]
) -> Iterator[tuple[int, bytes]]:
    """Give each message with its number, from 1 on, up to one whose length cannot be."""
    number = 0
    while head := stream.read(1):
        number += 1
        while head[-1] & 0x80 and len(head) < 10 and (more := stream.read(1)):
            head += more
        try:
            length, _ = _varint(head, 0)
            message = stream.read(length) if length <= LONGEST_MESSAGE else b""
            if len(message) < length:
                raise ValueError(f"{len(message)} of {length} bytes are here")
        except ValueError as problem:
            text = f"nothing is read from message {number} on: {problem}"
            warnings.append(SourceWarning("truncated", text, number))
            return
        yield number, message


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(number of 64 bits that stands at ``at``, where it ends). Raises ValueError where it has no end."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + place + 1
    raise ValueError("a number without end")


def _fields(message: bytes) -> Fields:
    """Raises ValueError where the message is damaged."""
    fields: Fields = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value: int | bytes
        if key & 7 == 0:
            value, at = _varint(message, at)
        elif key & 7 in (1, 2, 5):
            length, at = (
                _varint(message, at) if key & 7 == 2 else (8 if key & 7 == 1 else 4, at)
            )
            value, at = message[at : at + length], at + length
        else:
            raise ValueError(f"a field of type {key & 7}")
        fields.setdefault(key >> 3, []).append(value)
    if at > len(message):
        raise ValueError("a field without end")
    return fields


def _last(fields: Fields, number: int, default: Value) -> Value:
    """The last value of a field, which counts in protobuf; ``default`` where there is none."""
    value = fields.get(number, [default])[-1]
    if not isinstance(value, type(default)):
        raise ValueError(f"field {number} is no {'number' if default == 0 else 'text'}")
    return value


def _text(fields: Fields, number: int) -> str:
    return _last(fields, number, b"").decode("utf-8", "replace")


def _attributes(fields: Fields, number: int) -> dict[str, int | str]:
    """Name -> value of the AttributeProtos in field ``number``; lists and broken numbers are left out."""
    values: dict[str, int | str] = {}
    for message in fields.get(number, []):
        parts = _fields(_last({number: [message]}, number, b""))
        name = _text(parts, 1)
        # int32, int64, uint32, uint64, bool; of sint32 and sint64 the lowest bit is the sign.
        for kind in parts.keys() & {7, 9, 11, 13, 15, 17, 27}:
            value = _last(parts, kind, 0)
            value = value >> 1 ^ -(value & 1) if kind in (15, 17) else value
            # Two's complement of 64 bits; no unsigned one of more than 63 is a size or a rank.
            values[name] = value - (value >> 63 << 64) if value > 0 else value
        if 29 in parts:
            values[name] = _text(parts, 29)
    return values
