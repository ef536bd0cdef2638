from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ccbench.model.library import LibrarySystem
from ccbench.model.library.costs import Cost, cost, protocols
from ccbench.model.library.shapes import shapes
from tests.model.library.systems import (
    A100,
    COLLECTIVES,
    H100,
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


def test_hops_across_the_network_are_counted_apart() -> None:
    cost = priced(clustered(H100, 2), "ring", "ll", 8.0)
    across = 2.7 * TABLE["network_hop.ll"] + TABLE["latency.fabric_us"]
    inside = max(0.6 * TABLE["hop.ll"], TABLE["proxy"])
    assert cost.network_hop_seconds == pytest.approx(across * MICRO)
    assert cost.hop_seconds == pytest.approx(inside * MICRO)
    assert cost.latency_seconds == pytest.approx(
        (6.6 * TABLE["base"] + 26 * inside + 4 * across) * MICRO
    )


def test_pat_adds_something_for_every_rank_and_overlaps_its_hops() -> None:
    cost = priced(lone(16), "pat", "simple", 8.0, collective="all_gather")
    across = (14.0 * TABLE["network_hop.simple"] + TABLE["latency.fabric_us"]) / 3.5
    base = (8.0 + 2.8 * 16) * TABLE["base"]
    assert cost.latency_seconds == pytest.approx((base + 4 * across) * MICRO)
    assert cost.network_rate == pytest.approx(400e9 * TABLE["efficiency.fabric"] * 0.75)


def test_a_send_behind_switches_has_as_many_channels_as_its_size_gives_it() -> None:
    """64 to 256 MiB take as long: 4, 8 and 16 channels carry 16 MiB each (published: 0.80 ms on B200)."""
    sizes = [64 * 2.0**20, 128 * 2.0**20, 256 * 2.0**20]
    cost = priced(H100, "pairwise", "simple", *sizes, collective="send_recv")
    each = 2**24 / (TABLE["send_channel_gbytes"] * 1e9)
    assert cost.bandwidth_seconds.tolist() == pytest.approx([each] * 3)
    four = priced(
        replace(H100, ranks_per_node=4), "pairwise", "simple", *sizes, collective="send_recv"
    )
    assert four.bandwidth_seconds[0] < each


def test_a_rank_posts_to_its_peers_on_other_nodes_one_after_the_other() -> None:
    few, many = (
        priced(clustered(H100, nodes), "pairwise", "simple", 8.0, collective="all_to_all")
        for nodes in (2, 4)
    )
    posts = 16 * TABLE["network_post_us"] * MICRO
    assert many.base_seconds - few.base_seconds == pytest.approx(posts)


def test_collnet_addresses_all_gpus_of_a_node_at_once() -> None:
    adding = clustered(H100, 16, replace(NDR, in_network_reduction=True))
    cost = priced(adding, "collnet", "simple", 8.0)
    assert cost.hop_seconds == pytest.approx((3.7 + 7 * 0.4) * TABLE["hop.simple"] * MICRO)
    across = 31.0 * TABLE["network_hop.simple"] + TABLE["latency.fabric_us"]
    assert cost.network_hop_seconds == pytest.approx(across * MICRO)


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
