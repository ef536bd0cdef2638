from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.findings import SourceWarning
from ccbench.machine.detection import detect, joined, read_nvml
from ccbench.machine.files import Files
from ccbench.machine.sysfs import read_sysfs
from ccbench.topology.graph import Device, DeviceKind, LinkKind, Topology, TopologyClass
from ccbench.topology.matrix import path_labels
from tests.machine.recorded_nvml import RecordedNvml, cards, switched
from tests.machine.sysfs_tree import two_sockets_four_switches


def dgx(root: Path, count: int = 8) -> Topology:
    """Eight A100 whose driver counts them from the last PCI address to the first."""
    two_sockets_four_switches(root)
    kernel = read_sysfs(Files(root))
    addresses = [gpu.bus_id for gpu in reversed(kernel.gpus)][:count]
    answers = switched(
        "NVIDIA A100-SXM4-80GB",
        count,
        12,
        4,
        [f"0000{address.upper()}" for address in addresses],
    )
    return joined(kernel, read_nvml(RecordedNvml(answers)))


def test_the_same_gpu_of_both_is_one_and_the_drivers_order_counts(tmp_path: Path) -> None:
    machine = dgx(tmp_path)
    assert len(machine.gpus) == 8
    assert [gpu.numa_node for gpu in machine.gpus] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert machine.gpus[0].attributes["model"] == "NVIDIA A100-SXM4-80GB"
    assert machine.topology_class is TopologyClass.NVSWITCH
    kinds = {link.kind for link in machine.links if link.source == "gpu0"}
    assert kinds == {LinkKind.PCIE, LinkKind.NVLINK}
    names = {device.name for device in machine.devices}
    assert {end for link in machine.links for end in (link.source, link.target)} <= names
    assert len(names) == len(machine.devices)


def test_nearness_of_gpus_and_cards_follows_the_joined_names(tmp_path: Path) -> None:
    labels = path_labels(dgx(tmp_path))
    assert labels[("gpu0", "nic7")] == "PIX"
    assert labels[("gpu0", "nic0")] == "SYS"
    assert labels[("gpu0", "gpu7")] == "NV12"


def test_gpus_that_only_the_driver_shows_are_kept_and_spoken_of(tmp_path: Path) -> None:
    two_sockets_four_switches(tmp_path)
    kernel = read_sysfs(Files(tmp_path))
    answers = cards("NVIDIA L4", 1, peer=0)
    answers["gpus"][0]["bus_id"] = "00000000:FE:00.0"
    machine = joined(kernel, read_nvml(RecordedNvml(answers)))
    assert len(machine.gpus) == 9
    assert "contradiction" in {warning.kind for warning in machine.warnings}


def test_gpus_without_a_driver_are_of_unknown_class_because_nvlinks_are_not_in_sysfs(
    tmp_path: Path,
) -> None:
    two_sockets_four_switches(tmp_path)
    machine = detect(Files(tmp_path), driver=Topology("nvml", ()))
    assert machine.topology_class is TopologyClass.UNKNOWN
    assert any("NVLinks" in warning.text for warning in machine.warnings)


def test_this_very_machine_is_detected_without_an_error() -> None:
    machine = detect()
    assert machine.of_kind(DeviceKind.CPU)
    if not machine.gpus:
        assert any(warning.kind == "not_visible" for warning in machine.warnings)


@pytest.mark.parametrize(
    ("vendors", "said"),
    [(("NVIDIA", "NVIDIA"), 0), (("AMD", "AMD"), 1), (("NVIDIA", "AMD"), 1), ((None, None), 1)],
)
def test_what_no_nvidia_driver_can_tell_is_said_of_other_gpus_too(
    vendors: tuple[str | None, ...], said: int
) -> None:
    gpus = tuple(
        Device(f"gpu{place}", DeviceKind.GPU, attributes={"vendor": vendor})
        for place, vendor in enumerate(vendors)
    )
    no_driver = SourceWarning(
        "not_visible", "no NVIDIA driver answers here: NVLinks and peer access are unknown"
    )
    machine = joined(Topology("box", gpus), Topology("nvml", (), warnings=(no_driver,)))
    words = [warning.text for warning in machine.warnings if "xGMI" in warning.text]
    assert len(words) == said
    assert ("rocm-smi --showtopo" in "".join(words)) is ("AMD" in vendors)
    assert machine.topology_class is TopologyClass.UNKNOWN
