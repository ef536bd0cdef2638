from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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


def test_switches_that_a_vm_hides_are_one_switch_of_unknown_number() -> None:
    driver = read_nvml(
        RecordedNvml(switched("NVIDIA H100 80GB HBM3", 8, 18, version=6, hidden=True))
    )
    assert driver.topology_class is TopologyClass.NVSWITCH
    assert driver.facts["nvswitch_count"] is None
    assert [device.bus_id for device in driver.of_kind(DeviceKind.NVSWITCH)] == [""]
    assert driver.matrix[("gpu0", "gpu1")] == "NV18"


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
