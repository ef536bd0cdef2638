"""NCCL and RCCL logs: prefixes, the drawn machine, rings and trees, and the class they leave."""

from __future__ import annotations

import pytest

from ccbench.readers.machines import read_text
from ccbench.readers.machines.nccl_log import MOST_WARNINGS, read
from ccbench.readers.machines.nccl_log import entries as lines_of
from ccbench.topology.graph import DeviceKind, LinkKind, TopologyClass
from tests.topology.graphs import the_link

BOX = """\
=== System : maxBw 80.0 totalBw 80.0 ===
CPU/0 (1/2/-1)
+ SYS[16.0] - CPU/1
+ PCI[24.0] - PCI/1000 (1000c0101000ffff)
              + PCI[24.0] - GPU/3000 (0)
                            + NVL[80.0] - GPU/83000
              + PCI[12.0] - NIC/4000
                            + NET[25.0] - NET/0 (abcdef/1/25.000000)
CPU/1 (1/2/-1)
+ SYS[16.0] - CPU/0
+ PCI[24.0] - GPU/83000 (1)
              + NVL[80.0] - GPU/3000
==========================================
"""

PREFIXES = (
    "",
    "host0:1000:1001 [0] NCCL INFO ",
    "[0] NCCL INFO ",
    "NCCL INFO ",
    "    host0:1000:1001 [0] NCCL INFO ",
    "[1,0]<stdout>:host0:1000:1001 [0] NCCL INFO ",
    "[2026-01-05 10:11:12] host0:1000:1001 [0] NCCL INFO ",
    "0: node-7.rack-2:1000:1001 [0] NCCL INFO ",
    "\x1b[36m(worker pid=77)\x1b[0m host0:1000:1001 [0] NCCL INFO ",
)


