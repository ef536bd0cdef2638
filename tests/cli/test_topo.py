"""``ccbench topo``: any source in, a matrix, JSON, YAML or a picture out."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.findings import Finding
from ccbench.report.topology_text import MOST_LINES, as_text, channel_lines, network_line
from ccbench.topology.files import read_yaml, topology_yaml
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass
from ccbench.topology.summary import link_groups, usable_shares
from tests.cli.conftest import Command, Ended

PAIR = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n" + (
    "GPU0\t X \tNV12\tPXB\t0-7\t0\nGPU1\tNV12\t X \tSYS\t8-15\t1\nNIC0\tPXB\tSYS\t X \n"
)
PEERS = " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n"


def shown(ccbench: Command, *arguments: str) -> Ended:
    return ccbench("topo", *arguments).done


def test_a_matrix_is_shown_as_people_know_it(tmp_path: Path, ccbench: Command) -> None:
    (tmp_path / "dump").write_text(PAIR)
    lines = shown(ccbench, "dump").out.splitlines()
    assert "2 GPUs, 1 NIC" in lines[1]
    assert any(line.split()[:3] == ["gpu0", "X", "NV12"] for line in lines)


def test_findings_come_with_advice(tmp_path: Path, ccbench: Command) -> None:
    (tmp_path / "dump").write_text(PEERS)
    out = shown(ccbench, "dump").out
    assert "note     peer_access: " in out
    assert "         -> " in out


def test_json_has_the_promised_keys(ccbench: Command) -> None:
    document = shown(ccbench, "dgx-a100", "--json").json
    assert list(document) == [
        "name",
        "source",
        "class",
        "nodes",
        "gpu_count",
        "nic_count",
        "cpu_count",
        "nvswitch_count",
        "devices",
        "gpu_matrix",
        "nic_matrix",
        "nvlinks_per_gpu",
        "links_per_gpu",
        "usable_share",
        "links",
        "findings",
        "warnings",
        "facts",
    ]
    assert (document["class"], document["gpu_count"], document["nvlinks_per_gpu"]) == (
        "nvswitch",
        8,
        [12] * 8,
    )
    assert document["gpu_matrix"][0][:2] == ["X", "NV12"]
    assert document["findings"] == []


def test_yaml_can_be_loaded_again(tmp_path: Path, ccbench: Command) -> None:
    text = shown(ccbench, "dgx-1v", "--yaml").out
    (tmp_path / "mine.yaml").write_text(text)
    assert shown(ccbench, "mine.yaml", "--yaml").out == text
    assert len(read_yaml(text).gpus) == 8


def test_this_machine_is_shown_without_a_source(ccbench: Command) -> None:
    assert "processor" in shown(ccbench).out


@pytest.mark.parametrize("name", ["one.svg", "one.png"])
def test_a_picture_is_drawn(name: str, tmp_path: Path, ccbench: Command) -> None:
    assert shown(ccbench, "mi300x", "--draw", name).out == f"wrote {name}\n"
    assert (tmp_path / name).stat().st_size > 5000


def test_a_picture_beside_json_leaves_stdout_to_the_json(
    tmp_path: Path, ccbench: Command
) -> None:
    assert shown(ccbench, "l40s", "--json", "--draw", "one.svg").json["gpu_count"]


def test_a_thousand_machines_are_summed_up(ccbench: Command) -> None:
    out = shown(ccbench, "hgx-h100", "--nodes", "1000", "--network", "ib-ndr-400x8").out
    assert "1000 machines, 8000 GPUs" in out
    assert len(out.splitlines()) < 60
    assert max(map(len, out.splitlines())) < 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "neither a file nor in the catalog"),
        (("",), "the source is empty; leave it out for this machine"),
        (("", "--nodes", "2", "--network", "ib-ndr-400x8"), "the source is empty"),
        (("dgx-1v", "--nodes", "2"), "a cluster needs both"),
        (("dgx-1v", "--network", "ib-ndr-400x8"), "a cluster needs both"),
        (("dgx-1v", "--json", "--yaml"), "choose one"),
        (("dgx-1v", "--nodes", "2", "--network", "carrier-pigeon"), "carrier-pigeon"),
        (("dgx-1v", "--draw", "x.gif"), "not a picture format"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    arguments: tuple[str, ...], words: str, ccbench: Command
) -> None:
    assert words in ccbench("topo", *arguments).refused.err


def test_a_cluster_too_large_for_a_file_is_refused_with_a_way_out(ccbench: Command) -> None:
    ended = ccbench(
        "topo", "hgx-h100", "--nodes", "1000", "--network", "ib-ndr-400x8", "--yaml"
    ).refused
    assert "write one machine with --yaml" in ended.err


def test_links_are_counted_by_pairs(ccbench: Command) -> None:
    document = shown(ccbench, "dgx-1v", "--json").json
    assert [
        (entry["pairs"], entry["count"], entry["both_ways"]) for entry in document["links"]
    ] == [
        (8, 1, True),
        (8, 2, True),
    ]
    assert document["usable_share"] == {"2": "1/6", "4": "2/3", "8": "1"}
    out = shown(ccbench, "dgx-1v").out
    assert "8 pairs x 2 links" in out
    assert "groups of 2, 4, 8 GPUs use 1/6, 2/3, all of a GPU's links" in out


def test_json_lists_devices_and_the_paths_of_nics(tmp_path: Path, ccbench: Command) -> None:
    (tmp_path / "dump").write_text(PAIR + "\nNIC Legend:\n\n  NIC0: mlx5_7\n")
    document = shown(ccbench, "dump", "--json").json
    nic = next(entry for entry in document["devices"] if entry["kind"] == "nic")
    assert nic == {
        "name": "nic0",
        "kind": "nic",
        "node": 0,
        "bus_id": None,
        "numa_node": 0,
        "called": "mlx5_7",
    }
    assert document["nic_matrix"] == [["PXB", "SYS", "X"]]


def test_the_way_to_itself_is_an_x_whatever_the_source_prints(
    tmp_path: Path, ccbench: Command
) -> None:
    table = "       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n"
    (tmp_path / "dump").write_text("===== Link Type between two GPUs =====\n" + table)
    assert shown(ccbench, "dump", "--json").json["gpu_matrix"] == [["X", "XGMI"], ["XGMI", "X"]]


def test_what_a_cut_dump_does_not_show_is_no_zero(tmp_path: Path, ccbench: Command) -> None:
    heading = "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\n"
    (tmp_path / "dump").write_text(heading + "GPU0\t X \tNV2\tNV2\tPXB\t0-7\n")
    out = shown(ccbench, "dump").out
    assert ["gpu1", "NV2", "X", "?", "?"] in [line.split()[:5] for line in out.splitlines()]
    assert "? not shown by the source" in out.splitlines()
    document = shown(ccbench, "dump", "--json").json
    assert document["gpu_matrix"][1] == ["NV2", "X", None]
    assert 0 not in (document["nvlinks_per_gpu"] or [])


def test_a_log_without_a_machine_shows_its_rings(tmp_path: Path, ccbench: Command) -> None:
    ring = " ".join(str(rank) for rank in range(16))
    line = "host:1:1 [0] NCCL INFO Channel {:02}/02 : " + ring
    (tmp_path / "log").write_text(line.format(0) + "\n" + line.format(1) + "\n")
    assert f"ring: {ring}  (x2)".split() in [
        splitline.split() for splitline in shown(ccbench, "log").out.splitlines()
    ]


def test_links_alike_are_one_line_wherever_the_source_names_them() -> None:
    gpus = tuple(Device(f"gpu{index}", DeviceKind.GPU) for index in range(3))
    ends = [("gpu0", "gpu1"), ("gpu1", "gpu0"), ("gpu2", "gpu0")]
    links = tuple(
        Link(*pair, LinkKind.XGMI, 24e9, origin=f"a log, line {number}: XGMI")
        for number, pair in enumerate(ends, 1)
    )
    groups = link_groups(Topology("t", gpus, links))
    assert [(group["pairs"], group["both_ways"], group["origin"]) for group in groups] == [
        (1, True, "a log: XGMI"),
        (1, False, "a log: XGMI"),
    ]


def test_no_share_is_told_where_the_graph_does_not_join_the_gpus() -> None:
    devices = (
        *(Device(f"gpu{index}", DeviceKind.GPU) for index in range(2)),
        *(Device(f"nvswitch{index}", DeviceKind.NVSWITCH) for index in range(2)),
    )
    apart = [
        ("gpu0", "nvswitch0"),
        ("nvswitch0", "gpu0"),
        ("gpu1", "nvswitch1"),
        ("nvswitch1", "gpu1"),
    ]
    links = tuple(Link(*pair, LinkKind.NVLINK) for pair in apart)
    assert usable_shares(Topology("t", devices, links, TopologyClass.NVSWITCH)) is None
    joined = (*links, Link("nvswitch0", "nvswitch1", LinkKind.NVLINK))
    joined += (Link("nvswitch1", "nvswitch0", LinkKind.NVLINK),)
    assert usable_shares(Topology("t", devices, joined, TopologyClass.NVSWITCH)) == {"2": "1"}


@pytest.mark.parametrize(
    ("nodes", "nics"), [(1, 8), (2, 8), (2, 1), (2, 3), (2, 4), (3, 16), (1000, 16)]
)
def test_a_cluster_has_the_nics_of_its_network(nodes: int, nics: int, ccbench: Command) -> None:
    arguments = ("HGX-H100", "--nodes", str(nodes), "--network", f"ib-ndr-400x{nics}")
    document = shown(ccbench, *arguments, "--json").json
    assert (document["nodes"], document["gpu_count"], document["nic_count"]) == (
        nodes,
        8 * nodes,
        nics * nodes,
    )
    by_ends = {(entry["kind"], entry["to"]): entry for entry in document["links"]}
    ports = by_ends.pop(("infiniband", "network_switch"), None)
    if nodes > 1:
        assert ports is not None
        assert (ports["pairs"], ports["count"], ports["bytes_per_second"]) == (
            nodes * nics,
            1,
            50e9,
        )
    inside = by_ends[("pcie", "nic")]
    assert (inside["pairs"], inside["bytes_per_second"]) == (nodes * max(nics, 8), 50e9)
    out = shown(ccbench, *arguments).out
    assert f"{nics * nodes} NIC" in out
    rows = {
        line.split()[0]: line.split() for line in out.splitlines() if line.startswith("gpu")
    }
    assert "NET" not in rows["gpu0"]
    assert rows["gpu0"].count("PIX") == max(1, nics // 8)


def test_the_matrix_of_a_cluster_says_network_between_machines_only(
    ccbench: Command,
) -> None:
    document = shown(
        ccbench, "pcie4-x16", "--nodes", "2", "--network", "ib-ndr-400x4", "--json"
    ).json
    nodes = {entry["name"]: entry["node"] for entry in document["devices"]}
    gpus = [entry["name"] for entry in document["devices"] if entry["kind"] == "gpu"]
    nics = [entry["name"] for entry in document["devices"] if entry["kind"] == "nic"]
    rows = [
        *zip(nics, document["nic_matrix"], strict=True),
        *zip(gpus, document["gpu_matrix"], strict=True),
    ]
    for name, row in rows:
        for peer, label in zip((*gpus, *nics), row, strict=False):
            assert (label == "NET") is (nodes[name] != nodes[peer])


def test_links_without_a_rate_are_named_when_a_dump_is_made_a_cluster(
    tmp_path: Path, ccbench: Command
) -> None:
    (tmp_path / "dump").write_text(PAIR)
    ended = ccbench("topo", "dump", "--nodes", "2", "--network", "ib-ndr-400x2").refused
    for words in ("have no rate", "2 nvlink (gpu0 -> gpu1 ...)", "--yaml"):
        assert words in ended.err


def test_groups_that_no_fast_link_joins_are_told(tmp_path: Path, ccbench: Command) -> None:
    devices = tuple(Device(f"gpu{place}", DeviceKind.GPU) for place in range(4))
    pairs = [("gpu0", "gpu1"), ("gpu1", "gpu0"), ("gpu2", "gpu3"), ("gpu3", "gpu2")]
    links = tuple(Link(*pair, LinkKind.NVLINK, 25e9) for pair in pairs)
    box = Topology("two pairs", devices, links, TopologyClass.NVLINK_MESH)
    (tmp_path / "box.yaml").write_text(topology_yaml(box))
    lines = shown(ccbench, "box.yaml").out.splitlines()
    assert "groups of 2 GPUs use all of a GPU's links" in lines
    assert "groups of 4 GPUs are not all joined by such links" in lines
    assert shown(ccbench, "box.yaml", "--json").json["usable_share"] == {"2": "1", "4": None}


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


def test_what_a_description_leaves_out_is_not_called_hidden_by_the_source() -> None:
    gpus = tuple(Device(f"gpu{place}", DeviceKind.GPU) for place in range(2))
    topology = Topology("catalog", gpus, source="catalog", facts={"omits": "PCIe"})
    assert "? not known: the description leaves out PCIe" in as_text(topology, [])
    assert "? not shown by the source" in as_text(Topology("dump", gpus, source="a dump"), [])


def test_rings_that_are_alike_are_one_line() -> None:
    assert list(channel_lines({"rings": [[0, 1, 2], [0, 1, 2], [0, 2, 1]]})) == [
        "ring: 0 1 2  (x2)",
        "ring: 0 2 1",
    ]
    assert list(channel_lines({"rings": {"00": [0, 1]}})) == ["ring: 0 1"]


def test_a_ring_that_the_source_cut_says_so() -> None:
    (line,) = channel_lines({"rings_first_3": {"00": [0, 1, 2]}})
    assert line == "ring: 0 1 2 ... (cut by the source)"


def test_a_tree_is_its_known_edges() -> None:
    leaf = {"parent": 0, "children": []}
    root = {"parent": None, "children": [1, 2]}
    trees = {"0": {"0": root, "1": root}, "1": {"0": leaf, "1": leaf}}
    assert list(channel_lines({"trees": trees})) == ["tree: 0>1 0>2  (x2)"]


def test_many_orders_are_cut_with_a_count() -> None:
    lines = list(channel_lines({"rings": [[0, number] for number in range(1, MOST_LINES + 4)]}))
    assert len(lines) == MOST_LINES + 1
    assert lines[-1].startswith("and 3 more orders")


def test_facts_of_any_other_form_print_nothing() -> None:
    assert list(channel_lines({"rings": 3, "trees": {"a": {"0": 1}, "b": 2}})) == []


def test_a_log_without_a_machine_says_how_many_ranks_and_devices_it_names() -> None:
    facts = {"nranks": 16, "nnodes": 2, "net_devices": ["mlx5_0", "mlx5_1"]}
    assert network_line(facts) == "16 ranks, 2 machines, 2 network devices (mlx5_0 mlx5_1)"
    assert network_line({"nranks": None}) == ""


@pytest.mark.parametrize(
    ("kind", "count", "words"),
    [
        (DeviceKind.NIC, 1, "no GPU is visible"),
        (DeviceKind.GPU, 2, "how the GPUs are joined is unknown"),
    ],
)
def test_the_first_line_says_what_of_a_machine_is_unknown(
    kind: DeviceKind, count: int, words: str
) -> None:
    devices = tuple(Device(f"d{number}", kind) for number in range(count))
    assert as_text(Topology("vm", devices), ()).splitlines()[0] == f"vm: {words}"
