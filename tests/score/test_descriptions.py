from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score.descriptions import described
from benchmarks.score.network_words import ports_of
from ccbench.errors import MachineError
from ccbench.model.library import Generation, Intra, NetworkPorts
from ccbench.model.library.clusters import library_system
from ccbench.topology.files import load_catalog
from ccbench.topology.node_nics import KINDS
from tests.topology.denials import NETWORKS, PARTS, denials, shares


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
    words, graph = (
        described(gpu, gpus, 1, interconnect, "none"),
        library_system(load_catalog(machine)),
    )
    assert words.generation is graph.generation
    assert words.intra is graph.intra
    assert words.intra_bytes_per_second == pytest.approx(graph.intra_bytes_per_second)
    assert (words.links_per_gpu, words.multicast) == (graph.links_per_gpu, graph.multicast)


@pytest.mark.parametrize(
    ("gpu", "gpus", "interconnect", "intra"),
    [
        # NVLink alone is the shape that was built of that generation.
        ("A100-SXM4-80GB", 8, "nvlink", Intra.NVSWITCH),
        ("A100-SXM4-80GB", 4, "nvlink", Intra.NVLINK_MESH),
        ("V100-SXM2-32GB", 8, "nvlink", Intra.CUBE_MESH),
        ("V100-SXM3-32GB", 16, "nvlink", Intra.NVSWITCH),
        ("B200", 4, "nvlink", Intra.NVSWITCH),
        # A ring through bridged pairs is as slow as PCIe.
        ("A100 80GB PCIe", 4, "2 pairs NV12 bridge, pairs over SYS", Intra.PCIE),
        ("A100 PCIe", 4, "pcie4 (pairs NV12)", Intra.PCIE),
        ("H100 NVL", 4, "nvlink-bridge", Intra.PCIE),
        ("RTX A6000", 4, "nvlink", Intra.PCIE),
        ("H200 NVL", 4, "nvlink-bridge", Intra.BRIDGE),  # which four cards may share
    ],
)
def test_more_gpus_are_joined_as_their_boards_and_bridges_were_built(
    gpu: str, gpus: int, interconnect: str, intra: Intra
) -> None:
    assert described(gpu, gpus, 1, interconnect, "none").intra is intra


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
    st.sampled_from(
        ["A100 SXM", "H100 SXM", "V100 SXM2", "B200", "MI300X", "L40S", "GB200", "T4"]
    ),
    st.integers(1, 16),
    st.integers(1, 40),
    st.sampled_from(
        ["nvswitch3", "nvswitch4-nvl72", "nvlink-mesh", "xgmi-mesh", "pcie5", "none", "unknown"]
    ),
    st.sampled_from(
        ["ib-ndr-400x8", "none", "efa (25-50 Gb/s class)", "ib-ndr-400 per GPU", "roce"]
    ),
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


def ports(words: str, ranks: int = 8) -> NetworkPorts | None:
    return ports_of(words, ranks, Generation.AMPERE)[0]


@pytest.mark.parametrize(
    ("words", "kind", "gigabits", "count"),
    [
        ("ib-ndr-400x8", "ib-ndr", 400, 8),
        ("efa-100x32 (3200 Gb/s)", "efa", 100, 32),
        ("roce or ib 400x8 (not in the part read)", "roce", 400, 8),
        ("tcpxo-200x8 (FasTrak)", "tcpxo", 200, 8),
        ("ib-ndr-400 per GPU (not stated in the doc)", "ib-ndr", 400, 8),
        ("omnipath-100x4", "omnipath", 100, 4),
        ("tcp-over-ipoib (sockets)", "tcp", 200, 1),
        ("ib-hdr", "ib-hdr", 200, 1),
        ("2x200Gb HDR InfiniBand", "ib-hdr", 200, 2),
        ("InfiniBand NDR, 8 x 400 Gb/s", "ib-ndr", 400, 8),
        ("InfiniBand HDR100", "ib-hdr", 100, 1),
        ("RoCEv2 400x8", "roce", 400, 8),
        ("ethernet 100GbE", "tcp", 100, 1),
        ("slingshot-11", "slingshot", 200, 1),
        ("slingshot 200 Gb/s x 4", "slingshot", 200, 4),
        ("ib-ndr-200", "ib-ndr", 200, 1),
        ("roce (host-staged; measured ceiling 92.6 Gb/s with perftest)", "roce", 92.6, 1),
    ],
)
def test_words_of_networks_say_kind_rate_and_number(
    words: str, kind: str, gigabits: float, count: int
) -> None:
    found = ports(words)
    assert found is not None
    assert (found.word, found.per_node) == (kind, count)
    assert found.bytes_per_second == pytest.approx(gigabits * 1e9 / 8)


@pytest.mark.parametrize(
    "words",
    [
        "unknown",
        "roce (mlx5, speed not in the part read)",
        "none reachable (no NIC in the pod)",
        "tcp-loopback",
        "slingshot-200x4 wrongly configured",
        "ib-ndr-0x8",
    ],
)
def test_words_that_leave_the_rate_open_are_refused_with_the_reason(words: str) -> None:
    with pytest.raises(MachineError, match="network: "):
        ports(words)


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 10_000), st.integers(1, 256))
def test_the_short_form_is_read_as_it_is_written(kind: str, gigabits: int, count: int) -> None:
    found = ports(f"{kind}-{gigabits}x{count}")
    assert found is not None
    assert (found.word, found.per_node) == (kind, count)
    assert found.bytes_per_second == pytest.approx(gigabits * 1e9 / 8)


@given(st.text(max_size=80))
def test_any_words_are_ports_or_a_reason(words: str) -> None:
    try:
        found = ports(words)
    except MachineError:
        return
    assert found is None or found.bytes_per_second > 0


