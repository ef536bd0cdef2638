from __future__ import annotations

import pytest

from ccbench.readers.machines.smi_nvlink import read
from ccbench.topology.graph import DeviceKind, LinkState, Topology, TopologyClass
from ccbench.topology.summary import nvlinks_per_gpu


def status(model: str, rates: list[list[str]], first: int = 0) -> str:
    """``nvlink -s`` of GPUs ``first``, first + 1, ... with these words for each link."""
    lines = []
    for index, links in enumerate(rates, first):
        lines.append(
            f"GPU {index}: {model} (UUID: GPU-0000000{index}-0000-4000-8000-000000000000)"
        )
        lines += [f"\t Link {number}: {rate}" for number, rate in enumerate(links)]
    return "\n".join(lines) + "\n"


def remote(ends: list[list[tuple[str, int]]], model: str = "NVIDIA A100-SXM4-40GB") -> str:
    """``nvlink -R``: for each GPU the far end and its link of every link."""
    words = [
        [f"Remote Device {address}: Link {link}" for address, link in links] for links in ends
    ]
    return status(model, words)


def kinds(topology: Topology) -> set[str]:
    return {warning.kind for warning in topology.warnings}


def test_a_bridged_pair_has_the_printed_rates() -> None:
    topology = read(status("NVIDIA RTX A6000", [["14.062 GB/s"] * 4] * 2))
    assert topology.topology_class is TopologyClass.NVLINK_BRIDGE
    assert [(link.source, link.target, link.count) for link in topology.links] == [
        ("gpu0", "gpu1", 4),
        ("gpu1", "gpu0", 4),
    ]
    assert topology.links[0].bytes_per_second == pytest.approx(4 * 14.062e9)


def test_a_link_that_is_down_is_there_and_down() -> None:
    links = ["26.562 GB/s"] * 17 + ["<inactive>"]
    topology = read(status("NVIDIA H100 80GB HBM3", [links], first=5))
    assert topology.facts["faults"] == [{"gpu": "GPU5", "down": [17]}]
    states = [(link.state, link.count) for link in topology.links if link.target == "nvswitch0"]
    assert states == [(LinkState.UP, 17), (LinkState.DOWN, 1)]
    assert topology.gpus[0].attributes["name"] == "GPU5"


def test_links_without_a_bridge_are_not_there_rather_than_down() -> None:
    links = ["26.562 GB/s"] * 12 + ["<inactive>"] * 6
    topology = read(status("NVIDIA H100 PCIe", [links] * 2))
    assert topology.facts["faults"] == []
    assert {(link.state, link.count) for link in topology.links} == {(LinkState.UP, 12)}


@pytest.mark.parametrize(
    ("model", "first", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 4, "nvswitch"),
        ("NVIDIA A100-SXM4-80GB", 0, "unknown"),
        ("NVIDIA H100 80GB HBM3", 0, "nvswitch"),
        ("NVIDIA H200", 0, "nvswitch"),
        ("NVIDIA H200 NVL", 0, "nvlink-bridge"),
        ("NVIDIA B200", 0, "nvswitch"),
        ("NVIDIA GB300", 0, "nvswitch"),
        ("Tesla V100-SXM3-32GB", 0, "nvswitch"),
        ("Tesla V100-SXM2-16GB", 0, "unknown"),
        ("Tesla V100-SXM2-16GB", 6, "nvlink-cube-mesh"),
        ("Tesla P100-SXM2-16GB", 7, "nvlink-cube-mesh"),
        ("Tesla V100-DGXS-32GB", 0, "nvlink-mesh"),
        ("NVIDIA A100 80GB PCIe", 6, "nvlink-bridge"),
        ("NVIDIA GeForce RTX 2080 Ti", 0, "nvlink-bridge"),
        ("Graphics Device", 0, "unknown"),
    ],
)
def test_the_class_follows_from_model_and_number(model: str, first: int, expected: str) -> None:
    assert read(status(model, [["25 GB/s"] * 4], first)).topology_class.value == expected


def test_a_class_that_is_only_usual_is_noted() -> None:
    assert "not_visible" in kinds(read(status("NVIDIA H100 80GB HBM3", [["26.562 GB/s"] * 18])))
    assert (
        kinds(read(status("NVIDIA H100 80GB HBM3", [["26.562 GB/s"] * 18], first=4))) == set()
    )


