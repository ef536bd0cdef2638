"""GPUs, modules, bridges and kernel options from laid-out trees and a driver that behaves."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.accelerators import read_accelerators, redirects
from ccbench.machine.files import Files

GPU = "0000:03:00.0"
PORT, ROOT = "0000:02:08.0", "0000:00:01.0"


def config_space(control: int | None, offset: int = 0x148) -> bytes:
    """4 KiB with Advanced Error Reporting first, and ACS at ``offset`` where there is a control word."""
    space = bytearray(4096)
    following = offset if control is not None else 0
    space[0x100:0x104] = (0x0001 | 2 << 16 | following << 20).to_bytes(4, "little")
    if control is not None:
        space[offset : offset + 4] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[offset + 6 : offset + 8] = control.to_bytes(2, "little")
    return bytes(space)


def box(root: Path, port_config: bytes, root_config: bytes) -> Files:
    """A GPU below a switch's port below a root port, as the kernel lays devices out."""
    places = {
        ROOT: f"sys/devices/pci0000:00/{ROOT}",
        PORT: f"sys/devices/pci0000:00/{ROOT}/0000:01:00.0/{PORT}",
        GPU: f"sys/devices/pci0000:00/{ROOT}/0000:01:00.0/{PORT}/{GPU}",
    }
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    for address, place in places.items():
        folder = root / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "class").write_text("0x030200\n" if address == GPU else "0x060400\n")
        (folder / "vendor").write_text("0x10de\n" if address == GPU else "0x1000\n")
        (folder / "config").write_bytes(
            {ROOT: root_config, PORT: port_config}.get(address, b"\0" * 64)
        )
        (bus / address).symlink_to(Path("../../../..") / place)
    (root / f"{places[GPU]}/iommu_group").mkdir()
    (root / f"{places[GPU]}/iommu_group/type").write_text("DMA-FQ\n")
    return Files(root)


def test_source_validation_alone_redirects_nothing(tmp_path: Path) -> None:
    files = box(tmp_path, config_space(0x01), config_space(None))
    assert read_accelerators(files).redirecting_bridges == ()


@given(st.binary(max_size=4096))
def test_any_configuration_space_is_read_to_an_end(config: bytes) -> None:
    assert redirects(config) in (None, False, True)


@given(st.integers(0, 0xFFFF), st.sampled_from(range(0x104, 0xFF8, 4)))
def test_the_control_word_is_found_wherever_the_capability_lies(
    control: int, offset: int
) -> None:
    assert redirects(config_space(control, offset)) is bool(control & 0b1100)
