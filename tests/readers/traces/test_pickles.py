"""Pickles: what they hold is what JSON would hold, and what asks for more is refused by name and never run."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import pickletools
import struct
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.readers.traces import pickles
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.reading import is_trace, read_traces
from tests.readers.traces.flight_recorder_texts import WORLD, entry
from tests.readers.traces.hung import hung_job, needs_hung_jobs

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.text() | st.floats(-9, 9)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


def held(data: bytes) -> Any:
    return pickles.values(io.BytesIO(data))


@given(VALUES, st.sampled_from(PROTOCOLS))
def test_containers_and_scalars_come_back_whatever_the_protocol(
    value: Any, protocol: int
) -> None:
    assert held(pickle.dumps(value, protocol)) == value


class Harmful:
    """What its pickle calls when it is opened the usual way."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._path), "w")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_call_is_refused_by_name_and_never_made(
    protocol: int, inside: bool, tmp_path: Path
) -> None:
    trap: object = Harmful(tmp_path / "written")
    data = pickle.dumps({"entries": [trap]} if inside else trap, protocol)
    (tmp_path / "_dump_0").write_bytes(data)
    with pytest.raises(UsageError, match=r"asks for (io|_io|__builtin__)\.open; not opened"):
        read_traces([tmp_path / "_dump_0"])
    assert not (tmp_path / "written").exists()


ASKING = {
    "a global of protocol 0": (b"cposix\nsystem\n(S'id'\ntR.", "asks for posix.system"),
    "a global by texts on the stack": (
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
        "asks for posix.system",
    ),
    "one from the memo": (
        b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94h\x00h\x01\x93.",
        "asks for posix.system",
    ),
    "an instance": (b"\x80\x02(S'id'\nios\nsystem\n.", "asks for os.system"),
    "an object": (b"\x80\x02(c__builtin__\neval\nS'1'\no.", "asks for __builtin__.eval"),
    "an object of what is on the stack": (b"\x80\x02(]S'1'\no.", "the operation OBJ"),
    "a new object": (b"\x80\x02]]\x81.", "the operation NEWOBJ"),
    "a new object with names": (b"\x80\x04]]}\x92.", "the operation NEWOBJ_EX"),
    "a call": (b"\x80\x02]]R.", "the operation REDUCE"),
    "a state": (b"\x80\x02]}b.", "the operation BUILD"),
    "a registered class": (b"\x80\x02\x82\x01.", "the operation EXT1"),
    "another": (b"\x80\x02\x83\x01\x00.", "the operation EXT2"),
    "an object by its name": (b"\x80\x02Pid\n.", "an object outside of it"),
    "one by what is on the stack": (b"\x80\x02]Q.", "an object outside of it"),
    "a buffer outside": (b"\x80\x05\x97.", "the operation NEXT_BUFFER"),
}


@pytest.mark.parametrize(("data", "reason"), ASKING.values(), ids=ASKING)
def test_what_is_no_plain_value_is_refused_by_name(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "_dump_0").write_bytes(data)
    with pytest.raises(UsageError) as error:
        read_traces([tmp_path / "_dump_0"])
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_every_operation_of_pickles_is_carried_out_or_refused() -> None:
    """An operation that a new Python adds is refused too: the list is of what is allowed."""
    refused = set()
    for operation in pickletools.opcodes:
        machine = pickles._PickleMachine()
        machine.stack = [[], {}, "a", "b"]
        try:
            machine.carry_out(operation.name, 0)
        except UsageError:
            refused.add(operation.name)
        except (ValueError, IndexError, KeyError, TypeError, AttributeError):
            pass
    building = (
        "GLOBAL STACK_GLOBAL INST OBJ NEWOBJ NEWOBJ_EX REDUCE BUILD EXT1 EXT2 EXT4 PERSID BINPERSID "
        "NEXT_BUFFER READONLY_BUFFER BYTEARRAY8 POP POP_MARK DUP STOP"
    )
    assert " ".join(sorted(refused)) == " ".join(sorted(building.split()))


def laughs(depth: int) -> bytes:
    """Lists of ten times the same list, in each other."""
    value: list[Any] = ["ha"]
    for _ in range(depth):
        value = [value] * 10
    return pickle.dumps({"entries": value}, 2)


