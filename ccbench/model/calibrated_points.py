"""What collectives take on a calibrated cluster: the usual prediction, and the one with its own constants."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.model.calibrated import Asked, CalibratedCluster
from ccbench.model.cluster import ClusterPoint, library_points
from ccbench.model.library.calibration import floor_seconds
from ccbench.model.library.predictor import predict_library, seconds_of
from ccbench.model.library.system import LibraryRequest

CALIBRATED = "calibrated"
EXTRAPOLATED = "extrapolated"

DEFAULT = "default"


@dataclass(frozen=True)
class CalibratedPoint:
    """point: from first principles. calibrated_seconds: never below ``point.prediction.bound_seconds``.

    label: ``calibrated`` inside what was measured, else ``extrapolated``.
    """

    point: ClusterPoint
    calibrated_seconds: float
    label: str


def calibrated_points(
    machine: CalibratedCluster, request: LibraryRequest, root: int = 0
) -> tuple[CalibratedPoint, ...]:
    """One point per size of ``request``, which is asked as the machine was measured (``measured_as``).

    Where only one placement was measured, that stands for the other. An algorithm or protocol that was not
    asked for in the run is ``calibrated`` only where the library's own choice is the same.
    Raises MachineError.
    """
    asked = as_measured(machine, request)
    points = library_points(machine.cluster, asked, root)
    seconds = machine.calibrated.seconds(asked)
    extrapolated = np.array([label == EXTRAPOLATED for label in machine.calibrated.label(asked)], dtype=bool)
    foreign = _never_asked(machine, asked)
    if foreign.any():
        system, table = machine.cluster.system, machine.calibrated.constants.table
        uncorrected = np.maximum(seconds_of(system, asked, table), floor_seconds(system, asked))
        seconds = np.where(foreign, uncorrected, seconds)
        extrapolated |= foreign
    if all(one.collective != asked.collective for one in machine.measured):
        seconds = seconds * _shared(machine, asked, points)
    return tuple(
        CalibratedPoint(
            point,
            max(float(time), point.prediction.bound_seconds),
            EXTRAPOLATED if outside else CALIBRATED,
        )
        for point, time, outside in zip(points, seconds, extrapolated.tolist(), strict=True)
    )


def as_measured(machine: CalibratedCluster, request: LibraryRequest) -> LibraryRequest:
    """``request`` with the launches, the version and, where it was not measured otherwise, the placement."""
    used = machine.measured_as
    placements = {one.in_place for one in machine.measured if one.collective == request.collective}
    placed = request.in_place if not placements or request.in_place in placements else not request.in_place
    return replace(
        request,
        in_place=placed,
        gpus_per_process=used.gpus_per_process,
        multicast_off=used.multicast_off,
        version=used.version,
    )


def _never_asked(machine: CalibratedCluster, request: LibraryRequest) -> NDArray[np.bool_]:
    """Sizes at which ``request`` makes the library do what it was not seen doing."""
    key = (request.collective, request.in_place)
    seen = {ask for one in machine.measured if (one.collective, one.in_place) == key for ask in one.asked}
    none = np.zeros(len(request.size_bytes), dtype=bool)
    if not seen or Asked(request.algorithm, request.protocol) in seen:
        return none
    if Asked(DEFAULT, DEFAULT) not in seen:
        return ~none
    constants = machine.calibrated.constants
    chosen = replace(request, algorithm=DEFAULT, protocol=DEFAULT)
    pairs = zip(
        predict_library(machine.cluster.system, request, constants),
        predict_library(machine.cluster.system, chosen, constants),
        strict=True,
    )
    return np.array(
        [(one.algorithm, one.protocol) != (own.algorithm, own.protocol) for one, own in pairs], dtype=bool
    )


def _shared(
    machine: CalibratedCluster, request: LibraryRequest, points: tuple[ClusterPoint, ...]
) -> NDArray[np.float64]:
    """Factor by which links that several GPUs share slow a collective that was never measured."""
    alone = [point.seconds for point in predict_library(machine.cluster.system, request)]
    whole = [point.prediction.predicted_seconds for point in points]
    return np.array(
        [max(1.0, both / one) if one > 0 else 1.0 for both, one in zip(whole, alone, strict=True)]
    )
