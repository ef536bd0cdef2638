"""``ccbench replay``, and ``ccbench check`` of traces, as people call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ccbench.results import load_run
from tests.cli.conftest import Command
from tests.readers.traces.jobs import job, kineto_files
from tests.readers.traces.recorded import needs_traces, path_of

LATE_RANK, LATE_SECONDS, TRANSFER_SECONDS = 2, 0.030, 0.010


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    """Files of a job of four ranks, of which one is late by 30 ms at each of five steps."""
    made = job(steps=5, transfer_seconds=TRANSFER_SECONDS, late={LATE_RANK: LATE_SECONDS})
    return [str(path) for path in kineto_files(tmp_path / "traces", made)]


def test_a_late_rank_is_named_and_its_part_told(ccbench: Command, traces: list[str]) -> None:
    ended = ccbench("replay", *traces).done
    assert "job: kineto 4 ranks recorded of 4 nccl" in ended.out
    assert "22.5 ms waiting for rank 2" in " ".join(ended.out.split())
    assert "rank 2 (5 of 5)" in ended.out


def test_a_folder_of_traces_is_the_job_of_its_files(
    ccbench: Command, traces: list[str]
) -> None:
    folder = str(Path(traces[0]).parent)
    assert ccbench("replay", folder).done.out == ccbench("replay", *traces).done.out


def test_json_has_the_parts_of_a_step_and_of_each_case(
    ccbench: Command, traces: list[str]
) -> None:
    document = ccbench("replay", *traces, "--json").done.json
    step, (case,) = document["step"], document["cases"]
    assert step["waiting_seconds"] == pytest.approx(3 / 4 * LATE_SECONDS)
    assert step["waiting_for"] == {str(LATE_RANK): pytest.approx(3 / 4 * LATE_SECONDS)}
    assert case["transfer_seconds"] == pytest.approx(TRANSFER_SECONDS)
    assert (case["last_rank"], case["last_count"], case["count"]) == (LATE_RANK, 5, 5)


@pytest.mark.exhaustive
def test_each_case_is_measured_once_and_stands_beside_the_job(
    ccbench: Command, traces: list[str]
) -> None:
    ended = ccbench("replay", *traces, "--backend", "cpu", "--json", "-q").done
    (case,) = ended.json["cases"]
    assert case["measured_seconds"] > 0
    assert case["ratio"] == pytest.approx(TRANSFER_SECONDS / case["measured_seconds"])
    folder = ended.err.split("run folder: ")[1].split()[0]
    assert [point.collective for point in load_run(folder).points] == ["all_reduce"]
    assert ended.json["compared"] == f"measured on cpu, {folder}"


@pytest.mark.exhaustive
def test_fewer_ranks_than_the_job_are_marked(ccbench: Command, traces: list[str]) -> None:
    ended = ccbench("replay", *traces, "--backend", "cpu", "--ranks", "2", "-q").done
    assert "remark 1: 2 of the job's 4 ranks" in ended.out


def test_another_machine_is_priced_with_what_if_lines(
    ccbench: Command, traces: list[str]
) -> None:
    document = ccbench("replay", *traces, "--machine", "hgx-h100", "--json").done.json
    (case,) = document["cases"]
    assert 0 < case["bound_seconds"] <= case["predicted_seconds"]
    assert [line["what"] for line in document["what_if"]] == [
        "every collective takes its bound",
        "on hgx-h100, by the model",
    ]
    few = ccbench(
        "replay", *traces, "--machine", "dgx-a100", "--nodes", "1", "--ranks", "2", "--json"
    )
    assert few.done.json["cases"][0]["remarks"] == ["2 of the job's 4 ranks"]


def test_ranks_are_priced_on_as_many_machines_as_are_given(
    ccbench: Command, traces: list[str]
) -> None:
    network = ("--machine", "dgx-a100", "--network", "ib-ndr-400x8", "--json")
    documents = [
        ccbench("replay", *traces, *network, "--nodes", nodes).done.json
        for nodes in ("1", "2", "3")
    ]
    cases = [document["cases"][0] for document in documents]
    assert [document["compared"] for document in documents[:2]] == [
        "predicted for dgx-a100",
        "predicted for 2 x dgx-a100",
    ]
    assert cases[0]["predicted_seconds"] < cases[1]["predicted_seconds"]
    assert cases[2]["remarks"] == ["not priced: 4 ranks do not spread evenly over 3 machines"]


def test_a_host_is_priced_by_the_run_of_its_backend(
    ccbench: Command, traces: list[str]
) -> None:
    options = (
        "--machine",
        "cpu-shared-memory",
        "--backend",
        "simulated",
        "--ranks",
        "4",
        "-q",
        "--json",
    )
    (case,) = ccbench("replay", *traces, *options).done.json["cases"]
    assert case["predicted_seconds"] > 0


def test_a_suite_without_cases_is_not_written(ccbench: Command) -> None:
    Path("none.json").write_text(
        '{"traceEvents": [], "distributedInfo": {"rank": 0, "world_size": 4}}'
    )
    ended = ccbench("replay", "none.json", "-o", "none.yaml")
    assert ended.code == 2
    assert "no communication is recorded here" in ended.out
    assert "no case for a suite" in ended.err
    assert not Path("none.yaml").exists()


def test_a_suite_of_the_cases_runs_as_it_is(ccbench: Command, traces: list[str]) -> None:
    printed = ccbench("replay", *traces, "-o", "suite.yaml").done.err
    assert "wrote suite.yaml; measure it with: ccbench run suite.yaml" in printed
    (entry,) = yaml.safe_load(Path("suite.yaml").read_text())["sweep"]
    assert (entry["collective"], entry["ranks"], entry["size"]) == ("all_reduce", 4, ["4096 B"])
    ended = ccbench("run", "suite.yaml", "--backend=cpu", "--oversubscribe", "-o", "run", "-q")
    assert ended.code == 0, ended.err
    assert [point.size_bytes for point in load_run("run").points] == [4096]


@needs_traces
def test_no_transfer_of_a_recorded_job_is_longer_than_its_whole_time(ccbench: Command) -> None:
    files = [path_of(f"kineto/gloo_4ranks_rank{rank}.json.gz") for rank in range(4)]
    cases = ccbench("replay", *files, "--json").done.json["cases"]
    both = [
        (case["transfer_seconds"], case["job_seconds"])
        for case in cases
        if case["transfer_seconds"] is not None
    ]
    assert len(both) == 2
    assert all(0 < transfer <= whole for transfer, whole in both)


def test_a_plan_runs_nothing(ccbench: Command, traces: list[str]) -> None:
    ended = ccbench("replay", *traces, "--plan", "--backend", "cpu").done
    assert "all_reduce float32" in ended.out
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "broadcast"], "broadcast"),
        (["-o", "job.txt"], "end it in .yaml for a suite"),
        (["--machine", "no-such"], "no-such"),
        (["--machine", "p3.2xlarge"], "p3.2xlarge"),
        (
            ["--launch", "mpirun -n 4", "--ranks", "4"],
            "--launch mpirun -n 4: say with --backend",
        ),
        (["--network", "ib-ndr-400x8"], "--network ib-ndr-400x8: say with --machine"),
        (
            ["--machine", "cpu-shared-memory"],
            "has no GPUs; to price a host, add --backend simulated",
        ),
        (
            ["--backend", "cpu", "--launch", "mpirun -n 4"],
            "say with --ranks how many ranks it starts",
        ),
    ],
)
def test_mistakes_are_one_line(
    ccbench: Command, traces: list[str], arguments: list[str], sentence: str
) -> None:
    assert sentence in ccbench("replay", *traces, *arguments).refused.err


def test_what_is_no_trace_is_refused(ccbench: Command) -> None:
    Path("words.txt").write_text("no trace")
    assert (
        "words.txt: no trace that ccbench knows" in ccbench("replay", "words.txt").refused.err
    )
    Path("dump.pkl").write_bytes(b"\x80\x04\x95")
    for command in ("replay", "check"):
        ended = ccbench(command, "dump.pkl")
        assert "a pickle that is damaged or cut off" in ended.out + ended.err


def test_a_rank_under_mpirun_does_not_replay(
    ccbench: Command, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert "replay starts its ranks itself" in ccbench("replay", *traces).refused.err


def test_a_job_is_imported_and_set_beside_a_run(ccbench: Command, traces: list[str]) -> None:
    ccbench("check", *traces, "-o", "job").ends(3)
    (point,) = load_run("job").points
    assert point.median_seconds == pytest.approx(TRANSFER_SECONDS)
    assert (point.backend, point.nodes, point.ranks) == ("nccl", 0, 4)
    slower = job(steps=5, transfer_seconds=2 * TRANSFER_SECONDS)
    ccbench("check", *map(str, kineto_files(Path("slower"), slower)), "-o", "later").ends(3)
    compared = ccbench("compare", "job", "later")
    assert compared.code == 1
    assert "+100" in compared.out


def test_who_is_behind_in_a_job_that_hangs_is_told_first(ccbench: Command) -> None:
    """Four dumps of PyTorch's Flight Recorder; rank 3 made one call less."""
    for rank in range(4):
        entries = [
            {
                "record_id": number,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": number + 1,
                "p2p_seq_id": 0,
                "op_id": number + 1,
                "profiling_name": "nccl:all_reduce",
                "input_sizes": [[1024]],
                "output_sizes": [[1024]],
                "input_dtypes": ["Float"],
                "output_dtypes": ["Float"],
                "is_p2p": False,
                "time_created_ns": number,
                "state": "scheduled" if number == 4 else "completed",
            }
            for number in range(4 if rank == 3 else 5)
        ]
        dump = {
            "version": "2.9",
            "rank": rank,
            "entries": entries,
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        }
        Path(f"flight_{rank}.json").write_text(json.dumps(dump))
    files = [f"flight_{rank}.json" for rank in range(4)]
    ended = ccbench("replay", *files).done
    lines = ended.out.splitlines()
    assert lines[1].startswith(
        "the job hangs: rank 3 stopped before call 5 of process group '0' (default_pg)"
    )
    assert "Problem: Rank 3 stopped before call 5" in ended.out
    (finding,) = ccbench("replay", *files, "--json").done.json["findings"]
    assert (finding["kind"], finding["devices"]) == ("rank_behind", ["rank 3"])


@pytest.mark.parametrize(
    "text", ['{"traceEvents": [', '{"traceEvents": [{"ph": "X", "cat": "kernel", "na']
)
@pytest.mark.parametrize("command", ["replay", "check"])
def test_a_damaged_trace_without_an_event_is_refused(
    ccbench: Command, tmp_path: Path, text: str, command: str
) -> None:
    (tmp_path / "rank0.json").write_text(text)
    ended = ccbench(command, "rank0.json")
    assert ended.code == (3 if command == "check" else 2)
    words = "rank0.json: damaged or cut off before its first event; nothing of it can be read, record it again"
    assert words in ended.out + ended.err
