"""A cluster with its own constants, as a file: what ``ccbench calibrate RUN`` writes and ``predict`` reads.

Predictions on it: the usual one, and the one with its own constants.

The file holds all that a calibrated prediction needs: the machine (a name of the catalog, or a topology), the
scaled constants themselves, so that another release with other shipped constants predicts the same, and what
was left between model and measurement at each size. Scales, intervals and errors are there for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.model.cluster import Cluster, ClusterPoint, cluster_of, library_points
from ccbench.model.library import LibraryRequest
from ccbench.model.library.calibration import Calibrated, floor_seconds
from ccbench.model.library.constants import constants_of
from ccbench.model.library.predictor import predict_library, seconds_of
from ccbench.model.machine import STRICT, Floats, typed, write_plain
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


def _check_within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise MachineError(f"{name}: {shown(value)} is not between {low:g} and {high:g}; calibrate again")


@dataclass(frozen=True)
class ScaleEstimate:
    """A factor on one group of the model's constants, with its interval (see ``scale_intervals``).

    points: how many measured points depend on it; where none does, it is one and says nothing.
    """

    term: str
    scale: float
    low: float
    high: float
    points: int

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.scale <= self.high:
            raise MachineError(
                f"scales: {self.term}: {self.scale} does not lie between {self.low} and {self.high}"
            )


@dataclass(frozen=True)
class Correction:
    """Measured over scaled model at one size; the median where the size was measured several times."""

    size_bytes: int
    factor: float

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        _check_within("measured: size_bytes", self.size_bytes, 0, MOST_BYTES)
        _check_within(f"measured: factor at {self.size_bytes} bytes", self.factor, 1 / FARTHEST, FARTHEST)


@dataclass(frozen=True)
class Asked:
    """What a library was told to use; ``default`` where it chose."""

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
    asked: tuple[Asked, ...]
    corrections: tuple[Correction, ...]

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        if not self.corrections or not self.asked:
            raise MachineError(f"measured: {self.collective}: no sizes, or nothing asked; leave it out")
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
    """How the library was used; predictions with the file are for the same.

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
    few sizes. run: the folder it is from; calibrated_at: ISO 8601 in UTC.
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
    kind: Literal["calibrated-cluster"] = KIND
    version: Literal[1] = VERSION

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT

    def __post_init__(self) -> None:
        if not self.name:
            raise MachineError("name: empty; give the machine a name")
        _check_within("ranks", self.ranks, 1, MOST_RANKS)
        _check_within("nodes", self.nodes, 1, MOST_RANKS)
        self._check_origins()
        self._check_constants()
        keys = [(one.collective, one.in_place) for one in self.measured]
        if len(set(keys)) < len(keys) or not keys:
            raise MachineError("measured: list every collective and placement once, and at least one")

    def _check_origins(self) -> None:
        for wrong in sorted(set(ORIGINS) ^ set(self.origins)):
            known = wrong in ORIGINS
            raise MachineError(
                f"origins: nothing about {wrong}; say where its numbers came from"
                if known
                else f"origins: {shown(wrong)} is not one of {', '.join(ORIGINS)}"
            )

    def _check_constants(self) -> None:
        # Names that changed since: what the scales were of is no longer there.
        known_names, names = set(constants_of({}).table), set(self.constants)
        if known_names != names:
            odd = sorted(known_names ^ names)[0]
            raise MachineError(
                f"constants: {shown(odd)} is missing or not one of this release's; calibrate again with it"
            )
        for name, value in self.constants.items():
            _check_within(f"constants: {name}", value, 1 / FARTHEST, FARTHEST)

    @cached_property
    def cluster(self) -> Cluster:
        """The GPUs that were measured. Raises MachineError."""
        from ccbench.topology.catalog import load_catalog
        from ccbench.topology.files import from_plain

        if isinstance(self.machine, str):
            node = load_catalog(self.machine)
        else:
            node = from_plain(self.machine, f"{self.name}: machine")
        return cluster_of(node, self.nodes, self.network or None, self.ranks)

    @cached_property
    def calibrated(self) -> Calibrated:
        """The model with this machine's constants."""
        return Calibrated(
            self.cluster.system,
            tuple((one.term, one.scale) for one in self.scales),
            constants_of(self.constants, self.origins["constants"]),
            tuple(
                (
                    (one.collective, one.in_place),
                    tuple((float(at.size_bytes), math.log(at.factor)) for at in one.corrections),
                )
                for one in self.measured
            ),
        )


def save_calibrated(machine: CalibratedCluster, path: str | Path) -> None:
    """Write ``machine`` so that ``load_calibrated(path)`` gives the same value; MachineError if it cannot."""
    plain = asdict(machine) | {"constants": dict(machine.constants), "origins": dict(machine.origins)}
    # The kind first, by which a reader knows the file.
    write_plain({"kind": plain.pop("kind"), "version": plain.pop("version")} | plain, path)


def load_calibrated(path: str | Path) -> CalibratedCluster:
    """The calibrated cluster in a YAML file.

    Raises MachineError, one line with path and place, for anything but exactly one: unknown and missing
    fields, wrong types, repeated keys, a machine or network that does not fit, another release's constants.
    """
    from ccbench.suite.documents import read_machine_document

    plain = read_machine_document(path)
    kind = plain.get("kind") if isinstance(plain, dict) else None
    if kind != KIND:
        raise MachineError(
            f"{path}: kind is {shown(kind)}, expected {KIND}; 'ccbench calibrate RUN' writes it"
        )
    machine = typed(CalibratedCluster, plain, path)
    try:
        _ = machine.cluster.system  # made now, so that a machine that does not fit shows with the file's path
    except MachineError as error:
        raise MachineError(f"{path}: {error}") from None
    return machine


def is_calibrated_file(name: str | Path) -> bool:
    """Whether ``name`` is a file that says it is a calibrated cluster; nothing else of it is looked at."""
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"} or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return f"\nkind: {KIND}".encode() in b"\n" + file.read(1 << 16)
    except OSError:
        return False  # whoever reads it next says why it cannot be read


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
        # Never measured here: the scaled library knows no shared links, the usual prediction does.
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
    # Only what was forced was seen: nothing else counts as measured.
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


def _shared(machine: CalibratedCluster, request: LibraryRequest, points: tuple[ClusterPoint, ...]) -> Floats:
    """Factor by which links that several GPUs share slow a collective that was never measured."""
    alone = [point.seconds for point in predict_library(machine.cluster.system, request)]
    whole = [point.prediction.predicted_seconds for point in points]
    return np.array(
        [max(1.0, both / one) if one > 0 else 1.0 for both, one in zip(whole, alone, strict=True)]
    )
