from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.errors import MachineError
from ccbench.readers.benchmarks import log_of_text
from ccbench.readers.benchmarks.log import ImportedLog, ImportedTable, StatedSystem
from ccbench.results import Run, load_run
from ccbench.results.imported_runs import import_logs, write_import
from ccbench.results.systems import (
    SOCKETS,
    Pricer,
    bare_model,
    cure,
    difference,
    gpus_per_process,
    is_other_model,
    machines_with,
    recorded_system,
    with_cards,
)
from ccbench.topology.files import CATALOG_FOLDER, catalog_names, load_catalog
from ccbench.topology.graph import DeviceKind, TopologyClass
from tests.readers.benchmarks.nccl_tests_outputs import devices, output, row
from tests.readers.benchmarks.outputs import OSU_ALL_REDUCE


def priced(
    folder: Path,
    system: StatedSystem,
    model: str = "NVIDIA H100",
    nodes: int = 1,
    gpus: int = 1,
) -> tuple[Pricer, Run]:
    """A log of eight ranks a node, imported and priced."""
    text = output([row(8), row(1 << 30, time=4253.0)], range(8 * nodes))
    text = text.replace("NVIDIA H100 80GB HBM3", model).replace("nGpus 1", f"nGpus {gpus}")
    files = import_logs([(folder / "log.txt", log_of_text(text, "log.txt"))], system)
    pricer = Pricer()
    return pricer, load_run(write_import(folder, files, system, "log", pricer))


def predictions(run: Run) -> list[Any]:
    """The predicted time of every case; None where there is none."""
    seconds: list[Any] = run.table["predicted_seconds"].to_pylist()
    assert seconds
    return seconds


@pytest.mark.parametrize(
    ("model", "machine"),
    [
        ("NVIDIA H20-3e", "hgx-h20"),
        ("NVIDIA H200 141GB HBM3e", "hgx-h200"),
        ("NVIDIA GH200 144G HBM3e", "gh200x4"),
        ("NVIDIA B200 AC", "hgx-b200"),
        ("Tesla V100-SXM3-32GB-H", ""),
        ("NVIDIA H100 PCIe", "h100-pcie-bridge"),
    ],
)
def test_variants_of_a_model_are_guessed_and_checked_alike(model: str, machine: str) -> None:
    assert machines_with(model)[:1] == ((machine,) if machine else ())
    if machine:
        assert difference(load_catalog(machine), [model]) is None


BOARD = StatedSystem("hgx-h100", 8, 1, "", "hgx-h100")


def test_every_case_stands_beside_a_bound_and_a_prediction(tmp_path: Path) -> None:
    rows = priced(tmp_path / "run", BOARD)[1].table.to_pylist()
    assert all(case["bound_seconds"] < case["predicted_seconds"] for case in rows)
    large = [case for case in rows if case["size_bytes"] == 1 << 30]
    assert large
    for case in large:
        assert case["predicted_seconds"] == pytest.approx(case["median_seconds"], rel=0.1)
        assert "nvswitch" in case["bottleneck"]


def test_launches_by_one_thread_are_a_floor_under_small_sizes(tmp_path: Path) -> None:
    alone = min(predictions(priced(tmp_path / "a", BOARD)[1]))
    together = min(predictions(priced(tmp_path / "b", BOARD, gpus=8)[1]))
    assert together > 1.3 * alone


def test_without_a_machine_nothing_is_predicted(tmp_path: Path) -> None:
    run = priced(tmp_path / "run", StatedSystem(), model="Quantum 9")[1]
    assert set(predictions(run)) == {None}
    assert run.manifest.document["unpriced"] == []
    (note,) = run.manifest.document["notes"]
    assert "list Quantum 9, for which the catalog has no machine; give --machine" in note


def test_a_machine_that_does_not_fit_is_said_and_costs_no_figure(tmp_path: Path) -> None:
    run = priced(tmp_path / "run", StatedSystem("rtx-pcie", 4, 1, "", "rtx-pcie"))[1]
    assert set(predictions(run)) == {None}
    assert all(point.is_timed for point in run.points)
    (problem,) = run.manifest.document["unpriced"]
    assert problem.startswith("no predictions for 8 ranks: rtx-pcie")


