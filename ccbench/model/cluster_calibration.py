"""Measured points of one cluster -> a calibrated cluster: scales with intervals, corrections, errors.

The intervals are of a pairs bootstrap (Efron, Annals of Statistics 7 (1979) 1): points are drawn with
replacement and fitted again. A fit takes up to a second, so the residuals are linearised once, at the scales
that were found, and each resample takes a few steps of iteratively reweighted least squares on the straight
lines: the weights are those of the fit's own soft-L1 loss, and its pull towards one stays. Where a scale
moves the choice of algorithm, or an efficiency meets its limit of one, lines are not straight and the
interval is a rough one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.model.calibrated import (
    Asked,
    CalibratedCluster,
    Correction,
    HeldOutError,
    MeasuredAs,
    MeasuredCollective,
    ScaleEstimate,
)
from ccbench.model.cluster import Cluster, bound_seconds, cluster_of
from ccbench.model.library import LibraryRequest
from ccbench.model.library.calibration import (
    FEWEST_POINTS,
    LOSS_SCALE,
    SCALE_SPREAD,
    TERMS,
    USUAL_SPREAD,
    Calibrated,
    Observation,
    calibrate,
    log_ratios,
    scaled_table,
)
from ccbench.model.library.constants import shipped
from ccbench.model.library.predictor import priced, seconds_of
from ccbench.model.machine import Floats
from ccbench.topology.graph import Topology
from ccbench.topology.node_nics import Network

FEWEST_SIZES = 3
"""One for the scale of latency, one for the scale of rate, one for what lies between."""

FEWEST_TO_HOLD_OUT = 4

RESAMPLES = 500
CONFIDENCE = 0.95
SEED = 20260
STEP = 0.01
"""In log scale, both ways, for the slopes: wide enough to see past one change of algorithm."""

PAST_A_LIMIT = 0.1
"""Step downwards where the small one moves nothing: a fit may leave an efficiency above its limit of one."""

REWEIGHTINGS = 5

MATTERS = 0.01
"""A point depends on a scale when one percent of the scale moves its time by this share of a percent."""


@dataclass(frozen=True)
class Base:
    """The machine before calibration.

    described: what the file says of it, a name of the catalog or a topology in plain form.
    """

    described: str | dict[str, Any]
    cluster: Cluster


def open_base(
    source: str, nodes: int | None = None, network: str | None = None, ranks: int | None = None
) -> Base:
    """The cluster that these name (see ``open_cluster``), and how a file says so. Raises MachineError."""
    from ccbench.machine.detection import load_topology
    from ccbench.topology.catalog import catalog_names

    node = load_topology(source)
    return Base(_described(source, node, catalog_names()), cluster_of(node, nodes, network, ranks))


def _described(source: str, node: Topology, names: Sequence[str]) -> str | dict[str, Any]:
    from ccbench.topology.catalog import load_catalog
    from ccbench.topology.files import to_plain

    name = source.lower()
    # A file may be called like a machine of the catalog.
    return name if name in names and load_catalog(name) == node else to_plain(node)


@dataclass(frozen=True)
class Provenance:
    """name: of the machine to be. run, library: what was measured with what. at: now, ISO 8601 in UTC."""

    name: str
    run: str
    library: str
    at: str


Measured = tuple[LibraryRequest, Sequence[float]]
"""What was asked, and seconds along its sizes."""


def modelled(base: Base, measured: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Those of ``measured`` that the model can price on ``base``, and why not the others.

    Raises MachineError where the model can price nothing there.
    """
    system = base.cluster.system
    kept: list[Measured] = []
    told: list[str] = []
    for request, seconds in measured:
        try:
            priced(system, request, shipped().table)
        except MachineError as error:  # noqa: PERF203 - a handful of requests, each with a reason of its own
            told.append(f"{len(seconds)} rows: {error}")
        else:
            kept.append((request, seconds))
    return kept, told


def faster_than_bound(base: Base, measured: Sequence[Measured]) -> int:
    """How many points no algorithm could reach on ``base``: it is not the machine that was measured."""
    faster = 0
    for request, seconds in measured:
        bound = bound_seconds(base.cluster, request.collective, request.size_bytes)
        faster += int(np.count_nonzero(np.asarray(seconds) < bound))
    return faster


