"""Trace files that are cut off, damaged or hostile: one line each, and nothing in them is executed."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.cli import main
from ccbench.errors import UsageError
from ccbench.readers.traces import json_stream
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.hang import hang_of
from ccbench.readers.traces.lag import lag
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces import flight_recorder_texts as fr
from tests.readers.traces import kineto_texts as kineto
from tests.readers.traces import nccl_inspector_texts as inspector
from tests.readers.traces import nccl_ras_texts as ras
from tests.readers.traces.recorded import TRACES, needs_traces, path_of

KINDS = ("kineto", "flight_recorder", "mscclpp")
REAL = tuple(
    f"{kind}/{file.name}"
    for kind in KINDS
    if TRACES
    for file in sorted((TRACES / kind).iterdir())
) or ("none",)
FOREIGN = ("mscclpp/",)
"""Files of the folder that are no traces: refused, whole or not."""

SMALL: dict[str, bytes] = {
    "kineto": json.dumps(
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "GPU"}],
            "distributedInfo": kineto.INFO,
            "traceEvents": [
                *kineto.launched([("record_param_comms", kineto.GIVEN)], kineto.NCCL_KERNEL),
                kineto.event("cpu_op", "c10d::allreduce_", 200, 9, **kineto.SHAPES),
                kineto.event("cpu_op", "gloo:all_reduce", 201, 9, 8, **kineto.SHAPES),
                kineto.event("user_annotation", "ProfilerStep#3", 0, 60),
            ],
        }
    ).encode(),
    "flight-recorder": json.dumps(
        {
            "version": "2.10",
            "entries": [fr.entry(), fr.entry("nccl:send 0->1", 2, is_p2p=True)],
            "pg_config": fr.WORLD,
            "pg_status": {"0": {"last_enqueued_collective": "3"}},
        }
    ).encode(),
    "nccl-inspector": "\n".join(
        map(json.dumps, [inspector.record(), inspector.record("AllGather")])
    ).encode(),
    "nccl-ras": json.dumps(
        {
            "nccl_version": "2.29.1",
            "communicators": [{"hash": "a", "size": 2, "ranks": [ras.rank(0), ras.rank(1, 2)]}],
        }
    ).encode(),
}


def read_all(data: bytes, folder: Path, name: str = "a_rank3") -> Trace | None:
    """Read a file of ``data`` as a user's; None where it was refused, in one line."""
    (folder / name).write_bytes(data)
    try:
        trace = read_traces([folder / name])
    except UsageError as error:
        refused = str(error)
    else:
        refused = ""
    assert refused.isprintable()
    if refused:
        return None
    for warning in trace.warnings:
        assert warning.text.isprintable()
    for finding in lag(trace, hang_of(trace)):
        assert str(finding).isprintable()
    return trace


def whole(name: str) -> bytes:
    return Path(path_of(name)).read_bytes()


def cut(name: str, tmp_path: Path, ends: Iterable[int]) -> None:
    """Read the file's first bytes, up to each of ``ends``: what came before is there, and the cut is told.

    Where the kernels of a profile are cut off, the calls of the host stand for them, without times.
    """

    def timed_calls(trace: Trace | None) -> int:
        calls = trace.communications if trace else ()
        ran = (call.duration_seconds or not name.startswith("kineto") for call in calls)
        return sum(map(bool, ran))

    data = whole(name)
    complete = read_all(data, tmp_path)
    assert (complete is None) == name.startswith(FOREIGN)
    counts = [0]
    for end in ends:
        trace = read_all(data[:end], tmp_path)
        assert trace is None or complete is not None
        counts.append(timed_calls(trace))
        is_reported = trace is None or any(
            warning.kind == "truncated" for warning in trace.warnings
        )
        assert (
            is_reported or len(data) - end < 2 or name.endswith((".csv", ".et"))
        )  # cut between rows or messages
    assert counts == sorted(counts)
    assert counts[-1] <= timed_calls(complete)


