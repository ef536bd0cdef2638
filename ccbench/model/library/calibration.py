"""The model on one system that was measured: few non-negative scales, then what is left, size by size.

Scales multiply the model's own terms, so that shape and extrapolation stay the model's. What they leave is
interpolated between measured sizes in log-log and held constant beyond them, halved for every factor of
``FADING`` outside: a calibration says what it saw, and less and less about what it did not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.constants import BY_NAME, LibraryConstants, constants_of, shipped
from ccbench.model.library.predictor import priced, seconds_of

Floats = NDArray[np.float64]

LOSS_SCALE = 0.12
"""A misprediction of 12 % is where the loss turns from square to linear."""

TERMS: dict[str, tuple[str, ...]] = {
    "latency of LL": ("hop.ll", "network_hop.ll", "base"),
    "latency of Simple": ("hop.simple", "network_hop.simple", "nvls_base_us", "nvls_hop_us"),
    "fill": ("fill.ring", "fill.ring_network", "fill.tree", "fill.tree_network", "fill.nvls", "fill.nvlstree",
             "fill.pairwise"),
    "rate of LL": ("ll_most", "payload.ll"),
    "rate inside": ("efficiency.nvlink", "efficiency.nvlink_hopper", "efficiency.nvlink_mesh",
                    "efficiency.xgmi", "efficiency.hccs", "efficiency.pcie", "efficiency.host",
                    "efficiency.host_both", "efficiency.nvls_hopper", "efficiency.nvls_blackwell"),
    "rate across": ("efficiency.fabric", "efficiency.efa", "efficiency.tcp", "efficiency.tcpx",
                    "socket_gbytes"),
}  # fmt: skip
"""What one system may scale; each scale moves all of these constants together."""

SCALE_SPREAD = {"rate inside": 0.15, "rate across": 0.15}
USUAL_SPREAD = 0.5
"""Plausible log-deviation of a scale from one; rates are known better than latencies."""

FADING = 4.0
"""Factor in size beyond what was measured after which half of the remaining correction is kept."""

FEWEST_POINTS = 3

DIFFERENCE = 1e-3
"""Step in log scale for the slopes of the fit: wide enough that a choice of algorithm may change."""


@dataclass(frozen=True)
class Observation:
    """Times of one request on one system; ``seconds`` runs along ``request.size_bytes``."""

    system: LibrarySystem
    request: LibraryRequest
    seconds: tuple[float, ...]

    def taking(self, wanted: Sequence[int]) -> Observation:
        """Only the sizes at these places."""
        sizes = tuple(self.request.size_bytes[place] for place in wanted)
        return replace(
            self,
            request=replace(self.request, size_bytes=sizes),
            seconds=tuple(self.seconds[place] for place in wanted),
        )


@dataclass(frozen=True)
class Calibrated:
    """A system's own scales and corrections.

    scales: factor on each of TERMS. corrections: (size, log of measured over scaled model), by
        (collective, in place), in rising order of size. domain: smallest and largest size seen, likewise.
    """

    system: LibrarySystem
    scales: tuple[tuple[str, float], ...]
    constants: LibraryConstants
    corrections: tuple[tuple[tuple[str, bool], tuple[tuple[float, float], ...]], ...]

    def seconds(self, request: LibraryRequest) -> Floats:
        """Calibrated time at each size; never below the time of the links at their nominal rates."""
        scaled = seconds_of(self.system, request, self.constants.table)
        sizes = np.asarray(request.size_bytes, dtype=np.float64)
        factor = np.exp(self._correction(request, sizes))
        return np.asarray(np.maximum(scaled * factor, floor_seconds(self.system, request)))

    def label(self, request: LibraryRequest) -> tuple[str, ...]:
        """``calibrated``, or ``extrapolated`` beyond twice the sizes seen and where nothing was seen."""
        seen = dict(self.corrections).get((request.collective, request.in_place))
        if not seen:
            return ("extrapolated",) * len(request.size_bytes)
        low, high = seen[0][0] / 2, seen[-1][0] * 2
        return tuple("calibrated" if low <= size <= high else "extrapolated" for size in request.size_bytes)

    def _correction(self, request: LibraryRequest, sizes: Floats) -> Floats:
        seen = dict(self.corrections).get((request.collective, request.in_place))
        if not seen:
            return np.zeros_like(sizes)
        places = np.log([size for size, _ in seen])
        at = np.log(np.maximum(sizes, 1.0))
        # Errors of a model vary with the factor in size, not with bytes: interpolated in log-log.
        value = np.interp(at, places, [correction for _, correction in seen])
        beyond = np.maximum(places[0] - at, 0.0) + np.maximum(at - places[-1], 0.0)
        return np.asarray(value * 0.5 ** (beyond / np.log(FADING)))


def floor_seconds(system: LibrarySystem, request: LibraryRequest) -> Floats:
    """The cheapest algorithm with every link at its nominal rate and no latency: nothing may be faster.

    A lower bound within this model's own algorithms; ``graph_bounds`` has those of any algorithm.
    """
    nominal = {**dict.fromkeys(BY_NAME, 1.0), "socket_gbytes": np.inf}
    options = priced(system, request, nominal).options
    if not options:
        return np.zeros(len(request.size_bytes))
    # LL and LL128 send flags with the data, so that only Simple can reach a link's rate.
    whole = [option for option in options if option.protocol == "simple"] or options
    return np.asarray(np.min([option.bandwidth_seconds for option in whole], axis=0))


def calibrate(observations: Sequence[Observation]) -> Calibrated:
    """Scales and corrections from the observations of one system. Raises MachineError for too few of them."""
    from scipy.optimize import least_squares

    points = sum(len(one.seconds) for one in observations)
    if points < FEWEST_POINTS:
        raise MachineError(f"calibration: {points} points; give at least {FEWEST_POINTS} sizes")
    if len({one.system for one in observations}) != 1:
        raise MachineError("calibration: observations of several systems; calibrate one at a time")
    table = shipped().table
    spread = np.array([SCALE_SPREAD.get(term, USUAL_SPREAD) for term in TERMS])

    def residuals(point: Floats) -> Floats:
        ratios = log_ratios(observations, scaled_table(table, np.exp(point)))
        # The prior, one more residual for each scale: a spread weighs as much as a row off by LOSS_SCALE.
        return np.concatenate([ratios, LOSS_SCALE * point / spread])

    found = least_squares(
        residuals,
        np.zeros(len(TERMS)),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        max_nfev=40,
        diff_step=[DIFFERENCE] * len(TERMS),
    )
    scales = np.exp(found.x)
    constants = constants_of(scaled_table(table, scales), "calibration of one system")
    return Calibrated(
        observations[0].system,
        tuple(zip(TERMS, scales.tolist(), strict=True)),
        constants,
        _corrections(observations, constants),
    )


def log_ratios(observations: Sequence[Observation], table: Mapping[str, float]) -> Floats:
    """Logarithm of the model's time over the measured one, of all points."""
    parts = [
        np.log(seconds_of(one.system, one.request, table) / np.asarray(one.seconds)) for one in observations
    ]
    return np.concatenate(parts)


def scaled_table(table: dict[str, float], scales: Floats) -> dict[str, float]:
    """Constants with each term's scale; efficiencies stay at or below one."""
    result = dict(table)
    for names, scale in zip(TERMS.values(), scales.tolist(), strict=True):
        for name in names:
            result[name] = table[name] * scale
            if name.startswith(("efficiency.", "payload.")):
                result[name] = min(1.0, result[name])
    return result


def _corrections(
    observations: Sequence[Observation], constants: LibraryConstants
) -> tuple[tuple[tuple[str, bool], tuple[tuple[float, float], ...]], ...]:
    table = constants.table
    logs: dict[tuple[str, bool], dict[float, list[float]]] = {}
    for one in observations:
        ratios = np.log(np.asarray(one.seconds) / seconds_of(one.system, one.request, table))
        sizes = logs.setdefault((one.request.collective, one.request.in_place), {})
        for size, ratio in zip(one.request.size_bytes, ratios.tolist(), strict=True):
            sizes.setdefault(float(size), []).append(ratio)
    return tuple(
        (key, tuple((size, float(np.median(found))) for size, found in sorted(sizes.items())))
        for key, sizes in logs.items()
    )
