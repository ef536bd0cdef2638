"""A cluster with its own constants, as a file: what ``ccbench predict --from RUN -o`` writes and ``predict`` reads.

Measured points of one cluster become scales (``calibrate_cluster``); predictions on the file are the usual one,
and the one with its own constants (``calibrated_points``).

The file holds all that a calibrated prediction needs: the machine (a name of the catalog, or a topology) and
the scaled constants themselves, so that another release with other shipped constants predicts the same. Scales
are there for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ccbench.documents import STRICT, typed
from ccbench.errors import MachineError
from ccbench.model import Prediction, PredictionInterval
from ccbench.model.cluster import (
    Cluster,
    ClusterPoint,
    bound_seconds,
    cluster_of,
    library_points,
)
from ccbench.model.library import Intra, LibraryRequest
from ccbench.model.library.calibration import (
    Calibrated,
    Observation,
    ScaleEstimate,
    calibrate,
    scale_estimates,
)
from ccbench.model.library.constants import CONSTANTS, LibraryConstants, shipped
from ccbench.model.library.intervals import intervals, octaves_from
from ccbench.model.library.paths import with_path
from ccbench.model.library.predictor import predict_library, priced
from ccbench.model.machine_files import has_line, write_plain
from ccbench.units import shown

KIND: Literal["calibrated-cluster"] = "calibrated-cluster"

VERSION: Literal[2] = 2
"""Of the file's form; a reader refuses any other."""

ORIGINS = ("machine", "measured_as", "scales", "constants")
"""The fields with numbers; each says in ``origins`` where those came from."""

MOST_RANKS = 10**8
MOST_GPUS = 4096
"""Of one thread."""

FARTHEST = 1e9
"""Constants lie between this and one over it; more is damage, and overflows later."""

FEWEST_TO_HOLD_OUT = 4


def _check_within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise MachineError(
            f"{name}: {shown(value)} is not between {low:g} and {high:g}; calibrate again"
        )


@dataclass(frozen=True)
class MeasuredAs:
    """Use of the library while it was measured; predictions with the file are for the same.

    gpus_per_process: that one thread launches on. multicast_off: NVLS was switched off. version: of the
    library, empty where the run does not tell.
    """

    gpus_per_process: int = 1
    multicast_off: bool = False
    version: tuple[int, ...] = ()

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        _check_within("measured_as: gpus_per_process", self.gpus_per_process, 1, MOST_GPUS)


@dataclass(frozen=True, kw_only=True)
class CalibratedCluster:
    """machine: a name of the catalog, or a whole topology in plain form. ranks: of all nodes together.

    network: between nodes, "" for one node. constants: scaled, by name. measured: collectives. run: the folder
    it is from; calibrated_at: ISO 8601 in UTC. driver: of the GPUs while they were measured, "" where the run
    does not tell.
    """

    kind: Literal["calibrated-cluster"] = KIND
    """First, by which a reader knows the file."""
    version: Literal[2] = VERSION
    name: str
    machine: str | dict[str, Any] = field(hash=False)
    ranks: int
    nodes: int
    network: str
    measured_as: MeasuredAs
    scales: tuple[ScaleEstimate, ...]
    measured: tuple[str, ...]
    constants: Mapping[str, float] = field(hash=False)
    points: int
    run: str
    calibrated_at: str
    origins: Mapping[str, str] = field(hash=False)
    driver: str = ""

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        if not self.name:
            raise MachineError("name: empty; give the machine a name")
        _check_within("ranks", self.ranks, 1, MOST_RANKS)
        _check_within("nodes", self.nodes, 1, MOST_RANKS)
        for wrong in sorted(set(ORIGINS) ^ set(self.origins)):
            if wrong in ORIGINS:
                raise MachineError(
                    f"origins: nothing about {wrong}; say where its numbers came from"
                )
            raise MachineError(f"origins: {shown(wrong)} is not one of {', '.join(ORIGINS)}")
        # Names that changed since: what the scales were of is no longer there.
        for odd in sorted(set(CONSTANTS) ^ set(self.constants)):
            raise MachineError(
                f"constants: {shown(odd)} is missing or not one of this release's; calibrate again with it"
            )
        for name, value in self.constants.items():
            _check_within(f"constants: {name}", value, 1 / FARTHEST, FARTHEST)

    @cached_property
    def cluster(self) -> Cluster:
        """The GPUs that were measured. Raises MachineError."""
        from ccbench.topology.files import from_plain, load_catalog

        if isinstance(self.machine, str):
            node = load_catalog(self.machine)
        else:
            node = from_plain(self.machine, f"{self.name}: machine")
        return cluster_of(node, self.nodes, self.network or None, self.ranks)

    @cached_property
    def calibrated(self) -> Calibrated:
        """The model with this machine's constants."""
        scales = {scale.term: scale.scale for scale in self.scales}
        constants = LibraryConstants(tuple(self.constants.items()), self.origins["constants"])
        return Calibrated(self.cluster.system, scales, constants, {})


