"""A cluster with its own constants, as a file: what ``ccbench calibrate RUN`` writes and ``predict`` reads.

Measured points of one cluster become scales, corrections and errors (``calibrate_cluster``);
predictions on the file are the usual one, and the one with its own constants (``calibrated_points``).

The file holds all that a calibrated prediction needs: the machine (a name of the catalog, or a topology), the
scaled constants themselves, so that another release with other shipped constants predicts the same, and what
was left between model and measurement at each size. Scales and errors are there for people.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ccbench.errors import MachineError
from ccbench.model import Prediction, PredictionInterval
from ccbench.model.cluster import (
    Cluster,
    ClusterPoint,
    bound_seconds,
    cluster_of,
    library_points,
)
from ccbench.model.library import LibraryRequest
from ccbench.model.library.calibration import (
    Calibrated,
    Observation,
    ScaleEstimate,
    calibrate,
    floor_seconds,
    scale_estimates,
)
from ccbench.model.library.constants import CONSTANTS, LibraryConstants, shipped
from ccbench.model.library.intervals import intervals, octaves_from
from ccbench.model.library.predictor import predict_library, priced, seconds_of
from ccbench.model.machine import STRICT, has_line, typed, write_plain
from ccbench.units import shown

KIND: Literal["calibrated-cluster"] = "calibrated-cluster"

VERSION: Literal[1] = 1
"""Of the file's form; a reader refuses any other."""

ORIGINS = ("machine", "measured_as", "scales", "constants", "measured", "held_out")
"""The fields with numbers; each says in ``origins`` where those came from."""

MOST_BYTES = 2**60
MOST_RANKS = 10**8
MOST_GPUS = 4096
"""Of one thread."""

FARTHEST = 1e9
"""Constants and corrections lie between this and one over it; more is damage, and overflows later."""

FEWEST_TO_HOLD_OUT = 4

CALIBRATED = "calibrated"
EXTRAPOLATED = "extrapolated"
DEFAULT = "default"


def _check_within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise MachineError(
            f"{name}: {shown(value)} is not between {low:g} and {high:g}; calibrate again"
        )


@dataclass(frozen=True)
class Correction:
    """Measured over scaled model at one size; the median where the size was measured several times."""

    size_bytes: int
    factor: float

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        _check_within("measured: size_bytes", self.size_bytes, 0, MOST_BYTES)
        _check_within(
            f"measured: factor at {self.size_bytes} bytes", self.factor, 1 / FARTHEST, FARTHEST
        )


@dataclass(frozen=True)
class LibrarySetting:
    """Algorithm and protocol that a library was told to use; ``default`` where it chose."""

    algorithm: str
    protocol: str

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT


@dataclass(frozen=True)
class MeasuredCollective:
    """One collective with one placement: the domain of the calibration.

    points: measurements; corrections: in rising order of size, at least one.
    """

    collective: str
    in_place: bool
    points: int
    asked: tuple[LibrarySetting, ...]
    corrections: tuple[Correction, ...]

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        if not self.corrections or not self.asked:
            raise MachineError(
                f"measured: {self.collective}: no sizes, or nothing asked; leave it out"
            )
        for left, right in pairwise(self.corrections):
            if right.size_bytes <= left.size_bytes:
                raise MachineError(
                    f"measured: {self.collective}: {right.size_bytes} bytes follow {left.size_bytes}; list "
                    "sizes in rising order, each once"
                )

    @property
    def smallest_bytes(self) -> int:
        """Lower end of the domain."""
        return self.corrections[0].size_bytes

    @property
    def largest_bytes(self) -> int:
        """Upper end of the domain."""
        return self.corrections[-1].size_bytes


@dataclass(frozen=True)
class HeldOutError:
    """Relative errors, as fractions, at every other size, of a calibration on the sizes between.

    median, mean: of the calibrated prediction. median_without, mean_without: of the same points without
    calibration.
    """

    points: int
    median: float
    mean: float
    median_without: float
    mean_without: float

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT


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


