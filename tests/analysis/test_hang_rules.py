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
from tests.analysis.nccl_logs import log
from tests.readers.traces.nccl_ras_texts import rank as ras_rank

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
    "name", ["nccl_trace_rank_gpu-host0{}_{}", "nccl_trace_rank_10.1.0.{}_{}"]
)
def test_a_dump_is_of_the_rank_behind_the_name_of_its_host(name: str, tmp_path: Path) -> None:
    for rank in range(6):
        written(tmp_path, name.format(rank // 2, rank), dump(rank, 8 if rank == 5 else 9, 6))
    assert answer(tmp_path).sentence.startswith("PROBLEM: rank 5 stopped before call 9 of")


def test_calls_that_are_open_are_never_no_hang(tmp_path: Path) -> None:
    """Dumps whose names have no rank: who is behind is not known, that a call is open is."""
    for host in ("first", "second"):
        written(tmp_path, f"dump-{host}", dump(0, 9))
    verdict = answer(tmp_path)
    assert verdict.outcome is Outcome.CANNOT_SAY
    assert "a rank that is not named made call 9 of process group '0'" in (verdict.sentence)
    assert "nccl_trace_rank_3" in verdict.diagnoses[0].advice


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


def test_the_process_that_stands_elsewhere_is_named(tmp_path: Path) -> None:
    text = stacks(["all_reduce", "all_reduce", "load_batch", "all_reduce"])
    sentence = answer(written(tmp_path, "stacks.txt", text)).sentence
    assert sentence == "PROBLEM: local rank 2 stands in load_batch, 3 others in all_reduce"


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ("--local-rank=3 --rank=11", "rank 11"),
        ("--rank 11 --local_rank 3", "rank 11"),
        ("--node_rank=1 --global-rank=11", "rank 11"),
        ("--node-rank=1 --local_rank=3", "local rank 3"),
        ("--machine_rank 1 --lora_rank=16", "process 900"),
    ],
)
def test_the_global_rank_goes_before_the_local_one(
    options: str, who: str, tmp_path: Path
) -> None:
    late = STACK.format(process=900, rank=0, frame="read_shard")
    late = late.replace("--local_rank=0", options)
    text = stacks(["all_reduce"] * 3) + late
    assert answer(written(tmp_path, "stacks.txt", text)).sentence == (
        f"PROBLEM: {who} stands in read_shard, 3 others in all_reduce"
    )


@pytest.mark.parametrize(
    "command",
    [
        "/opt/conda/bin/python -u -m torch.distributed.run --nproc-per-node 4 train.py",
        "python -m torch.distributed.launch --node_rank=0 train.py",
        "/usr/bin/python3.11 /opt/conda/bin/torchrun train.py",
        "mpirun -n 4 python train.py",
        "python /usr/local/bin/accelerate launch train.py",
    ],
)
def test_launchers_are_no_ranks(command: str, tmp_path: Path) -> None:
    launcher = STACK.format(process=90, rank=0, frame="wait")
    launcher = launcher.replace("python train.py --local_rank=0", command)
    text = launcher + stacks(["all_reduce"] * 4)
    verdict = answer(written(tmp_path, "stacks.txt", text))
    assert verdict.outcome is Outcome.CANNOT_SAY
    assert "All 4 processes stand in all_reduce" in verdict.sentence
    behind = launcher + stacks(["all_reduce", "all_reduce", "load_batch"])
    assert answer(written(tmp_path, "behind.txt", behind)).sentence == (
        "PROBLEM: local rank 2 stands in load_batch, 2 others in all_reduce"
    )


def test_processes_that_load_data_are_no_ranks(tmp_path: Path) -> None:
    loader = STACK.format(process=90, rank=0, frame="poll").replace(
        "    main (", "    _worker_loop (torch/utils/data/_utils/worker.py:275)\n    main ("
    )
    text = stacks(["all_reduce"] * 3) + loader
    assert "All 3 processes stand in" in answer(written(tmp_path, "all.txt", text)).sentence


