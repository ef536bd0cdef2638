"""Blocks follow what a launch moves, and small sizes are expected to be faster than NCCL."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.kernels.sources import choose, kernel_algorithms
from ccbench.backends.kernels.traffic import (
    PACKET_CHANNELS,
    Traffic,
    blocks_for,
    expected_seconds,
    traffic_of,
)
from ccbench.cases.axes import Case
from ccbench.units import parse_size
from tests.readers.benchmarks.logs import needs_logs, text_of

traffics = st.builds(
    Traffic, st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 2)
)


@given(traffic=traffics, most=st.integers(1, 64))
def test_blocks_grow_with_what_is_sent_up_to_the_most(traffic: Traffic, most: int) -> None:
    more = Traffic(traffic.sent_bytes + (64 << 10), traffic.stretch_bytes, traffic.rounds)
    assert 1 <= blocks_for(traffic, most).channels <= blocks_for(more, most).channels <= most


@given(traffic=traffics)
def test_packets_get_no_more_channels_than_there_are_boxes_for(traffic: Traffic) -> None:
    assert not traffic.rounds or blocks_for(traffic, 64).channels <= PACKET_CHANNELS


@pytest.mark.parametrize(
    ("algorithm", "channels"),
    [
        ("ll", 16),
        ("ll_two_shot", 7),
        ("mesh_one_shot", 4),
        ("mesh_pull", 4),
        ("mesh_two_shot", 1),
        ("ring", 1),
    ],
)
def test_blocks_follow_what_a_rank_moves_and_not_the_size(
    algorithm: str, channels: int
) -> None:
    traffic = traffic_of(algorithm, "all_reduce", 8, 32 << 10)
    assert blocks_for(traffic, 24).channels == channels


@given(ranks=st.integers(2, 64), size_bytes=st.integers(0, 1 << 22))
def test_packets_in_two_rounds_send_less_only_where_there_are_more_than_two_ranks(
    ranks: int, size_bytes: int
) -> None:
    one_round = traffic_of("ll", "all_reduce", ranks, size_bytes).sent_bytes
    two_rounds = traffic_of(
        "ll_two_shot", "all_reduce", ranks, size_bytes - size_bytes % ranks
    ).sent_bytes
    assert two_rounds <= one_round


@needs_logs
@pytest.mark.parametrize("size", ["8 B", "4 KiB", "32 KiB", "256 KiB", "1 MiB"])
def test_default_is_expected_to_be_faster_than_a_published_run_of_nccl(size: str) -> None:
    log = text_of({"file": "awkward_h100_8g_1n_all_reduce_batch.txt"})
    size_bytes = parse_size(size)
    (measured,) = re.findall(rf":\s+{size_bytes}\s+\d+\s+float\s+sum\s+-1\s+([\d.]+)", log)
    case = Case(
        "s", "cuda", "all_reduce", "default", "float32", "sum", size_bytes, size_bytes // 4, 8
    )
    algorithm = choose(case).algorithm
    assert algorithm in kernel_algorithms("all_reduce")
    assert expected_seconds(algorithm, "all_reduce", 8, size_bytes) * 1e6 < float(measured)
