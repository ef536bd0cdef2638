"""Prerequisites of what runs on NVIDIA's GPUs, from files and package metadata: the driver, and CuPy."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ccbench.machine.accelerators import (
    COMPATIBILITY,
    CUDA_12_INSTEAD,
    FIRST_DRIVER_OF_CUDA_13,
    before_cuda_13,
    before_turing,
    cuda_install,
    driver_version,
)
from ccbench.machine.files import Files
from ccbench.machine.software import installed_version

DRIVER_PATTERNS = ("dev/nvidia[0-9]*", "dev/dxg", "dev/nvhost-gpu", "dev/nvgpu")
"""Devices of NVIDIA's driver on servers, under Windows, and on boards."""


def driver_missing(root: Path = Path("/")) -> str | None:
    """Reason why there can be no CUDA here, from the files below ``root``; None where there may be."""
    if any(next(root.glob(pattern), None) is not None for pattern in DRIVER_PATTERNS):
        return None
    if (root / "proc/driver/nvidia/version").exists():
        return "the NVIDIA driver is loaded but shows no GPU; in a container: docker run --gpus all"
    return "this machine has no NVIDIA driver; --backend cuda-host runs the same kernels on the CPU"


def cupy_missing() -> str | None:
    """Cure when CuPy is absent, or of a CUDA that the driver or all GPUs of this machine are too old for."""
    if find_spec("cupy") is None:
        return f"CuPy is not installed; {cuda_install()}"
    # Both wheels may be there; the older one then serves old GPUs.
    newer = not installed_version("cupy-cuda12x") and installed_version("cupy-cuda13x")
    files = Files()
    if newer and before_turing(files, every=True):
        return f"CuPy is of CUDA 13, which begins at compute capability 7.5; {CUDA_12_INSTEAD}"
    driver = driver_version(files)
    # NVIDIA's package of that name lets older drivers of data centres run newer CUDA.
    if newer and before_cuda_13(driver) and not files.exists(COMPATIBILITY):
        needs = f"CuPy {newer} is of CUDA 13, which begins at driver {FIRST_DRIVER_OF_CUDA_13}"
        return f"{needs}, and the driver is {driver}; {CUDA_12_INSTEAD}"
    return None