def test_nodes_that_the_log_shows_count_before_those_given(tmp_path: Path) -> None:
    two = StatedSystem("hgx-h100", 8, 2, "ib-ndr-400x8", "hgx-h100")
    shown = priced(tmp_path / "a", two, nodes=2)[1]
    elsewhere = priced(tmp_path / "b", replace(two, nodes=4), nodes=2)[1]
    assert {point.nodes for point in elsewhere.points} == {2}
    assert predictions(elsewhere) == predictions(shown)
    (note,) = [
        note
        for note in elsewhere.manifest.document["imported"][0]["notes"]
        if "--nodes" in note
    ]
    assert "table 1 is of 2 nodes, as the output shows; --nodes 4 is not used" in note


def test_devices_that_are_not_the_machine_s_get_no_predictions(tmp_path: Path) -> None:
    pricer, run = priced(tmp_path / "run", BOARD, "NVIDIA H20")
    assert set(predictions(run)) == {None}
    assert all(point.is_timed for point in run.points)
    (problem,) = pricer.problems
    assert problem.endswith("the devices listed are NVIDIA H20; name --machine hgx-h20")


def test_a_node_may_hold_more_cards_than_the_catalog_s(tmp_path: Path) -> None:
    pricer, run = priced(
        tmp_path / "run", StatedSystem("l40s", 4, None, "", "l40s"), "NVIDIA L40S"
    )
    assert None not in predictions(run)
    assert not pricer.problems
    (remark,) = run.manifest.document["priced_with"]
    assert "l40s of the catalog has 4 GPUs, and 8 of one node took part" in remark


def test_other_cards_on_the_same_kind_of_slot_are_priced_with_a_remark(tmp_path: Path) -> None:
    system = StatedSystem("rtx-pcie", 8, None, "", "rtx-pcie")
    pricer, run = priced(tmp_path / "run", system, "NVIDIA GeForce RTX 3090")
    assert None not in predictions(run)
    assert any(
        "RTX 3090; predictions are for the former" in remark for remark in pricer.remarks
    )


def test_launches_are_those_of_the_case_s_own_table() -> None:
    tables = tuple(
        ImportedTable("all_reduce", (), facts={"gpus_per_thread": gpus}) for gpus in (8, 1)
    )
    log = ImportedLog("nccl-tests", tables=(*tables, ImportedTable("all_reduce", ())), facts={})
    assert [gpus_per_process(log, table) for table in log.tables] == [8, 1, None]
    case = Case("s", "nccl", "all_reduce", "default", "float32", "sum", 8, 2, 8, nodes=1)
    times = [
        Pricer().price(Measurement(case, Status.OK), log, BOARD, number) for number in (1, 2)
    ]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0].predicted_seconds > 1.3 * times[1].predicted_seconds


@pytest.mark.parametrize("shared", [False, True])
def test_a_launch_that_is_not_told_is_said_and_priced_as_of_one_gpu(
    tmp_path: Path, shared: bool
) -> None:
    text = "".join(
        line for line in output([row(8)]).splitlines(keepends=True) if "nThread" not in line
    )
    # Ranks of as many processes have one GPU each; of one process, one thread may have launched on all.
    text = re.sub(r"Pid +\d+", "Pid 100", text) if shared else text
    files = import_logs([(tmp_path / "log.txt", log_of_text(text, "log.txt"))], BOARD)
    assert gpus_per_process(files[0].log, files[0].log.tables[0]) == (None if shared else 1)
    pricer = Pricer()
    run = load_run(write_import(tmp_path / "run", files, BOARD, "log", pricer))
    assert (
        any(
            "does not say how many GPUs one thread launches on" in line
            for line in pricer.remarks
        )
        is shared
    )
    assert min(predictions(run)) == min(predictions(priced(tmp_path / "known", BOARD)[1]))


