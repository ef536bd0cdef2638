"""What a hang leaves, whole, and who must be named."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from ccbench.analysis.diagnose import Answer, Outcome, answer_of
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.readers.evidence import read_evidence

HUNG = Path(__file__).resolve().parents[3] / "shared" / "data" / "hung_jobs"


def answer(*files: Path) -> Answer:
    return answer_of(read_evidence(files), StatedSystem("", None, None, ""))


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def dump(rank: int, calls: int, ranks: int = 4) -> str:
    """Dump of a rank that made ``calls`` calls of the default group and completed all but the last."""

    def entry(sequence: int) -> dict[str, Any]:
        return {
            "record_id": sequence,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": sequence,
            "p2p_seq_id": 0,
            "op_id": sequence,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": sequence,
            "input_sizes": [[1024]],
            "input_dtypes": ["Float"],
            "output_sizes": [[1024]],
            "output_dtypes": ["Float"],
            "state": "scheduled" if sequence == 9 else "completed",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": sequence != 9,
            "timeout_ms": 600000,
            "is_p2p": False,
        }

    config = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    document = {
        "version": "2.9",
        "pg_config": {"0": config},
        "entries": [entry(sequence) for sequence in range(1, calls + 1)],
    }
    return json.dumps(document)


STACK = (
    "Process {process}: python train.py --local_rank={rank}\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
    'Thread {process} (active): "MainThread"\n    {frame} (train.py:88)\n    main (train.py:120)\n'
    'Thread 77 (idle): "Thread-1"\n    wait (threading.py:331)\n'
)


def stacks(frames: list[str]) -> str:
    return "".join(
        STACK.format(process=100 + rank, rank=rank, frame=frame)
        for rank, frame in enumerate(frames)
    )


def test_dumps_and_stacks_of_one_hang_are_one_answer(tmp_path: Path) -> None:
    files = [
        written(tmp_path, f"flight_{rank}.json", dump(rank, 8 if rank == 2 else 9))
        for rank in range(4)
    ]
    frames = ["all_reduce", "all_reduce", "load_checkpoint", "all_reduce"]
    given = answer(*files, written(tmp_path, "stacks.txt", stacks(frames)))
    assert given.outcome is Outcome.PROBLEM
    assert given.sentence.startswith(
        "PROBLEM: rank 2 stopped before call 9 of process group '0'"
    )
    assert "load_checkpoint (train.py:88)" in [
        quote.quote for quote in given.diagnoses[0].quotes
    ]


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        ({"state": None}, "1 recorded call not understood: no state"),
        ({"profiling_name": "nccl:all_re\ufffd"}, "1 recorded call not understood"),
        (None, "1 recorded call not understood"),
        (..., "no call is recorded"),
    ],
)
def test_a_dump_that_is_damaged_or_empty_is_never_nothing_wrong(
    last: Any, sentence: str, tmp_path: Path
) -> None:
    document = json.loads(dump(0, 9))
    calls = document["entries"]
    whole = calls.pop()
    document["entries"] = (
        [] if last is ... else [*calls, whole | last if isinstance(last, dict) else last]
    )
    for name, content in (
        ("json_0", json.dumps(document).encode()),
        ("pickle_0", pickle.dumps(document, 2)),
    ):
        (tmp_path / name).write_bytes(content)
        verdict = answer(tmp_path / name)
        assert verdict.outcome is Outcome.CANNOT_SAY
        assert verdict.sentence.startswith("CANNOT SAY")
        assert sentence in " ".join((verdict.sentence, *verdict.remarks))


RAS = """\
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  {status}

Errors
======

#0-0 (cb9f8a1e) {status}
{lines}
"""


@pytest.mark.parametrize(
    ("status", "lines", "words"),
    [
        (
            "MISMATCH",
            "  Communicator ranks have different collective operation counts\n"
            "  31 ranks have launched up to operation 6650\n  1 rank has launched up to operation 6649\n"
            "  Rank 17 -- GPU 1 managed by process 483072 on node 10.0.0.2",
            "rank 17 of communicator 0-0 is at operation 6649, 31 ranks at 6650",
        ),
        (
            "MISMATCH",
            "  Communicator ranks have different collective operation counts\n"
            "  31 ranks have launched up to operation 60\n"
            "  Rank 7 has launched up to operation 59 -- GPU 7 managed by process 4 on node n1",
            "rank 7 of communicator 0-0 is at operation 59, 31 ranks at 60",
        ),
        (
            "INCOMPLETE",
            "  Missing communicator data from 1 job process\n  Process 3487984 on node 10.0.0.9 managing GPU 5",
            "communicator 0-0 has no answer of process 3487984 on 10.0.0.9",
        ),
        (
            "INCOMPLETE",
            "  Missing communicator data from 1 rank\n  Rank 5 -- GPU 1 managed by process 77 on node 10.2.0.3",
            "communicator 0-0 has no answer of rank 5; process 77 on 10.2.0.3",
        ),
        (
            "INCOMPLETE,MISMATCH",
            "  Missing communicator data from 2 ranks\n  The missing ranks: 21-22",
            "communicator 0-0 has no answer of ranks 21-22",
        ),
        (
            "MISMATCH",
            "  Communicator ranks have different AllGather operation counts\n"
            "  14 ranks have launched up to operation 90\n  2 ranks have launched up to operation 91\n"
            "  Rank 3 -- GPU 3 managed by process 8 on node n1\n  Rank 6 -- GPU 6 managed by process 9 on node n1",
            "14 ranks of communicator 0-0 are at operation 90, ranks 3, 6 at 91",
        ),
        (
            "MISMATCH",
            "  Communicator ranks have different AllReduce operation counts\n"
            "  15 ranks have launched up to operation 900\n"
            "  Rank 4 has launched up to operation 899 -- GPU 4 managed by process 4 on node n1\n"
            "  Communicator ranks have different Broadcast operation counts\n"
            "  15 ranks have launched up to operation 7\n"
            "  Rank 4 has launched up to operation 6 -- GPU 4 managed by process 4 on node n1",
            "rank 4 of communicator 0-0 is at operation 899, 15 ranks at 900",
        ),
        (
            "MISMATCH",
            "  Communicator ranks have different status\n  15 ranks have status RUNNING\n"
            "  Rank 9 -- GPU 1 managed by process 7 on node n2",
            "communicator 0-0 is not in the same state on all ranks; ncclras names rank 9",
        ),
    ],
)
def test_the_rank_that_is_behind_is_named_from_the_ras_clients_text(
    status: str, lines: str, words: str, tmp_path: Path
) -> None:
    assert (
        words
        in answer(written(tmp_path, "ras.txt", RAS.format(status=status, lines=lines))).sentence
    )


TIMEOUT = (
    "[rank4]:[E626 05:06:30.92 ProcessGroupNCCL.cpp:632] [Rank 4] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=31, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600065 "
    "milliseconds before timing out.\n"
)


@pytest.mark.skipif(not HUNG.is_dir(), reason="no dumps of hung jobs beside the checkout")
@pytest.mark.parametrize(
    ("job", "ranks"), [("fr_lock_gil_1st", "9, 14"), ("fr_gpu_error_1st", "12, 14")]
)
def test_real_jobs_that_hung_have_their_ranks_in_the_first_sentence(
    job: str, ranks: str
) -> None:
    assert answer(HUNG / job).sentence.startswith(f"PROBLEM: ranks {ranks} stopped ")
