"""Chakra .et files: messages by hand, real files, numbers and lengths that cannot be."""

from __future__ import annotations

import io
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.readers.traces import chakra_protobuf as et
from ccbench.readers.traces.events import Communication, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.recorded import expected, needs_traces, path_of


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*coded, value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name: str, value: int | str, number: int = 9) -> bytes:
    return field(1, name) + field(29 if isinstance(value, str) else number, value)


def node(
    kind: int, start: int = 0, duration: int = 0, inputs: bytes = b"", **attributes: int | str
) -> bytes:
    listed = b"".join(field(10, attribute(name, value)) for name, value in attributes.items())
    times = field(6, start) * bool(start) + field(7, duration) * bool(duration)
    return field(1, 1) + field(2, "a node") + field(3, kind) + times + field(8, inputs) + listed


METADATA = field(1, "0.0.4")


def lengths(*messages: bytes) -> bytes:
    return b"".join(varint(len(message)) + message for message in messages)


def trace_of(*nodes: bytes, place: str = "job.3.et") -> Trace:
    data = lengths(METADATA, *nodes)
    return et.read(TraceFile(place, data[:65536], io.BytesIO(data)))


def only(trace: Trace) -> Communication:
    (call,) = trace.communications
    return call


@pytest.mark.parametrize(
    ("number", "name", "out"),
    [
        (0, "all_reduce", 64),
        (1, "reduce", 64),
        (2, "all_gather", None),
        (3, "gather", None),
        (4, "scatter", None),
        (5, "broadcast", 64),
        (6, "all_to_all", 64),
        (7, "reduce_scatter", None),
        (8, "reduce_scatter", None),
        (9, "barrier", 64),
    ],
)
def test_collectives_by_their_number_and_bytes_of_what_a_rank_puts_in(
    number: int, name: str, out: int | None
) -> None:
    call = only(trace_of(node(et.COLLECTIVE, comm_type=number, comm_size=64, pg_name="dp")))
    # The output of some depends on the number of ranks, which such files do not say.
    assert (call.collective, call.input_bytes, call.output_bytes) == (name, 64, out)
    assert (call.rank, call.group.name, call.group.size, call.line) == (3, "dp", 0, 2)


def test_sends_and_receives_have_their_partner() -> None:
    both = trace_of(
        node(et.SENDING, comm_size=8, comm_dst=5, comm_tag=1),
        node(et.RECEIVING, comm_size=8, comm_src=1, comm_dst=3),
    )
    assert [
        (communication.collective, communication.peer) for communication in both.communications
    ] == [("send", 5), ("recv", 1)]


def test_microseconds_are_seconds_and_none_are_none() -> None:
    timed = only(trace_of(node(et.COLLECTIVE, 2_000_000, 1500, comm_type=0, comm_size=1)))
    assert (timed.start_seconds, timed.duration_seconds) == (2.0, 0.0015)
    bare = only(trace_of(node(et.COLLECTIVE, comm_type=0, comm_size=1)))
    assert bare.start_seconds is bare.duration_seconds is None


def test_computing_is_what_nodes_with_times_cover() -> None:
    times = [(3_000_000, 500_000), (1_000_000, 1_000_000), (1_500_000, 1_000_000), (0, 70)]
    trace = trace_of(*(node(et.COMPUTING, start, duration) for start, duration in times))
    assert trace.computing[3].tolist() == [[1.0, 2.5], [3.0, 3.5]]
    assert trace.communications == ()


def test_the_type_is_that_of_the_tensors() -> None:
    def typed(types: str) -> str:
        return only(
            trace_of(node(et.COLLECTIVE, inputs=field(3, types), comm_type=0, comm_size=8))
        ).dtype

    assert typed("['GenericList[Tensor(float),Tensor(float)]']") == "float32"
    assert typed("['Tensor(c10::BFloat16)', 'Int']") == "bfloat16"
    assert typed("['Tensor(float)', 'Tensor(int)']") == ""


@pytest.mark.parametrize(
    ("number", "coded"), [(7, 6), (9, 6), (11, 6), (13, 6), (15, 12), (17, 12)]
)
def test_every_kind_of_whole_number_is_read(number: int, coded: int) -> None:
    listed = field(10, attribute("comm_type", coded, number)) + field(
        10, attribute("comm_size", 8)
    )
    assert only(trace_of(field(3, et.COLLECTIVE) + listed)).collective == "all_to_all"


def test_what_is_not_taken_is_counted() -> None:
    trace = trace_of(
        node(et.COLLECTIVE, is_cpu_op=1),
        node(et.COLLECTIVE, comm_type=77, comm_size=8),
        node(et.COLLECTIVE, comm_type=-1, comm_size=8),
    )
    assert trace.not_taken == {et.OF_THE_HOST: 1, "collectives of unknown types": 2}