@pytest.mark.parametrize(
    ("library", "is_current"), [("", True), (" nccl   v2.9.9", False), ("NCCL 2.28.9", True)]
)
def test_a_log_without_a_version_is_priced_as_of_today_unless_one_is_stated(
    tmp_path: Path, library: str, is_current: bool
) -> None:
    large = row(1 << 30, time=4253.0)
    two_nodes = StatedSystem("dgx-a100", 16, 2, "ib-hdr-200x8", "dgx-a100", library=library)
    text = "".join(
        line
        for line in output([large], range(16)).splitlines(keepends=True)
        if "version" not in line
    ).replace("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB")
    files = import_logs([(tmp_path / "log.txt", log_of_text(text, "log.txt"))], two_nodes)
    pricer = Pricer()
    run = load_run(write_import(tmp_path / "run", files, two_nodes, "log", pricer))
    assert any("without a version" in line for line in pricer.remarks) is not bool(library)
    assert [point.backend_version for point in run.points] == [
        library.strip().upper().replace("   V", " ")
    ] * 2
    # Trees of two nodes carried everything in both directions before NCCL 2.12.
    seconds = [time for time in predictions(run) if time is not None]
    known = predictions(priced(tmp_path / "known", two_nodes, "NVIDIA A100-SXM4-40GB", 2)[1])
    assert (max(seconds) == max(known)) is is_current


MODELS = tuple(
    str(load_catalog(name).gpus[0].attributes["model"])
    for name in catalog_names()
    if load_catalog(name).gpus
)


@pytest.mark.parametrize(
    ("model", "other_model", "differ"),
    [
        ("NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H20", "NVIDIA H200", True),
        ("NVIDIA B300 SXM6 AC", "NVIDIA B200", True),
        ("NVIDIA A10", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA B200", "NVIDIA GB200", True),
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3", False),
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", False),
        ("AMD Instinct MI300X OAM", "MI300X", False),
        ("Ascend 910B3", "Ascend 910B", False),
        ("Graphics Device", "NVIDIA H100", False),
        ("gfx942", "AMD Instinct MI300X", False),
        ("NVIDIA L40S", "any PCIe 4 x16 card", False),
        ("", "NVIDIA H100", False),
    ],
)
def test_different_models_are_told_apart_and_what_may_be_the_same_is_not(
    model: str, other_model: str, differ: bool
) -> None:
    assert is_other_model(model, other_model) is is_other_model(other_model, model) is differ


@example(MODELS[0], "NVIDIA_")
@example(MODELS[0], "40 nvidia gb")
@given(st.sampled_from(MODELS), st.text(max_size=30))
def test_a_model_never_differs_from_itself_and_order_does_not_matter(
    model: str, words: str
) -> None:
    assert not is_other_model(model, model)
    assert is_other_model(model, words) is is_other_model(words, model)
    assert bare_model(bare_model(words)) == bare_model(words)


def test_a_board_is_not_the_machine_of_cards_and_the_cure_names_one_that_is() -> None:
    differing = difference(load_catalog("hgx-h100"), ("NVIDIA H100 80GB HBM3", "NVIDIA L40S"))
    assert differing is not None
    assert not differing.same_links
    assert (
        str(differing)
        == "hgx-h100 has NVIDIA H100 80GB HBM3, and the devices listed are NVIDIA L40S"
    )
    assert cure(differing.listed) == "name --machine l40s"
    assert "a file that describes it" in cure("NVIDIA GeForce GT 710")


@pytest.mark.parametrize(
    ("model", "alike"),
    [
        ("NVIDIA GeForce RTX 3090", True),
        ("NVIDIA GeForce RTX 5090", False),
        ("NVIDIA A100-SXM4-80GB", False),
    ],
)
def test_cards_on_the_same_kind_of_slot_have_the_same_links(model: str, alike: bool) -> None:
    differing = difference(load_catalog("rtx-pcie"), (model,))
    assert differing is not None
    assert differing.same_links is alike


@pytest.mark.parametrize(
    ("model", "machine"),
    [("NVIDIA H20", "hgx-h20"), ("NVIDIA B300", "hgx-b300"), ("NVIDIA L40S", "l40s")],
)
def test_the_catalog_has_machines_for_models_that_people_measure(
    model: str, machine: str
) -> None:
    assert machines_with(model) == (machine,)
    assert difference(load_catalog(machine), (model,)) is None


@pytest.mark.parametrize(
    ("name", "count"), [("l40s", 8), ("rtx-pcie", 6), ("rtx-pcie", 8), ("pcie4-x16", 16)]
)
def test_cards_are_dealt_to_two_sockets_with_the_same_port(name: str, count: int) -> None:
    node = load_catalog(name)
    made = with_cards(node, name, count)
    assert len(made.gpus) == count
    assert len(made.of_kind(DeviceKind.CPU)) == SOCKETS
    assert made.topology_class is TopologyClass.PCIE
    assert made.facts["peer_access"] == node.facts["peer_access"]
    ports = {link.bytes_per_second for link in made.links if link.source == "gpu0"}
    assert ports == {link.bytes_per_second for link in node.links if link.source == "gpu0"}


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("hgx-h100", 16, r"hgx-h100: has 8 GPUs and 16 of one node .* name a machine"),
        ("a100-pcie-bridge", 8, "a file that describes it"),
        ("pcie4-x16", 10, r"10 of one node do not spread evenly .* give a file"),
    ],
)
def test_boards_bridged_cards_and_odd_numbers_are_refused_with_a_cure(
    name: str, count: int, message: str
) -> None:
    with pytest.raises(MachineError, match=message):
        with_cards(load_catalog(name), name, count)


