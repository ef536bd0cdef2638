"""Answers of NCCL's RAS client (``ncclras -f json``, from 2.28.7 on): how far the ranks of a running job are.

Form: docs/userguide/source/troubleshooting/ras.rst of github.com/NVIDIA/nccl, "JSON Output". Ranks are places
in a communicator. Counts are read one rank after the other, so those of a healthy job differ a little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ccbench.results.importers.words import capped
from ccbench.results.traces.events import ProcessGroup, Progress, Trace
from ccbench.results.traces.json_stream import JsonDocument
from ccbench.results.traces.reading import TraceFile, count
from ccbench.units import plain

IN_PROGRESS = 7
"""ncclInProgress as init_state; 0 is ncclSuccess, and all else an error."""


def recognises(head: bytes) -> bool:
    """Tell whether a file begins as an answer does."""
    begin = head[:4000]
    return begin.lstrip().startswith(b"{") and b'"nccl_version"' in begin and b'"communicators' in begin


def read(file: TraceFile) -> Trace:
    """Return the progress of all ranks that answered, and what is wrong with those that did not."""
    document = JsonDocument(file.stream, "communicators")
    progress = [one for _, communicator in document for one in _progress(communicator)]
    version = document.members.get("nccl_version")
    return Trace(
        kinds=("nccl-ras",),
        sources=(file.place,),
        communications=(),
        backend="nccl",
        groups=tuple(dict.fromkeys(one.group for one in progress)),
        progress=tuple(progress),
        versions={"nccl": plain(version)} if version else {},
        warnings=capped(document.warnings),
    )


def _progress(communicator: Mapping[str, Any]) -> Iterator[Progress]:
    group = ProcessGroup(plain(communicator.get("hash", "")), count(communicator.get("size")) or 0)
    for there in ("ranks", "missing_ranks"):
        ranks = communicator.get(there)
        for one in ranks if isinstance(ranks, list) else ():
            rank = count(one.get("rank")) if isinstance(one, dict) else None
            if rank is None:
                continue
            process = f"process {one.get('pid')} on {one.get('host')}, GPU {one.get('cuda_dev')}"
            place, trouble = plain(process, 200), _trouble(one.get("status"), there == "missing_ranks")
            counts = one.get("collective_counts")
            if trouble:
                yield Progress(rank, group, place=place, trouble=trouble)
            for name, number in counts.items() if isinstance(counts, dict) else ():
                yield Progress(rank, group, plain(name), count(number), place=place)


def _trouble(status: object, missing: bool) -> str:
    """What is wrong with a rank, in a word or two; "" where nothing is."""
    told = status if isinstance(status, dict) else {}
    started, error = count(told.get("init_state")), count(told.get("async_error"))
    troubles = {
        "considered dead": told.get("considered_dead") is True,
        "unresponsive": told.get("unresponsive") is True,
        "aborted": told.get("abort_flag") is True,
        f"in error (ncclResult_t {error})": bool(error) and error != IN_PROGRESS,
        f"not initialised (ncclResult_t {started})": bool(started),
        "no member of it any more, or not yet": missing,
    }
    return next((text for text, here in troubles.items() if here), "")
