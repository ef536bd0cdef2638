"""``ccbench topo``: any source in, a matrix, JSON, YAML or a picture out."""

from __future__ import annotations

from pathlib import Path

from ccbench.findings import Finding
from ccbench.report.topology_text import as_text, network_line, ring_lines
from ccbench.topology.graph import Device, DeviceKind, Topology
from tests.cli.conftest import Command, Ended

PAIR = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n" + (
    "GPU0\t X \tNV12\tPXB\t0-7\t0\nGPU1\tNV12\t X \tSYS\t8-15\t1\nNIC0\tPXB\tSYS\t X \n"
)


def shown(ccbench: Command, *arguments: str) -> Ended:
    return ccbench("topo", *arguments).done


def test_a_picture_beside_json_leaves_stdout_to_the_json(
    tmp_path: Path, ccbench: Command
) -> None:
    assert shown(ccbench, "l40s", "--json", "--draw", "one.svg").json["gpu_count"]


def test_links_without_a_rate_are_named_when_a_dump_is_made_a_cluster(
    tmp_path: Path, ccbench: Command
) -> None:
    (tmp_path / "dump").write_text(PAIR)
    ended = ccbench("topo", "dump", "--nodes", "2", "--network", "ib-ndr-400x2").refused
    for words in ("have no rate", "2 nvlink (gpu0 -> gpu1 ...)", "--yaml"):
        assert words in ended.err


def test_nothing_of_a_file_reaches_the_terminal_but_printable_text() -> None:
    wild = "n.g\x1b[31m\nz\x07"
    gpus = (Device(wild, DeviceKind.GPU), Device("gpu1", DeviceKind.GPU))
    topology = Topology("t", gpus, matrix={(wild, "gpu1"): "P\x1b[2J\nIX"})
    finding = Finding("problem", "kind", (wild,), f"evidence {wild}", f"advice {wild}")
    shown = as_text(topology, [finding])
    assert all(line.isprintable() for line in shown.split("\n"))
    assert len(shown.splitlines()) == len(
        as_text(Topology("t", gpus[1:] * 2), [finding]).splitlines()
    )


def test_facts_of_any_other_form_print_no_ring() -> None:
    assert list(ring_lines({"rings": 3})) == []
    assert list(ring_lines({"rings": {"0": 1}})) == []


def test_a_log_without_a_machine_says_how_many_ranks_and_devices_it_names() -> None:
    facts = {"nranks": 16, "nnodes": 2, "net_devices": ["mlx5_0", "mlx5_1"]}
    assert network_line(facts) == "16 ranks, 2 machines, 2 network devices (mlx5_0 mlx5_1)"
    assert network_line({"nranks": None}) == ""