@dataclass(frozen=True)
class CalibratedCluster:
    """machine: a name of the catalog, or a whole topology in plain form. ranks: of all nodes together.

    network: between nodes, "" for one node. constants: scaled, by name. held_out: None where there were too
    few sizes. run: the folder it is from; calibrated_at: ISO 8601 in UTC. driver: of the GPUs while they were
    measured, "" where the run does not tell.
    """

    name: str
    machine: str | dict[str, Any] = field(hash=False)
    ranks: int
    nodes: int
    network: str
    measured_as: MeasuredAs
    scales: tuple[ScaleEstimate, ...]
    measured: tuple[MeasuredCollective, ...]
    held_out: HeldOutError | None
    constants: Mapping[str, float] = field(hash=False)
    points: int
    run: str
    calibrated_at: str
    origins: Mapping[str, str] = field(hash=False)
    driver: str = ""
    kind: Literal["calibrated-cluster"] = KIND
    version: Literal[1] = VERSION

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
        keys = [(row.collective, row.in_place) for row in self.measured]
        if len(set(keys)) < len(keys) or not keys:
            raise MachineError(
                "measured: list every collective and placement once, and at least one"
            )

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
        corrections = tuple(
            (
                (row.collective, row.in_place),
                tuple((float(at.size_bytes), math.log(at.factor)) for at in row.corrections),
            )
            for row in self.measured
        )
        scales = tuple((scale.term, scale.scale) for scale in self.scales)
        constants = LibraryConstants(tuple(self.constants.items()), self.origins["constants"])
        return Calibrated(self.cluster.system, scales, constants, corrections)


def save_calibrated(machine: CalibratedCluster, path: str | Path) -> None:
    """Write ``machine`` so that ``load_calibrated(path)`` gives the same value; MachineError if it cannot."""
    plain = asdict(machine) | {
        "constants": dict(machine.constants),
        "origins": dict(machine.origins),
    }
    # The kind first, by which a reader knows the file.
    write_plain({"kind": plain.pop("kind"), "version": plain.pop("version")} | plain, path)


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
            f"{path}: kind is {shown(kind)}, expected {KIND}; 'ccbench calibrate RUN' writes it"
        )
    machine = typed(CalibratedCluster, plain, path)
    try:
        _ = (
            machine.cluster.system
        )  # made now, so that a machine that does not fit shows with the file's path
    except MachineError as error:
        raise MachineError(f"{path}: {error}") from None
    return machine


def is_calibrated_file(name: str | Path) -> bool:
    """True if ``name`` is a file that says it is a calibrated cluster; nothing else of it is looked at."""
    return has_line(name, f"kind: {KIND}".encode())


@dataclass(frozen=True)
class CalibratedPoint:
    """point: from first principles. calibrated_seconds: never below ``point.prediction.bound_seconds``.

    label: ``calibrated`` inside what was measured, else ``extrapolated``. interval: of the calibrated time,
    by its distance in size from what was measured; of what was not measured at all that of other predictions.
    """

    point: ClusterPoint
    calibrated_seconds: float
    label: str
    interval: PredictionInterval