@pytest.mark.parametrize("size", [-1, 2**63, 2**62 + 1])
def test_sizes_that_cannot_be_are_none(size: int) -> None:
    call = only(trace_of(node(et.COLLECTIVE, comm_type=0, comm_size=size)))
    assert (call.input_bytes, call.output_bytes) == (None, None)


def test_a_file_of_an_older_schema_is_refused() -> None:
    old = field(1, 1) + field(2, "a") + field(3, 7) + field(11, attribute("comm_type", 0, 7))
    with pytest.raises(UsageError, match=r"schema before 0\.0\.4"):
        trace_of(old)


def test_a_damaged_message_is_left_out_and_the_next_is_read() -> None:
    good = node(et.COLLECTIVE, comm_type=0, comm_size=8)
    trace = trace_of(
        b"\x0f\x01", field(3, b"text") + field(2, 7), good, field(3, 7) + b"\x52\x7f", good
    )
    assert [communication.line for communication in trace.communications] == [4, 6]
    damaged = [warning for warning in trace.warnings if warning.kind == "damaged_line"]
    assert [left_out.line for left_out in damaged] == [2, 3, 5]


def test_a_length_that_cannot_be_ends_the_file() -> None:
    good = node(et.COLLECTIVE, comm_type=0, comm_size=8)
    for hostile in (
        varint(2**60),
        b"\xff" * 11,
        varint(et.LONGEST_MESSAGE + 1),
        varint(1000) + b"few",
        b"\x80",
    ):
        data = lengths(METADATA, good) + hostile
        trace = et.read(TraceFile("a.0.et", data, io.BytesIO(data)))
        assert len(trace.communications) == 1
        assert [
            (warning.kind, warning.line)
            for warning in trace.warnings
            if warning.kind == "truncated"
        ] == [("truncated", 3)]


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x00",
        b'{"schema": 1}',
        b"comm_type,comm_group",
        b"\x80\x04",
        b"\x1f\x8b",
        b"\n" * 40,
    ],
)
def test_other_files_are_not_recognised(head: bytes) -> None:
    assert not et.recognises(head)


@given(st.binary(max_size=300))
def test_any_bytes_are_recognised_or_not(head: bytes) -> None:
    et.recognises(head)


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_of_64_bits_is_read_back(value: int) -> None:
    assert et._attributes(et._fields(field(1, attribute("n", value))), 1) == {"n": value}


@given(st.lists(st.binary(max_size=200), max_size=5), st.binary(max_size=40))
def test_any_messages_are_read_to_their_end(messages: list[bytes], rest: bytes) -> None:
    data = lengths(METADATA, *messages) + rest
    with suppress(UsageError):
        trace = et.read(TraceFile("a.0.et", data, io.BytesIO(data)))
        assert all(warning.text.isprintable() for warning in trace.warnings)


def test_fixed_fields_and_unknown_ones_are_passed_over() -> None:
    strange = (
        varint(90 << 3 | 1)
        + struct.pack("<d", 1.5)
        + varint(91 << 3 | 5)
        + struct.pack("<f", 1.5)
    )
    assert (
        only(trace_of(strange + node(et.COLLECTIVE, comm_type=0, comm_size=8))).input_bytes == 8
    )


# -- real files ---------------------------------------------------------------------------------------------


@needs_traces
def test_a_file_of_astra_sim() -> None:
    name = "chakra/astra_all_reduce_8npus_1MB.0.et"
    trace = read_traces([path_of(name)])
    assert len(trace.communications) == expected(name)["collectives"]
    assert only(trace).collective == expected(name)["collective"]
    assert only(trace).input_bytes == only(trace).output_bytes == expected(name)["size_bytes"]
    assert (trace.versions, trace.ranks) == ({"chakra": "0.0.4"}, (0,))


@needs_traces
def test_a_converted_trace_of_pytorch_in_an_archive() -> None:
    trace = read_traces([path_of("chakra/feeder_tests_trace.tar.gz")])
    calls = [
        (communication.collective, communication.dtype, communication.input_bytes)
        for communication in trace.communications
    ]
    reduced = [8196000, 31502336, 26255360, 26550272, 9724160]
    assert calls == [
        ("broadcast", "float32", 212480),
        ("broadcast", "int64", 424),
        *(("all_reduce", "float32", size) for size in reduced),
    ]
    assert trace.not_taken == {et.OF_THE_HOST: 14}
    assert trace.versions == {"chakra": "1.0.1"}
    assert [communication.duration_seconds for communication in trace.communications][
        2
    ] == 0.005572