def prefixed(text: str, prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_stands_before_a_line_does_not_matter(prefix: str) -> None:
    plain, dressed = read(BOX), read(prefixed(BOX, prefix))
    assert dressed.devices == plain.devices
    assert dressed.links == plain.links
    assert dressed.topology_class is TopologyClass.NVLINK_BRIDGE


def test_the_tree_becomes_devices_with_their_bus_ids_and_numa_nodes() -> None:
    topology = read(BOX)
    found = {device.name: device for device in topology.devices}
    assert sorted(found) == ["cpu0", "cpu1", "gpu0", "gpu1", "nic0", "pcie0"]
    assert (found["gpu0"].bus_id, found["gpu0"].numa_node) == ("0000:03:00.0", 0)
    assert (found["gpu1"].bus_id, found["gpu1"].numa_node) == ("0000:83:00.0", 1)
    assert found["nic0"].attributes["ports"] == [
        {"net": "NET/0", "guid": "abcdef", "port": "1", "bytes_per_second": 25e9}
    ]


def test_links_have_the_printed_rates_in_both_directions() -> None:
    topology = read(BOX)
    for source, target, kind, rate in (
        ("cpu0", "pcie0", LinkKind.PCIE, 24e9),
        ("pcie0", "nic0", LinkKind.PCIE, 12e9),
        ("gpu0", "gpu1", LinkKind.NVLINK, 80e9),
        ("cpu0", "cpu1", LinkKind.INTER_SOCKET, 16e9),
    ):
        assert the_link(topology, source, target, kind).bytes_per_second == rate
        assert the_link(topology, target, source, kind).bytes_per_second == rate


def test_5000_is_no_rate_but_nccls_word_for_no_limit() -> None:
    topology = read(BOX.replace("SYS[16.0]", "SYS[5000.0]"))
    assert the_link(topology, "cpu0", "cpu1", LinkKind.INTER_SOCKET).bytes_per_second is None


def test_a_gpu_below_its_dev_node_is_one_device() -> None:
    newer = (
        BOX.replace("+ PCI[24.0] - GPU/83000 (1)", "+ PCI[24.0] - DEV/83000 (10de)")
        .replace(
            "              + NVL[80.0] - GPU/3000",
            "              + LOC[5000.0] - GPU/83000 (1)",
        )
        .replace("NVL[80.0] - GPU/83000", "NVL[80.0] - DEV/83000")
    )
    topology = read(newer)
    assert len(topology.gpus) == 2
    assert the_link(topology, "gpu0", "gpu1", LinkKind.NVLINK).bytes_per_second == 80e9
    assert the_link(topology, "cpu1", "gpu1", LinkKind.PCIE).bytes_per_second == 24e9


def test_dumps_of_interleaved_ranks_are_not_mixed() -> None:
    one = prefixed(BOX, "host0:1:1 [0] NCCL INFO ").splitlines()
    two = prefixed(BOX, "host0:2:2 [1] NCCL INFO ").splitlines()
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    assert read(mixed).devices == read(BOX).devices


def test_lost_blanks_do_not_move_a_net_away_from_its_card() -> None:
    topology = read("\n".join(line.strip() for line in BOX.splitlines()))
    nic = topology.of_kind(DeviceKind.NIC)[0]
    assert nic.attributes["ports"][0]["net"] == "NET/0"


def test_a_tree_without_nvlinks_is_pcie_only_when_it_is_whole() -> None:
    without = "".join(line for line in BOX.splitlines(keepends=True) if "NVL" not in line)
    assert read(without).topology_class is TopologyClass.PCIE
    cut = without.rpartition("=====")[0].replace("=", "")
    assert read(cut).topology_class is TopologyClass.UNKNOWN


def test_a_link_to_itself_and_a_broken_line_are_named_with_their_line() -> None:
    damaged = BOX.replace("+ NVL[80.0] - GPU/83000", "+ NVL[80.0] - GPU/3000").replace(
        "NIC/4000", "N?C/4000"
    )
    warnings = {
        warning.kind: warning.line for warning in read(prefixed(damaged, "NCCL INFO ")).warnings
    }
    assert warnings["self_link"] == 6
    assert warnings["damaged_line"] == 7


FIRST_TREE = {"0": {"0": {"parent": None, "children": [1, 8]}}}


@pytest.mark.parametrize(
    "line",
    [
        "Trees [0] 1/8/-1->0->-1",
        "Trees [0] -1->0->1/8/-1",
        "Trees [0] 1/8/-1->0->-1|-1->0->1/8/-1",
        "Tree 0 : -1 -> 0 -> 1/8/-1",
    ],
)
def test_trees_are_read_in_every_spelling(line: str) -> None:
    topology = read(f"NCCL INFO {line}\n")
    assert topology.facts["trees"] == FIRST_TREE


def ring_lines(ranks: int, printed: int, ending: str = "") -> str:
    shown = "".join(f"{rank:4d}" for rank in range(printed))
    own = "".join(
        f"host{rank // 8}:{rank}:{rank} [{rank % 8}] NCCL INFO "
        f"Ring 00 : {(rank - 1) % ranks} -> {rank} -> {(rank + 1) % ranks}\n"
        for rank in range(ranks)
    )
    start = f"host0:0:0 [0] NCCL INFO comm 0x1 rank 0 nranks {ranks} cudaDev 0 busId 1000 - Init START\n"
    return f"{start}host0:0:0 [0] NCCL INFO Channel 00/01 :{shown}{ending}\n{own}"


@pytest.mark.parametrize("ending", ["", " ..."])
def test_a_ring_cut_at_twenty_ranks_is_closed_from_each_ranks_own_line(ending: str) -> None:
    facts = read(ring_lines(32, 20, ending)).facts
    assert facts["rings_first_20"] == {"00": list(range(20))}
    assert facts["rings"] == {"00": list(range(32))}


def test_a_cut_ring_stays_cut_when_a_rank_did_not_speak() -> None:
    text = ring_lines(32, 20).replace("Ring 00 : 4 -> 5 -> 6", "")
    assert read(text).facts["rings"] == {}


def test_ranks_own_lines_that_make_two_loops_close_no_ring() -> None:
    text = ring_lines(4, 2)
    for rank, wrong in ((1, 0), (3, 2)):
        text = text.replace(f"-> {rank} -> {(rank + 1) % 4}\n", f"-> {rank} -> {wrong}\n")
    assert read(text).facts["rings"] == {}


@pytest.mark.parametrize(
    ("first", "second", "fact", "found"),
    [
        ("Channel 00/01 : 0 1 2", "Channel 00/01 : 0 2 1", "rings", {"00": [0, 1, 2]}),
        (
            "Tree 0 : -1 -> 0 -> 1/8/-1",
            "Tree 0 : 1 -> 0 -> 2/-1/-1",
            "trees",
            FIRST_TREE,
        ),
    ],
)
def test_lines_of_a_second_communicator_do_not_replace_the_firsts(
    first: str, second: str, fact: str, found: object
) -> None:
    topology = read(f"NCCL INFO {first}\nNCCL INFO {second}\n")
    assert topology.facts[fact] == found
    assert [warning.line for warning in topology.warnings if warning.kind == "unsupported"] == [
        2
    ]


def test_connections_are_no_rings() -> None:
    text = "NCCL INFO Channel 00/0 : 0[1000] -> 1[2000] via P2P/CUMEM/read\n" * 3
    assert read(text).facts["rings"] == {}


def test_rings_over_pcie_inside_a_node_are_told_by_old_patterns_and_new_ones() -> None:
    for words in ("speed 21.0/12.0, type PIX/PIX", "bw 21.0/12.0, type PIX/PIX"):
        text = f"NCCL INFO Pattern 4, crossNic 0, nChannels 2, {words}, sameChannels 1\n"
        assert read(text).topology_class is TopologyClass.PCIE


def tree_log(channels: int, ranks: int = 4) -> str:
    return "".join(
        f"[{rank}] NCCL INFO Trees "
        + " ".join(
            f"[{channel}] {rank + 1}/-1/-1->{rank}->{rank - 1}" for channel in range(channels)
        )
        + "\n"
        for rank in range(1, ranks + 1)
    )


@pytest.mark.parametrize(
    ("channels", "ranks", "expected"),
    [
        (12, 4, TopologyClass.NVSWITCH),
        (2, 4, TopologyClass.UNKNOWN),
        (24, 2, TopologyClass.UNKNOWN),
    ],
)
def test_only_many_equal_chains_of_three_and_more_prove_a_switch(
    channels: int, ranks: int, expected: TopologyClass
) -> None:
    assert read(tree_log(channels, ranks)).topology_class is expected


@pytest.mark.parametrize(
    ("chunk", "expected"), [(131072, TopologyClass.PCIE), (524288, TopologyClass.UNKNOWN)]
)
def test_the_chunk_size_of_pcie_proves_pcie_and_that_of_nvlink_leaves_the_shape_open(
    chunk: int, expected: TopologyClass
) -> None:
    text = (
        f"NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 1\nNCCL INFO P2P Chunksize set to {chunk}\n"
    )
    assert read(text).topology_class is expected


def test_names_of_network_devices_reach_the_cards() -> None:
    using = (
        "NCCL INFO NET/IB : Using [0]mlx5_7:1/IB [1]mlx5_8:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
    )
    topology = read(using + prefixed(BOX, "NCCL INFO "))
    assert topology.facts["net_devices"] == ["mlx5_7", "mlx5_8"]
    assert topology.of_kind(DeviceKind.NIC)[0].attributes["name"] == "mlx5_7"


def test_two_systems_of_one_nvlink_domain_are_two_nodes() -> None:
    text = BOX.replace("83000", "1-83000").replace("CPU/1", "CPU/1-1").replace("/0", "/0-0")
    nodes = {device.name: device.node for device in read(text).devices}
    assert nodes["gpu0"] != nodes["gpu1"]


ROWS = """\
GPU/83000 :GPU/83000 (0/5000.0/LOC) GPU/84000 (2/360.0/NVL) NVS/0 (1/360.0/NVL) CPU/1 (2/48.0/PHB)
GPU/84000 :GPU/83000 (2/360.0/NVL) GPU/84000 (0/5000.0/LOC) NVS/0 (1/360.0/NVL) CPU/1 (2/48.0/PHB)
"""


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "0: ", *PREFIXES[1:4]])
def test_a_table_of_paths_alone_and_of_a_second_socket_is_read(prefix: str) -> None:
    topology = read_text(prefixed(ROWS, prefix))
    assert topology.source == "nccl_log"
    assert [device.name for device in topology.devices] == ["gpu0", "gpu1", "nvswitch0", "cpu1"]
    assert topology.topology_class is TopologyClass.NVSWITCH
    assert the_link(topology, "gpu1", "cpu1", LinkKind.PCIE).bytes_per_second == 48e9
    assert topology.facts["cpu_count"] == 1


