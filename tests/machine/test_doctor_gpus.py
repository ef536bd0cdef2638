"""GPUs that are missing, badly set or sick in; findings with advice out."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.machine.accelerators import opened
from ccbench.machine.doctor import Check
from tests.machine.laid_out import check, examined, lay_out
from tests.machine.nvml_double import HW_THERMAL, Gpu, Nvml
from tests.machine.test_accelerators import PORT, box, config_space

IN_A_CONTAINER = {"run/.containerenv": ""}
ON_THE_BUS = {
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
}
NO_DEVICE = {"dev/nvidia0": None}
DRIVER = "proc/driver/nvidia/version"
NO_DRIVER = {"dev/nvidia0": None, DRIVER: None}
LOADED = {"sys/module/nvidia_peermem/version": "5", "sys/module/gdrdrv/version": "2.4"}
SAME_CUDA = {"usr/lib64/libcuda.so.550.54.15": ""}
NEWER_CUDA = {"usr/lib64/libcuda.so.580.65.06": ""}
LOADED_SEEN = "nvidia_peermem loaded for 2 RDMA card(s), gdrcopy (gdrdrv) loaded"
OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n"
CARDS = {
    "sys/class/infiniband/mlx5_0/node_guid": "1",
    "sys/class/infiniband/mlx5_1/node_guid": "2",
}


@pytest.mark.parametrize(
    ("name", "changes", "status", "seen", "advice"),
    [
        *(
            ("GPU", changes, status, seen, advice)
            for changes, status, seen, advice in (
                (
                    NO_DEVICE | IN_A_CONTAINER,
                    "note",
                    "this container was given no device",
                    "--gpus all",
                ),
                (NO_DEVICE | ON_THE_BUS, "problem", "no /dev/nvidia0", "nvidia-modprobe"),
                (NO_DEVICE, "problem", "without any GPU on the PCI bus", "lspci"),
                (
                    NO_DRIVER | ON_THE_BUS,
                    "problem",
                    "without its driver",
                    "install the NVIDIA driver",
                ),
                (
                    NO_DRIVER | ON_THE_BUS | IN_A_CONTAINER,
                    "problem",
                    "without its driver",
                    "on the host",
                ),
                (NO_DRIVER, "note", "none", "need none"),
                (NO_DRIVER | {"dev/kfd": ""}, "note", "AMD", "backend rccl"),
                (NO_DRIVER | {"dev/dxg": ""}, "ok", "1 NVIDIA device(s)", ""),
                ({}, "ok", "1 NVIDIA device(s), driver 550.54.15", ""),
            )
        ),
        ("driver versions", ON_THE_BUS | SAME_CUDA, "ok", "550.54.15 in the kernel", ""),
        (
            "driver versions",
            ON_THE_BUS | NEWER_CUDA,
            "problem",
            "libcuda is 580.65.06",
            "reboot",
        ),
        ("GPUDirect RDMA", ON_THE_BUS, "ok", "no RDMA network card", ""),
        (
            "GPUDirect RDMA",
            ON_THE_BUS | CARDS,
            "note",
            "2 RDMA card(s)",
            "modprobe nvidia_peermem",
        ),
        ("GPUDirect RDMA", ON_THE_BUS | CARDS | LOADED, "ok", LOADED_SEEN, ""),
        ("GPUDirect RDMA", ON_THE_BUS | CARDS | {DRIVER: OPEN_DRIVER}, "ok", "DMA-BUF", ""),
        ("IOMMU", ON_THE_BUS, "ok", "none", ""),
    ],
)
def test_why_a_gpu_cannot_be_used_or_reached_is_told_apart(
    tmp_path: Path,
    name: str,
    changes: dict[str, str | None],
    status: str,
    seen: str,
    advice: str,
) -> None:
    found = check(tmp_path, name, changes)
    assert found.status == status
    assert seen in found.seen
    assert advice in found.advice


def test_bridges_that_send_peers_up_to_the_root_are_named_with_the_command(
    tmp_path: Path,
) -> None:
    box(tmp_path, config_space(0x1D), config_space(0))
    found = examined(tmp_path)
    assert found["PCIe ACS"].status == "note"
    assert PORT in found["PCIe ACS"].seen
    assert f"setpci -s {PORT} ECAP_ACS+6.w=0000" in found["PCIe ACS"].advice
    assert "iommu=pt" in found["IOMMU"].advice


def test_a_virtual_machines_iommu_is_its_hosts_affair(tmp_path: Path) -> None:
    box(tmp_path, config_space(0), config_space(0))
    lay_out(tmp_path, {"proc/cpuinfo": "flags : hypervisor\n"})
    assert examined(tmp_path)["IOMMU"].status == "ok"


def with_gpus(tmp_path: Path, name: str, *gpus: Gpu) -> Check:
    return check(tmp_path, name, driver=lambda: opened(Nvml(gpus)))


def second(**settings: object) -> Gpu:
    return Gpu(bus_id="00000000:5E:00.0", **settings)  # type: ignore[arg-type] # fields of a GPU


@pytest.mark.parametrize(
    ("name", "gpu", "status", "seen", "advice"),
    [
        (
            "GPU modes",
            second(persistence=False),
            "note",
            "persistence mode off (0000:5e:00.0)",
            "-pm 1",
        ),
        ("GPU modes", second(mig=True), "note", "MIG on", "-mig 0"),
        ("GPU modes", second(ecc=False), "note", "ECC off", "-e 1"),
        (
            "GPU limits",
            second(limit_watts=400.0),
            "note",
            "power limit below the default",
            "-pl",
        ),
        (
            "GPU limits",
            second(application_mhz=1200),
            "note",
            "application clocks below",
            "-rac",
        ),
        ("GPU health", second(reasons=HW_THERMAL), "problem", "hw_thermal_slowdown", "cooling"),
        ("GPU health", second(uncorrected=2), "problem", "2 uncorrected memory errors", "xid"),
    ],
)
def test_a_gpu_that_is_badly_set_or_sick_is_named(
    tmp_path: Path, name: str, gpu: Gpu, status: str, seen: str, advice: str
) -> None:
    machine = with_gpus(tmp_path, name, Gpu(), gpu)
    assert machine.status == status
    assert seen in machine.seen
    assert advice in machine.advice


def test_what_all_gpus_have_in_common_is_said_once(tmp_path: Path) -> None:
    machine = with_gpus(
        tmp_path, "GPU modes", Gpu(persistence=False), second(persistence=False)
    )
    assert machine.seen == "persistence mode off (all GPUs)"


def test_a_gpu_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    machine = with_gpus(tmp_path, "GPU health", Gpu(), second(lost=True))
    assert machine.status == "problem"
    assert "GPU is lost" in machine.seen


def test_packages_of_a_newer_cuda_than_the_driver_runs_are_a_problem_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"cupy-cuda13x": "14.2.0", "nvidia-nccl-cu13": "2.28.9"}
    monkeypatch.setattr("ccbench.machine.doctor.installed_version", versions.get)
    found = check(tmp_path, "CUDA versions", {**ON_THE_BUS})
    assert found.seen == "driver 550.54.15, cupy-cuda13x 14.2.0, nvidia-nccl-cu13 2.28.9"
    assert (found.status, "pip install '.[cuda12]'" in found.advice) == ("problem", True)
