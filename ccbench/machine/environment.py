"""What a run was made under: the machine, its limits, its settings, the libraries, the variables.

Nothing is executed, and no library is imported but pynvml, through which GPUs tell their modes. A fact that
the machine does not tell is None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ccbench.machine.accelerators import Accelerators, Nvml, opened, read_accelerators
from ccbench.machine.files import Files, kept_variables
from ccbench.machine.host import (
    Host,
    Limits,
    Memory,
    Processor,
    control_group_limits,
    read_host,
    read_memory,
    read_processor,
)
from ccbench.machine.software import CHECKOUT, Software, read_software


@dataclass(frozen=True)
class Environment:
    """Everything ``observe`` sees."""

    host: Host
    processor: Processor
    memory: Memory
    limits: Limits
    software: Software
    variables: Mapping[str, str]
    accelerators: Accelerators = field(default_factory=Accelerators)


def capture() -> dict[str, Any]:
    """What ``observe`` sees as plain JSON values, for a run's manifest; GPUs are asked."""
    return asdict(observe(driver=opened))


def observe(
    root: Path = Path("/"),
    variables: Mapping[str, str] | None = None,
    checkout: Path = CHECKOUT,
    driver: Callable[[], Nvml] | None = None,
) -> Environment:
    """Read this machine, or the one laid out below ``root``.

    variables: the process's own unless given. checkout: where a ``.git`` may lie. driver: opens the NVIDIA
    driver, whose answers no file has; None leaves them out.
    """
    files = Files(root)
    return Environment(
        host=read_host(files),
        processor=read_processor(files),
        memory=read_memory(files),
        limits=control_group_limits(files),
        software=read_software(files, checkout),
        variables=kept_variables(os.environ if variables is None else variables),
        accelerators=read_accelerators(files, driver),
    )
