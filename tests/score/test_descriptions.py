from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score.descriptions import described
from ccbench.errors import MachineError
from ccbench.model.library import Generation, Host, Intra
from ccbench.model.library.clusters import library_system
from ccbench.topology.catalog import load_catalog


@pytest.mark.parametrize(
    ("gpu", "gpus", "interconnect", "machine"),
    [
        ("A100-SXM4-40GB", 8, "nvswitch2", "dgx-a100"),
        ("H100 SXM", 8, "nvswitch3", "hgx-h100"),
        ("H800 (8 NVLinks kept)", 8, "nvswitch3 (H800: reduced NVLink)", "h800"),
        ("B200", 8, "nvswitch4", "hgx-b200"),
        ("V100-SXM2-32GB (DGX-1)", 8, "nvlink-cube-mesh", "dgx-1v"),
        ("P100", 8, "nvlink-cube-mesh", "dgx-1p"),
        ("V100 (DGX-2)", 16, "nvswitch1", "dgx-2"),
        ("GH200 120GB", 4, "nvlink4-direct (4 GPUs all-to-all)", "gh200x4"),
        ("MI300X", 8, "xgmi-mesh", "mi300x"),
        ("MI250X", 16, "xgmi-mesh", "mi250"),
        ("Ascend 910B", 8, "hccs", "ascend-910b"),
    ],
)
def test_words_and_the_catalog_agree_about_the_same_machine(
    gpu: str, gpus: int, interconnect: str, machine: str
) -> None:
    words, graph = described(gpu, gpus, 1, interconnect, "none"), library_system(load_catalog(machine))
    assert words.generation is graph.generation
    assert words.intra is graph.intra
    assert words.intra_bytes_per_second == pytest.approx(graph.intra_bytes_per_second)
    assert (words.links_per_gpu, words.multicast) == (graph.links_per_gpu, graph.multicast)


@pytest.mark.parametrize(
    ("gpu", "interconnect", "intra", "gigabytes"),
    [
        ("RTX 2080 Ti", "pcie3 PIX, P2P not available (SHM)", Intra.HOST, 15.754),
        ("RTX 2080 Ti", "nvlink-bridge", Intra.BRIDGE, 50.0),
        ("H100 PCIe", "nvlink-bridge", Intra.BRIDGE, 300.0),
        ("L40S", "pcie4", Intra.PCIE, 31.508),
        ("RTX 4090", "pcie4 x8", Intra.PCIE, 15.754),
        ("RTX 4090", "unknown", Intra.PCIE, 31.508),
        ("H100 SXM", "unknown", Intra.NVSWITCH, 450.0),
        ("H100 SXM", "nvlink", Intra.NVSWITCH, 450.0),
        ("RTX A6000", "NV4", Intra.BRIDGE, 56.25),
        ("GH200", "nvlink4", Intra.NVLINK_MESH, 450.0),
        ("V100-SXM2-16GB", "nvlink-mesh", Intra.NVLINK_MESH, 150.0),
    ],
)
def test_two_gpus_are_joined_as_the_words_say(
    gpu: str, interconnect: str, intra: Intra, gigabytes: float
) -> None:
    system = described(gpu, 2, 1, interconnect, "none")
    assert system.intra is intra
    assert system.intra_bytes_per_second == pytest.approx(gigabytes * 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("gpu", "gpus", "intra"),
    [
        ("A100-SXM4-80GB", 8, Intra.NVSWITCH),
        ("A100-SXM4-80GB", 4, Intra.NVLINK_MESH),
        ("V100-SXM2-32GB", 8, Intra.CUBE_MESH),
        ("V100-SXM3-32GB", 16, Intra.NVSWITCH),
        ("B200", 4, Intra.NVSWITCH),
    ],
)
def test_nvlink_alone_is_the_shape_that_was_built_of_that_generation(
    gpu: str, gpus: int, intra: Intra
) -> None:
    assert described(gpu, gpus, 1, "nvlink", "none").intra is intra


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ("A100 80GB PCIe", "2 pairs NV12 bridge, pairs over SYS"),
        ("A100 PCIe", "pcie4 (pairs NV12)"),
        ("H100 NVL", "nvlink-bridge"),
        ("RTX A6000", "nvlink"),
    ],
)
def test_a_ring_through_bridged_pairs_is_as_slow_as_pcie(gpu: str, words: str) -> None:
    assert described(gpu, 4, 1, words, "none").intra is Intra.PCIE
    assert described(gpu, 2, 1, "nvlink-bridge", "none").intra is Intra.BRIDGE


