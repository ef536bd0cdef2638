from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.readers.benchmarks import log_of_text
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.results import Run, load_run
from ccbench.results.imported_runs import import_logs, write_import
from ccbench.results.systems import (
    Pricer,
    bare_model,
    cure,
    is_other_model,
    machines_with,
    recorded_system,
    remark_on_models,
    with_cards,
)
from ccbench.topology.files import catalog_names, load_catalog
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
    differ = "hgx-h100 has NVIDIA H100 80GB HBM3, and the devices listed are NVIDIA L40S"
    with pytest.raises(MachineError, match=f"{differ}; name --machine l40s"):
        remark_on_models(load_catalog("hgx-h100"), ("NVIDIA H100 80GB HBM3", "NVIDIA L40S"))
    assert "a file that describes it" in cure("NVIDIA GeForce GT 710")


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


def test_what_no_library_of_gpus_measured_is_not_asked_for_a_machine() -> None:
    assert shown(OSU_ALL_REDUCE) == (StatedSystem(), "")


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