def test_a_file_of_one_s_own_stays_as_it_is(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CATALOG_FOLDER / "l40s.yaml").read_text())
    with pytest.raises(MachineError, match="a file that describes it"):
        with_cards(load_catalog("l40s"), str(mine), 8)


# -- machines and networks that outputs show ----------------------------------------------------------------


def shown(text: str, system: StatedSystem = StatedSystem()) -> tuple[StatedSystem, str]:  # noqa: B008  # frozen, so shared safely
    """The machine and network of a log's predictions, and what was told of them."""
    (file,) = import_logs([(Path("log.txt"), log_of_text(text, "log.txt"))], system)
    return file.system, "\n".join(file.guessed)


def of_model(model: str, ranks: int, per_host: int) -> str:
    """An output that lists GPUs of ``model``, so many on each host."""
    listed = [
        line.replace("NVIDIA H100 80GB HBM3", model) for line in devices(range(ranks), per_host)
    ]
    return output([row(8)], range(0)).replace(
        "# Using devices", "\n".join(["# Using devices", *listed])
    )


def test_a_machine_that_is_not_named_is_the_one_whose_devices_are_listed(
    tmp_path: Path,
) -> None:
    run = priced(tmp_path / "run", StatedSystem())[1]
    assert (run.manifest.machine, run.manifest.network) == ("hgx-h100", "")
    named = priced(tmp_path / "named", BOARD)[1]
    assert predictions(run) == predictions(named)
    (note,) = run.manifest.document["notes"]
    assert "taken as --machine hgx-h100: lines 6 to 13 list NVIDIA H100, 8 in a node" in note


def test_a_named_machine_is_not_guessed_at() -> None:
    assert shown(output(), StatedSystem("rtx-pcie", 4, 1, "", "rtx-pcie")) == (
        StatedSystem("rtx-pcie", 4, 1, "", "rtx-pcie"),
        "",
    )


@given(st.sampled_from(catalog_names()), st.integers(1, 16), st.integers(1, 3))
def test_a_guess_is_never_another_machine_than_the_one_that_was_listed(
    name: str, each: int, hosts: int
) -> None:
    machine = load_catalog(name)
    if not machine.gpus or len(machine.gpus) < each:
        return
    model = str(machine.gpus[0].attributes["model"])
    system, notes = shown(of_model(model, each * hosts, each))
    alike = machines_with(model)
    # One GPU of a node is the same in all machines that have it, and part of a board may be another board.
    assert system.source in (("", name) if each > 1 else ("", *alike))
    if each * hosts > 1:
        assert ("taken as --machine" in notes) is bool(system.source)
        assert system.source or "give --machine" in notes


