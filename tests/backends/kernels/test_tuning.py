"""Numbers that were chosen, and the environment that changes them."""

from __future__ import annotations

from dataclasses import fields

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ccbench.backends.kernels import abi, tuning
from ccbench.backends.kernels.layout import channels_for, lanes_for, work_areas
from ccbench.backends.kernels.tuning import Tuning, variable
from ccbench.errors import UsageError


def test_nothing_said_changes_nothing() -> None:
    assert tuning.tuning({}) == Tuning()
    assert str(Tuning()) == ""
    areas = work_areas(8, 1, 132)
    assert (areas.channels, areas.slots, areas.slot_bytes) == (24, 4, 128 << 10)
    assert work_areas(8, 8, 132).channels == 16
    assert work_areas(8, 8, 132).slot_bytes == 64 << 10


def test_every_number_has_a_variable() -> None:
    given = {"CHANNELS": "8", "LANES": "256", "SLOTS": "8", "SLOT_BYTES": "32 KiB"}
    given |= {"PACKETS_BYTES": "1 MiB", "STAGING_BYTES": "64MiB"}
    found = tuning.tuning({f"CCBENCH_KERNEL_{name}": text for name, text in given.items()})
    assert found == Tuning(8, 256, 8, 32 << 10, 1 << 20, 64 << 20)
    assert {variable(one.name) for one in fields(Tuning)} == {f"CCBENCH_KERNEL_{name}" for name in given}
    assert str(found).startswith("channels=8, lanes=256, slots=8, slot_bytes=32 KiB, ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CHANNELS", "0"),
        ("CHANNELS", "-1"),
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
def test_what_cannot_be_is_refused_with_what_can(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=rf"^CCBENCH_KERNEL_{name}: .*; write "):
        tuning.tuning({f"CCBENCH_KERNEL_{name}": text})


def test_a_variable_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"^CCBENCH_KERNEL_LANE: .*CCBENCH_KERNEL_LANES"):
        tuning.tuning({"CCBENCH_KERNEL_LANE": "64"})


def test_the_environment_decides_channels_lanes_and_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCBENCH_KERNEL_CHANNELS", "32")
    monkeypatch.setenv("CCBENCH_KERNEL_LANES", "128")
    monkeypatch.setenv("CCBENCH_KERNEL_SLOTS", "2")
    monkeypatch.setenv("CCBENCH_KERNEL_SLOT_BYTES", "1M")
    areas = work_areas(4, 1, 132)
    assert (areas.channels, areas.slots, areas.slot_bytes) == (32, 2, 1 << 20)
    assert channels_for(8, areas.channels) == 32
    assert channels_for(1 << 30, 2) == 2
    assert lanes_for(1 << 30) == lanes_for(8) == 128


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
    given = {"CHANNELS": channels, "LANES": lanes, "SLOTS": slots, "SLOT_BYTES": 16 * lines}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in given.items():
            patched.setenv(f"CCBENCH_KERNEL_{name}", str(value))
        areas = work_areas(ranks, ranks, processors)
        assert 1 <= channels_for(1 << 20, areas.channels) <= areas.channels <= max(1, processors // ranks)
        assert lanes_for(1 << 20) <= abi.MAX_LANES
        assert areas.slots >= 2
        assert areas.slots & (areas.slots - 1) == 0
        assert areas.slot_bytes % abi.VECTOR_BYTES == 0
