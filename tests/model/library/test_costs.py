from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ccbench.model.library import Generation, HostProcessor, Intra, LibrarySystem, NetworkPorts
from ccbench.model.library.costs import Cost, cost, protocols
from ccbench.model.library.shapes import shapes
from tests.model.library.systems import (
    A100,
    COLLECTIVES,
    H100,
    HDR,
    MI300X,
    NDR,
    STARTS,
    clustered,
    lone,
    systems,
)

TABLE = STARTS.table
MICRO = 1e-6


def priced(
    system: LibrarySystem,
    algorithm: str,
    protocol: str,
    *sizes: float,
    collective: str = "all_reduce",
) -> Cost:
    shape = {shape.algorithm: shape for shape in shapes(collective, system)}[algorithm]
    return cost(shape, protocol, system, np.array(sizes, dtype=np.float64), TABLE)


def most_growing(size: float) -> float:
    """The share of a transfer up to which chunks grow with the size."""
    most = TABLE["pipeline_mebibytes"] * 2**20
    return float(most / (size + most))


def test_a_ring_with_simple_is_what_the_page_of_formulas_says() -> None:
    size = 1e9
    cost = priced(A100, "ring", "simple", size)
    hops = 14 * 3.4 * TABLE["hop.simple"] * MICRO
    latency = 8.4 * TABLE["base"] * MICRO + hops
    transfer = 14 / 8 * size / (300e9 * TABLE["efficiency.nvlink"])
    assert cost.latency_seconds == pytest.approx(latency)
    assert cost.bandwidth_seconds[0] == pytest.approx(transfer)
    cut = 2 * TABLE["fill_of_blocks"] * np.sqrt(hops * transfer * most_growing(size))
    assert cost.fill_seconds[0] == pytest.approx(1 / (1 / (14 * transfer) + 1 / cut))
    assert cost.floored(0.0)[0] == pytest.approx(latency + transfer + cost.fill_seconds[0])


def test_a_tree_with_simple_is_what_the_page_of_formulas_says() -> None:
    size = 1e9
    cost = priced(A100, "tree", "simple", size)
    hops = 14 * 4.0 * TABLE["hop.simple"] * MICRO
    transfer = 2 * size / (300e9 * TABLE["efficiency.nvlink"] * TABLE["tree_rate"])
    cut = 2 * TABLE["fill"] * np.sqrt(hops * transfer * most_growing(size))
    assert cost.bandwidth_seconds[0] == pytest.approx(transfer)
    assert cost.fill_seconds[0] == pytest.approx(1 / (1 / (14 * transfer) + 1 / cut))


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("chain", ["broadcast", "reduce"])
def test_a_ring_of_blocks_fills_less_than_one_that_begins_or_ends_at_one_rank(
    collective: str, chain: str
) -> None:
    blocks, whole = (
        priced(A100, "ring", "simple", 1e8, collective=name).fill_seconds[0]
        for name in (collective, chain)
    )
    assert 0 < blocks < whole / 2


EFA, SLINGSHOT, TCPX = (replace(NDR, word=word) for word in ("efa", "slingshot", "tcpx"))


@pytest.mark.parametrize("network", [EFA, SLINGSHOT, TCPX], ids=lambda network: network.word)
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_a_message_that_waits_for_an_answer_costs_a_handshake_on_every_hop_of_the_network(
    network: NetworkPorts, algorithm: str
) -> None:
    system = clustered(H100, 4, network)
    without = TABLE | {f"handshake.{network.word}_us": 1e-12}
    shape = {shape.algorithm: shape for shape in shapes("all_reduce", system)}[algorithm]
    sizes = np.array([8.0, 1e10])
    short, long = (
        cost(shape, "simple", system, sizes, TABLE).fill_seconds
        - cost(shape, "simple", system, sizes, without).fill_seconds
    )
    all_hops = shape.network_hops * TABLE[f"handshake.{network.word}_us"] * MICRO
    assert short < 1e-3 * all_hops
    assert long == pytest.approx(all_hops, rel=1e-2)


