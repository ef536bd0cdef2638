"""The model's prediction for a case, and its context: a machine's GPUs, and what joins several of them."""

from __future__ import annotations

import os
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ccbench.cases.axes import DEFAULT, NO_ROOT, ONE_PROCESS, OVERLAP, UNEVEN, Case
from ccbench.cases.capabilities import Device, PricedBy, capabilities_of
from ccbench.collectives import COLLECTIVES, SETUPS
from ccbench.dtypes import item_bytes
from ccbench.errors import CcbenchError, MachineError
from ccbench.model import Prediction
from ccbench.model.cluster import Cluster, cluster_of, library_points, opened, schedule_points
from ccbench.model.concurrent import cheapest, library_at_once, schedules_at_once
from ccbench.model.group_points import group_points
from ccbench.model.library import ALGORITHMS, PROTOCOLS, LibraryRequest
from ccbench.model.library.constants import shipped
from ccbench.model.library.costs import MICRO
from ccbench.model.library.paths import P2P_VARIABLES, with_path
from ccbench.model.rank_subset import schedule_of, subset_of, takes_all_alike
from ccbench.model.subset_points import subset_points
from ccbench.topology.graph import Topology
from ccbench.units import format_seconds


def predict_case(
    case: Case,
    machine: Cluster,
    algorithm_used: str = "",
    gpus_per_process: int | None = 1,
    version: tuple[int, ...] = (),
) -> Prediction | None:
    """The prediction for one launch of ``case``, None where there is no model of what ran.

    algorithm_used: what the backend says it ran. gpus_per_process: GPUs that one thread launches on while
    the clock runs, 0 where all was enqueued before; None where nobody says, priced as one. version: of the GPU
    library; () is a current one. On a cluster of another number of ranks than the case has there is none either.
    Of computing meanwhile nothing is said: how long it takes is not modelled.
    """
    able = capabilities_of(case.backend)
    if (
        able.priced_by is PricedBy.NO_MODEL
        or case.mode == OVERLAP
        or case.cta_policy != DEFAULT
    ):
        return None  # copy engines are not modelled
    if case.collective in SETUPS:
        return None  # what a library does then, no model says
    by_library = able.priced_by is PricedBy.GPU_LIBRARY
    if by_library and not case.size_bytes and COLLECTIVES[case.collective].moves_data:
        return (
            None  # nothing to send: libraries return at once, or with a handshake of their own
        )
    try:
        if case.ranks != machine.ranks:
            return None
        if by_library:
            request = _request(case, algorithm_used, gpus_per_process, version)
            beside = case.concurrent_case
            if beside is not None:
                request_beside = _request(beside, "", gpus_per_process, version)
                both = (case, request), (beside, request_beside)
                return library_at_once(machine, *both).prediction
            if takes_all_alike(case):
                return library_points(machine, request, _root(case))[0].prediction
            return group_points(machine, case.members, request)[0].prediction
        prediction = (
            schedule_prediction(case, machine, algorithm_used) if algorithm_used else None
        )
    except CcbenchError:
        return None  # a library's own algorithm, or one that is unknown here: there is nothing to price
    if prediction is None or not able.device_timed:
        return prediction
    # Where a device takes the time, launching may take longer than a small message, as with a library.
    launches = 1 if gpus_per_process is None else gpus_per_process
    floor = launches * shipped().table["launch_us"] * MICRO
    if prediction.latency_seconds >= floor:
        return prediction
    bottleneck = prediction.bottleneck
    if floor > prediction.bandwidth_seconds:
        bottleneck = f"launches: {format_seconds(floor)} for one thread to launch on its GPUs"
    predicted = prediction.predicted_seconds + floor - prediction.latency_seconds
    return replace(
        prediction, predicted_seconds=predicted, latency_seconds=floor, bottleneck=bottleneck
    )


