"""GPUs, modules, bridges and kernel options from laid-out trees and a driver that behaves."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.machine.accelerators import opened, read_accelerators, redirects
from ccbench.machine.files import Files
from ccbench.machine.host import observe
from tests.machine.laid_out import lay_out
from tests.machine.nvml_double import Gpu, Nvml

GPU = "0000:03:00.0"
PORT, ROOT = "0000:02:08.0", "0000:00:01.0"
OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC\n"
)


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


def test_a_bridge_above_a_gpu_that_redirects_is_named(tmp_path: Path) -> None:
    files = box(tmp_path, config_space(0x1D), config_space(0))
    accelerators = read_accelerators(files)
    assert accelerators.redirecting_bridges == (PORT,)
    assert accelerators.pci_gpus == (GPU,)
    assert accelerators.iommu == "DMA-FQ"


def test_source_validation_alone_redirects_nothing(tmp_path: Path) -> None:
    files = box(tmp_path, config_space(0x01), config_space(None))
    assert read_accelerators(files).redirecting_bridges == ()


def test_what_only_root_may_read_is_unknown_and_not_taken_for_off(tmp_path: Path) -> None:
    files = box(tmp_path, b"\0" * 64, b"\0" * 64)
    assert read_accelerators(files).redirecting_bridges is None


@given(st.binary(max_size=4096))
def test_any_configuration_space_is_read_to_an_end(config: bytes) -> None:
    assert redirects(config) in (None, False, True)


@given(st.integers(0, 0xFFFF), st.sampled_from(range(0x104, 0xFF8, 4)))
def test_the_control_word_is_found_wherever_the_capability_lies(
    control: int, offset: int
) -> None:
    assert redirects(config_space(control, offset)) is bool(control & 0b1100)


def test_a_list_of_capabilities_that_runs_in_a_circle_ends() -> None:
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert redirects(bytes(space)) is False


def test_modes_and_limits_come_from_the_driver(tmp_path: Path) -> None:
    library = Nvml(
        [
            Gpu(limit_watts=500.0, persistence=False),
            Gpu(bus_id="00000000:5E:00.0", ecc=False, mig=True, application_mhz=None),
        ]
    )
    accelerators = read_accelerators(Files(tmp_path), lambda: opened(library))
    assert (library.open, accelerators.cuda_driver) == (0, "13.0")
    first, second = accelerators.gpus
    assert (first.bus_id, first.model) == ("0000:3b:00.0", "NVIDIA H100 80GB HBM3")
    assert (first.ecc, first.persistence, first.mig) == (True, False, False)
    assert (first.power_limit_watts, first.default_power_limit_watts) == (500.0, 700.0)
    assert (first.application_clock_mhz, first.highest_clock_mhz) == (1980, 1980)
    assert (second.ecc, second.mig, second.application_clock_mhz) == (False, True, None)


def test_what_a_gpu_cannot_say_is_none(tmp_path: Path) -> None:
    lacks = frozenset(
        {"nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetPersistenceMode"}
    )
    (seen,) = read_accelerators(Files(tmp_path), lambda: opened(Nvml([Gpu(lacks=lacks)]))).gpus
    assert (seen.ecc, seen.mig, seen.persistence) == (None, None, None)


def test_without_a_driver_the_files_are_read_all_the_same(tmp_path: Path) -> None:
    files = {
        "proc/driver/nvidia/version": OPEN_DRIVER,
        "dev/nvidia0": "",
        "dev/nvidiactl": "",
        "sys/module/nvidia_peermem/version": "580.65.06\n",
        "sys/module/gdrdrv/initstate": "live\n",
        "sys/module/ext4/initstate": "live\n",
    }
    accelerators = read_accelerators(
        Files(lay_out(tmp_path, files)), lambda: opened(Nvml([], absent=True))
    )
    assert (accelerators.driver, accelerators.open_kernel_module, accelerators.cuda_driver) == (
        "580.65.06",
        True,
        None,
    )
    assert accelerators.device_files == ("/dev/nvidia0",)
    assert accelerators.modules == {"nvidia_peermem": "580.65.06", "gdrdrv": ""}
    assert accelerators.gpus == ()


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
            "550.54.15",
        ),
        ("NVIDIA UNIX Open Kernel Module for aarch64  570.10  Release Build", "570.10"),
        ("something new", None),
    ],
)
def test_the_drivers_version_is_found_in_every_spelling(
    tmp_path: Path, line: str, version: str | None
) -> None:
    said = {"proc/driver/nvidia/version": f"NVRM version: {line}\nGCC version: 12.3.0\n"}
    assert read_accelerators(Files(lay_out(tmp_path, said))).driver == version


def test_the_graphics_of_a_server_board_are_no_gpu(tmp_path: Path) -> None:
    device = "sys/bus/pci/devices/0000:04:00.0"
    files = {f"{device}/class": "0x030000\n", f"{device}/vendor": "0x1a03\n"}
    assert read_accelerators(Files(lay_out(tmp_path, files))).pci_gpus == ()


def test_of_the_command_line_only_what_matters_is_kept(tmp_path: Path) -> None:
    files = {
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=soft pcie_aspm=off nosmt ip=10.0.0.7 "
        "iommu=pt hugepages=16 password=x\n",
    }
    lay_out(tmp_path, files)
    host = observe(tmp_path, variables={}, checkout=tmp_path).host
    assert dict(host.kernel_options) == {
        "iommu": "pt",
        "pcie_aspm": "off",
        "nosmt": "",
        "hugepages": "16",
    }


def test_everything_seen_is_plain_json(tmp_path: Path) -> None:
    box(tmp_path, config_space(0x1D), config_space(0))
    observation = observe(tmp_path, {}, tmp_path, lambda: opened(Nvml([Gpu()])))
    plain = json.loads(json.dumps(asdict(observation)))
    assert plain["accelerators"]["redirecting_bridges"] == [PORT]
    assert plain["accelerators"]["gpus"][0]["model"] == "NVIDIA H100 80GB HBM3"
