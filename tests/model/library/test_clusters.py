from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import CcbenchError, MachineError
from ccbench.machine.detection import load_topology
from ccbench.model.cluster import first_gpus
from ccbench.model.library import Generation, HostProcessor, Intra
from ccbench.model.library.clusters import (
    generation_of_capability,
    generations_in,
    host_of,
    library_system,
    nic_port,
    nvlink_rate,
    nvlinks_of,
    pcie_generation,
    pcie_rate,
    xgmi_rate,
)
from ccbench.topology.composition import compose
from ccbench.topology.files import catalog_names, load_catalog
from ccbench.topology.graph import Device, DeviceKind, LinkState, Topology, TopologyClass
from ccbench.topology.node_nics import parse_network
from tests.topology import dumps

WITHOUT_GPUS = {"cpu-shared-memory"}


@pytest.mark.parametrize("name", catalog_names())
def test_every_machine_of_the_catalog_is_a_system_or_says_why_not(name: str) -> None:
    if name in WITHOUT_GPUS:
        with pytest.raises(MachineError, match="no GPUs"):
            library_system(load_catalog(name))
        return
    machine = load_catalog(name)
    system = library_system(machine)
    assert system.ranks == len(machine.gpus)
    if system.ranks > 1:
        assert system.intra_bytes_per_second > 0
        assert system.links_per_gpu > 0
    assert all(system.origins.values())


@pytest.mark.parametrize(
    ("name", "generation", "intra", "gigabytes", "links", "multicast"),
    [
        ("hgx-h100", Generation.HOPPER, Intra.NVSWITCH, 450, 18, True),
        ("dgx-a100", Generation.AMPERE, Intra.NVSWITCH, 300, 12, False),
        ("dgx-2", Generation.VOLTA, Intra.NVSWITCH, 150, 6, False),
        ("dgx-1v", Generation.VOLTA, Intra.CUBE_MESH, 150, 6, False),
        ("hgx-b200", Generation.BLACKWELL, Intra.NVSWITCH, 900, 18, True),
        ("gb200-nvl72", Generation.BLACKWELL, Intra.NVSWITCH, 900, 18, True),
        ("mi300x", Generation.CDNA3, Intra.XGMI, 448, 7, False),
        ("ascend-910b", Generation.ASCEND, Intra.HCCS, 196, 7, False),
        ("rtx-pcie", Generation.ADA, Intra.HOST, 31.5, 1, False),
        ("rtx-pcie-p2p", Generation.ADA, Intra.PCIE, 31.5, 1, False),
        ("h100-pcie-bridge", Generation.HOPPER, Intra.PCIE, 63, 1, False),
    ],
)
def test_machines_are_what_their_datasheets_say(
    name: str,
    generation: Generation,
    intra: Intra,
    gigabytes: float,
    links: int,
    multicast: bool,
) -> None:
    system = library_system(load_catalog(name))
    assert (system.generation, system.intra, system.multicast) == (generation, intra, multicast)
    assert system.intra_bytes_per_second == pytest.approx(gigabytes * 1e9)
    assert system.links_per_gpu == links


def test_two_cards_on_one_bridge_use_the_bridge() -> None:
    system = library_system(load_catalog("h100-pcie-bridge"), ranks=2)
    assert (system.intra, system.intra_bytes_per_second) == (Intra.BRIDGE, 300e9)


def test_part_of_a_mesh_has_only_the_links_inside_it() -> None:
    assert library_system(load_catalog("mi300x"), ranks=4).intra_bytes_per_second == 3 * 64e9
    assert library_system(load_catalog("dgx-1v"), ranks=2).links_per_gpu == 1


def test_one_gpu_of_each_node_needs_no_links_inside() -> None:
    system = library_system(load_catalog("hgx-h100"), 4, parse_network("ib-ndr-400x8"), ranks=4)
    assert (system.ranks_per_node, system.nodes, system.intra) == (1, 4, Intra.NONE)


def test_a_network_that_is_given_counts() -> None:
    system = library_system(load_catalog("dgx-a100"), 4, parse_network("ib-hdr-200x8"))
    assert system.network is not None
    assert (system.network.word, system.network.per_node) == ("ib-hdr", 8)
    assert system.network.bytes_per_second == 25e9
    assert system.ranks == 32