def test_ports_no_gpu_has_are_nvswitches() -> None:
    topology = read(remote([[("00000000:05:00.0", 46), ("00000000:06:00.0", 3)]] * 2))
    assert topology.topology_class is TopologyClass.NVSWITCH
    assert [device.bus_id for device in topology.of_kind(DeviceKind.NVSWITCH)] == [
        "00000000:05:00.0",
        "00000000:06:00.0",
    ]
    assert all(link.bytes_per_second is None for link in topology.links)


def test_far_ends_that_are_the_listed_gpus_are_linked_directly() -> None:
    addresses = [f"00000000:{index}0:00.0" for index in range(1, 5)]
    ends = [[(address, 1) for address in addresses if address != own] for own in addresses]
    topology = read(remote(ends))
    assert topology.topology_class is TopologyClass.NVLINK_MESH
    pairs = {(link.source, link.target) for link in topology.links}
    assert pairs == {
        (f"gpu{index}", f"gpu{other}")
        for index in range(4)
        for other in range(4)
        if index != other
    }


def test_switches_that_are_hidden_are_one_nvswitch() -> None:
    topology = read(remote([[("FFFFFFFF:FF:FF.0", 3)] * 18] * 2, "NVIDIA A100-SXM4-40GB"))
    assert topology.topology_class is TopologyClass.NVSWITCH
    assert [device.attributes for device in topology.of_kind(DeviceKind.NVSWITCH)] == [
        {"stands_for": "all NVSwitches of the machine"}
    ]


def test_rates_and_far_ends_of_two_commands_are_put_together() -> None:
    """Two H100 PCIe cards under three bridges: -R counts 12 links, -s counts 18 with 6 inactive."""
    active = [0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15]
    rates = ["26.562 GB/s" if number in active else "<inactive>" for number in range(18)]
    ends = [
        [(address, link) for link in active]
        for address in ("00000000:D5:00.0", "00000000:C2:00.0")
    ]
    for text in (
        status("NVIDIA H100 PCIe", [rates] * 2) + remote(ends, "NVIDIA H100 PCIe"),
        remote(ends, "NVIDIA H100 PCIe") + status("NVIDIA H100 PCIe", [rates] * 2),
    ):
        topology = read(text)
        assert (topology.topology_class, kinds(topology)) == (
            TopologyClass.NVLINK_BRIDGE,
            set(),
        )
        assert [(link.source, link.target, link.count) for link in topology.links] == [
            ("gpu0", "gpu1", 12),
            ("gpu1", "gpu0", 12),
        ]
        assert topology.links[0].bytes_per_second == pytest.approx(12 * 26.562e9)
    alone = read(remote(ends, "NVIDIA H100 PCIe"))
    assert (alone.topology_class, len(alone.links)) == (TopologyClass.NVLINK_BRIDGE, 2)


ONE = status("NVIDIA RTX A6000", [["14.062 GB/s"] * 4] * 2)


@pytest.mark.parametrize(
    ("other", "disagrees"),
    [
        (ONE, False),
        (ONE.replace("14.062", "25"), True),
        (remote([[("00000000:05:00.0", 1)] * 3] * 2, "NVIDIA RTX A6000"), True),
    ],
)
def test_two_outputs_that_disagree_are_a_contradiction(other: str, disagrees: bool) -> None:
    assert ("contradiction" in kinds(read(ONE + other))) is disagrees


def test_a_short_listing_at_the_end_is_cut_and_elsewhere_a_contradiction() -> None:
    four, two = ["25 GB/s"] * 4, ["25 GB/s"] * 2
    cut = read(status("NVIDIA A100-SXM4-40GB", [four, two], first=6))
    assert "truncated" in kinds(cut)
    assert nvlinks_per_gpu(cut) == [4, None]
    odd = read(status("NVIDIA A100-SXM4-40GB", [two, four], first=6))
    assert "contradiction" in kinds(odd)


def test_lines_that_cannot_be_read_are_noted() -> None:
    text = status("NVIDIA H100 80GB HBM3", [["26.562 GB/s", "<inact"]], first=4)
    assert "truncated" in kinds(read(text))
    text = status("NVIDIA H100 80GB HBM3", [["26.562 GB/s", "lost in space"]], first=4)
    assert "damaged_line" in kinds(read(text))