def _request(
    case: Case, algorithm_used: str, gpus_per_process: int | None, version: tuple[int, ...]
) -> LibraryRequest:
    named = (algorithm_used or case.algorithm).lower()
    if named in ("collnetdirect", "collnetchain"):
        named = "collnet"  # its two forms
    protocol = case.protocol.lower()
    return LibraryRequest(
        case.collective,
        (case.size_bytes,),
        item_bytes(case.dtype) if case.dtype else 4,
        case.dtype.startswith("float8"),
        case.in_place,
        named if named in ALGORITHMS else "default",
        protocol if protocol in PROTOCOLS else "default",
        1 if gpus_per_process is None else gpus_per_process,
        version,
        traffic=case.traffic if case.collective == UNEVEN else "",
        launch_known=gpus_per_process is not None,
    )


def schedule_prediction(case: Case, where: Cluster, algorithm: str) -> Prediction:
    """Of ccbench's own schedule on a cluster's links.

    Raises UsageError, ScheduleError and MachineError where there is no such thing.
    """
    beside = case.concurrent_case
    if beside is None and takes_all_alike(case):
        sizes = (case.size_bytes,)
        return schedule_points(where, case.collective, algorithm, sizes, _root(case))[
            0
        ].prediction
    schedule = schedule_of(case, algorithm)
    if beside is not None:
        return schedules_at_once(
            where, (case, schedule), (beside, cheapest(beside, where))
        ).prediction
    sizes = (case.size_bytes,)
    return subset_points(where, schedule, subset_of(case), sizes, algorithm)[0].prediction


def _root(case: Case) -> int:
    return 0 if case.root == NO_ROOT else case.root


@dataclass(frozen=True)
class PredictionContext:
    """Machine that prices come from.

    gpus: the machine whose GPUs are ranks, None where there is none. network: what joins several of
    them, as ``ccbench predict --network`` has it. launched: a launcher starts a process for each rank.
    """

    gpus: Topology | None = None
    network: str | None = None
    launched: bool = False
    _clusters: dict[Hashable, Cluster] = field(default_factory=dict, repr=False, compare=False)

    def predict(
        self, case: Case, algorithm_used: str = "", protocol_used: str = ""
    ) -> Prediction | None:
        """The prediction for one launch of ``case``, None where there is no model of what ran.

        algorithm_used, protocol_used: what the backend says it ran; without them, what was asked for.
        """
        if protocol_used:
            case = replace(case, protocol=protocol_used)
        used = algorithm_used or ("" if case.algorithm == DEFAULT else case.algorithm)
        machine = self.machine_of(case)
        # The model of a machine's GPUs says nothing of processes.
        processes = capabilities_of(case.backend).device is Device.PROCESS
        if machine is None or processes:
            return None
        # GPUs that one thread launches on while a sample runs: in other modes all is enqueued before.
        one_process = (
            capabilities_of(case.backend).one_process and case.processes == ONE_PROCESS
        )
        of_one_thread = case.ranks // case.nodes if one_process and not self.launched else 1
        return predict_case(
            case, machine, used, of_one_thread if case.mode == "streaming" else 0
        )

    def machine_of(self, case: Case) -> Cluster | None:
        """The machine of a case; None where it does not fit: more ranks than GPUs, or no network named."""
        with suppress(CcbenchError):
            return self.needed_machine(case)
        return None

    def needed_machine(self, case: Case) -> Cluster:
        """The machine of a case where there must be one; MachineError says why there is none."""
        if self.gpus is None:
            raise MachineError("no machine to price on; name one with --machine")
        variables = {**os.environ, **dict(case.started_with.environment)}
        path = {name: variables[name] for name in P2P_VARIABLES if name in variables}
        key = (case.ranks, case.nodes, *path.items())
        if key not in self._clusters:
            gpus = with_path(self.gpus, path)
            self._clusters[key] = cluster_of(gpus, case.nodes, self.network, case.ranks)
        return self._clusters[key]


def named_context(name: str, network: str | None = None) -> PredictionContext:
    """The context that a user's word stands for: a name of the catalog, a file or a dump.

    network: what joins several machines with GPUs. Raises MachineError and TopologyError for what is none of these.
    """
    node = opened(name)
    return PredictionContext(node if node.gpus else None, network)
