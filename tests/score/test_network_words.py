from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.score.network_words import ports_of
from ccbench.errors import MachineError
from ccbench.model.library import Generation, NetworkPorts
from ccbench.topology.node_nics import KINDS


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


def test_of_a_class_of_rates_the_lower_is_taken_and_the_origin_says_so() -> None:
    found, origin = ports_of("efa (25-50 Gb/s class)", 1, Generation.TURING)
    assert found is not None
    assert found.bytes_per_second == 25e9 / 8
    assert "the lower of" in origin


def test_switches_that_add_are_seen() -> None:
    sharp, plain = ports("ib-ndr-400x8 with IB SHARP"), ports("ib-ndr-400x8 (SHARP off)")
    assert sharp is not None
    assert plain is not None
    assert (sharp.in_network_reduction, plain.in_network_reduction) == (True, False)


@pytest.mark.parametrize("words", ["none", "none (all in one NVLink domain)", "no"])
def test_no_network_is_none(words: str) -> None:
    assert ports(words) is None


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
