from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import CcbenchError, MachineError
from ccbench.machine.detection import load_topology
from ccbench.model.cluster import first_gpus
from ccbench.model.library import Generation, Intra
from ccbench.model.library.clusters import (
    generation_of_capability,
    generations_in,
    library_system,
    nvlink_rate,
    nvlinks_of,
    pcie_generation,
    pcie_rate,
    xgmi_rate,
)
from ccbench.topology.composition import compose
from ccbench.topology.files import catalog_names, load_catalog
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


def test_a_cluster_that_is_a_graph_is_the_same_as_its_parts() -> None:
    network = parse_network("roce-200x4")
    whole = library_system(compose(load_catalog("mi300x"), 2, network))
    parts = library_system(load_catalog("mi300x"), 2, network)
    assert (whole.ranks_per_node, whole.nodes) == (parts.ranks_per_node, parts.nodes) == (8, 2)
    assert whole.intra_bytes_per_second == parts.intra_bytes_per_second
    assert whole.network == parts.network


@pytest.mark.parametrize(("nodes", "reason"), [(2, "name a network"), (0, "at least one")])
def test_what_does_not_fit_the_machine_says_why(nodes: int, reason: str) -> None:
    with pytest.raises(MachineError, match=reason):
        library_system(load_catalog("hgx-h100"), nodes)


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