@pytest.mark.thinned(7)
@pytest.mark.parametrize(
    ("model", "each", "machine"),
    [
        ("NVIDIA A100-SXM4-40GB", 4, ""),  # half of it, or a mesh of four
        ("Tesla V100-SXM2-16GB", 8, "dgx-1v"),
        ("Tesla V100-SXM2-16GB", 6, ""),  # IBM's AC922
        ("NVIDIA GH200 120GB", 4, "gh200x4"),
        ("NVIDIA H100 80GB HBM3", 2, ""),  # of a board of eight or of four
        ("NVIDIA B200", 2, "hgx-b200"),
        ("NVIDIA A100-PCIE-40GB", 2, ""),  # with a bridge or without
        ("NVIDIA L40S", 2, ""),  # with peer access or without
        ("AMD Instinct MI300X", 8, "mi300x"),
        ("NVIDIA GB200", 4, ""),  # racks of 72, or boards of four
    ],
)
def test_what_the_devices_leave_open_is_asked_and_not_guessed(
    model: str, each: int, machine: str
) -> None:
    system, notes = shown(of_model(model, 2 * each, each))
    assert system.machine == system.source == machine
    assert bool(machine) or "no predictions: lines 6 to" in notes


def test_ranks_that_each_see_one_gpu_as_device_0_share_none() -> None:
    listed = re.sub(
        r"device  \d \[0000:..:00\]", "device  0 [0x01]", of_model("NVIDIA GB200", 4, 4)
    )
    assert shown(listed)[0].source == "gb200-nvl72"


@pytest.mark.parametrize(
    ("way", "machine"), [("SHM/direct/direct", "rtx-pcie"), ("P2P/IPC", "rtx-pcie-p2p")]
)
def test_lines_on_channels_tell_how_cards_reach_each_other(way: str, machine: str) -> None:
    line = f"box0:100:200 [0] NCCL INFO Channel 00/0 : 0[1000] -> 1[2000] via {way}\n"
    text = of_model("NVIDIA GeForce RTX 4090", 4, 4)
    assert shown(line + text)[0].source == machine
    assert "give --machine, such as rtx-pcie" in shown(text)[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda text: text.replace("[0000:11:00]", "[0000:10:00]"),
            "a GPU for several ranks",
        ),
        (
            lambda text: text.replace("HBM3", "HBM2e", 1).replace(
                "NVIDIA H100", "NVIDIA H20", 1
            ),
            "several models",
        ),
        (
            lambda text: re.sub(r"#  Rank .*\n", "", text),
            "does not say which GPUs were measured",
        ),
        (
            lambda text: re.sub(r"#  Rank +[1-9] .*\n", "", text),
            "on how many nodes; give --nodes",
        ),
    ],
)
def test_a_list_that_does_not_fit_one_machine_is_not_guessed_from(
    change: Callable[[str], str], reason: str
) -> None:
    system, notes = shown(change(output()))
    assert not system.source
    assert reason in notes


IB = (
    "box0:1:2 [0] NCCL INFO NET/IB : Using "
    + " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(8))
    + " [RO]; OOB e:1"
)
USED = "box0:1:2 [0] NCCL INFO Using network {}"


def port(number: int, speed: int, link: str = "IB") -> str:
    name = f"mlx5_{number}:uverbs{number}:1/{link}"
    return f"box0:1:2 [0] NCCL INFO NET/IB: [{number}] {name} provider=Mlx5 speed={speed} context=0x1 ar=1"


