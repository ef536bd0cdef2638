"""Trace files, compressed or in archives: each read by the reader that knows its content, joined by rank."""

from __future__ import annotations

import codecs
import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from ccbench.errors import UsageError
from ccbench.results.traces.events import Trace
from ccbench.results.traces.one_job import one_job
from ccbench.suite.documents import open_file
from ccbench.topology.graph import SourceWarning
from ccbench.units import plain, plural, shown

HEAD_BYTES = 1 << 16
"""What a file is recognised by."""

LARGEST_HEADER_BYTES, MOST_MEMBERS = 16 << 20, 100_000
"""Of an archive; one with more is damaged or means harm."""

_DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)
_GZIP, _TAR, _PICKLES = b"\x1f\x8b", b"ustar", (b"\x80", b"(dp", b"(lp")

JSON_DUMP = (
    "a Python pickle, which ccbench does not open: opening one can run commands. Let each rank write JSON: "
    "open(f'flight_{rank}.json', 'wb').write(torch._C._distributed_c10d._dump_nccl_trace_json()) from torch "
    "2.5 on, _dump_fr_trace_json for other backends from 2.8 on"
)


@dataclass(frozen=True)
class TraceFile:
    """One file, a member of an archive too. place: as errors show it. stream: its bytes, decompressed, once.

    head: the first HEAD_BYTES of the stream, without a byte order mark that it may begin with.
    """

    place: str
    head: bytes
    stream: io.BufferedIOBase

    def lines(self, longest: int) -> Iterator[tuple[int, bytes]]:
        """Give the lines with their numbers, from 1 on; one of more than ``longest`` bytes in parts."""
        return enumerate(iter(lambda: self.stream.readline(longest), b""), start=1)


@dataclass(frozen=True)
class Reader:
    """A form of trace. form: its name for people. recognises: by the head of a file, never by its name.

    read may raise UsageError with one line; the place is put before it. Groups that communications have need
    not be listed in what it returns, nor the kind and the source.
    """

    name: str
    form: str
    recognises: Callable[[bytes], bool]
    read: Callable[[TraceFile], Trace]


@cache
def readers() -> tuple[Reader, ...]:
    """Readers in the order they are asked."""
    from ccbench.results.traces import (
        aicb,
        chakra,
        chakra_protobuf,
        flight_recorder,
        kineto,
        nccl_inspector,
        nccl_ras,
    )

    return (
        Reader("kineto", "PyTorch profiler (Kineto) JSON", kineto.recognises, kineto.read),
        Reader("chakra", "Chakra execution traces (JSON)", chakra.recognises, chakra.read),
        Reader("chakra-et", "Chakra .et", chakra_protobuf.recognises, chakra_protobuf.read),
        Reader(
            "flight-recorder",
            "Flight Recorder JSON",
            flight_recorder.recognises,
            flight_recorder.read,
        ),
        Reader(
            "nccl-inspector",
            "NCCL Inspector JSON lines",
            nccl_inspector.recognises,
            nccl_inspector.read,
        ),
        Reader("nccl-ras", "ncclras JSON", nccl_ras.recognises, nccl_ras.read),
        Reader("aicb", "aicb CSV", aicb.recognises, aicb.read),
    )


def read_traces(paths: Iterable[str | PathLike[str]]) -> Trace:
    """Return what all files at ``paths`` say together: files, folders of files, tar archives, gzip or not.

    Raises UsageError where a file cannot be read or is in no known form; such files in folders and archives
    are passed over with a warning while there are others.
    """
    traces: list[Trace] = []
    warnings: list[SourceWarning] = []
    # Files of all ranks mostly have the same warnings: each is told once, with how many more have it.
    told: dict[SourceWarning, list[str]] = {}
    for path in map(str, paths):
        before, reason = len(traces), f"{plain(path, 200)}: no file in it"
        for file in trace_files(path, warnings):
            place = plain(file.place, 200)
            try:
                trace = _read(file)
            except (UsageError, RecursionError) as error:
                why = (
                    error
                    if isinstance(error, UsageError)
                    else "damaged: brackets in brackets without end"
                )
                reason = f"{place}: {why}"
                if file.place != path:
                    warnings.append(SourceWarning("unsupported", reason))
                continue
            traces.append(replace(trace, warnings=()))
            for one in trace.warnings:
                told.setdefault(one, []).append(place)
        if len(traces) == before:
            raise UsageError(reason)
    if not traces:
        raise UsageError("no trace was named; name files of torch.profiler, or folders of them")
    for one, places in told.items():
        more = f" and {plural(len(places) - 1, 'more file')}" if len(places) > 1 else ""
        warnings.append(replace(one, text=f"{places[0]}{more}: {one.text}"))
    return one_job(traces, warnings)


