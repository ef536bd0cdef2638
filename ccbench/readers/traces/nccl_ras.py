"""Answers of NCCL's RAS client (``ncclras -f json``, from 2.28.7 on): how far the ranks of a running job are.

Form: docs/userguide/source/troubleshooting/ras.rst of github.com/NVIDIA/nccl, "JSON Output". Ranks are places
in a communicator. Counts are read one rank after the other, so those of a healthy job differ a little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ccbench.readers.traces.events import GroupProgress, ProcessGroup, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.json_stream import JsonDocument
from ccbench.readers.traces.words import count, listed, members
from ccbench.units import plain

IN_PROGRESS = 7
"""ncclInProgress as init_state; 0 is ncclSuccess, and all else an error."""


def recognises(head: bytes) -> bool:
    """Tell whether a file begins as an answer does."""
    begin = head[:4000]
    return (
        begin.lstrip().startswith(b"{")
        and b'ccl_version"' in begin
        and b'"communicators' in begin
    )


def read(file: TraceFile) -> Trace:
    """Return the progress of all ranks that answered, and what is wrong with those that did not."""
    document = JsonDocument(file.stream, "communicators")
    progress = tuple(
        rank_progress
        for _, communicator in document
        for rank_progress in _progress(communicator)
    )
    # "nccl_version", or that of a library made from it
    name = next((name for name in document.members if name.endswith("ccl_version")), "")
    library, version = name.removesuffix("_version"), plain(document.members.get(name, ""))
    return Trace(
        backend=library,
        groups=tuple(dict.fromkeys(rank_progress.group for rank_progress in progress)),
        progress=progress,
        versions={library: version} if version else {},
        warnings=tuple(document.warnings),
    )


def _progress(communicator: Mapping[str, Any]) -> Iterator[GroupProgress]:
    group = ProcessGroup(
        plain(communicator.get("hash", "")), count(communicator.get("size")) or 0
    )
    for there in ("ranks", "missing_ranks"):
        for row in map(members, listed(communicator.get(there))):
            rank = count(row.get("rank"))
            if rank is None:
                continue
            device = row.get("cuda_dev", "unknown")
            process = f"process {row.get('pid')} on {row.get('host')}, GPU {device}"
            place, status = plain(process, 200), members(row.get("status"))
            started, error = count(status.get("init_state")), count(status.get("async_error"))
            # A rank has one finding: the worst of these, which come first.
            troubles = {
                "considered dead": status.get("considered_dead") is True,
                "unresponsive": status.get("unresponsive") is True,
                "aborted": status.get("abort_flag") is True,
                f"in error (ncclResult_t {error})": bool(error) and error != IN_PROGRESS,
                f"not initialised (ncclResult_t {started})": bool(started),
                "no member of it any more, or not yet": there == "missing_ranks",
            }
            if trouble := next((text for text, here in troubles.items() if here), ""):
                yield GroupProgress(rank, group, place=place, trouble=trouble)
            for name, number in members(row.get("collective_counts")).items():
                yield GroupProgress(rank, group, plain(name), count(number), place=place)