BOMBS = {
    "a place in the memo far away": b"\x80\x02]r\xff\xff\xff\xff.",
    "a text longer than the file": b"\x80\x02X\xff\xff\xff\x7fabc",
    "a text of 8 EiB": b"\x80\x04\x8d" + struct.pack("<Q", 2**63 - 1) + b"abc",
    "a frame of 8 EiB": b"\x80\x04\x95" + struct.pack("<Q", 2**63 - 1) + b"]",
    "a number without end": b"\x80\x02\x8b"
    + struct.pack("<i", 100_000)
    + b"\x7f" * 100_000
    + b".",
    "digits without end": b"\x80\x02I" + b"9" * 100_000 + b"\n.",
    "lists in lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "tuples in tuples as a key": b"\x80\x02}N" + b"\x85" * 200_000 + b"Ns.",
    "the same list ten times, thirty deep": laughs(30),
    "a list that holds itself": b"\x80\x02}X\x07\x00\x00\x00entries]q\x00h\x00as.",
    "nothing on the stack": b"\x80\x02.",
    "no mark": b"\x80\x02]e.",
    "items for a number": b"\x80\x02K\x01(K\x02e.",
    "a list only": b"\x80\x02].",
}


@pytest.mark.exhaustive
@pytest.mark.thinned(6)
@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_bombs_are_errors_of_one_line_in_bounded_memory(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "_dump_0").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(UsageError) as error:
        read_traces([tmp_path / "_dump_0"])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert most < 160 << 20


def test_values_are_counted_while_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MOST_MADE", 3000)
    monkeypatch.setattr(pickles, "MOST_HELD", 2000)
    for unit in (b"]", b"}", b"(", b"\x94", b"K\x07", b"]a", b"}K\x01K\x01sa"):
        with pytest.raises(UsageError, match="a pickle of more than 2000 values at a time"):
            held(b"\x80\x04]" + unit * 3001 + b".")


DUMP = {
    "version": "2.10",
    "nccl_version": "2.27.3",
    "pg_config": WORLD,
    "pg_status": {"0": {"last_enqueued_collective": 2, "last_completed_collective": 1}},
    "entries": [entry(), entry(number=2, state="started", retired=False)],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_says_what_json_says(protocol: int, tmp_path: Path) -> None:
    (tmp_path / "json_0").write_text(json.dumps(DUMP))
    (tmp_path / "pickle_0").write_bytes(pickle.dumps(DUMP, protocol))
    assert is_trace(tmp_path / "pickle_0")
    traces = [read_traces([tmp_path / name]) for name in ("json_0", "pickle_0")]

    def content(trace: Trace) -> object:
        return trace.communications, trace.groups, trace.versions, trace.ranks

    assert content(traces[0]) == content(traces[1])
    assert [(row.enqueued, row.completed) for row in traces[1].progress] == [(2, 1)]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_is_cut_off_anywhere_is_an_error_of_one_line(protocol: int) -> None:
    data = pickle.dumps(DUMP, protocol)
    for end in range(len(data)):
        with pytest.raises(UsageError, match="damaged or cut off"):
            held(data[:end])


@given(st.data())
def test_a_pickle_with_changed_bytes_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(pickle.dumps(DUMP, data.draw(st.sampled_from(PROTOCOLS))))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    # Anything but UsageError, which alone is suppressed, fails the test.
    with contextlib.suppress(UsageError):
        pickles.document(io.BytesIO(bytes(content)), "entries")


@needs_hung_jobs
@pytest.mark.parametrize(
    ("job", "entries"), [("fr_lock_gil_1st", 142), ("fr_gpu_error_1st", 289)]
)
def test_the_dumps_of_a_job_that_hung_are_read(job: str, entries: int) -> None:
    trace = read_traces([hung_job(job)])
    assert trace.ranks == tuple(range(16))
    assert len(trace.communications) + sum(trace.not_taken.values()) == entries
    assert trace.versions == {"flight recorder": "2.9", "nccl": "2.27.3"}
    assert Counter(call.state for call in trace.communications).keys() == {"scheduled"}