def test_a_cluster_that_is_a_graph_is_the_same_as_its_parts() -> None:
    network = parse_network("roce-200x4")
    whole = library_system(compose(load_catalog("mi300x"), 2, network))
    parts = library_system(load_catalog("mi300x"), 2, network)
    assert (whole.ranks_per_node, whole.nodes) == (parts.ranks_per_node, parts.nodes) == (8, 2)
    assert whole.intra_bytes_per_second == parts.intra_bytes_per_second
    assert whole.network == parts.network


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"nodes": 2}, "name a network"),
        ({"nodes": 0}, "at least one"),
        ({"ranks": 9}, "do not spread evenly"),
        (
            {"nodes": 2, "network": parse_network("tcp-25x1"), "ranks": 7},
            "do not spread evenly",
        ),
    ],
)
def test_what_does_not_fit_the_machine_says_why(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(MachineError, match=reason):
        library_system(load_catalog("hgx-h100"), **arguments)


def test_links_that_are_down_carry_nothing() -> None:
    machine = load_catalog("mi300x")
    links = tuple(
        replace(link, state=LinkState.DOWN)
        if {link.source, link.target} == {"gpu0", "gpu1"}
        else link
        for link in machine.links
    )
    assert library_system(replace(machine, links=links)).links_per_gpu == 6


def test_rates_that_the_source_leaves_out_are_those_of_the_model_and_said_to_be_assumed() -> (
    None
):
    machine = load_catalog("hgx-h100")
    links = tuple(replace(link, bytes_per_second=None) for link in machine.links)
    system = library_system(replace(machine, links=links))
    assert system.intra_bytes_per_second == 450e9
    assert system.origins["intra"].startswith("assumed")


def test_gpus_that_the_driver_keeps_apart_go_through_the_host() -> None:
    machine = load_catalog("l40s")
    matrix = [["X" if row == column else "CNS" for column in range(4)] for row in range(4)]
    assert library_system(machine).intra is Intra.PCIE
    apart = replace(machine, facts={**machine.facts, "p2p_matrix": matrix})
    assert library_system(apart).intra is Intra.HOST


def test_gpus_without_a_model_are_known_by_their_capability() -> None:
    machine = load_catalog("hgx-h100")
    devices = tuple(
        replace(device, attributes={"sm": "90"}) if device.kind is DeviceKind.GPU else device
        for device in machine.devices
    )
    facts = {name: value for name, value in machine.facts.items() if name != "gpu_model"}
    assert (
        library_system(replace(machine, devices=devices, facts=facts)).generation
        is Generation.HOPPER
    )


def test_processors_that_the_source_names_count_more_than_what_boards_usually_have() -> None:
    machine = load_catalog("hgx-h100")
    amd = replace(machine, facts={**machine.facts, "cpu": {"vendor": "AuthenticAMD"}})
    assert library_system(machine).host is HostProcessor.INTEL
    assert library_system(amd).host is HostProcessor.AMD


def test_gpus_that_nobody_saw_joined_are_refused() -> None:
    lost = Topology("lost", tuple(Device(f"gpu{rank}", DeviceKind.GPU) for rank in range(2)))
    assert lost.topology_class is TopologyClass.UNKNOWN
    with pytest.raises(MachineError, match="does not show what joins"):
        library_system(lost)


@given(
    st.sampled_from(sorted(set(catalog_names()) - WITHOUT_GPUS)),
    st.integers(1, 64),
    st.integers(1, 8),
)
def test_ranks_are_as_many_as_asked_for(name: str, ranks: int, nodes: int) -> None:
    network = parse_network("ib-ndr-400x8")
    try:
        system = library_system(load_catalog(name), nodes, network, ranks)
    except MachineError:
        return
    assert system.ranks == ranks
    assert system.ranks_per_node <= len(load_catalog(name).gpus)


@dumps.needs_dumps
@pytest.mark.parametrize(
    "entry", dumps.entries("nccl_xml"), ids=dumps.names(dumps.entries("nccl_xml"))
)
def test_every_topology_file_of_nccl_is_a_system_or_says_why_not(entry: dict[str, Any]) -> None:
    assert dumps.DUMPS is not None
    try:
        topology = load_topology(str(dumps.DUMPS / entry["file"]))
    except CcbenchError:
        return
    try:
        system = library_system(topology)
    except MachineError:
        return
    assert system.ranks_per_node == 1 or system.intra_bytes_per_second > 0


@pytest.mark.parametrize(
    ("name", "gigabytes", "origin"),
    [
        ("hgx-h100", 63.0, "hopper"),
        ("pcie3-x16", 15.75, ""),
        ("gb200-nvl72", float("inf"), "not limited"),
        ("gh200x4", float("inf"), "not limited"),
    ],
)
def test_the_port_of_a_gpu_towards_nics_is_stated_or_its_generations(
    name: str, gigabytes: float, origin: str
) -> None:
    system = library_system(load_catalog(name))
    assert system.gpu_port_bytes_per_second / 1e9 == pytest.approx(gigabytes, rel=1e-3)
    assert origin in system.origins["gpu_port"]


def test_in_a_mesh_with_gaps_a_ring_gets_what_leaves_the_narrowest_group() -> None:
    # The first seven dies hang together by fewer links than each of them has.
    dies = load_catalog("mi250")
    some = library_system(first_gpus(dies, 7))
    inside = {gpu.name for gpu in dies.gpus[:7]}
    least = min(
        sum(
            link.bytes_per_second or 0.0
            for link in dies.links
            if link.source == gpu and link.target in inside
        )
        for gpu in inside
    )
    assert some.intra_bytes_per_second < least
    assert library_system(load_catalog("dgx-1v")).intra_bytes_per_second == 150e9
    assert library_system(load_catalog("mi300x")).intra_bytes_per_second == 448e9


@pytest.mark.parametrize(
    ("words", "generation", "is_board", "host", "origin"),
    [
        ("A100 (DGX A100)", Generation.UNKNOWN, True, HostProcessor.AMD, "DGX A100"),
        (
            "A100-SXM4-40GB (ND96asr_v4)",
            Generation.UNKNOWN,
            True,
            HostProcessor.AMD,
            "ND96asr_v4",
        ),
        ("A100-SXM4-40GB (p4d.24xlarge)", Generation.UNKNOWN, True, HostProcessor.INTEL, "p4d"),
        ("H100 SXM (p5.48xlarge)", Generation.UNKNOWN, True, HostProcessor.AMD, "p5"),
        ("H200 SXM (p5en.48xlarge)", Generation.UNKNOWN, True, HostProcessor.INTEL, "p5en"),
        (
            "H200 SXM (Azure ND H200 v5)",
            Generation.UNKNOWN,
            True,
            HostProcessor.INTEL,
            "ND H200",
        ),
        ("GH200 120GB", Generation.UNKNOWN, True, HostProcessor.ARM, "GH200"),
        ("H100 SXM beside EPYC 9654", Generation.UNKNOWN, True, HostProcessor.AMD, "EPYC"),
        ("L40S, Xeon 6430", Generation.UNKNOWN, True, HostProcessor.INTEL, "Xeon"),
        ("V100 (DGX-2H, NVSwitch)", Generation.UNKNOWN, True, HostProcessor.INTEL, "DGX-2"),
        ("H100 SXM, not a p5", Generation.HOPPER, True, HostProcessor.INTEL, "assumed"),
        (
            "H100 SXM",
            Generation.HOPPER,
            True,
            HostProcessor.INTEL,
            "assumed",
        ),  # a board without a name
        (
            "RTX 2080 Ti",
            Generation.TURING,
            False,
            HostProcessor.UNKNOWN,
            "not stated",
        ),  # cards go into any box
    ],
)
def test_boxes_that_are_named_have_known_processors_and_the_origin_says_what_is_assumed(
    words: str, generation: Generation, is_board: bool, host: HostProcessor, origin: str
) -> None:
    found, said = host_of(words, generation, is_board)
    assert found is host
    assert said.startswith(origin)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("GeForce GTX 1080 Ti", [Generation.PASCAL]),
        ("NVIDIA TITAN V", [Generation.VOLTA]),
        ("Tesla T4", [Generation.TURING]),
        ("Quadro RTX 8000", [Generation.TURING]),
        ("A100SXM4", [Generation.AMPERE]),
        ("A10G", [Generation.AMPERE]),
        ("NVIDIA RTX A6000", [Generation.AMPERE]),
        ("GeForce RTX 3090 Ti", [Generation.AMPERE]),
        ("L4", [Generation.ADA]),
        ("RTX 6000 Ada Generation", [Generation.ADA]),
        ("GeForce RTX 4090 D", [Generation.ADA]),
        ("GH200 120GB", [Generation.HOPPER]),
        ("H20-3e", [Generation.HOPPER]),
        ("B300", [Generation.BLACKWELL]),
        ("RTX PRO 6000 Blackwell", [Generation.BLACKWELL]),
        ("AMD Instinct MI250X", [Generation.CDNA2]),
        ("gfx942", [Generation.CDNA3]),
        ("AMD Instinct MI325X", [Generation.CDNA3]),
        ("AMD Instinct MI350X", [Generation.CDNA4]),
        ("gfx950", [Generation.CDNA4]),
        ("Ascend 910B", [Generation.ASCEND]),
        # Parts of other words are no names, and of two the older is first.
        ("p4d.24xlarge", []),
        ("BM.GPU.B4.8", []),
        ("A1000000", []),
        ("H100 PCIe + A100 PCIe (mixed)", [Generation.AMPERE, Generation.HOPPER]),
        # What it is said not to be it is not.
        ("B200, not H100", [Generation.BLACKWELL]),
    ],
)
def test_a_model_name_says_its_generation(words: str, named: list[Generation]) -> None:
    assert list(generations_in(words)) == named