def test_nics_that_read_memory_themselves_wait_for_no_answer() -> None:
    system = clustered(H100, 4, NDR)
    handshakes = {name: 1e6 for name in TABLE if name.startswith("handshake.")}
    assert handshakes
    for shape in shapes("all_reduce", system):
        plain, waiting = (
            cost(shape, "simple", system, np.array([1e6]), table)
            for table in (TABLE, TABLE | handshakes)
        )
        assert plain.floored(0.0) == waiting.floored(0.0)


def test_flags_of_ll_make_a_message_twice_as_long_when_it_asks_its_receiver() -> None:
    system = clustered(A100, 2, SLINGSHOT)
    table = TABLE | {"handshake.slingshot_us": 1e9}  # so that nothing else counts
    (ring,) = (one for one in shapes("all_gather", system) if one.algorithm == "ring")
    size = 8192.0 * system.ranks
    with_flags = cost(ring, "ll", system, np.array([size / 2]), table).fill_seconds
    without = cost(ring, "simple", system, np.array([size]), table).fill_seconds
    assert with_flags == pytest.approx(without, rel=1e-6)


def test_ll128_of_amd_is_that_of_cdna_4_between_direct_links_and_not_over_sockets() -> None:
    later = replace(MI300X, generation=Generation.CDNA4)
    by_name = {shape.algorithm: shape for shape in shapes("all_reduce", MI300X)}
    assert "ll128" not in protocols(by_name["ring"], MI300X)
    assert "ll128" in protocols(by_name["ring"], later)
    assert protocols(by_name["allpairs"], later) == ("ll", "simple")
    for other in (
        clustered(later, 2, NetworkPorts("tcp", 12.5e9, 1)),
        replace(later, intra=Intra.PCIE),
    ):
        assert "ll128" not in protocols(by_name["ring"], other)


def test_latencies_of_a_generation_are_scaled_as_a_whole() -> None:
    table = TABLE | {"generation.ampere": 2.0}
    (ring,) = (shape for shape in shapes("all_reduce", A100) if shape.algorithm == "ring")
    plain, twice = (
        cost(ring, "ll", A100, np.array([8.0]), constants) for constants in (TABLE, table)
    )
    assert twice.latency_seconds == pytest.approx(2 * plain.latency_seconds)
    assert twice.bandwidth_seconds == plain.bandwidth_seconds


def test_a_message_of_nothing_fills_nothing() -> None:
    cost = priced(A100, "tree", "simple", 0.0)
    assert cost.fill_seconds[0] == cost.bandwidth_seconds[0] == 0.0


def test_a_tiny_message_passes_every_hop_whole_and_a_large_one_is_cut() -> None:
    cost = priced(clustered(A100, 2, HDR), "tree", "simple", 1e-3, 1e15)
    hops, transfer = 16, cost.bandwidth_seconds
    assert cost.fill_seconds[0] == pytest.approx(hops * transfer[0], rel=1e-2)
    assert cost.fill_seconds[1] < 1e-3 * hops * transfer[1]


def test_hops_across_the_network_are_counted_apart() -> None:
    cost = priced(clustered(H100, 2), "ring", "ll", 8.0)
    across = 2.7 * TABLE["network_hop.ll"] + TABLE["latency.fabric_us"]
    inside = max(0.6 * TABLE["hop.ll"], TABLE["proxy"])
    assert cost.network_hop_seconds == pytest.approx(across * MICRO)
    assert cost.hop_seconds == pytest.approx(inside * MICRO)
    assert cost.latency_seconds == pytest.approx(
        (6.6 * TABLE["base"] + 26 * inside + 4 * across) * MICRO
    )


def test_flags_of_the_proxy_thread_slow_hops_inside_nodes_of_a_cluster() -> None:
    hop = {
        host: priced(replace(clustered(A100, 2, HDR), host=host), "ring", "ll", 8.0).hop_seconds
        for host in (HostProcessor.AMD, HostProcessor.INTEL)
    }
    assert hop[HostProcessor.AMD] == pytest.approx(2 * TABLE["proxy"] * MICRO)
    assert hop[HostProcessor.INTEL] < hop[HostProcessor.AMD]


