"""Predictions for cases that another tool measured, on the machine that the user names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ccbench.cases import Case, Measurement
from ccbench.errors import MachineError
from ccbench.importing.log import ImportedLog
from ccbench.importing.ranks import Given
from ccbench.model.cluster import Cluster, open_cluster
from ccbench.model.predicting import predict_case
from ccbench.model.prediction import Prediction


class Pricer:
    """Prices every case of an import; ``problems`` holds why some cannot be, once each, in order."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self.problems: dict[str, None] = {}

    def price(self, measurement: Measurement, log: ImportedLog) -> Prediction | None:
        """None where no machine was named, or where it does not fit the case."""
        if not self._given.source:
            return None
        case = measurement.case
        try:
            cluster = _cluster(self._given, case.ranks, case.nodes)
        except MachineError as error:
            self.problems.setdefault(f"no predictions for {case.ranks} ranks: {error}")
            return None
        return predict_case(case, cluster, gpus_per_process=_gpus_per_process(log, case))


@lru_cache(maxsize=64)
def _cluster(given: Given, ranks: int, nodes: int) -> Cluster:
    held = given.devices or 0
    # A log may not tell how its ranks were spread: full nodes are what people run.
    most = max(nodes, -(-ranks // held) if held else 1)
    return open_cluster(given.source, given.nodes or most, given.network or None, ranks)


def _gpus_per_process(log: ImportedLog, case: Case) -> int:
    """GPUs that one thread launched on, as nccl-tests' header says."""
    for facts in (table.facts for table in log.tables):
        stated = _stated(facts)
        if stated:
            return min(stated, case.ranks)
    return 1


def _stated(facts: Mapping[str, object]) -> int:
    found = facts.get("gpus_per_thread")
    return found if isinstance(found, int) and found > 0 else 0