def is_trace(path: str | PathLike[str]) -> bool:
    """Tell whether ``read_traces`` is for ``path``: a folder, an archive, a file that a reader recognises."""
    try:
        files = trace_files(str(path), [])
        first = next(files, None)
    except UsageError:
        return False
    head = first.head if first else b""
    several = Path(path).is_dir() or (first is not None and first.place != str(path))
    return (
        several or head.startswith(_PICKLES) or any(reader.recognises(head) for reader in readers())
    )


def _read(file: TraceFile) -> Trace:
    reader = next((reader for reader in readers() if reader.recognises(file.head)), None)
    if reader is not None:
        trace = reader.read(file)
        # Groups that only calls name belong to the job too.
        used = [
            communication.group
            for communication in trace.communications
            if communication.group.name or communication.group.description
        ]
        groups = tuple(dict.fromkeys([*trace.groups, *used]))
        return replace(trace, groups=groups, kinds=(reader.name,), sources=(file.place,))
    if file.head.startswith(_PICKLES):
        raise UsageError(JSON_DUMP)
    if file.head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError("text in UTF-16 or UTF-32; save it as UTF-8")
    seen = (
        shown(file.head[:60].decode("utf-8", "backslashreplace").strip())
        if file.head.strip()
        else "nothing"
    )
    known = ", ".join(reader.form for reader in readers())
    raise UsageError(f"no trace that ccbench knows: {seen}; known are {known}")


class _Stream(io.RawIOBase):
    """A stream that ends, with a warning, where its source is damaged.

    limit: bytes that may be read, None for any number.
    """

    def __init__(
        self, place: str, source: io.BufferedIOBase, warnings: list[SourceWarning]
    ) -> None:
        self._place, self._source, self._warnings = place, source, warnings
        self.limit: int | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``; what lies before damage counts."""
        filled = 0
        while filled < len(buffer):
            try:
                chunk = self._source.read1(len(buffer) - filled)
            except _DAMAGE:
                # The bytes before it are whole and worth reading; after it there is nothing to go on with.
                self._source, chunk = io.BytesIO(), b""
                text = f"{plain(self._place, 200)}: damaged or cut off"
                self._warnings.append(SourceWarning("truncated", text))
            if not chunk:
                break
            buffer[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        if self.limit is not None:
            self.limit -= filled
            if self.limit < 0:
                raise tarfile.ReadError("a header without end")
        return filled


def trace_files(path: str, warnings: list[SourceWarning]) -> Iterator[TraceFile]:
    """Give the files at ``path`` one after the other; each must be read before the next is asked for.

    Members of archives that are not regular files are passed over. Raises UsageError where it cannot be read.
    """
    try:
        if Path(path).is_dir():
            inside = sorted(
                one for one in Path(path).rglob("*") if one.is_file() and one.name[0] != "."
            )
            for one in inside:
                yield from trace_files(str(one), warnings)
            return
        file = open_file(Path(path))
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{plain(path, 200)}: cannot be read ({reason}); name a trace or a folder"
        ) from None
    with file:
        yield from _opened(path, file, warnings)


def _opened(
    place: str, source: io.BufferedIOBase, warnings: list[SourceWarning], archive: bool = True
) -> Iterator[TraceFile]:
    """Give the file in ``source``, or, where it is an ``archive``, its members."""
    raw = _Stream(place, source, warnings)
    stream = io.BufferedReader(raw, HEAD_BYTES)
    if stream.peek(HEAD_BYTES).startswith(_GZIP):
        raw = _Stream(place, gzip.GzipFile(fileobj=stream), warnings)
        stream = io.BufferedReader(raw, HEAD_BYTES)
    head = stream.peek(HEAD_BYTES)
    if not archive or head[257:262] != _TAR:
        yield TraceFile(place, head.removeprefix(codecs.BOM_UTF8), stream)
        return
    try:
        with tarfile.open(fileobj=stream, mode="r|") as members:
            for _ in range(MOST_MEMBERS):
                raw.limit = LARGEST_HEADER_BYTES
                member = members.next()
                raw.limit = None
                if member is None:
                    return
                part = (
                    members.extractfile(member)
                    if member.isreg() and not member.issparse()
                    else None
                )
                if isinstance(part, io.BufferedReader):
                    yield from _opened(f"{place}: {member.name}", part, warnings, archive=False)
                    while part.read(HEAD_BYTES):  # what its reader left
                        pass
    except _DAMAGE:
        warnings.append(
            SourceWarning("truncated", f"{plain(place, 200)}: the archive ends in the middle")
        )
