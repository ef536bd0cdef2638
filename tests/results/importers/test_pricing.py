"""Imported cases get what the model says about the machine that the user names."""

from __future__ import annotations

from pathlib import Path

from ccbench.cases import Case, Measurement, Status
from ccbench.results import Run, load_run
from ccbench.results.importers import log_of_text
from ccbench.results.importers.log import ImportedLog, ImportedTable
from ccbench.results.importers.pricing import Pricer, gpus_per_process
from ccbench.results.importers.ranks import Given
from ccbench.results.importers.writing import import_logs, write_import

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
    assert run.manifest.document["unpriced"] == []


def test_a_machine_that_does_not_fit_is_said_and_costs_no_figure(tmp_path: Path) -> None:
    run = load_run(written(tmp_path / "run", Given("rtx-pcie", 4, 1, "", "rtx-pcie")))
    assert run.cases["predicted_seconds"].isna().all()
    assert run.cases["median_seconds"].notna().all()
    (problem,) = run.manifest.document["unpriced"]
    assert problem.startswith("no predictions for 8 ranks: rtx-pcie")


def devices_on(nodes: int, per_node: int, model: str) -> str:
    return "\n".join(
        f"#  Rank {rank:2} Group  0 Pid 1{rank:03} on node{rank // per_node} device {rank % per_node:2} "
        f"[0x{rank:02x}] {model}"
        for rank in range(nodes * per_node)
    )


def priced(folder: Path, given: Given, devices: str) -> tuple[Pricer, Run]:
    text = "# all_reduce_perf\n" + HEADER.format(gpus=1, devices=devices)
    files = import_logs([(folder / "log.txt", log_of_text(text, "log.txt"))], given)
    pricer = Pricer(given)
    run = load_run(write_import(folder, files, given, "log", pricer))
    return pricer, run


def test_nodes_that_the_log_shows_count_before_those_given(tmp_path: Path) -> None:
    devices = devices_on(2, 8, "NVIDIA H100")
    shown = priced(tmp_path / "a", Given("hgx-h100", 8, 2, "ib-ndr-400x8", "hgx-h100"), devices)[1].cases
    given = Given("hgx-h100", 8, 4, "ib-ndr-400x8", "hgx-h100")
    other = priced(tmp_path / "b", given, devices)[1]
    assert set(other.cases["nodes"]) == {2}
    assert other.cases["predicted_seconds"].tolist() == shown["predicted_seconds"].tolist()
    (note,) = [note for note in other.manifest.document["imported"][0]["notes"] if "--nodes" in note]
    assert "table 1 is of 2 nodes, as the output shows; --nodes 4 is not used" in note


def test_devices_that_are_not_the_machine_s_get_no_predictions(tmp_path: Path) -> None:
    given = Given("hgx-h100", 8, 1, "", "hgx-h100")
    pricer, run = priced(tmp_path / "run", given, devices_on(1, 8, "NVIDIA H20"))
    assert run.cases["predicted_seconds"].isna().all()
    assert run.cases["median_seconds"].notna().all()
    (problem,) = pricer.problems
    assert problem.endswith("the devices listed are NVIDIA H20; name --machine hgx-h20")


def test_a_node_may_hold_more_cards_than_the_catalog_s(tmp_path: Path) -> None:
    pricer, run = priced(
        tmp_path / "run", Given("l40s", 4, None, "", "l40s"), devices_on(1, 8, "NVIDIA L40S")
    )
    assert run.cases["predicted_seconds"].notna().all()
    assert not pricer.problems
    (remark,) = run.manifest.document["priced_with"]
    assert "l40s of the catalog has 4 GPUs, and 8 of one node took part" in remark


def test_other_cards_on_the_same_kind_of_slot_are_priced_with_a_remark(tmp_path: Path) -> None:
    given = Given("rtx-pcie", 8, None, "", "rtx-pcie")
    pricer, run = priced(tmp_path / "run", given, devices_on(1, 8, "NVIDIA GeForce RTX 3090"))
    assert run.cases["predicted_seconds"].notna().all()
    assert any("RTX 3090; predictions are for the former" in remark for remark in pricer.remarks)


def test_launches_are_those_of_the_case_s_own_table() -> None:
    tables = tuple(ImportedTable("all_reduce", (), facts={"gpus_per_thread": gpus}) for gpus in (8, 1))
    log = ImportedLog("nccl-tests", tables=(*tables, ImportedTable("all_reduce", ())), facts={})
    assert [gpus_per_process(log, table) for table in log.tables] == [8, 1, 1]
    given = Given("hgx-h100", 8, 1, "", "hgx-h100")
    case = Case("s", "nccl", "all_reduce", "default", "float32", "sum", 8, 2, 8, nodes=1)
    times = [Pricer(given).price(Measurement(case, Status.OK), log, number) for number in (1, 2)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0].predicted_seconds > 1.3 * times[1].predicted_seconds