def test_warnings_of_a_ruined_log_are_counted_not_listed() -> None:
    topology = read("NCCL INFO + PCI[?] - GPU/1\n" * 1000)
    assert len(topology.warnings) == MOST_WARNINGS + 1
    assert "801 more" in topology.warnings[-1].text


def test_the_lines_number_is_that_of_the_file() -> None:
    assert [entry.number for entry in lines_of("\n\nNCCL INFO a\r\n\x0bb\n")] == [3, 4]


def initialised(rank: int, bus_id: str, device: str = "") -> str:
    return (
        f"h:1:1 [{rank}] NCCL INFO ncclCommInitRank comm 0x5 rank {rank} nranks 8 "
        f"cudaDev {device or rank} nvmlDev {rank} busId {bus_id}"
    )


def test_a_bus_id_that_another_process_wrote_into_is_null_and_noted() -> None:
    topology = read(f"{initialised(4, '97')}h:2:2 [2] NCCL INFO x\n{initialised(5, '9d000')}\n")
    noted = [(warning.line, warning.text) for warning in topology.warnings]
    torn = "lines torn into each other: busId '97h:2:2' is no such value; left out"
    assert (1, torn) in noted
    assert any(line == 1 and text.startswith("1 line torn") for line, text in noted)


@pytest.mark.parametrize(
    ("text", "torn"),
    [
        (initialised(4, "97000", "4h:2:2"), "cudaDev '4h:2:2'"),
        (initialised(4, "97000").replace("rank 4", "rank 4x"), "rank '4x'"),
        (initialised(4, "97000").replace("nranks 8", "nranks 8h:2:2"), "nranks '8h:2:2'"),
        (initialised(4, "97:00.0g"), "busId '97:00.0g'"),
    ],
)
def test_a_field_of_other_signs_than_its_own_is_noted(text: str, torn: str) -> None:
    topology = read(f"{initialised(0, '1000')}\n{text}\n")
    notes = [warning for warning in topology.warnings if torn in warning.text]
    assert [note.line for note in notes] == [2]


@pytest.mark.parametrize("bus_id", ["1000", "b1000", "0000:b1:00.0", "00000000:B1:00.0"])
def test_bus_ids_as_nccl_spells_them_are_kept(bus_id: str) -> None:
    topology = read(initialised(0, bus_id).replace("nranks 8", "nranks 1"))
    assert [gpu.attributes["nccl_id"] for gpu in topology.gpus] == [bus_id]
    assert "damaged_line" not in {warning.kind for warning in topology.warnings}