def test_one_stack_in_a_collective_asks_for_the_others(tmp_path: Path) -> None:
    verdict = answer(written(tmp_path, "stack.txt", stacks(["all_reduce"])))
    assert verdict.outcome is Outcome.CANNOT_SAY
    assert "1 process stands in all_reduce; give the stacks of the other ranks" in (
        verdict.sentence
    )


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


def test_a_group_without_a_list_of_its_communicators_is_a_problem(tmp_path: Path) -> None:
    text = RAS.format(status="MISMATCH", lines="").replace("#0-0 (cb9f8a1e) MISMATCH", "")
    sentence = answer(written(tmp_path, "ras.txt", text)).sentence
    assert sentence == (
        "PROBLEM: communicators of group 0 are not in the same state on all ranks"
    )


def test_a_healthy_summary_of_ras_is_stated_and_nothing_is_diagnosed(tmp_path: Path) -> None:
    text = RAS.format(status="OK", lines="").replace("#0-0 (cb9f8a1e) OK", "")
    healthy = answer(written(tmp_path, "ras.txt", text))
    assert [line.values["state"] for line in healthy.evidence.of("ras_ok")] == ["RUNNING"]
    assert healthy.diagnoses == ()


def test_watchdog_lines_within_a_log_of_nccl_are_judged_with_it(tmp_path: Path) -> None:
    status = (
        "[rank{rank}]:[E1103 10:00:00.1 ProcessGroupNCCL.cpp:2268] "
        "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {count} "
        "PG status: last enqueued work: {count}, last completed work: {done}\n"
    )
    text = log(nodes=1, local_ranks=2)
    text += status.format(rank=0, count=7, done=6) + status.format(rank=1, count=6, done=5)
    given = answer(written(tmp_path, "job.log", text))
    assert "rank 1 stopped" in given.sentence
    assert {part.form for part in given.evidence.parts} >= {"NCCL log", "ProcessGroupNCCL log"}


STUCK = (
    "[rank{rank}]:[E419 10:53:25.42 ProcessGroupNCCL.cpp:1484] [PG ID 2 PG GUID 9 Rank 0] ProcessGroupNCCL's "
    "watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives. This "
    "typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog\n"
)
TIMEOUT = (
    "[rank4]:[E626 05:06:30.92 ProcessGroupNCCL.cpp:632] [Rank 4] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=31, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600065 "
    "milliseconds before timing out.\n"
)


def test_ranks_whose_watchdog_is_stuck_are_named(tmp_path: Path) -> None:
    text = "step 7\n" + STUCK.format(rank=3) + STUCK.format(rank=6)
    verdict = answer(written(tmp_path, "job.log", text))
    assert verdict.sentence == (
        "PROBLEM: a CUDA or NCCL call or the GIL blocks the watchdog thread of ranks 3, 6: "
        "no progress for 600 seconds"
    )
    (stuck,) = verdict.diagnoses
    assert stuck.count == 2
    assert "watchdog got stuck" in stuck.quotes[0].quote
    assert "--native" in stuck.command


def test_a_stuck_rank_without_a_dump_is_not_said_to_lack_calls(tmp_path: Path) -> None:
    dumps = [written(tmp_path, f"nccl_trace_rank_{rank}", dump(rank, 9)) for rank in range(3)]
    verdict = answer(*dumps, written(tmp_path, "job.log", STUCK.format(rank=3)))
    assert [found.kind for found in verdict.diagnoses] == ["watchdog_stuck", "no_dump"]
    assert verdict.diagnoses[1].subject.startswith("all ranks that left a dump made call 9")
    assert verdict.diagnoses[1].subject.endswith("no call of rank 3 is here")


