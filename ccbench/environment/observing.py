"""Everything at once: what a run's manifest says of where it was made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ccbench.environment.accelerators import Accelerators, read_accelerators
from ccbench.environment.files import Files
from ccbench.environment.host import Host, read_host
from ccbench.environment.limits import Limits, control_group_limits
from ccbench.environment.memory import Memory, read_memory
from ccbench.environment.processors import Processor, read_processor
from ccbench.environment.software import CHECKOUT, Software, read_software
from ccbench.environment.variables import kept_variables
from ccbench.nvidia import Session, opened


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
    driver: Callable[[], Session] | None = None,
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
