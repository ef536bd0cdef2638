"""Arithmetic of memory, channels and devices."""

from __future__ import annotations

from collections.abc import Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ccbench.backends.kernels import abi
from ccbench.backends.kernels.layout import (
    FIFO_BYTES,
    LEAST_SLOT_BYTES,
    LOOPBACK_BYTES,
    Tuning,
    device_of_rank,
    lanes_for,
    most_channels,
    ranks_of_devices,
    tuning,
    work_areas,
)
from ccbench.backends.kernels.traffic import Traffic, blocks_for
from ccbench.errors import UsageError


@given(bytes_of_channel=st.integers(0, 1 << 30))
def test_lanes_are_whole_warps_within_the_kernels_limits(bytes_of_channel: int) -> None:
    lanes = lanes_for(bytes_of_channel)
    assert 64 <= lanes <= abi.MAX_LANES
    assert lanes % 32 == 0


@given(
    ranks=st.integers(1, 64),
    blocks=st.integers(0, 4),
    processors=st.integers(1, 200),
    requested=st.integers(1, 64),
)
def test_the_most_channels_fit_and_one_more_would_not_or_is_not_wanted(
    ranks: int, blocks: int, processors: int, requested: int
) -> None:
    assert most_channels(8, 1, 132, 24) == 16  # of an H200
    most = most_channels(ranks, blocks, processors, requested)
    assert most == 0 or ranks * most <= blocks * processors
    assert most == requested or ranks * (most + 1) > blocks * processors


@given(ranks=st.integers(1, 64), devices=st.integers(1, 16))
def test_ranks_are_spread_evenly_neighbours_together(ranks: int, devices: int) -> None:
    groups = ranks_of_devices(ranks, devices)
    assert [rank for group in groups for rank in group] == list(range(ranks))
    assert len(groups) == min(ranks, devices)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert all(rank in groups[device_of_rank(groups, rank)] for rank in range(ranks))


def tuned(monkeypatch: pytest.MonkeyPatch, settings: Mapping[str, str]) -> Tuning:
    for name, text in settings.items():
        monkeypatch.setenv(f"CCBENCH_KERNEL_{name}", text)
    return tuning()


@given(ranks=st.integers(1, 64), shared=st.booleans(), processors=st.integers(1, 200))
def test_slots_keep_to_their_room(ranks: int, shared: bool, processors: int) -> None:
    areas = work_areas(ranks, ranks if shared else 1, processors)
    assert areas.slot_bytes & (areas.slot_bytes - 1) == 0
    smallest = areas.slot_bytes == LEAST_SLOT_BYTES
    assert smallest or areas.sizes()["fifo"] <= FIFO_BYTES
    in_use = ranks * areas.channels * areas.slots * areas.slot_bytes
    assert smallest or not shared or ranks == 1 or in_use <= LOOPBACK_BYTES


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CHANNELS", "0"),
        ("CHANNELS", "many"),
        ("LANES", "48"),
        ("LANES", "1024"),
        ("SLOTS", "1"),
        ("SLOTS", "3"),
        ("SLOT_BYTES", "8"),
        ("SLOT_BYTES", "1025"),
        ("SLOT_BYTES", "2 GiB"),
        ("PACKETS_BYTES", "1 XB"),
        ("STAGING_BYTES", "0"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    with pytest.raises(UsageError, match=rf"^CCBENCH_KERNEL_{name}: .*; write "):
        tuned(monkeypatch, {name: text})


def test_a_variable_that_does_not_exist_lists_those_that_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"^CCBENCH_KERNEL_LANE: .*CCBENCH_KERNEL_LANES"):
        tuned(monkeypatch, {"LANE": "64"})


@given(
    channels=st.integers(1, 64),
    lanes=st.integers(1, 16).map(lambda warps: 32 * warps),
    slots=st.integers(1, 6).map(lambda power: 1 << power),
    lines=st.integers(64, 1 << 16),
    ranks=st.integers(1, 64),
    processors=st.integers(1, 200),
)
def test_whatever_is_accepted_is_what_kernels_can_do(
    channels: int, lanes: int, slots: int, lines: int, ranks: int, processors: int
) -> None:
    settings = {"CHANNELS": channels, "LANES": lanes, "SLOTS": slots, "SLOT_BYTES": 16 * lines}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in settings.items():
            patched.setenv(f"CCBENCH_KERNEL_{name}", str(value))
        areas = work_areas(ranks, ranks, processors)
        blocks = blocks_for(Traffic(1 << 20, 1 << 20, 0), areas.channels)
        assert 1 <= blocks.channels <= areas.channels <= max(1, processors // ranks)
        assert lanes_for(1 << 20) <= abi.MAX_LANES
        assert areas.slots >= 2
        assert areas.slots & (areas.slots - 1) == 0
        assert areas.slot_bytes % abi.VECTOR_BYTES == 0