def test_calls_that_timed_out_are_a_problem_of_the_ranks_that_say_so(tmp_path: Path) -> None:
    text = TIMEOUT + TIMEOUT.replace("ank 4", "ank 9").replace("ank4", "ank9").replace(
        "[Rank", "[PG 2 Rank"
    )
    text += "[rank4]:[E6 ProcessGroupNCCL.cpp:1] [Rank 4] Some NCCL operations have failed or timed out.\n"
    assert answer(written(tmp_path, "job.log", text)).sentence == (
        "PROBLEM: ranks 4, 9 made call 31 of process group '2', all_reduce of 64 elements, and did not complete it; "
        "nothing shows who is behind"
    )
    crash = "[rank3]: RuntimeError: CUDA error: device-side assert triggered\n"
    assert (
        "PROBLEM: A kernel before"
        in answer(written(tmp_path, "job.log", crash + text)).sentence
    )


def test_ranks_in_the_text_are_not_called_all(tmp_path: Path) -> None:
    """Three ranks of a group whose size nobody says; calls too far apart for one group; a line without a rank."""
    line = TIMEOUT.replace("[Rank 4]", "[PG ID 0 PG GUID 0(default_pg) Rank 4]")
    three = "".join(
        line.replace("ank4", f"ank{rank}").replace("ank 4", f"ank {rank}") for rank in range(3)
    )
    apart = TIMEOUT + TIMEOUT.replace("ank 4", "ank 7").replace("ank4", "ank7").replace(
        "=31", "=9031"
    )
    for text, who in (
        (three, "ranks 0-2 made call 31 of process group '0' (default_pg)"),
        (apart, "rank 4 made call 31 of a process group"),
        (TIMEOUT.replace("SeqNum=31, ", ""), "rank 4 made a call of a process group"),
        (TIMEOUT[TIMEOUT.index("Watchdog") :], "a rank that is not named made call 31"),
    ):
        sentence = answer(written(tmp_path, "job.log", text)).sentence
        assert sentence.startswith(f"PROBLEM: {who}"), sentence
        assert "did not complete it; nothing shows who is behind" in sentence


def test_a_stuck_rank_is_seen_though_nothing_is_known_of_its_calls(tmp_path: Path) -> None:
    text = STUCK.format(rank=7) + TIMEOUT + STUCK.format(rank=5)
    verdict = answer(written(tmp_path, "job.log", text))
    assert "ranks 5, 7" in verdict.sentence
    assert (
        "nothing is here of ranks 0-3, 6 and of those above 7, if there are: they are not seen"
        in (verdict.remarks)
    )
    (hang,) = [found for found in verdict.diagnoses if found.kind == "not_completed"]
    assert hang.subject.startswith("rank 4 made call 31 of a process group, all_reduce")
    assert hang.severity == "problem"
    assert [quote.place for quote in hang.quotes] == ["job.log:2"]


@pytest.mark.skipif(not HUNG.is_dir(), reason="no dumps of hung jobs beside the checkout")
@pytest.mark.parametrize(
    ("job", "ranks"), [("fr_lock_gil_1st", "9, 14"), ("fr_gpu_error_1st", "12, 14")]
)
def test_real_jobs_that_hung_have_their_ranks_in_the_first_sentence(
    job: str, ranks: str
) -> None:
    assert answer(HUNG / job).sentence.startswith(f"PROBLEM: ranks {ranks} stopped ")


def test_a_rank_that_the_ras_clients_json_calls_dead_is_a_problem(tmp_path: Path) -> None:
    dead = {"rank": 2, "host": "n2", "pid": 5, "status": {"considered_dead": True}}
    communicator = {
        "hash": "0xae94",
        "size": 3,
        "ranks": [ras_rank(0), ras_rank(1)],
        "missing_ranks": [dead],
    }
    document = {
        "nccl_version": "2.29.1",
        "communicators_count": 1,
        "communicators": [communicator],
        "ras": {},
    }
    given = answer(written(tmp_path, "ras.json", json.dumps(document)))
    assert given.outcome is Outcome.PROBLEM
    assert "Rank 2 of process group '0xae94' is considered dead" in given.sentence
