"""``cuda``: ccbench's own kernels on NVIDIA GPUs.

This module is what the runner sees: it asks files and package metadata, and imports neither CuPy nor CUDA.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ccbench.backends import CUPY
from ccbench.backends.base import Backend
from ccbench.backends.kernels.layout import tuning
from ccbench.backends.kernels.sources import kernel_folder, unsupported
from ccbench.backends.prerequisites import cupy_missing, driver_missing
from ccbench.cases.axes import Case
from ccbench.machine.software import installed_version


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
            (
                installed
                for name in CUPY.distributions
                if (installed := installed_version(name))
            ),
            "unknown",
        )
        set_here = str(tuning())
        return f"kernels {sources_digest()}, CuPy {cupy}" + (
            f", {set_here}" if set_here else ""
        )

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