def save_calibrated(machine: CalibratedCluster, path: str | Path) -> None:
    """Write ``machine`` so that ``load_calibrated(path)`` gives the same value; MachineError if it cannot."""
    write_plain(asdict(machine), path)


def load_calibrated(path: str | Path) -> CalibratedCluster:
    """The calibrated cluster in a YAML file.

    Raises MachineError, one line with path and place, for anything but exactly one: unknown and missing
    fields, wrong types, repeated keys, a machine or network that does not fit, another release's constants.
    """
    from ccbench.documents import read_machine_document

    plain = read_machine_document(path)
    kind = plain.get("kind") if isinstance(plain, dict) else None
    if kind != KIND:
        raise MachineError(
            f"{path}: kind is {shown(kind)}, expected {KIND}; 'ccbench predict --from RUN -o FILE' writes it"
        )
    machine = typed(CalibratedCluster, plain, path)
    try:
        # Made now, so that a machine that does not fit shows with the file's path.
        _ = machine.cluster.system
    except MachineError as error:
        raise MachineError(f"{path}: {error}") from None
    return machine


def is_calibrated_file(name: str | Path) -> bool:
    """True if ``name`` is a file that says it is a calibrated cluster; nothing else of it is looked at."""
    return has_line(name, f"kind: {KIND}".encode())


@dataclass(frozen=True)
class CalibratedPoint:
    """point: from first principles. calibrated_seconds: never below ``point.prediction.bound_seconds``.

    interval: of the calibrated time; near measured sizes by the distance from them, else that of others.
    """

    point: ClusterPoint
    calibrated_seconds: float
    interval: PredictionInterval


def calibrated_points(
    machine: CalibratedCluster, request: LibraryRequest
) -> tuple[CalibratedPoint, ...]:
    """One point per size of ``request``, which is asked as the machine was measured (``measured_as``).

    Raises MachineError.
    """
    cluster, measured = machine.cluster, request.collective in machine.measured
    request = replace(request, **vars(machine.measured_as))
    points = library_points(cluster, request)
    seconds = machine.calibrated.seconds(request)
    if not measured:
        # The scaled library knows no shared links, the usual prediction does.
        plain = np.array([point.seconds for point in predict_library(cluster.system, request)])
        usual = np.array([point.prediction.predicted_seconds for point in points])
        seconds = seconds * np.maximum(usual / np.where(plain > 0, plain, np.inf), 1.0)
    predictions = []
    for point, time in zip(points, seconds.tolist(), strict=True):
        own, taken = point.prediction, max(time, point.prediction.bound_seconds)
        factor = taken / own.predicted_seconds if own.predicted_seconds > 0 else 1.0
        parts = factor * own.latency_seconds, factor * own.bandwidth_seconds
        predictions.append(Prediction(own.bound_seconds, taken, *parts, own.bottleneck))
    likely = intervals(cluster.system, predictions)
    return tuple(
        CalibratedPoint(point, new.predicted_seconds, interval)
        for point, new, interval in zip(points, predictions, likely, strict=True)
    )


@dataclass(frozen=True)
class Base:
    """The machine before calibration.

    described: as the file says it, a name of the catalog or a topology in plain form. network: as named, of
    whole nodes; "" where one node needs none.
    """

    described: str | dict[str, Any]
    cluster: Cluster
    network: str = ""


def open_base(
    source: str,
    nodes: int | None = None,
    network: str | None = None,
    ranks: int | None = None,
    path: Mapping[str, str] | None = None,
) -> Base:
    """The cluster that these name (see ``open_cluster``), and how a file says so. Raises MachineError.

    path: what was seen of the path between its GPUs (``with_path``), which counts where PCIe joins them.
    """
    from ccbench.machine.detection import load_topology
    from ccbench.topology.files import catalog_names, load_catalog, to_plain

    node, name = load_topology(source), source.lower()
    # A file may be called like a machine of the catalog.
    named = name in catalog_names() and load_catalog(name) == node
    cluster = cluster_of(node, nodes, network, ranks)
    if path and cluster.system.intra in (Intra.PCIE, Intra.HOST):
        node, named = with_path(node, path), False
        cluster = cluster_of(node, nodes, network, ranks)
    return Base(
        name if named else to_plain(node), cluster, network or "" if cluster.nodes > 1 else ""
    )


