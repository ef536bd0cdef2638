"""A machine of PCIe cards with more of them than the catalog's: how many is its owner's choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ccbench.errors import MachineError
from ccbench.topology.graph import Topology, TopologyClass

SOCKETS = 2
"""Of a server that holds more cards than the catalog's machine; the cards are dealt to them equally."""

BETWEEN_SOCKETS = "108 GB/s"
"""Three 18 GT/s x16 links, as the catalog's machines with two sockets (ROCm documentation of MI100 nodes)."""


def with_cards(node: Topology, source: str, count: int) -> Topology:
    """``node`` with ``count`` GPUs, on two sockets with the same switches each.

    source: what named ``node``. Raises MachineError where it is no machine of plain PCIe cards of the
    catalog (boards hold what they hold), or where so many do not spread evenly.
    """
    held = len(node.gpus)
    plain = _plain(source) if node.topology_class is TopologyClass.PCIE else None
    if plain is None:
        raise MachineError(
            f"{node.name}: has {held} GPUs and {count} of one node took part; name a machine with as many, "
            "or a file that describes it"
        )
    pcie = {"between_cpus": BETWEEN_SOCKETS, **plain["pcie"], "cpus": SOCKETS}
    made = {**plain, "gpus": {**plain["gpus"], "count": count}, "pcie": pcie}
    from ccbench.topology.catalog import expand

    try:
        return expand(made, node.name, f"{node.name} with {count} GPUs")
    except MachineError:
        raise MachineError(
            f"{node.name}: has {held} GPUs, and {count} of one node do not spread evenly over its switches "
            f"on {SOCKETS} sockets; give a file that describes the machine"
        ) from None


def _plain(source: str) -> dict[str, Any] | None:
    """The catalog's short form of ``source``; None for what is not of the catalog, or joined by more."""
    from ccbench.topology.catalog import CATALOG_FOLDER, catalog_names
    from ccbench.topology.documents import read_document

    name = source.lower()
    if name not in catalog_names():
        return None
    plain = read_document(Path(CATALOG_FOLDER / f"{name}.yaml"))
    only_pcie = isinstance(plain, dict) and "pcie" in plain and not {"nvswitch", "mesh"} & set(plain)
    return plain if only_pcie else None
