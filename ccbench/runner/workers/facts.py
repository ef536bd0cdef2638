"""Facts of a host: what an agent answers about the machine that it is on."""

from __future__ import annotations

import platform
import socket
from dataclasses import dataclass

from ccbench.backends import open_backend
from ccbench.cases.capabilities import backends_of_auto
from ccbench.machine.accelerators import opened
from ccbench.machine.host import observe
from ccbench.machine.sysfs import LOOPBACK, read_interfaces
from ccbench.version import __version__


@dataclass(frozen=True)
class HostFacts:
    """Description of one host.

    gpus: models, one each. no_gpus: why ranks there cannot use GPUs, '' where they can.
    interfaces: those that are up, as ``machine.network`` names them. rack: '' where nobody named it.
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
    rack: str = ""


def facts_of_this_host() -> HostFacts:
    """Return what this host is, and whether it has GPUs to use."""
    system = observe(driver=opened)
    up = [
        interface
        for interface in read_interfaces()
        if interface.up and interface.kind != LOOPBACK
    ]
    return HostFacts(
        name=socket.gethostname(),
        system=system.host.system,
        kernel=system.host.kernel,
        processor=system.processor.model or system.processor.architecture,
        cores=system.processor.cores,
        memory_bytes=system.memory.total_bytes,
        gpus=tuple(gpu.model or "GPU" for gpu in system.accelerators.gpus)
        or ("GPU",) * len(system.accelerators.device_files),
        no_gpus=open_backend(backends_of_auto(gpus=True)[0]).unavailable() or "",
        interfaces=tuple(map(str, up)),
        python=platform.python_version(),
        ccbench=__version__,
    )
