"""What the predictions of a run are priced on: this host's processors, a machine's GPUs, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ccbench.capabilities import Device, capabilities_of
from ccbench.cases import ONE_PROCESS, Case
from ccbench.errors import CcbenchError, MachineError
from ccbench.model.cluster import Cluster, cluster_of
from ccbench.model.host_network import HostNetwork
from ccbench.model.machine import Machine, is_machine_file, load_machine, machine_names
from ccbench.model.predicting import predict_case
from ccbench.model.prediction import Prediction
from ccbench.topology.graph import Topology

DEFAULT = "default"
"""The algorithm that leaves the choice to the backend."""


@dataclass(frozen=True)
class Basis:
    """Where prices come from; None where there is nothing of the kind.

    host: for ranks that are processes. gpus: the machine whose GPUs are ranks. network: what joins several of
    them, as ``ccbench predict --network`` has it. host_networks: one host or several, as seen over a library,
    by backend and ranks. launched: a launcher starts a process for each rank.
    """

    host: Machine | None = None
    gpus: Topology | None = None
    network: str | None = None
    host_networks: Mapping[tuple[str, int], HostNetwork] = field(default_factory=dict)
    launched: bool = False
    _clusters: dict[tuple[int, int], Cluster | None] = field(default_factory=dict, repr=False, compare=False)

    def predict(self, case: Case, algorithm_used: str = "", protocol_used: str = "") -> Prediction | None:
        """The prediction for one launch of ``case``, None where there is no model of what ran.

        algorithm_used, protocol_used: what the backend says it ran; without them, what was asked for.
        """
        if protocol_used:
            case = replace(case, protocol=protocol_used)
        used = algorithm_used or ("" if case.algorithm == DEFAULT else case.algorithm)
        hosts = self.host_networks.get((case.backend, case.ranks))
        if hosts is not None:
            return predict_case(case, hosts, used, host=self.host)
        machine = self.machine_of(case)
        # The model of a machine's GPUs says nothing of processes.
        processes = capabilities_of(case.backend).device is Device.PROCESS
        if machine is None or (isinstance(machine, Cluster) and processes):
            return None
        return predict_case(case, machine, used, self._launched_by_one(case))

    def _launched_by_one(self, case: Case) -> int:
        """GPUs that one thread launches on while a sample runs: in other modes all is enqueued before."""
        if case.mode != "streaming":
            return 0
        one_process = capabilities_of(case.backend).one_process and case.processes == ONE_PROCESS
        by_turns = one_process and not self.launched
        return case.ranks // case.nodes if by_turns else 1

    def machine_of(self, case: Case) -> Machine | Cluster | None:
        """Whose model a case is of: its GPUs, where it runs on some or where there is nothing else."""
        if capabilities_of(case.backend).gpu_ranks or self.host is None:
            return self._cluster(case.ranks, case.nodes)
        return self.host

    def needed_machine(self, case: Case) -> Machine | Cluster:
        """The same where there must be one; MachineError says why there is none."""
        found = self.machine_of(case)
        if found is not None:
            return found
        if self.gpus is None:
            raise MachineError("no machine to price on; name one with --machine")
        return cluster_of(self.gpus, case.nodes, self.network, case.ranks)

    def _cluster(self, ranks: int, nodes: int) -> Cluster | None:
        if (ranks, nodes) not in self._clusters:
            self._clusters[ranks, nodes] = self._opened(ranks, nodes)
        return self._clusters[ranks, nodes]

    def _opened(self, ranks: int, nodes: int) -> Cluster | None:
        if self.gpus is None or not self.gpus.gpus:
            return None
        try:
            return cluster_of(self.gpus, nodes, self.network, ranks)
        except CcbenchError:
            return None  # more ranks than GPUs, or no network named: nothing to price


def named_basis(name: str, network: str | None = None) -> Basis:
    """The basis that a user's word stands for: a host by name or file, or anything with GPUs.

    network: what joins several machines with GPUs. Raises MachineError and TopologyError for what is neither.
    """
    if name in machine_names() or is_machine_file(name):
        return Basis(host=load_machine(name))
    from ccbench.machine.detection import load_topology

    if Path(name).suffix in {".yaml", ".yml"} and not Path(name).exists():
        return Basis(host=load_machine(name))  # which says that it cannot be read
    return Basis(gpus=load_topology(name), network=network)
