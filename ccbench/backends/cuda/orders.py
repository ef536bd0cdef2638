"""Rings over a process's devices that follow the links between them."""

from __future__ import annotations

from collections.abc import Sequence

from ccbench.backends.cuda.group import Group
from ccbench.backends.kernels.plans import topology_orders


def found_orders(groups: Sequence[Group]) -> tuple[tuple[int, ...], ...]:
    """Rings for one rank per device, from what the system shows of the links between them."""
    from ccbench.machine.detection import detect

    topology = detect()
    names = {gpu.bus_id.lower(): gpu.name for gpu in topology.gpus if gpu.bus_id}
    devices = [names.get(group.facts.bus_id.lower(), "") for group in groups]
    return topology_orders(topology, devices) if all(devices) and len(devices) > 1 else ()
