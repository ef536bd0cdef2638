"""Trace files, compressed or in archives: each read by the reader that knows its content, joined by rank."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike
from pathlib import Path

from ccbench.errors import UsageError
from ccbench.findings import SourceWarning
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.file import TraceFile, trace_files
from ccbench.readers.traces.one_job import one_job
from ccbench.units import plain, plural, shown


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
    """Readers in the order they are asked; the last is for logs, in which its lines may come late."""
    from ccbench.readers.traces import (
        flight_recorder,
        kineto,
        nccl_inspector,
        nccl_ras,
        watchdog,
    )

    return (
        Reader("kineto", "PyTorch profiler (Kineto) JSON", kineto.recognises, kineto.read),
        Reader(
            "flight-recorder",
            "Flight Recorder dumps (pickle or JSON)",
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
        Reader("nccl-watchdog", "logs of NCCL's watchdog", watchdog.recognises, watchdog.read),
    )


def read_traces(paths: Iterable[str | PathLike[str]]) -> Trace:
    """Return what all files at ``paths`` say together: files, folders of files, tar archives, gzip or not.

    Raises UsageError where a file cannot be read or is in no known form; such files in folders and archives
    are passed over with a warning while there are others.
    """
    traces: list[Trace] = []
    warnings: list[SourceWarning] = []
    # Files of all ranks mostly have the same warnings: each is told once, with how many more have it.
    places_of: dict[SourceWarning, list[str]] = {}
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
            for warning in trace.warnings:
                places_of.setdefault(warning, []).append(place)
        if len(traces) == before:
            raise UsageError(reason)
    if not traces:
        raise UsageError("no trace was named; name files of torch.profiler, or folders of them")
    for warning, places in places_of.items():
        more = f" and {plural(len(places) - 1, 'more file')}" if len(places) > 1 else ""
        warnings.append(replace(warning, text=f"{places[0]}{more}: {warning.text}"))
    return one_job(traces, warnings)


def is_trace(path: str | PathLike[str], *, logs: bool = True) -> bool:
    """Tell whether ``read_traces`` is for ``path``: a folder, an archive, a file that a reader recognises.

    logs: of text that holds other lines too.
    """
    try:
        files = trace_files(str(path), [])
        first = next(files, None)
    except UsageError:
        return False
    head = first.head if first else b""
    several = Path(path).is_dir() or (first is not None and first.place != str(path))
    return several or any(
        reader.recognises(head) for reader in (readers() if logs else readers()[:-1])
    )


def _read(file: TraceFile) -> Trace:
    reader = next((reader for reader in readers() if reader.recognises(file.head)), None)
    # A job that hung after hours has what its log is read for at the end.
    if reader is None and file.head.strip() and b"\0" not in file.head:
        last = readers()[-1]
        trace = last.read(file)
        if trace.progress:
            return replace(trace, kinds=(last.name,), sources=(file.place,))
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
    if file.head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError("text in UTF-16 or UTF-32; save it as UTF-8")
    beginning = (
        shown(file.head[:60].decode("utf-8", "backslashreplace").strip())
        if file.head.strip()
        else "nothing"
    )
    forms = ", ".join(reader.form for reader in readers())
    raise UsageError(f"no trace that ccbench knows: {beginning}; known are {forms}")