@dataclass(frozen=True)
class Provenance:
    """name: of the machine to be. run, library: what was measured with what. at: now, ISO 8601 in UTC.

    driver: of the GPUs, "" where nobody tells.
    """

    name: str
    run: str
    library: str
    at: str
    driver: str = ""


Measured = tuple[LibraryRequest, Sequence[float]]
"""A request, and measured seconds along its sizes."""


def modelled(base: Base, measured: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Those of ``measured`` that the model can price on ``base``, and why not the others.

    Raises MachineError where the model can price nothing there.
    """
    system = base.cluster.system
    kept: list[Measured] = []
    reasons: list[str] = []
    for request, seconds in measured:
        try:
            priced(system, request, shipped().table)
        except MachineError as error:  # noqa: PERF203 - a handful of requests, each with a reason of its own
            reasons.append(f"{len(seconds)} rows: {error}")
        else:
            kept.append((request, seconds))
    return kept, reasons


def faster_than_bound(base: Base, measured: Sequence[Measured]) -> int:
    """Number of points that no algorithm could reach on ``base``: it is not the machine that was measured."""
    faster = 0
    for request, seconds in measured:
        bound = bound_seconds(base.cluster, request.collective, request.size_bytes)
        faster += int(np.count_nonzero(np.asarray(seconds) < bound))
    return faster


def calibrate_cluster(
    base: Base, measured: Sequence[Measured], provenance: Provenance
) -> CalibratedCluster:
    """The machine of ``base`` with constants that suit ``measured``: requests, and seconds along their sizes.

    Raises MachineError where there is no size, and for what is not ``modelled``.
    """
    cluster, run = base.cluster, provenance.run
    observations = [
        Observation(base.cluster.system, request, tuple(seconds))
        for request, seconds in measured
    ]
    if not any(row.seconds for row in observations):
        raise MachineError(f"{run}: no size of {cluster.name} can be used; measure one or more")
    fitted = calibrate(observations)
    points = sum(len(row.seconds) for row in observations)
    kept = "a topology, kept whole"
    if isinstance(base.described, str):
        kept = "a name of ccbench's catalog"
    return CalibratedCluster(
        name=provenance.name,
        machine=base.described,
        ranks=cluster.ranks,
        nodes=cluster.nodes,
        network=base.network,
        measured_as=_measured_as(observations),
        scales=scale_estimates(fitted, observations),
        measured=tuple(dict.fromkeys(row.request.collective for row in observations)),
        constants=fitted.constants.table,
        points=points,
        run=run,
        calibrated_at=provenance.at,
        origins={
            "machine": f"{kept}, with ranks, nodes and network as given or as the run says",
            "measured_as": f"what run {run} records",
            "scales": f"fitted to {points} points measured with {provenance.library}, run {run}",
            "constants": f"shipped ({shipped().learned_on or 'starts'}), times scales",
        },
        driver=provenance.driver,
    )


def _measured_as(observations: Sequence[Observation]) -> MeasuredAs:
    """Use of the library in most points; the others still count with their own launches in the fit."""
    names = [use.name for use in fields(MeasuredAs)]
    launched: Counter[MeasuredAs] = Counter()
    for row in observations:
        used = {name: getattr(row.request, name) for name in names}
        launched[MeasuredAs(**used)] += len(row.seconds)
    return launched.most_common(1)[0][0]


def implied_by(
    observation: Observation, fitted_places: Sequence[int], places: Sequence[int]
) -> Mapping[int, Prediction]:
    """Place -> that size of ``observation`` by levels fitted to ``fitted_places``, with its interval.

    places: of sizes between those. Raises MachineError for what the model does not know.
    """
    fitted = observation.taking(fitted_places)
    request = observation.taking(places).request
    made = []
    usual_points = predict_library(observation.system, request)
    seconds = calibrate([fitted]).seconds(request).tolist()
    for usual, taken in zip(usual_points, seconds, strict=True):
        transfer = taken * usual.bandwidth_seconds / usual.seconds
        made.append(Prediction(0.0, taken, taken - transfer, transfer, usual.bottleneck))
    octaves = octaves_from(fitted.request.size_bytes, request.size_bytes)
    likely = intervals(observation.system, made, octaves=octaves, between=True)
    return {
        place: replace(prediction, interval=interval)
        for place, prediction, interval in zip(places, made, likely, strict=True)
    }
