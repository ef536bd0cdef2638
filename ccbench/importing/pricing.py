"""Predictions for cases that another tool measured, on the machine that the user names."""

from __future__ import annotations

from functools import lru_cache

from ccbench.cases import Measurement
from ccbench.errors import MachineError
from ccbench.importing.log import ImportedLog, ImportedTable
from ccbench.importing.more_cards import with_cards
from ccbench.importing.ranks import Given
from ccbench.importing.same_machine import Difference, cure, difference
from ccbench.model.cluster import Cluster, cluster_of
from ccbench.model.predicting import predict_case
from ccbench.model.prediction import Prediction
from ccbench.topology.graph import Topology


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
    from ccbench.topology.sources import load_topology

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