def calibrate_cluster(base: Base, measured: Sequence[Measured], provenance: Provenance) -> CalibratedCluster:
    """The machine of ``base`` with constants that suit ``measured``: requests, and seconds along their sizes.

    Raises MachineError for fewer than FEWEST_SIZES sizes, and for what is not ``modelled``.
    """
    system = base.cluster.system
    observations = [Observation(system, request, tuple(seconds)) for request, seconds in measured]
    sizes = {size for one in observations for size in one.request.size_bytes}
    if len(sizes) < FEWEST_SIZES:
        listed = ", ".join(str(size) for size in sorted(sizes)) or "none"
        raise MachineError(
            f"{provenance.run}: {len(sizes)} sizes of {base.cluster.name} can be used ({listed}); measure at "
            f"least {FEWEST_SIZES}, from small to large"
        )
    found = calibrate(observations)
    held_out = _held_out(observations)
    scales = scale_intervals(found, observations)
    points = sum(len(one.seconds) for one in observations)
    return CalibratedCluster(
        name=provenance.name,
        machine=base.described,
        ranks=base.cluster.ranks,
        nodes=base.cluster.nodes,
        network=_network_text(base.cluster.network),
        measured_as=_measured_as(observations),
        scales=scales,
        measured=_measured(found, observations),
        held_out=held_out,
        constants=found.constants.table,
        points=points,
        run=provenance.run,
        calibrated_at=provenance.at,
        origins=_origins(base, provenance, points),
    )


def _network_text(network: Network | None) -> str:
    """What ``parse_network`` reads back as the same; "" for none."""
    if network is None:
        return ""
    gigabits = f"{network.bytes_per_second * 8 / 1e9:.3f}".rstrip("0").rstrip(".")
    return f"{network.word}-{gigabits}x{network.nics}"


def _origins(base: Base, provenance: Provenance, points: int) -> dict[str, str]:
    kept = "a name of ccbench's catalog" if isinstance(base.described, str) else "a topology, kept whole"
    measured = f"{points} points measured with {provenance.library}, run {provenance.run}"
    return {
        "machine": f"{kept}, with ranks, nodes and network as given or as the run says",
        "measured_as": f"what run {provenance.run} records",
        "scales": f"fitted to {measured}; {CONFIDENCE:.0%} intervals of {RESAMPLES} linearised resamples",
        "constants": f"shipped ({shipped().learned_on or 'starts'}), times scales",
        "measured": f"measured over scaled model, {measured}",
        "held_out": "fitted to sizes 1, 3, 5 ... and tested at 2, 4, 6 ... of the same run",
    }


def _measured_as(observations: Sequence[Observation]) -> MeasuredAs:
    """Of most points; rows that were measured otherwise still count with their own in the fit."""
    seen: dict[MeasuredAs, int] = {}
    for one in observations:
        request = one.request
        used = MeasuredAs(request.gpus_per_process, request.multicast_off, request.version)
        seen[used] = seen.get(used, 0) + len(one.seconds)
    return max(seen, key=lambda used: seen[used])


def _measured(found: Calibrated, observations: Sequence[Observation]) -> tuple[MeasuredCollective, ...]:
    groups = []
    for (collective, in_place), corrections in found.corrections:
        same = [
            one
            for one in observations
            if (one.request.collective, one.request.in_place) == (collective, in_place)
        ]
        asked = dict.fromkeys(Asked(one.request.algorithm, one.request.protocol) for one in same)
        groups.append(
            MeasuredCollective(
                collective,
                in_place,
                sum(len(one.seconds) for one in same),
                tuple(asked),
                tuple(Correction(round(size), math.exp(log)) for size, log in corrections),
            )
        )
    return tuple(groups)


def _held_out(observations: Sequence[Observation]) -> HeldOutError | None:
    """None where there are too few sizes to fit to half of them."""
    sizes = sorted({size for one in observations for size in one.request.size_bytes})
    seen, unseen = _at(observations, set(sizes[::2])), _at(observations, set(sizes[1::2]))
    if len(sizes) < FEWEST_TO_HOLD_OUT or sum(len(one.seconds) for one in seen) < FEWEST_POINTS:
        return None
    fitted, table = calibrate(seen), shipped().table
    calibrated = _errors(unseen, [fitted.seconds(one.request) for one in unseen])
    without = _errors(unseen, [seconds_of(one.system, one.request, table) for one in unseen])
    figures = (float(of(errors)) for errors in (calibrated, without) for of in (np.median, np.mean))
    return HeldOutError(len(calibrated), *figures)


