"""Jobs made up for tests: ranks with clocks of their own, collectives of known transfer and lateness."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ccbench.backends import open_backend
from ccbench.cases.axes import Case
from ccbench.readers.traces.events import Communication, ProcessGroup, Trace
from ccbench.suite.expansion import ExpansionContext, expand
from ccbench.suite.model import read_suite

WORLD = ProcessGroup("0", 4, (0, 1, 2, 3), "default_pg")


def call(
    rank: int | None = 0, collective: str = "all_reduce", size_bytes: int = 4096, **fields: Any
) -> Communication:
    """Return one record; input and output are ``size_bytes`` unless told otherwise."""
    defaults: dict[str, Any] = {
        "name": f"nccl:{collective}",
        "group": WORLD,
        "dtype": "float32",
        "input_bytes": size_bytes,
        "output_bytes": size_bytes,
    }
    return Communication(rank, collective, **{**defaults, **fields})


def trace(records: Sequence[Communication], **fields: Any) -> Trace:
    """Return a trace of ``records`` by NCCL, of the ranks that they name."""
    ranks = sorted({record.rank for record in records if record.rank is not None})
    defaults: dict[str, Any] = {"ranks": tuple(ranks), "world_size": 4, "backend": "nccl"}
    return Trace(("kineto",), ("made",), tuple(records), **{**defaults, **fields})


def expanded(text: str, backend: str = "nccl") -> list[Case]:
    """Return the cases of the suite ``text``."""
    context = ExpansionContext(
        (backend,),
        (backend,),
        None,
        2,
        lambda name, collective: open_backend(name).algorithms(collective),
    )
    return list(expand(read_suite(text), context))


def job(
    steps: int = 5,
    transfer_seconds: float = 0.010,
    late: Mapping[int, float] | None = None,
    computing_seconds: float = 0.050,
    clock: Callable[[int], float] = lambda rank: 1000.0 * rank,
    hidden_seconds: float = 0.0,
) -> Trace:
    """Return a job of four ranks that compute, then reduce, ``steps`` times.

    late: rank -> seconds that it computes longer than the others. hidden_seconds: of the transfer, at its
    end, what computing of the same rank covers.
    """
    late = late or {}
    longest = computing_seconds + max(late.values(), default=0.0)
    step_seconds = longest + transfer_seconds
    records, computing, marked = [], {}, {}
    for rank in WORLD.ranks:
        busy = computing_seconds + late.get(rank, 0.0)
        begins = [clock(rank) + number * step_seconds for number in range(steps)]
        for number, begin in enumerate(begins):
            end = begin + step_seconds
            start = begin + busy
            records.append(
                call(
                    rank,
                    line=number,
                    start_seconds=start,
                    duration_seconds=end - start,
                    stream="20",
                )
            )
        own = [(begin, begin + busy) for begin in begins]
        own += [
            (begin + step_seconds - hidden_seconds, begin + step_seconds) for begin in begins
        ]
        computing[rank] = np.array(
            sorted(interval for interval in own if interval[1] > interval[0])
        )
        marked[rank] = np.array([(begin, begin + step_seconds) for begin in begins])
    return trace(records, computing=computing, steps=marked)


def kineto_files(folder: Path, made: Trace) -> list[Path]:
    """Write ``made``, whose records are all_reduces of WORLD, as torch.profiler would; one file a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_kineto_file(folder / f"rank{rank}.json", made, rank) for rank in made.ranks]


def _kineto_file(path: Path, made: Trace, rank: int) -> Path:
    def event(
        name: str, category: str, start: float, end: float, **args: Any
    ) -> dict[str, Any]:
        place = {
            "pid": 0,
            "tid": args.get("stream", 7),
            "ts": start * 1e6,
            "dur": (end - start) * 1e6,
        }
        return {"ph": "X", "cat": category, "name": name, "args": args, **place}

    events = [
        event(f"ProfilerStep#{number}", "user_annotation", *step)
        for number, step in enumerate(made.steps[rank])
    ]
    events += [event("gemm", "kernel", *busy, stream=7) for busy in made.computing[rank]]
    for record in (
        communication for communication in made.communications if communication.rank == rank
    ):
        start, elements = record.start_seconds or 0.0, (record.input_bytes or 0) // 4
        arguments = {
            "Collective name": "allreduce",
            "dtype": "Float",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": 4,
            "Process Group Name": "0",
            "Process Group Ranks": "[0, 1, 2, 3]",
            "stream": 20,
        }
        end = start + (record.duration_seconds or 0.0)
        events.append(
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel", start, end, **arguments)
        )
    who = {"backend": "nccl", "rank": rank, "world_size": 4}
    path.write_text(
        json.dumps({"schemaVersion": 1, "distributedInfo": who, "traceEvents": events})
    )
    return path