def test_simple_waits_for_rdma_twice_and_for_sockets_once() -> None:
    def extra(word: str) -> float:
        network = NetworkPorts(word, 25e9, 8)
        return (
            priced(clustered(A100, 2, network), "ring", "simple", 8.0).network_hop_seconds
            / MICRO
        )

    simple = 14.0 * TABLE["network_hop.simple"]
    assert extra("ib-hdr") == pytest.approx(simple + 2 * TABLE["latency.fabric_us"])
    assert extra("tcp") == pytest.approx(simple + TABLE["latency.tcp_us"])


def test_efa_of_the_third_generation_has_a_lower_latency() -> None:
    def hop(gigabits: float, nics: int) -> float:
        network = NetworkPorts("efa", gigabits * 1e9 / 8, nics)
        return (
            priced(clustered(H100, 2, network), "ring", "ll128", 8.0).network_hop_seconds
            / MICRO
        )

    assert hop(100, 32) - hop(200, 16) == pytest.approx(0.35 * TABLE["latency.efa_us"])


@pytest.mark.parametrize(
    ("protocol", "share"), [("ll128", TABLE["payload.ll128"]), ("simple", 1.0)]
)
def test_protocols_leave_a_share_of_the_rate(protocol: str, share: float) -> None:
    cost = priced(clustered(A100, 2, HDR), "ring", protocol, 8.0)
    assert cost.inside_rate == pytest.approx(300e9 * TABLE["efficiency.nvlink"] * share)
    assert cost.network_rate == pytest.approx(200e9 * TABLE["efficiency.fabric"] * share)


def test_ll_moves_no_more_than_its_table_allows() -> None:
    assert priced(A100, "ring", "ll", 8.0).inside_rate == pytest.approx(
        TABLE["ll_most"] * 87.7e9
    )


def test_rccl_has_its_own_latencies() -> None:
    cost = priced(MI300X, "ring", "simple", 8.0)
    assert cost.latency_seconds == pytest.approx(
        (17.0 * TABLE["base"] + 14 * 2.1 * TABLE["hop.simple"] * TABLE["cdna_hop"]) * MICRO
    )


def test_pat_adds_something_for_every_rank_and_overlaps_its_hops() -> None:
    cost = priced(lone(16), "pat", "simple", 8.0, collective="all_gather")
    across = (14.0 * TABLE["network_hop.simple"] + 2 * TABLE["latency.fabric_us"]) / 3.5
    base = (8.0 + 2.8 * 16) * TABLE["base"]
    assert cost.latency_seconds == pytest.approx((base + 4 * across) * MICRO)
    assert cost.network_rate == pytest.approx(400e9 * TABLE["efficiency.fabric"] * 0.75)


def test_collnet_addresses_all_gpus_of_a_node_at_once() -> None:
    adding = clustered(H100, 16, replace(NDR, in_network_reduction=True))
    cost = priced(adding, "collnet", "simple", 8.0)
    assert cost.hop_seconds == pytest.approx((3.7 + 7 * 0.4) * TABLE["hop.simple"] * MICRO)
    across = 31.0 * TABLE["network_hop.simple"] + 2 * TABLE["latency.fabric_us"]
    assert cost.network_hop_seconds == pytest.approx(across * MICRO)


def test_nvlstree_keeps_eight_nics_busy() -> None:
    many = clustered(
        replace(H100, ranks_per_node=72, generation=Generation.BLACKWELL),
        2,
        replace(NDR, per_node=72),
    )
    cost = priced(many, "nvlstree", "simple", 8.0)
    assert cost.network_rate == pytest.approx(400e9 * TABLE["efficiency.fabric"])


