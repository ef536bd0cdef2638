from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ccbench.machine.accelerators import Missing, Nvml
from ccbench.machine.detection import read_driver, read_nvml
from ccbench.topology.graph import DeviceKind, LinkState, TopologyClass
from tests.machine.recorded_nvml import RecordedNvml, cards, switched


def pair(links: int, up: bool = True) -> dict[str, Any]:
    answers = cards("NVIDIA A100 80GB PCIe", 2, peer=0)
    for gpu, other in ((0, 1), (1, 0)):
        address = answers["gpus"][other]["bus_id"]
        answers["gpus"][gpu]["links"] = [
            {"up": up, "version": 4, "type": 0, "bus_id": address}
        ] * links
    return answers


def test_links_to_switches_give_switches_rates_and_the_class() -> None:
    driver = read_nvml(RecordedNvml(switched("NVIDIA A100-SXM4-80GB", 8, 12, version=4)))
    assert driver.topology_class is TopologyClass.NVSWITCH
    assert len(driver.of_kind(DeviceKind.NVSWITCH)) == driver.facts["nvswitch_count"] == 6
    assert driver.facts["nvlinks_per_gpu"] == [12] * 8
    assert driver.matrix[("gpu0", "gpu7")] == "NV12"
    outgoing = [link for link in driver.links if link.source == "gpu0"]
    assert sum(link.bytes_per_second or 0 for link in outgoing) == 300e9
    assert {link.count for link in outgoing} == {2}


def test_switches_that_a_vm_hides_are_one_switch_of_unknown_number() -> None:
    driver = read_nvml(
        RecordedNvml(switched("NVIDIA H100 80GB HBM3", 8, 18, version=6, hidden=True))
    )
    assert driver.topology_class is TopologyClass.NVSWITCH
    assert driver.facts["nvswitch_count"] is None
    assert [device.bus_id for device in driver.of_kind(DeviceKind.NVSWITCH)] == [""]
    assert driver.matrix[("gpu0", "gpu1")] == "NV18"


def test_twelve_links_between_two_cards_are_a_bridge_and_no_switch() -> None:
    driver = read_nvml(RecordedNvml(pair(12)))
    assert driver.topology_class is TopologyClass.NVLINK_BRIDGE
    assert driver.matrix[("gpu0", "gpu1")] == "NV12"
    assert {(link.source, link.target, link.bytes_per_second) for link in driver.links} == {
        ("gpu0", "gpu1", 300e9),
        ("gpu1", "gpu0", 300e9),
    }


def test_links_that_are_down_are_kept_as_down_and_carry_nothing() -> None:
    driver = read_nvml(RecordedNvml(pair(12, up=False)))
    assert {link.state for link in driver.links} == {LinkState.DOWN}
    assert driver.facts["nvlinks_per_gpu"] == [0, 0]
    assert driver.matrix[("gpu0", "gpu1")] == "PHB"


def test_links_that_could_not_be_asked_are_not_taken_for_missing_ones() -> None:
    answers = switched("NVIDIA H100 80GB HBM3", 2, 18, version=6)
    for link in answers["gpus"][1]["links"]:
        link["up"] = "?"
    driver = read_nvml(RecordedNvml(answers))
    assert [warning.kind for warning in driver.warnings] == ["not_visible"]
    assert "18 of its NVLinks" in driver.warnings[0].text


def test_cards_without_nvlinks_are_pcie_and_peer_access_is_kept_in_nvidias_words() -> None:
    driver = read_nvml(RecordedNvml(cards("NVIDIA GeForce RTX 5090", 2, peer=2, ancestor=40)))
    assert driver.topology_class is TopologyClass.PCIE
    assert driver.facts["p2p_matrix"] == [["X", "GNS"], ["GNS", "X"]]
    assert driver.matrix[("gpu1", "gpu0")] == "NODE"


@pytest.mark.parametrize(
    ("version", "rate"), [(1, 20e9), (2, 25e9), (4, 25e9), (5, 14.0625e9), (6, 25e9), (7, 50e9)]
)
def test_the_rate_of_a_link_follows_its_version(version: int, rate: float) -> None:
    driver = read_nvml(RecordedNvml(switched("a GPU", 2, 1, version)))
    assert driver.links[0].bytes_per_second == rate


class FakeLibrary:
    """The part of pynvml that is asked, with errors as the driver raises them."""

    class NVMLError(Exception): ...  # pynvml's name

    class NVMLError_NotSupported(NVMLError): ...  # noqa: N801

    class NVMLError_InvalidArgument(NVMLError): ...  # noqa: N801

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def nvmlInit(self) -> None:  # noqa: N802
        self.asked.append("init")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.asked.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, gpu: int) -> int:  # noqa: N802
        return gpu

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        if link == 2:
            raise self.NVMLError_InvalidArgument
        if link == 1:
            raise self.NVMLError
        return 1

    def nvmlDeviceGetP2PStatus(self, handle: int, other: int, access: object) -> int:  # noqa: N802
        self.asked.append(access)
        return 0

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=b"00000000:07:00.0")


def test_the_driver_tells_no_such_link_from_one_it_will_not_speak_of() -> None:
    with Nvml(FakeLibrary()) as nvml:
        assert nvml.ask("DeviceGetNvLinkState", 0, 0) == 1
        assert nvml.ask("DeviceGetNvLinkState", 0, 1) is Missing.NOT_VISIBLE
        assert nvml.ask("DeviceGetNvLinkState", 0, 2) is Missing.NOT_THERE
        assert (
            nvml.ask("DeviceGetMemoryAffinity", 0, 16, 0) is Missing.NOT_VISIBLE
        )  # an older pynvml
        assert (
            nvml.ask("DeviceGetName", Missing.NOT_THERE) is Missing.NOT_THERE
        )  # of a GPU without a handle
        assert nvml.bus_id("DeviceGetPciInfo", 0) == "0000:07:00.0"


def test_peer_access_is_asked_with_plain_numbers_because_pynvmls_constant_is_a_tuple(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = FakeLibrary()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    read_driver()
    assert [one for one in library.asked if isinstance(one, str)] == ["init", "shutdown"]
    assert [one for one in library.asked if not isinstance(one, str)] == [0, 0, 1, 1]


def test_without_the_python_module_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("ccbench.machine.accelerators.DEVICE_FILES", tmp_path)
    # Where there is no driver, the module would help nobody.
    assert "no NVIDIA driver" in read_driver().warnings[0].text
    (tmp_path / "nvidia0").touch()
    found = read_driver()
    assert not found.devices
    assert "pip install nvidia-ml-py" in found.warnings[0].text


def test_without_a_driver_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(FakeLibrary):
        def nvmlInit(self) -> None:  # noqa: N802
            raise self.NVMLError("NVML Shared Library Not Found")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    (warning,) = read_driver().warnings
    assert warning.kind == "not_visible"
    assert "NVML Shared Library Not Found" in warning.text
