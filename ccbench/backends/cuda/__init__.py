"""``cuda``: ccbench's own kernels on NVIDIA GPUs.

This module is what the runner sees: it asks files and package metadata, and imports neither CuPy nor CUDA.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from ccbench.backends import CUPY
from ccbench.backends.base import Backend
from ccbench.backends.kernels.building import CUDA_12_INSTEAD
from ccbench.backends.kernels.layout import tuning
from ccbench.backends.kernels.sources import kernel_folder, unsupported
from ccbench.cases.axes import Case
from ccbench.machine.accelerators import before_turing, cuda_install
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
    """Cure when CuPy is absent, or of a CUDA that has left all GPUs of this machine behind."""
    if find_spec("cupy") is None:
        return f"CuPy is not installed; {cuda_install()}"
    # Both wheels may be there; the older one then serves old GPUs.
    newer = installed_version("cupy-cuda13x") and not installed_version("cupy-cuda12x")
    if newer and before_turing(Files(), every=True):
        return f"CuPy is of CUDA 13, which begins at compute capability 7.5; {CUDA_12_INSTEAD}"
    return None


class CudaBackend(Backend):
    """Implements ``ccbench.backends.base.Backend``."""

    name = "cuda"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Needs a driver, a device and CuPy."""
        return driver_missing() or cupy_missing()

    def version(self) -> str:
        """CuPy's version, a digest of the kernels' sources, and what the environment sets about them.

        Others give other figures. UsageError for a CCBENCH_KERNEL_ variable that cannot be.
        """
        cupy = next(
            (found for name in CUPY.distributions if (found := installed_version(name))), "unknown"
        )
        set_here = str(tuning())
        return f"kernels {sources_digest()}, CuPy {cupy}" + (f", {set_here}" if set_here else "")

    def refused(self, case: Case) -> str | None:
        """Reason why no kernel can run ``case``; that the devices have no room shows when it runs."""
        return unsupported(case)


def sources_digest(folder: Path | None = None) -> str:
    """Eight digits that change with any kernel source."""
    digest = hashlib.sha256()
    for file in sorted((folder or kernel_folder()).glob("*.cu*")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:8]


BACKEND = CudaBackend()
