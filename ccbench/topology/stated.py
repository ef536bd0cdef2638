"""Facts that a source does not say and a person states: the model of GPUs, and generation and lanes of their slots.

Written behind the source: ``topo.txt?gpu=NVIDIA L40S&pcie=4x16``, so that every command takes it, and a run
records it with the machine's name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import parse_qsl

from ccbench.errors import MachineError
from ccbench.topology.graph import DeviceKind, LinkKind, Topology
from ccbench.topology.pci import GENERATIONS, bytes_per_second
from ccbench.units import shown

_SLOT = re.compile(r"([1-6])(?:\.0)?x(1|2|4|8|12|16)")


def completed(topology: Topology, words: str) -> Topology:
    """Return ``topology`` with what ``words`` (``gpu=...&pcie=4x16``) state and it does not say.

    Raises MachineError for a key that does not exist, and where the source says something else.
    """
    for key, value in parse_qsl(words, keep_blank_values=True):
        if key == "gpu":
            own = topology.models
            # Who writes A100 where the source says NVIDIA A100-SXM4-80GB does not contradict it; who writes A10 does.
            whole = re.compile(rf"(?<![a-z0-9]){re.escape(value)}(?![a-z0-9])", re.IGNORECASE)
            if not all(map(whole.search, own)):
                raise MachineError(
                    f"{topology.name}: its GPUs are {', '.join(own)}, not {shown(value)}; leave the model out"
                )
            model = next(iter(own), value)
            devices = tuple(
                replace(device, attributes={**device.attributes, "model": model})
                if device.kind is DeviceKind.GPU and not device.model
                else device
                for device in topology.devices
            )
            topology = replace(topology, devices=devices)
        elif key == "pcie":
            match = _SLOT.fullmatch(value.strip().lower())
            if match is None:
                raise MachineError(
                    f"pcie={shown(value)}: expected generation and lanes (1 to 16), such as 4x16 for PCIe 4"
                )
            generation, lanes = map(int, match.groups())
            speed = next(speed for speed, number in GENERATIONS.items() if number == generation)
            rate = bytes_per_second(speed, lanes)
            links = (
                replace(
                    link, bytes_per_second=rate, origin=f"stated: PCIe {generation} x{lanes}"
                )
                if link.kind is LinkKind.PCIE and link.bytes_per_second is None
                else link
                for link in topology.links
            )
            topology = replace(topology, links=tuple(links))
        else:
            raise MachineError(
                f"{topology.name}: ?{shown(key)}= states nothing; write gpu=MODEL or pcie=4x16"
            )
    return topology