PLACES = ("{}, {}", "{}; {}", "{} ({})", "{1}, {0}", "{1}; {0}")
JOINED = (
    "pcie4",
    "unknown",
    "nvlink",
    "nvlink-bridge",
    "nvlink-mesh",
    "nvswitch3",
    "NV12",
    "nvlink-cube-mesh",
    "xgmi-mesh",
    "2 pairs NV12 bridge, pairs over SYS",
    "nvswitch4-nvl72",
    "pcie3 PIX, P2P not available (SHM)",
)
GPUS = (
    "A40",
    "A100 80GB PCIe",
    "A100 SXM4",
    "H100 SXM",
    "H100 PCIe",
    "V100-SXM2",
    "GB200",
    "MI300X",
    "RTX 2080 Ti",
)


@given(
    st.sampled_from(GPUS),
    st.sampled_from([(2, 1), (4, 1), (8, 1), (16, 1), (4, 2), (4, 18)]),
    st.sampled_from(JOINED),
    st.sampled_from(["none", "tcp-25x1", "ib-hdr-200x4", "ib-hdr-200x4 with SHARP", "unknown"]),
    st.sampled_from(PLACES),
    denials(PARTS + NETWORKS) | shares(),
)
def test_a_negated_word_or_a_share_never_raises_a_rate(
    gpu: str, counts: tuple[int, int], joined: str, network: str, place: str, denial: str
) -> None:
    def rates(gpu: str, joined: str, network: str) -> tuple[float, float, bool, bool]:
        system = described(gpu, *counts, joined, network)
        # What one node holds together needs no network, as if that had no limit.
        network_rate = system.network.node_bytes_per_second if system.network else math.inf
        reduces = system.network is None or system.network.in_network_reduction
        return system.intra_bytes_per_second, network_rate, system.multicast, reduces

    try:
        plain = rates(gpu, joined, network)
    except MachineError:
        return
    # In any of the three texts; where nothing is left that is understood, nothing is promised either.
    for words in (
        (f"{gpu} ({denial})", joined, network),
        (gpu, place.format(joined, denial), network),
        (gpu, joined, place.format(network, denial)),
    ):
        with suppress(MachineError):
            assert all(
                after <= before for after, before in zip(rates(*words), plain, strict=True)
            )


@pytest.mark.parametrize(
    ("words", "count", "share"), [("half of the NICs", 4, 0.5), ("a third of them", 2, 1 / 3)]
)
def test_a_share_of_the_nics_has_that_share_of_their_rate(
    words: str, count: int, share: float
) -> None:
    plain = described("H100 SXM", 8, 2, "nvswitch3", "ib-ndr-400x8").network
    system = described("H100 SXM", 8, 2, "nvswitch3", f"ib-ndr-400x8, {words}").network
    assert plain is not None
    assert system is not None
    assert system.per_node == count
    assert system.node_bytes_per_second == pytest.approx(share * plain.node_bytes_per_second)


@pytest.mark.parametrize("joined", ["nvlink", "unknown", "nvswitch4", "nvswitch4-nvl72"])
@pytest.mark.parametrize(
    ("gpus", "hosts", "ranks", "racks"),
    [(4, 8, 32, 1), (4, 18, 72, 1), (72, 1, 72, 1), (4, 36, 72, 2)],
)
def test_hosts_of_a_rack_that_the_name_of_its_gpus_tells_share_its_switches(
    joined: str, gpus: int, hosts: int, ranks: int, racks: int
) -> None:
    system = described("GB200 NVL72", gpus, hosts, joined, "ib-ndr-400x4")
    assert (system.intra, system.ranks_per_node, system.nodes) == (Intra.NVSWITCH, ranks, racks)
    assert system.network is None or system.network.per_node == 72


@pytest.mark.parametrize(
    ("gpu", "gpus", "joined", "intra"),
    [
        ("H100 SXM", 8, "no nvswitch", Intra.PCIE),
        ("H100 SXM", 8, "nvswitch3, NVLink disabled", Intra.PCIE),
        ("H100 SXM", 4, "nvlink, no NVSwitch", Intra.NVLINK_MESH),
        ("A100 SXM4 (NVLink disabled)", 8, "unknown", Intra.PCIE),
        ("MI300X", 8, "xgmi disabled", Intra.PCIE),
        ("MI300X", 8, "no NVLink", Intra.XGMI),
        ("H100 SXM", 8, "nvswitch3 (no SHARP)", Intra.NVSWITCH),
        ("L40S", 2, "no peer access", Intra.HOST),
    ],
)
def test_without_a_part_gpus_are_joined_by_what_is_left(
    gpu: str, gpus: int, joined: str, intra: Intra
) -> None:
    assert described(gpu, gpus, 1, joined, "none").intra is intra


@pytest.mark.parametrize(
    ("words", "kind", "gigabits", "nics"),
    [
        ("ib-ndr-400x8, 2x25G ethernet", "ib-ndr", 400, 8),
        ("100 Gb/s ENA ethernet, EFA 4x100 Gb/s", "tcp", 100, 1),
        ("RoCE 2x100G storage, ib-ndr-400x8", "roce", 100, 2),
        ("InfiniBand, 8x400G", "ib", 400, 8),
        ("EFA and ENA, efa-100x4", "efa", 100, 4),
    ],
)
def test_of_two_networks_the_first_counts_with_its_own_rate(
    words: str, kind: str, gigabits: float, nics: int
) -> None:
    found = ports(words)
    assert found is not None
    assert (found.word, found.bytes_per_second * 8 / 1e9, found.per_node) == (
        kind,
        gigabits,
        nics,
    )
