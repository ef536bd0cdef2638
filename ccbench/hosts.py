"""What a host is, as far as it matters to whoever reads figures that it took part in."""

from __future__ import annotations

import platform
import socket
from dataclasses import dataclass

from ccbench import __version__
from ccbench.machine.environment import observe
from ccbench.machine.network import LOOPBACK, read_interfaces
from ccbench.machine.nvml import opened


@dataclass(frozen=True)
class HostFacts:
    """What one host is.

    gpus: models, one each. no_gpus: why ranks there cannot use GPUs, '' where they can.
    interfaces: those that are up, as ``machine.network`` names them.
    clock_offset_seconds: its clock of the day minus the runner's host's, give or take
    clock_uncertainty_seconds.
    """

    name: str
    ranks: int = 0
    system: str = ""
    kernel: str = ""
    processor: str = ""
    cores: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    no_gpus: str = ""
    interfaces: tuple[str, ...] = ()
    python: str = ""
    ccbench: str = ""
    clock_offset_seconds: float | None = None
    clock_uncertainty_seconds: float | None = None


def facts_of_this_host() -> HostFacts:
    """What this host is."""
    seen = observe(driver=opened)
    up = [one for one in read_interfaces() if one.up and one.kind != LOOPBACK]
    return HostFacts(
        name=socket.gethostname(),
        system=seen.host.system,
        kernel=seen.host.kernel,
        processor=seen.processor.model or seen.processor.architecture,
        cores=seen.processor.cores,
        memory_bytes=seen.memory.total_bytes,
        gpus=tuple(gpu.model or "GPU" for gpu in seen.accelerators.gpus)
        or ("GPU",) * len(seen.accelerators.device_files),
        interfaces=tuple(map(str, up)),
        python=platform.python_version(),
        ccbench=__version__,
    )
