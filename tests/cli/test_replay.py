"""``ccbench replay``, and ``ccbench check`` of traces, as people call them."""

from __future__ import annotations

from pathlib import Path

import pytest

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
