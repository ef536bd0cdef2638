"""Answers of NCCL's RAS client: counts of collectives become progress, troubles are named."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ccbench.readers.traces import nccl_ras
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.lag import lag
from ccbench.readers.traces.one_job import one_job

FINE = {
    "init_state": 0,
    "async_error": 0,
    "finalize_called": False,
    "destroy_flag": False,
    "abort_flag": False,
}


def rank(number: int, reduced: int = 6650, **status: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "host": "172.16.64.245",
        "pid": 1000 + number,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": {**FINE, **status},
        "collective_counts": {"Broadcast": 3, "AllReduce": reduced},
    }


def trace_of(*ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = ()) -> Trace:
    communicator = {"hash": "0xae94", "size": 4, "ranks": ranks, "missing_ranks": missing}
    data = json.dumps(
        {
            "nccl_version": "2.29.1",
            "communicators_count": 1,
            "communicators": [communicator],
            "ras": {},
        }
    ).encode()
    assert nccl_ras.recognises(data)
    return nccl_ras.read(TraceFile("ras.json", data, io.BytesIO(data)))


def test_ranks_that_made_as_many_calls_are_no_finding() -> None:
    trace = trace_of(*map(rank, range(4)))
    assert lag(trace, None) == ()
    assert (trace.versions, len(trace.progress), trace.communications) == (
        {"nccl": "2.29.1"},
        8,
        (),
    )
    assert lag(one_job([trace]), None) == ()


def test_a_rank_with_fewer_calls_is_behind_in_that_collective() -> None:
    (finding,) = lag(trace_of(rank(0), rank(1, 6649), rank(2), rank(3)), None)
    assert finding.subject == "Rank 1 is behind in process group '0xae94'"
    assert finding.evidence == "others made 6650 AllReduce calls, rank 1 made 6649"
    assert finding.severity == "doubt"


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({"async_error": 3}, "in error (ncclResult_t 3)"),
        ({"init_state": 7}, "not initialised (ncclResult_t 7)"),
        ({"abort_flag": True}, "aborted"),
    ],
)
def test_what_ranks_say_is_wrong_with_them_is_named(
    status: dict[str, Any], trouble: str
) -> None:
    (finding,) = lag(trace_of(rank(0), rank(1), rank(2), rank(3, 1, **status)), None)
    assert finding.subject == f"Rank 3 of process group '0xae94' is {trouble}"
    assert finding.evidence == "process 1003 on 172.16.64.245, GPU 3"


def test_ranks_that_did_not_answer_are_named() -> None:
    dead: dict[str, Any] = {
        "rank": 2,
        "host": "n2",
        "pid": 5,
        "status": {"considered_dead": True},
    }
    findings = lag(trace_of(rank(0), rank(1), missing=(dead, {"rank": 3})), None)
    assert [
        (finding.kind, finding.devices, finding.subject.rpartition(" is ")[2])
        for finding in findings
    ] == [
        ("rank_in_trouble", ("rank 2",), "considered dead"),
        ("rank_in_trouble", ("rank 3",), "no member of it any more, or not yet"),
    ]


def test_the_counts_of_an_answer_that_is_cut_off_are_kept() -> None:
    whole = json.dumps(
        {
            "nccl_version": "2.29.1",
            "communicators": [{"hash": "a", "size": 1, "ranks": [rank(0)]}],
        }
    )
    data = whole[:-2].encode()
    trace = nccl_ras.read(TraceFile("ras.json", data, io.BytesIO(data)))
    assert len(trace.progress) == 2
    assert [warning.kind for warning in trace.warnings] == ["truncated"]
