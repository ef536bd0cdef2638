"""The CPU backend's crew: one process per rank, arenas and control words shared by all."""

from __future__ import annotations

from ccbench.backends.cpu.endpoint import CpuEndpoint
from ccbench.backends.cpu.memory import Arena, Control
from ccbench.faults import fault_from_environment
from ccbench.machine.host import usable_cores


class CpuCrew:
    """Implements ``ccbench.backends.crew.Crew``."""

    pinned = True
    whole = False

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        self.processes = ranks
        self.control = Control(ranks, sample_capacity)
        self._cores = usable_cores()
        self.oversubscribed = ranks > self._cores
        self._arenas = [Arena() for _ in range(ranks)]
        self._fault = fault_from_environment()

    def endpoint(self, process: int) -> CpuEndpoint:
        """The endpoint of rank ``process``."""
        return CpuEndpoint(process, self.control, self._arenas, self._cores, self._fault)
