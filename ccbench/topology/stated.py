"""What a source does not say and a person states: the model of GPUs, and generation and lanes of their slots.

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

_SLOT = re.compile(r"([1-6])(?:\.0)?x([1-9][0-9]?)")


def completed(topology: Topology, words: str) -> Topology:
    """Return ``topology`` with what ``words`` (``gpu=...&pcie=4x16``) state and it does not say.

    Raises MachineError for a key that does not exist, and where the source says something else.
    """
    for key, value in parse_qsl(words, keep_blank_values=True):
        if key == "gpu":
            topology = _with_model(topology, value)
        elif key == "pcie":
            topology = _with_slots(topology, value)
        else:
            raise MachineError(
                f"{topology.name}: ?{shown(key)}= states nothing; write gpu=MODEL or pcie=4x16"
            )
    return topology


def _with_model(topology: Topology, model: str) -> Topology:
    own = {gpu.attributes.get("model") for gpu in topology.gpus} - {None, ""}
    if own - {model}:
        raise MachineError(
            f"{topology.name}: its GPUs are {', '.join(sorted(map(str, own)))}, not {shown(model)}; leave "
            "the model out"
        )
    devices = (
        replace(device, attributes={**device.attributes, "model": model})
        if device.kind is DeviceKind.GPU
        else device
        for device in topology.devices
    )
    return replace(topology, devices=tuple(devices))


def _with_slots(topology: Topology, slot: str) -> Topology:
    match = _SLOT.fullmatch(slot.strip().lower())
    if match is None:
        raise MachineError(
            f"pcie={shown(slot)}: expected generation and lanes, such as 4x16 for PCIe 4 with 16 lanes"
        )
    generation, lanes = map(int, match.groups())
    speed = next(speed for speed, number in GENERATIONS.items() if number == generation)
    rate = bytes_per_second(speed, lanes)
    links = (
        replace(link, bytes_per_second=rate, origin=f"stated: PCIe {generation} x{lanes}")
        if link.kind is LinkKind.PCIE and link.bytes_per_second is None
        else link
        for link in topology.links
    )
    return replace(topology, links=tuple(links))