def calibrated_points(
    machine: CalibratedCluster, request: LibraryRequest, root: int = 0
) -> tuple[CalibratedPoint, ...]:
    """One point per size of ``request``, which is asked as the machine was measured (``measured_as``).

    Where only one placement was measured, that stands for the other. An algorithm or protocol that was not
    asked for in the run is ``calibrated`` only where the library's own choice is the same.
    Raises MachineError.
    """
    adapted = as_measured(machine, request)
    system, own = machine.cluster.system, machine.calibrated
    points = library_points(machine.cluster, adapted, root)
    seconds, inside = own.seconds(adapted), own.inside(adapted)
    there = [row for row in machine.measured if row.collective == adapted.collective]
    settings_measured = {
        ask for row in there if row.in_place == adapted.in_place for ask in row.asked
    }
    was_asked = LibrarySetting(adapted.algorithm, adapted.protocol) in settings_measured
    if settings_measured and not was_asked:
        # Sizes at which the library was not seen doing what it is asked: all, where only others were forced.
        foreign = np.ones(len(points), dtype=bool)
        if LibrarySetting(DEFAULT, DEFAULT) in settings_measured:
            chosen = predict_library(
                system, replace(adapted, algorithm=DEFAULT, protocol=DEFAULT), own.constants
            )
            forced = predict_library(system, adapted, own.constants)
            pairs = zip(forced, chosen, strict=True)
            foreign = np.array(
                [
                    (forced_point.algorithm, forced_point.protocol)
                    != (usual.algorithm, usual.protocol)
                    for forced_point, usual in pairs
                ]
            )
        uncorrected = np.maximum(
            seconds_of(system, adapted, own.constants.table), floor_seconds(system, adapted)
        )
        seconds, inside = np.where(foreign, uncorrected, seconds), inside & ~foreign
    if not there:
        # Never measured here: the scaled library knows no shared links, the usual prediction does.
        plain = [point.seconds for point in predict_library(system, adapted)]
        shared = [point.prediction.predicted_seconds for point in points]
        ratios = zip(shared, plain, strict=True)
        seconds = seconds * np.array(
            [max(1.0, both / alone) if alone > 0 else 1.0 for both, alone in ratios]
        )
    predictions = []
    for point, time in zip(points, seconds.tolist(), strict=True):
        usual, taken = point.prediction, max(time, point.prediction.bound_seconds)
        factor = taken / usual.predicted_seconds if usual.predicted_seconds > 0 else 1.0
        parts = factor * usual.latency_seconds, factor * usual.bandwidth_seconds
        predictions.append(Prediction(usual.bound_seconds, taken, *parts, usual.bottleneck))
    # Distances in size to what was measured of the same; of anything else nothing narrower is known.
    same = [row for row in there if row.in_place == adapted.in_place] if was_asked else []
    measured = [at.size_bytes for row in same for at in row.corrections]
    octaves = octaves_from(measured, [point.size_bytes for point in points])
    likely = intervals(system, predictions, octaves=octaves)
    return tuple(
        CalibratedPoint(
            point, new.predicted_seconds, CALIBRATED if is_inside else EXTRAPOLATED, interval
        )
        for point, new, is_inside, interval in zip(
            points, predictions, inside.tolist(), likely, strict=True
        )
    )