@needs_traces
@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", REAL)
def test_a_real_trace_that_is_cut_off_gives_what_came_before(name: str, tmp_path: Path) -> None:
    size = len(whole(name))
    cut(name, tmp_path, range(0, size, size // 4))


@needs_traces
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", REAL)
def test_a_real_trace_may_be_cut_off_in_forty_places(name: str, tmp_path: Path) -> None:
    size = len(whole(name))
    cut(name, tmp_path, range(0, size, max(size // 40, 1)))


@needs_traces
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", REAL)
def test_bits_of_a_real_trace_may_be_others(name: str, tmp_path: Path) -> None:
    data = whole(name)
    for at in range(0, len(data), max(len(data) // 20, 1)):
        read_all(with_byte(data, at, data[at] ^ 1 << at % 8), tmp_path)


@pytest.mark.parametrize("form", SMALL)
def test_bytes_of_a_small_trace_may_be_others(form: str, tmp_path: Path) -> None:
    for at in range(0, len(SMALL[form]), 7):
        read_all(with_byte(SMALL[form], at, SMALL[form][at] ^ 1 << at % 8), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", SMALL)
def test_any_byte_of_a_small_trace_may_be_another(form: str, tmp_path: Path) -> None:
    for at in range(len(SMALL[form])):
        for value in (0x00, 0x22, 0x7F, 0xFF, SMALL[form][at] ^ 1):
            read_all(with_byte(SMALL[form], at, value), tmp_path)


def with_byte(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", SMALL)
@settings(max_examples=1000)
@given(data=st.data())
def test_any_part_of_a_small_trace_may_be_anything(
    form: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = SMALL[form]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    read_all(
        text[:start] + data.draw(st.binary(max_size=30)) + text[end:],
        tmp_path_factory.getbasetemp(),
    )


HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    -0.5,
    "",
    "1e308",
    "-1",
    "NaN",
    "x" * 9000,
    "\x1b[31m\n<script>",
    "../../passwd",
    [],
    [[]],
    [[[[[[[[1]]]]]]]],
    {},
    {"a": {"b": 1}},
    [None] * 1000,
    ["x"] * 10,
    "[0, 1",
    "9" * 5000,
)


def mutants(value: Any, build: Callable[[Any], Any]) -> list[Any]:
    """``value`` with each of its parts, one at a time, replaced by each hostile value."""
    made = [build(hostile) for hostile in HOSTILE]
    if isinstance(value, dict):
        for key in value:
            made += mutants(value[key], lambda part, key=key: build({**value, key: part}))  # type: ignore[misc]
    elif isinstance(value, list):
        for at in range(len(value)):
            made += mutants(
                value[at],
                lambda part, at=at: build([*value[:at], part, *value[at + 1 :]]),  # type: ignore[misc]
            )
    return made


JSON_FORMS = ["kineto", "flight-recorder", "nccl-ras", "nccl-inspector"]


def written_mutants(form: str) -> list[bytes]:
    first = json.loads(SMALL[form].split(b"\n")[0])
    return [json.dumps(mutant).encode() for mutant in mutants(first, lambda whole: whole)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", JSON_FORMS)
def test_any_value_may_be_of_any_type(form: str, tmp_path: Path) -> None:
    for data in written_mutants(form):
        read_all(data, tmp_path)


def test_a_deep_or_endless_document_is_one_line(tmp_path: Path) -> None:
    for data in (
        b'{"schemaVersion": 1, "traceEvents": ' + b"[" * 200_000,
        b'{"schemaVersion": 1, "traceEvents": [' + b'{"name": ' * 100_000,
        b'{"pg_config": {}, "entries": [{"profiling_name": "' + b"a" * 3_000_000,
        b'{"header": 1, "coll_perf": ' + b"{" * 3_000_000,
    ):
        read_all(data, tmp_path)


# -- archives, pickles, bombs; what people see --------------------------------------------------------------


@pytest.mark.parametrize("form", JSON_FORMS)
def test_a_value_without_end_is_read_in_bounded_memory(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "LONGEST_VALUE", 1 << 20)
    head = SMALL[form][: max(SMALL[form].rfind(b'": "'), 8) + 4]
    with gzip.open(tmp_path / "bomb", "wb", 1) as file:
        file.write(head)
        for _ in range(16):
            file.write(b"a" * (1 << 20))
    tracemalloc.start()
    read_traces_of(tmp_path / "bomb")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 << 20


def read_traces_of(path: Path) -> Trace | None:
    try:
        return read_traces([path])
    except UsageError:
        return None


def archive(*members: tuple[str, bytes, bytes]) -> bytes:
    """A tar archive of (name, type, data); links lead to /etc/passwd."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, kind, data in members:
            header = tarfile.TarInfo(name)
            header.type, header.size, header.linkname = kind, len(data), "/etc/passwd"
            tar.addfile(header, io.BytesIO(data))
    return written.getvalue()


def test_links_and_devices_in_an_archive_are_passed_over(tmp_path: Path) -> None:
    kinds = (
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
    )
    odd = [(f"odd{place}_rank0.json", kind, b"") for place, kind in enumerate(kinds)]
    trace = read_all(
        archive(*odd, ("../../rank1.json", tarfile.REGTYPE, SMALL["flight-recorder"])), tmp_path
    )
    assert trace is not None
    assert trace.sources == (f"{tmp_path / 'a_rank3'}: ../../rank1.json",)
    assert list(tmp_path.iterdir()) == [tmp_path / "a_rank3"]


HOSTILE_FILES = {
    "nothing": b"",
    "zeros": bytes(4000),
    "a gzip file that is cut off": gzip.compress(bytes(range(256)) * 40)[:30],
    "a damaged archive": archive(("rank0.json", tarfile.REGTYPE, SMALL["nccl-ras"]))[:300],
    "a pickle": pickle.dumps({"models": []}),
    "escapes and HTML": b"\x1b[31m<script>alert(1)</script>\n",
    "Nsight Systems": b'{"Type":48,"TargetProcessesInfo":1}\n{"CudaEvent":{"kernel":{"shortName":"3"}}}\n',
}


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_people_see_one_line_and_no_traceback(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank0.json").write_bytes(HOSTILE_FILES[name])
    with pytest.raises(SystemExit) as leaving:
        main(["replay", str(tmp_path / "rank0.json")])
    printed = capfd.readouterr()
    *notes, mistake = printed.err.splitlines()
    assert (leaving.value.code, printed.out) == (2, "")
    assert mistake.startswith("ccbench: error: ")
    assert mistake.isprintable()
    assert all(line.startswith("note: ") for line in notes)
