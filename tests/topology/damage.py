"""What every reader owes to damaged text: a sound topology or a MachineError of one line, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ccbench.errors import MachineError
from ccbench.topology.graph import Topology


def read_or_refused(read: Callable[[str], Topology], text: str) -> Topology | None:
    """What ``read`` makes of ``text``, checked to be sound; None where it refuses."""
    try:
        topology = read(text)
    except MachineError as error:
        message = str(error)
        assert "\n" not in message
        return None
    named = {device.name for device in topology.devices}
    assert len(named) == len(topology.devices)
    assert all({link.source, link.target} <= named for link in topology.links)
    return topology


def changed(text: str, changes: Iterable[tuple[int, str]]) -> str:
    """``text`` with characters put in other characters' places; places count round the end."""
    characters = list(text)
    for position, character in changes:
        characters[position % len(characters)] = character
    return "".join(characters)