def _at(observations: Sequence[Observation], sizes: set[int]) -> list[Observation]:
    found = []
    for one in observations:
        places = [place for place, size in enumerate(one.request.size_bytes) if size in sizes]
        if places:
            found.append(one.taking(places))
    return found


def _errors(observations: Sequence[Observation], predicted: Sequence[Floats]) -> Floats:
    parts = [
        np.abs(seconds / np.asarray(one.seconds) - 1)
        for one, seconds in zip(observations, predicted, strict=True)
    ]
    return np.concatenate(parts)


def scale_intervals(calibrated: Calibrated, observations: Sequence[Observation]) -> tuple[ScaleEstimate, ...]:
    """The scales of ``calibrated``, which was fitted to ``observations``, with 95% intervals.

    Intervals are percentiles of the resamples, made wider where they would leave out the scale itself. They
    are of the points as they are: points that err together (all sizes of one bad day) make them too narrow.
    """
    found = np.log([scale for _, scale in calibrated.scales])

    def residuals(point: Floats) -> Floats:
        return log_ratios(observations, scaled_table(shipped().table, np.exp(point)))

    slopes, limited = _slopes(residuals, found)
    counts = np.count_nonzero(np.abs(slopes) > MATTERS, axis=0)
    moved = _resampled(residuals(found), slopes, found, limited)
    edges = [100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2]
    low, high = np.exp(np.percentile(found + moved, edges, axis=0))
    return tuple(
        ScaleEstimate(term, scale, min(scale, float(low[place])), max(scale, float(high[place])), int(seen))
        for place, ((term, scale), seen) in enumerate(zip(calibrated.scales, counts.tolist(), strict=True))
    )


def _slopes(residuals: Callable[[Floats], Floats], found: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Shape (points, scales); and which scales have met a limit, so that only lower values of them matter."""
    columns = []
    limited = np.zeros(len(found), dtype=bool)
    for place, axis in enumerate(np.eye(len(found))):
        column = (residuals(found + STEP * axis) - residuals(found - STEP * axis)) / (2 * STEP)
        if np.all(np.abs(column) <= MATTERS):
            column = (residuals(found) - residuals(found - PAST_A_LIMIT * axis)) / PAST_A_LIMIT
            limited[place] = bool(np.any(np.abs(column) > MATTERS))
        columns.append(column)
    return np.stack(columns, axis=1), limited


def _resampled(residuals: Floats, slopes: Floats, found: Floats, limited: NDArray[np.bool_]) -> Floats:
    """How far each resample's scales lie from those found, in log; shape (resamples, scales)."""
    spread = np.array([SCALE_SPREAD.get(term, USUAL_SPREAD) for term in TERMS])
    random = np.random.default_rng(SEED)
    points = len(residuals)
    lines = np.vstack([slopes, np.diag(LOSS_SCALE / spread)])
    offsets = np.concatenate([residuals, LOSS_SCALE * found / spread])
    draws = random.multinomial(points, np.full(points, 1 / points), size=RESAMPLES).astype(np.float64)
    moved = np.zeros((RESAMPLES, len(found)))
    for place, drawn in enumerate(draws):
        moved[place] = _bounded(lines, offsets, np.concatenate([drawn, np.ones(len(found))]), limited)
    # Only what differs between resamples counts: the fit may have stopped a little before its end.
    return moved - _bounded(lines, offsets, np.ones(len(offsets)), limited)


def _bounded(lines: Floats, offsets: Floats, counts: Floats, limited: NDArray[np.bool_]) -> Floats:
    """As ``_refitted``, but scales that are ``limited`` stay or fall: above, they would move nothing."""
    step = _refitted(lines, offsets, counts)
    rising = limited & (step > 0)
    if rising.any():
        step = np.zeros_like(step)
        step[~rising] = _refitted(lines[:, ~rising], offsets, counts)
    return step


def _refitted(lines: Floats, offsets: Floats, counts: Floats) -> Floats:
    """The step that makes the loss of ``offsets + lines @ step`` least, each row counted so often."""
    step = np.zeros(lines.shape[1])
    for _ in range(REWEIGHTINGS):
        # Soft-L1: 2 (sqrt(1 + z) - 1) of z = (r / scale)^2, whose slope in z is 1 / sqrt(1 + z).
        weights = counts / np.sqrt(1.0 + ((offsets + lines @ step) / LOSS_SCALE) ** 2)
        weighted = lines * weights[:, None]
        step = np.linalg.solve(lines.T @ weighted, -(weighted.T @ offsets))
    return step