@pytest.mark.thinned(7)
@pytest.mark.parametrize(
    ("lines", "network", "reason"),
    [
        (
            [IB, *(port(n, 400_000) for n in range(8)), USED.format("IB")],
            "ib-400x8",
            "line 1 shows 8 ports of IB",
        ),
        (
            [IB.replace(":1/IB", ":1/RoCE"), *(port(n, 200_000) for n in range(8))],
            "roce-200x8",
            "of 200 Gb/s",
        ),
        ([IB, USED.format("IB")], "", "type --network, such as ib-ndr-400x8"),
        ([IB, *(port(n, 100_000 * (1 + n % 2)) for n in range(8))], "", "not one rate of all"),
        (
            [IB, *(port(n, 400_000) for n in range(8)), USED.format("Socket")],
            "",
            "such as tcp-25x1",
        ),
        (
            [IB.replace("3:1/IB", "3:1/RoCE"), *(port(n, 400_000) for n in range(8))],
            "",
            "IB and RoCE",
        ),
        (
            [IB.replace(" [7]mlx5_7:1/IB", ""), *(port(n, 400_000) for n in range(8))],
            "",
            "shows 7 ports",
        ),
        (
            ["x:1:2 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)"],
            "",
            "line 1 names efa",
        ),
        (["# NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml"], "ib-ndr-400x8", "ndv5-topo.xml"),
        (
            ["# NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml", USED.format("Socket")],
            "",
            "names Socket",
        ),
        # Fewer ports than the instance has: some were left out.
        (["# NCCL_TOPO_FILE=/ndv5-topo.xml", IB.partition(" [4]")[0]], "", "shows 4 ports"),
        (
            [
                USED.format("AWS Libfabric"),
                "x:1:2 [0] NCCL INFO NET/OFI Selected Provider is efa",
            ],
            "",
            "2 names efa",
        ),
    ],
)
def test_a_network_is_taken_where_kind_rate_and_number_are_shown(
    lines: list[str], network: str, reason: str
) -> None:
    text = "\n".join([*lines, output([row(8, 1.875)], range(16))])
    system, notes = shown(text)
    assert (system.machine, system.network) == ("hgx-h100", network)
    assert reason in notes
    assert shown(text, StatedSystem(network="efa-100x4"))[0].network == "efa-100x4"


def test_logs_of_several_machines_are_each_priced_on_their_own(tmp_path: Path) -> None:
    texts = {
        "a.txt": of_model("NVIDIA H100 80GB HBM3", 8, 8),
        "b.txt": of_model("NVIDIA B200", 8, 8),
    }
    files = import_logs(
        [(Path(name), log_of_text(text, name)) for name, text in texts.items()], StatedSystem()
    )
    assert [file.system.machine for file in files] == ["hgx-h100", "hgx-b200"]
    run = load_run(write_import(tmp_path / "run", files, StatedSystem(), "2 files"))
    assert run.manifest.machine == ""
    assert None not in predictions(run)
    assert len(run.manifest.document["notes"]) == 2


def test_what_no_library_of_gpus_measured_is_not_asked_for_a_machine() -> None:
    assert shown(OSU_ALL_REDUCE) == (StatedSystem(), "")


def test_hosts_of_one_nvlink_domain_are_one_machine() -> None:
    log = log_of_text(of_model("NVIDIA GB200", 72, 4), "log.txt")
    assert log.tables[0].nodes == 18
    rack = StatedSystem("gb200-nvl72", 72, None, "", "gb200-nvl72")
    case = Case(
        "s", "nccl", "all_reduce", "default", "float32", "sum", 1 << 30, 1 << 28, 72, nodes=18
    )
    priced = Pricer().price(Measurement(case, Status.OK), log, rack)
    assert priced is not None
    assert "nvswitch" in priced.bottleneck


def test_hosts_of_one_nvlink_domain_are_judged_as_they_were_priced(tmp_path: Path) -> None:
    # Of four racks, which the user counts, the log counts 72 hosts.
    for ranks, nodes, network, racks in (
        (72, None, "", 1),
        (288, 4, "ib-ndr-400x72", 4),
        (72, 18, "", 1),
        (288, 72, "ib-ndr-400x4", 4),  # both count hosts
    ):
        log = log_of_text(of_model("NVIDIA GB200", ranks, 4), "log.txt")
        system = StatedSystem("gb200-nvl72", 72, nodes, network, "gb200-nvl72")
        (file,) = import_logs([(Path("log.txt"), log)], system)
        assert not any("is not used" in note for note in file.notes)
        run = load_run(write_import(tmp_path / f"{ranks} {nodes}", (file,), system, "log"))
        networks = {recorded_system(run.manifest, point).network for point in run.points}
        assert {network.per_node for network in networks if network is not None} <= {72}
        assert {point.nodes for point in run.points} == {ranks // 4}
        assert {recorded_system(run.manifest, point).nodes for point in run.points} == {racks}