@given(st.text(max_size=60))
def test_any_words_give_an_answer(words: str) -> None:
    assert len(set(generations_in(words))) == len(generations_in(words))
    assert nvlinks_of(words) is None or nvlinks_of(words)


@given(st.integers(0, 200))
def test_newer_capabilities_are_newer_generations(capability: int) -> None:
    order = [
        Generation.UNKNOWN,
        Generation.PASCAL,
        Generation.VOLTA,
        Generation.TURING,
        Generation.AMPERE,
    ]
    order += [Generation.ADA, Generation.HOPPER, Generation.BLACKWELL]
    here, above = generation_of_capability(capability), generation_of_capability(capability + 1)
    assert order.index(here) <= order.index(above)


def test_nvlinks_of_boards_and_of_bridged_cards() -> None:
    assert (nvlinks_of("H100 SXM"), nvlinks_of("H100 PCIe"), nvlinks_of("H800")) == (18, 12, 8)
    assert (nvlinks_of("RTX 2080 Ti"), nvlinks_of("RTX A6000"), nvlinks_of("RTX 2080")) == (
        2,
        4,
        1,
    )
    assert nvlinks_of("L40S") is None


def test_rates_are_those_of_topology() -> None:
    assert nvlink_rate(Generation.HOPPER, "H100 SXM") == 25e9
    assert nvlink_rate(Generation.BLACKWELL, "B200") == 50e9
    assert nvlink_rate(Generation.AMPERE, "RTX 3090") == 14.0625e9
    assert nvlink_rate(Generation.ADA, "L40S") is None
    for generation, rate in ((Generation.CDNA3, 64e9), (Generation.CDNA4, 76.8e9)):
        xgmi = xgmi_rate(generation)
        assert xgmi is not None
        assert xgmi[0] == rate
    assert xgmi_rate(Generation.HOPPER) is None


def test_pcie_rates_follow_from_transfers_and_coding() -> None:
    assert pcie_rate(3) == pytest.approx(15.754e9, rel=1e-4)
    assert pcie_rate(5, 8) == pytest.approx(31.508e9, rel=1e-4)
    assert pcie_rate(9) is None
    assert pcie_generation(Generation.TURING) == 3


@pytest.mark.parametrize(
    ("model", "generation", "gigabytes"),
    [
        ("H100 SXM", Generation.HOPPER, 63.0),
        ("L40S", Generation.ADA, 31.5),
        ("V100-SXM2-32GB", Generation.VOLTA, 15.75),
        ("GH200 120GB", Generation.HOPPER, math.inf),
        ("GB200", Generation.BLACKWELL, math.inf),
        ("Ascend 910B", Generation.ASCEND, math.inf),
        ("something", Generation.UNKNOWN, math.inf),
    ],
)
def test_the_port_towards_nics_is_that_of_the_generation_unless_there_is_none(
    model: str, generation: Generation, gigabytes: float
) -> None:
    rate, origin = nic_port(generation, model)
    assert rate / 1e9 == pytest.approx(gigabytes, rel=1e-3)
    assert origin
