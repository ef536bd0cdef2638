"""Readers of other tools' machine descriptions: one module each, picked by what the text says.

A reader module has ``recognises(text) -> bool``, cheap and never raising, and ``read(text) -> Topology``,
which raises MachineError and nothing else. Modules are imported when a text is read, so that a reader's heavy
library costs nothing to those who do not read its format.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Protocol, cast

from ccbench.errors import MachineError
from ccbench.topology.graph import Topology
from ccbench.units import shown

READERS: tuple[str, ...] = (
    "nccl_xml",
    "nccl_graph_xml",
    "hwloc",
    "nccl_log",
    "npu_smi",
    "rocm_smi",
    "smi_topo",
    "smi_nvlink",
)
"""Reader modules in the order they are asked.

XML first, because its root element leaves no doubt; then logs, which may quote any of the others; ``topo``
before ``nvlink``, because a paste of both says more in its matrix.
"""

FORMATS = (
    "an NCCL or RCCL topology or graph XML, an hwloc XML or lstopo text, an NCCL_DEBUG=INFO log, "
    "'nvidia-smi topo -m', 'nvidia-smi nvlink -s', 'rocm-smi --showtopo' or 'npu-smi info -t topo'"
)


class Reader(Protocol):
    """What each module of READERS offers."""

    def recognises(self, text: str) -> bool:
        """Whether ``text`` is this reader's format; never raises."""

    def read(self, text: str) -> Topology:
        """The machine ``text`` describes; MachineError when nothing can be made of it."""


def reader(name: str) -> Reader:
    """The reader module called ``name``, one of READERS."""
    return cast(Reader, importlib.import_module(f"{__name__}.{name}"))


def read_text(text: str, name: str = "") -> Topology:
    """The machine that ``text`` describes, read by the first reader that recognises it.

    name: where the text comes from (a file's name), for errors and for Topology.name; never used to choose.
    Raises MachineError when no reader recognises the text, or when the one that does finds nothing in it.
    """
    for candidate in map(reader, READERS):
        if candidate.recognises(text):
            break
    else:
        where = name or "the text"
        seen = shown(text.strip()) if text.strip() else "nothing"
        raise MachineError(
            f"{where}: this is no machine description ccbench knows: {seen}; give it {FORMATS}"
        )
    try:
        topology = candidate.read(text)
    except MachineError as error:
        if name and not str(error).startswith(name):
            raise MachineError(f"{name}: {error}") from error
        raise
    return dataclasses.replace(topology, name=name) if name else topology
