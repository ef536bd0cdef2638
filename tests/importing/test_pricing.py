"""Imported cases get what the model says about the machine that the user names."""

from __future__ import annotations

from pathlib import Path

from ccbench.importing.ranks import Given
from ccbench.importing.sources import log_of_text
from ccbench.importing.writing import import_logs, write_import
from ccbench.runs import load_run

HEADER = """# nThread 1 nGpus {gpus} minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
{devices}
#
#   out-of-place   in-place
# size count type redop root time algbw busbw #wrong time algbw busbw #wrong
# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)
8 2 float sum -1 35.00 0.00 0.00 0 35.00 0.00 0.00 0
1073741824 268435456 float sum -1 4253.0 252.47 441.82 0 4253.0 252.47 441.82 0
"""


def written(folder: Path, given: Given, gpus: int = 1, ranks: int = 8) -> Path:
    devices = "\n".join(
        f"#  Rank {rank:2} Group  0 Pid 1{rank:03} on node0 device {rank:2} [0x{rank:02x}] NVIDIA H100"
        for rank in range(ranks)
    )
    text = "# all_reduce_perf\n" + HEADER.format(gpus=gpus, devices=devices)
    files = import_logs([(folder / "log.txt", log_of_text(text, "log.txt"))], given)
    return write_import(folder, files, given, "log")


def test_every_case_stands_beside_a_bound_and_a_prediction(tmp_path: Path) -> None:
    cases = load_run(written(tmp_path / "run", Given("hgx-h100", 8, 1, "", "hgx-h100"))).cases
    assert (cases["bound_seconds"] < cases["predicted_seconds"]).all()
    large = cases[cases["size_bytes"] == 1 << 30]
    assert abs(large["predicted_seconds"] / large["median_seconds"] - 1).max() < 0.1
    assert large["bottleneck"].str.contains("nvswitch").all()


def test_launches_by_one_thread_are_a_floor_under_small_sizes(tmp_path: Path) -> None:
    given = Given("hgx-h100", 8, 1, "", "hgx-h100")
    alone = load_run(written(tmp_path / "a", given)).cases["predicted_seconds"].min()
    together = load_run(written(tmp_path / "b", given, gpus=8)).cases["predicted_seconds"].min()
    assert together > 1.3 * alone


def test_without_a_machine_nothing_is_predicted(tmp_path: Path) -> None:
    run = load_run(written(tmp_path / "run", Given()))
    assert run.cases["predicted_seconds"].isna().all()
    assert run.manifest["unpriced"] == []


def test_a_machine_that_does_not_fit_is_said_and_costs_no_figure(tmp_path: Path) -> None:
    run = load_run(written(tmp_path / "run", Given("rtx-pcie", 4, 1, "", "rtx-pcie")))
    assert run.cases["predicted_seconds"].isna().all()
    assert run.cases["median_seconds"].notna().all()
    (problem,) = run.manifest["unpriced"]
    assert problem.startswith("no predictions for 8 ranks: rtx-pcie")