@pytest.mark.parametrize(
    ("ranks_per_node", "microseconds"), [(5, 25.0), (8, 25.0), (16, 50.0), (72, 225.0)]
)
def test_latency_of_nvls_grows_with_the_gpus_of_the_domain_beyond_eight(
    ranks_per_node: int, microseconds: float
) -> None:
    domain = replace(H100, ranks_per_node=ranks_per_node)
    inside = microseconds * TABLE["hop.switch"] * MICRO
    assert priced(domain, "nvls", "simple", 8.0).latency_seconds == pytest.approx(inside)
    # Over four nodes the levels of the trees between them come in addition.
    across = 4 * (20.9 * TABLE["network_hop.simple"] + 2 * TABLE["latency.fabric_us"]) * MICRO
    cost = priced(clustered(domain, 4), "nvlstree", "simple", 8.0)
    assert cost.latency_seconds == pytest.approx(inside + across)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast"])
def test_without_peer_access_every_gpu_has_its_own_port(collective: str) -> None:
    staged = replace(A100, intra=Intra.HOST, intra_bytes_per_second=16e9)
    rates = {
        ranks: priced(
            replace(staged, ranks_per_node=ranks), "ring", "simple", 8.0, collective=collective
        ).inside_rate
        for ranks in (3, 4, 8)
    }
    assert list(rates.values()) == pytest.approx([16e9 * TABLE["efficiency.host_both"]] * 3)


@pytest.mark.parametrize(
    ("ranks_per_node", "network"),
    [
        *((gpus, gpus * 31.5e9 * TABLE["payload.pcie"]) for gpus in (1, 4, 8)),
        (16, 400e9 * TABLE["efficiency.fabric"]),
    ],
)
def test_no_more_leaves_a_node_than_the_ports_of_its_gpus_carry(
    ranks_per_node: int, network: float
) -> None:
    ports = replace(A100, ranks_per_node=ranks_per_node, gpu_port_bytes_per_second=31.5e9)
    cost = priced(clustered(ports, 2), "ring", "simple", 8.0)
    assert cost.network_rate == pytest.approx(network)


def test_a_gather_arrives_by_the_nic_of_its_root() -> None:
    cost = priced(clustered(H100, 2), "pairwise", "simple", 1e9, collective="gather")
    assert cost.bandwidth_seconds[0] == pytest.approx(
        0.5e9 / (50e9 * TABLE["efficiency.fabric"])
    )


def test_one_core_of_sockets_gives_its_measured_payload_and_no_less() -> None:
    fast = clustered(A100, 2, NetworkPorts("tcp", 25e9, 2))
    assert priced(fast, "ring", "simple", 8.0).network_rate == pytest.approx(
        2 * TABLE["socket_gbytes"] * 1e9
    )
    slow = clustered(A100, 2, NetworkPorts("tcp", 1.25e9, 2))
    assert priced(slow, "ring", "simple", 8.0).network_rate == pytest.approx(
        2 * 1.25e9 * TABLE["efficiency.tcp"]
    )


@given(
    systems(),
    st.sampled_from(COLLECTIVES),
    st.lists(st.floats(1e-3, 1e13), min_size=2, max_size=20),
    st.data(),
)
def test_the_fill_of_a_pipeline_grows_with_the_size_up_to_that_of_the_largest_chunks(
    system: LibrarySystem, collective: str, sizes: list[float], data: st.DataObject
) -> None:
    there = shapes(collective, system)
    assume(there)
    shape = data.draw(st.sampled_from(there))
    protocol = data.draw(st.sampled_from(protocols(shape, system)))
    most = TABLE["pipeline_mebibytes"] * 2**20
    unasked = TABLE | {name: 1e-12 for name in TABLE if name.startswith("handshake.")}
    found = cost(shape, protocol, system, np.array([*sorted(sizes), 1e7 * most]), unasked)
    fill, hops = found.fill_seconds, found.latency_seconds - found.base_seconds
    assert np.all(np.diff(fill) >= -1e-12 * fill[:-1])
    transfer = max(found.inside_seconds_per_byte, found.network_seconds_per_byte) * most
    limit = 2 * TABLE["fill" if shape.fills else "fill_of_blocks"] * np.sqrt(hops * transfer)
    assert fill.max() <= limit * (1 + 1e-9)
    assert fill[-1] == pytest.approx(limit, rel=1e-2)