def as_measured(machine: CalibratedCluster, request: LibraryRequest) -> LibraryRequest:
    """``request`` with the launches, the version and, where it was not measured otherwise, the placement."""
    used = machine.measured_as
    placements = {
        row.in_place for row in machine.measured if row.collective == request.collective
    }
    placed = (
        request.in_place
        if not placements or request.in_place in placements
        else not request.in_place
    )
    return replace(
        request,
        in_place=placed,
        gpus_per_process=used.gpus_per_process,
        multicast_off=used.multicast_off,
        version=used.version,
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
    source: str, nodes: int | None = None, network: str | None = None, ranks: int | None = None
) -> Base:
    """The cluster that these name (see ``open_cluster``), and how a file says so. Raises MachineError."""
    from ccbench.machine.detection import load_topology
    from ccbench.topology.files import catalog_names, load_catalog, to_plain

    node, name = load_topology(source), source.lower()
    # A file may be called like a machine of the catalog.
    named = name in catalog_names() and load_catalog(name) == node
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
        Observation(cluster.system, request, tuple(seconds)) for request, seconds in measured
    ]
    sizes = sorted(
        {size for observation in observations for size in observation.request.size_bytes}
    )
    if not sizes:
        raise MachineError(f"{run}: no size of {cluster.name} can be used; measure one or more")
    fitted = calibrate(observations)
    # Rows that were measured otherwise than most still count with their own launches in the fit.
    launched: Counter[MeasuredAs] = Counter()
    points: Counter[tuple[str, bool]] = Counter()
    settings: dict[tuple[str, bool], dict[LibrarySetting, None]] = {}
    for observation in observations:
        request, count = observation.request, len(observation.seconds)
        launched[
            MeasuredAs(request.gpus_per_process, request.multicast_off, request.version)
        ] += count
        key = request.collective, request.in_place
        points[key] += count
        settings.setdefault(key, {})[LibrarySetting(request.algorithm, request.protocol)] = None
    kept = "a topology, kept whole"
    if isinstance(base.described, str):
        kept = "a name of ccbench's catalog"
    run_text = f"{points.total()} points measured with {provenance.library}, run {run}"
    return CalibratedCluster(
        name=provenance.name,
        machine=base.described,
        ranks=cluster.ranks,
        nodes=cluster.nodes,
        network=base.network,
        measured_as=launched.most_common(1)[0][0],
        scales=scale_estimates(fitted, observations),
        measured=tuple(
            MeasuredCollective(
                *key,
                points[key],
                tuple(settings[key]),
                tuple(Correction(round(size), math.exp(log)) for size, log in corrections),
            )
            for key, corrections in fitted.corrections
        ),
        held_out=_held_out(observations, sizes),
        constants=fitted.constants.table,
        points=points.total(),
        run=run,
        calibrated_at=provenance.at,
        origins={
            "machine": f"{kept}, with ranks, nodes and network as given or as the run says",
            "measured_as": f"what run {run} records",
            "scales": f"fitted to {run_text}",
            "constants": f"shipped ({shipped().learned_on or 'starts'}), times scales",
            "measured": f"measured over scaled model, {run_text}",
            "held_out": "fitted to sizes 1, 3, 5 ... and tested at 2, 4, 6 ... of the same run",
        },
        driver=provenance.driver,
    )


def from_other_sizes(observation: Observation) -> Mapping[int, Prediction]:
    """Place -> that size of ``observation`` as the sizes measured on either side imply it, with its interval.

    Levels are fitted to every other size and predict those between, so that no size is among its own anchors.
    Of fewer than FEWEST_TO_HOLD_OUT there are none. Raises MachineError for what the model does not know.
    """
    sizes = sorted(set(observation.request.size_bytes))
    predictions: dict[int, Prediction] = {}
    if len(sizes) < FEWEST_TO_HOLD_OUT:
        return predictions
    for fitted_sizes in (sizes[::2], sizes[1::2]):
        fitted_places = [
            place
            for place, size in enumerate(observation.request.size_bytes)
            if size in fitted_sizes
        ]
        inner = {*sizes[1:-1]} - {*fitted_sizes}
        places = [
            place for place, size in enumerate(observation.request.size_bytes) if size in inner
        ]
        predictions.update(implied_by(observation, fitted_places, places))
    return predictions


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


def _held_out(observations: Sequence[Observation], sizes: Sequence[int]) -> HeldOutError | None:
    """Errors at every other size; None where there are too few sizes to fit to half of them."""

    def at(chosen: set[int]) -> list[Observation]:
        places = [
            [i for i, size in enumerate(observation.request.size_bytes) if size in chosen]
            for observation in observations
        ]
        return [
            observation.taking(chosen_places)
            for observation, chosen_places in zip(observations, places, strict=True)
            if chosen_places
        ]

    fitted_part, unseen = at(set(sizes[::2])), at(set(sizes[1::2]))
    if len(sizes) < FEWEST_TO_HOLD_OUT:
        return None
    fitted, table = calibrate(fitted_part), shipped().table
    real = np.concatenate([row.seconds for row in unseen])
    with_scales = np.concatenate([fitted.seconds(row.request) for row in unseen])
    without = np.concatenate([seconds_of(row.system, row.request, table) for row in unseen])
    errors = [np.abs(predicted / real - 1) for predicted in (with_scales, without)]
    return HeldOutError(
        len(real), *(float(of(error)) for error in errors for of in (np.median, np.mean))
    )