def test_four_cards_on_one_four_way_bridge_use_it() -> None:
    assert described("H200 NVL", 4, 1, "nvlink-bridge", "none").intra is Intra.BRIDGE


def test_a_rack_in_one_nvlink_domain_is_one_node() -> None:
    rack = described("GB200 (NVL72)", 4, 18, "nvswitch4-nvl72 (one MNNVL domain)", "none (all in one domain)")
    assert (rack.nodes, rack.ranks_per_node, rack.network) == (1, 72, None)
    assert rack.multicast
    assert rack.host is Host.ARM


def test_racks_have_the_nics_of_all_their_nodes() -> None:
    two = described("GB200 (NVL72)", 4, 36, "nvswitch4-nvl72 x2 racks", "ib-ndr-400 per GPU")
    assert (two.nodes, two.ranks_per_node) == (2, 72)
    assert two.network is not None
    assert two.network.per_node == 72


def test_of_two_kinds_of_gpu_the_older_is_taken_and_said() -> None:
    system = described("H100 PCIe + A100 PCIe (mixed)", 1, 2, "none used", "roce-100x1")
    assert system.generation is Generation.AMPERE
    assert "oldest" in system.origins["generation"]


def test_every_number_says_where_it_is_from() -> None:
    system = described("H100 SXM (BM.GPU.H100.8)", 8, 2, "nvswitch3", "roce-200x16")
    assert set(system.origins) == {"generation", "intra", "network", "host", "gpu_port"}
    assert all(system.origins.values())


@pytest.mark.parametrize(
    ("gpu", "gpus", "nodes", "interconnect", "network", "reason"),
    [
        ("RTX 5090 (2 ranks on one GPU)", 1, 2, "none", "tcp-loopback", "share one GPU"),
        ("none: CPU", 0, 4, "none", "tcp-25x1", "no GPUs"),
        ("AWS Trainium", 2, 1, "neuronlink", "efa-100x8", "no accelerator that is known"),
        ("H100 SXM", 8, 2, "nvswitch3", "none", "for 2 nodes"),
        ("H100 SXM", 8, 2, "nvswitch3", "unknown", "names no kind"),
        ("H100 SXM", 8, 1, "none", "none", "what joins them"),
        ("H100 SXM", 8, 1, "nvlink-cube-mesh", "none", "never built"),
        ("L40S", 2, 1, "nvlink-bridge", "none", "how many NVLinks"),
        ("GB200", 4, 19, "nvswitch4-nvl72 x2 racks", "ib-ndr-400x4", "do not spread evenly"),
        ("V100", 3, 1, "unknown", "none", "is not known"),
    ],
)
def test_what_cannot_be_described_says_why(
    gpu: str, gpus: int, nodes: int, interconnect: str, network: str, reason: str
) -> None:
    with pytest.raises(MachineError, match=reason):
        described(gpu, gpus, nodes, interconnect, network)


@given(
    st.text(max_size=30),
    st.integers(-1, 100),
    st.integers(-1, 100),
    st.text(max_size=40),
    st.text(max_size=40),
)
def test_any_words_are_a_system_or_a_reason(
    gpu: str, gpus: int, nodes: int, interconnect: str, network: str
) -> None:
    try:
        system = described(gpu, gpus, nodes, interconnect, network)
    except MachineError:
        return
    assert system.ranks == gpus * nodes


@given(
    st.sampled_from(["A100 SXM", "H100 SXM", "V100 SXM2", "B200", "MI300X", "L40S", "GB200", "T4"]),
    st.integers(1, 16),
    st.integers(1, 40),
    st.sampled_from(["nvswitch3", "nvswitch4-nvl72", "nvlink-mesh", "xgmi-mesh", "pcie5", "none", "unknown"]),
    st.sampled_from(["ib-ndr-400x8", "none", "efa (25-50 Gb/s class)", "ib-ndr-400 per GPU", "roce"]),
)
def test_no_rank_is_lost_and_racks_hold_at_most_a_domain(
    gpu: str, gpus: int, nodes: int, interconnect: str, network: str
) -> None:
    try:
        system = described(gpu, gpus, nodes, interconnect, network)
    except MachineError:
        return
    assert system.ranks == gpus * nodes
    if "nvl72" in interconnect:
        assert system.ranks_per_node <= 72
    else:
        assert (system.ranks_per_node, system.nodes) == (gpus, nodes)
