"""Predictions for cases that another tool measured, on the machine that the user names.

A machine of PCIe cards with more of them than the catalog's: how many is its owner's choice.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from ccbench.cases import Measurement
from ccbench.errors import MachineError
from ccbench.model import Prediction
from ccbench.model.cluster import Cluster, cluster_of
from ccbench.model.context import predict_case
from ccbench.results.importers.log import ImportedLog, ImportedTable
from ccbench.results.importers.ranks import Given
from ccbench.results.importers.same_machine import Difference, cure, difference
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
    from ccbench.suite.documents import read_machine_document
    from ccbench.topology.catalog import CATALOG_FOLDER, catalog_names

    name = source.lower()
    if name not in catalog_names():
        return None
    plain = read_machine_document(Path(CATALOG_FOLDER / f"{name}.yaml"))
    only_pcie = isinstance(plain, dict) and "pcie" in plain and not {"nvswitch", "mesh"} & set(plain)
    return plain if only_pcie else None


class Pricer:
    """Prices every case of an import.

    ``problems`` holds why some cannot be priced, ``remarks`` what else to know of them: once each, in order.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        self.problems: dict[str, None] = {}
        self.remarks: dict[str, None] = {}

    def price(self, measurement: Measurement, log: ImportedLog, table: int = 1) -> Prediction | None:
        """None where no machine was named, or where it is not what was measured.

        table: number of the case's table in ``log``, from 1.
        """
        if not self._given.source:
            return None
        case = measurement.case
        try:
            self._check_devices(log)
            cluster = _cluster(self._given, case.ranks, case.nodes)
        except MachineError as error:
            self.problems.setdefault(f"no predictions for {case.ranks} ranks: {error}")
            return None
        held, taken = len(_node(self._given.source).gpus), len(cluster.node.gpus)
        if taken > held:
            self.remarks.setdefault(
                f"predictions for {case.ranks} ranks: {cluster.node.name} of the catalog has {held} GPUs, "
                f"and {taken} of one node took part; taken to be on two sockets"
            )
        one = log.tables[table - 1] if 0 < table <= len(log.tables) else None
        return predict_case(case, cluster, gpus_per_process=min(gpus_per_process(log, one), case.ranks))

    def _check_devices(self, log: ImportedLog) -> None:
        """Raises MachineError where the log lists GPUs that the machine does not have."""
        models = tuple(dict.fromkeys(device.model for device in log.devices if device.model))
        found = _difference(self._given.source, models)
        if found is None:
            return
        if not found.same_links:
            raise MachineError(f"{found}; {cure(found.listed)}")
        self.remarks.setdefault(f"{found}; predictions are for the former, on the same kind of slots")


@lru_cache(maxsize=16)
def _node(source: str) -> Topology:
    from ccbench.machine.detection import load_topology

    return load_topology(source)


@lru_cache(maxsize=64)
def _difference(source: str, models: tuple[str, ...]) -> Difference | None:
    return difference(_node(source), models)


@lru_cache(maxsize=64)
def _cluster(given: Given, ranks: int, nodes: int) -> Cluster:
    """The machine that was measured: what the log shows of its nodes counts before what the user says."""
    node = _node(given.source)
    # A log may not tell how its ranks were spread: full nodes are what people run.
    spread = nodes or given.nodes or -(-ranks // max(1, len(node.gpus)))
    per_node = -(-ranks // spread)
    if node.gpus and per_node > len(node.gpus):
        node = with_cards(node, given.source, per_node)
    return cluster_of(node, spread, given.network or None, ranks)


def gpus_per_process(log: ImportedLog, table: ImportedTable | None) -> int:
    """GPUs that one thread launched on, as nccl-tests' header says: of the table itself, else of the log."""
    for facts in (table.facts if table is not None else {}, log.facts):
        said = facts.get("gpus_per_thread")
        if isinstance(said, int) and said > 0:
            return said
    return 1
