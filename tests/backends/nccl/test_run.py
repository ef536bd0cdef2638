"""``ccbench run --backend nccl`` from the suite to the folder, with a stand-in for CuPy in the workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ccbench.backends import nccl
from ccbench.cases.axes import OVERLAP_PARTS
from ccbench.results import load_run
from tests.backends.measuring import command

FAKE = Path(__file__).parent / "fake"
ROOT = Path(__file__).resolve().parents[3]

SUITE = """
backends: [nccl]
sweep:
  - {collective: [all_to_all, barrier], size: [0 B, 4 KiB], ranks: 4, mode: graph}
  - {collective: all_reduce, size: 64 KiB, ranks: 4, groups: rank // 2, op: [avg, premulsum]}
  - {collective: all_reduce, size: 64 KiB, ranks: 4, algorithm: ring, protocol: ll}
  - {collective: all_to_all, size: 64 KiB, ranks: 4, protocol: ll}
  - {collective: send_recv, size: 64 KiB, ranks: 4, pairs: ["0>3", "1<>2"]}
  - collective: all_reduce
    size: 64 KiB
    ranks: 4
    concurrent: all_gather
    registration: symmetric
    aggregation: 2
  - {collective: all_reduce, size: 64 KiB, ranks: 4, groups: "rank % 2", group_mode: [concurrent, each]}
  - {collective: all_reduce, size: 64 KiB, ranks: 4, groups: rank // 2, concurrent: all_gather on rank % 2}
  - {collective: all_to_all_v, size: 64 KiB, ranks: 4, traffic: ["zipf:1.2", "hot:0.5"]}
  - {collective: all_reduce, size: 64 KiB, ranks: 4, mode: overlap, overlap_with: [matmul, memory]}
sampling:
  {rounds: 1, minimum_samples: 3, maximum_samples: 3, warmup: 1 ms, budget: 5 ms, minimum_sample: 10 us}
"""


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs, as workers see them; the runner is told that there are a driver and CuPy."""
    monkeypatch.setattr(nccl, "driver_missing", lambda: None)
    monkeypatch.setattr(nccl, "cupy_missing", lambda: None)
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.setenv("FAKE_GPUS", "4")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(map(str, (FAKE, ROOT)))
    )  # of ranks that are started anew


def run(suite: str, folder: Path, *more: str) -> int:
    file = folder / "suite.yaml"
    file.write_text(suite)
    return command("run", str(file), "-o", str(folder / "run"), *more)


@pytest.mark.exhaustive
def test_one_process_does_not_launch_on_several_gpus_where_launches_wait_for_their_end(
    with_gpus: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    sweep = "{collective: all_reduce, size: 64 B, ranks: [1, 4]}"
    run(f"{{backends: [nccl], sweep: {sweep}, sampling: {{rounds: 1}}}}", tmp_path)
    alone, several = load_run(tmp_path / "run").points
    assert [(point.ranks, point.status) for point in (alone, several)] == [
        (1, "ok"),
        (4, "unsupported"),
    ]
    assert "unset it, or take `processes: per_gpu`" in several.detail


def test_a_run_records_what_nccl_did_and_what_ran_at_the_same_time(
    with_gpus: None, tmp_path: Path
) -> None:
    assert run(SUITE, tmp_path) == 3, "nothing is known of this machine"
    points = load_run(tmp_path / "run").points
    assert [(point.status, point.detail) for point in points if point.status != "ok"] == [
        (
            "unsupported",
            "NCCL makes all_to_all of point-to-point transfers, which take no protocol; ask for 'default'",
        )
    ]
    fine = [point for point in points if point.status == "ok"]
    assert {point.wrong_elements for point in fine} <= {0, None}
    assert any(point.wrong_elements == 0 for point in fine)
    assert any(point.library_estimate_seconds is not None for point in fine)
    groups = [
        point.group_names
        for point in fine
        if (point.groups, point.concurrent) == ("rank // 2", "")
    ]
    assert groups == [("ranks 0-1", "ranks 2-3")] * 2
    beside = next(point for point in fine if point.concurrent == "all_gather")
    assert beside.group_names == ("all_reduce", "all_gather")
    assert all("NCCL 2.28.9, device time" in point.detail for point in fine)
    assert sorted(point.active_group for point in points if point.groups == "rank % 2") == [
        -1,
        0,
        1,
    ]
    (crossed,) = (point for point in points if point.concurrent == "all_gather on rank % 2")
    assert crossed.group_names == (
        "all_reduce ranks 0-1",
        "all_reduce ranks 2-3",
        "all_gather ranks 0, 2",
        "all_gather ranks 1, 3",
    )
    assert {point.traffic for point in points if point.collective == "all_to_all_v"} == {
        "zipf:1.2",
        "hot:0.5",
    }
    overlap = [point for point in points if point.mode == "overlap"]
    assert [point.group_names for point in overlap] == [OVERLAP_PARTS] * 2
    # The double's streams do not contend: the shorter of the two is hidden altogether.
    assert [point.overlap_efficiency for point in overlap] == pytest.approx(
        [1.0, 1.0], abs=1e-3
    )


@pytest.mark.exhaustive
def test_communicators_and_policies_are_cases_of_a_suite(
    with_gpus: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_GPUS", "2")
    run(
        """
backends: [nccl]
sweep:
  - {collective: [comm_init, comm_split], ranks: 2}
  - {collective: [all_gather, all_reduce], size: 4 KiB, ranks: 2, registration: symmetric, cta_policy: zero}
sampling: {rounds: 1, minimum_samples: 3, maximum_samples: 5, warmup: 1 ms, budget: 20 ms}
""",
        tmp_path,
    )
    points = {point.collective: point for point in load_run(tmp_path / "run").points}
    assert {name: point.status for name, point in points.items()} == {
        "comm_init": "ok",
        "comm_split": "ok",
        "all_gather": "ok",
        "all_reduce": "unsupported",
    }
    for setup in (points["comm_init"], points["comm_split"]):
        assert setup.detail == "NCCL 2.28.9, the host's time; unique ids are told before it"
        assert setup.is_timed
        assert setup.algbw is None
    assert "NCCL has no all_reduce with CTA policy zero" in points["all_reduce"].detail


@pytest.mark.exhaustive
def test_more_ranks_than_gpus_are_refused_with_the_cure(
    with_gpus: None, tmp_path: Path
) -> None:
    suite = "backends: [nccl]\nsweep: {collective: all_reduce, size: 4 KiB, ranks: 6}\n"
    run(suite, tmp_path)
    (detail,) = {point.detail for point in load_run(tmp_path / "run").points}
    assert "NCCL does not start: ncclCommInitRank: ncclInvalidUsage" in detail
    assert "have the same GPU" in detail
    assert "start as many ranks as there are GPUs" in detail


@pytest.mark.exhaustive
def test_a_process_for_each_rank_measures_too(with_gpus: None, tmp_path: Path) -> None:
    # The double's GPUs are of one process, so there can be one rank only.
    sweep = "{collective: [all_reduce, gather], size: 4 KiB, ranks: 1, processes: per_gpu}"
    assert run(f"backends: [nccl]\nsweep: {sweep}\n", tmp_path) == 0
    assert {
        (point.status, point.wrong_elements) for point in load_run(tmp_path / "run").points
    } == {("ok", 0)}


@pytest.mark.exhaustive
def test_processes_that_have_the_same_gpu_are_refused_on_every_rank(
    with_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GPUS", "1")
    run(
        "backends: [nccl]\nsweep: {collective: all_reduce, size: 4 KiB, ranks: 3, processes: per_gpu}\n",
        tmp_path,
    )
    (row,) = load_run(tmp_path / "run").table.to_pylist()
    detail = row["detail"]
    assert row["status"] == "unsupported"
    assert "ranks 0 and 1 on" in detail
    assert "processes: per_gpu with transport: network" in detail


def test_without_a_gpu_one_sentence_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nccl, "driver_missing", lambda: "this machine has no NVIDIA driver; x")
    code = run(
        "sweep: {collective: all_reduce, size: 4 KiB, ranks: 2}\n",
        tmp_path,
        "--backend",
        "nccl",
    )
    assert code == 2
    printed = capsys.readouterr().err
    assert (
        "backend nccl: this machine has no NVIDIA driver; NCCL needs an NVIDIA GPU" in printed
    )
    assert not (tmp_path / "run").exists()
