"""How far predictions of a collective library were off on systems that it had not learned from, and what follows.

``residuals.yaml`` holds, for every system of the published logs, the logarithms of measured over predicted time
with levels that were learned without it (``benchmarks.score`` writes it). Intervals are quantiles over those
systems, each of which weighs the same whatever its number of rows: conformal prediction (Vovk, Gammerman and
Shafer, Algorithmic Learning in a Random World, 2005) with one exchangeable unit for a system. Systems like the one
at hand weigh more (Tibshirani et al., Conformal Prediction Under Covariate Shift, NeurIPS 2019), and so do rows in
which transfers take a like share of the time: where bandwidth rules, predictions are better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ccbench.model import Interval, Prediction
from ccbench.model.library import Intra, LibrarySystem
from ccbench.model.library.constants import FOLDER, read_table
from ccbench.model.library.costs import SOCKETS

Floats = NDArray[np.float64]

RESIDUALS_FILE = FOLDER / "residuals.yaml"

REGIMES: tuple[tuple[str, int | None], ...] = (("latency", 32 << 10), ("middle", 32 << 20), ("large", None))
"""Name and the most bytes: where latency rules, in between, and where bandwidth rules."""

UNLIKE = 0.6
"""A system that differs in one word of its kind weighs exp(-UNLIKE)."""

SHARE_WIDTH = 0.2
"""Standard deviation of the Gaussian weight of rows in their transfer's share of the time."""

ALARM = 0.15
"""p-value at or below which a regime of a system is called slow, or fast."""

FEWEST_SYSTEMS = 8
"""With fewer nothing is said: the least p-value, 1 / (systems + 1), must be well below ALARM."""

_SHARES = np.linspace(0.0, 1.0, 21)


@dataclass(frozen=True)
class LearnedSystem:
    """One system of the published logs, as predicted without it.

    kind: see ``kind_of``. transfer_shares, log_ratios: of a choice of its rows, the share of the predicted time
    that transfers take, and log(measured / predicted). medians: median of log_ratios by regime.
    """

    name: str
    kind: tuple[str, ...]
    transfer_shares: tuple[float, ...]
    log_ratios: tuple[float, ...]
    medians: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Residuals:
    """What was learned about errors. Quantiles ``tail`` and ``1 - tail`` hold 80 % and 95 % of a system's rows."""

    systems: tuple[LearnedSystem, ...]
    tail_80: float
    tail_95: float


@dataclass(frozen=True)
class Typicality:
    """Share of the learned systems (and of this one) that are at least as slow, or as fast, for their prediction."""

    p_slow: float
    p_fast: float
    systems: int
    origin: str


def regime_of(size_bytes: int) -> str:
    """Regime of a size in the sense of nccl-tests."""
    return next(name for name, most in REGIMES if most is None or size_bytes <= most)


def kind_of(system: LibrarySystem) -> tuple[str, ...]:
    """Words in which systems are alike or not: nodes, network, links inside a node, generation, number of GPUs."""
    word = system.network.word if system.network is not None and system.nodes > 1 else ""
    network = "no network" if not word else "sockets" if word in SOCKETS else "EFA" if word == "efa" else "RDMA"
    inside = {Intra.NVSWITCH: "NVSwitch", Intra.PCIE: "PCIe", Intra.HOST: "PCIe"}.get(system.intra, "direct links")
    return (
        "one node" if system.nodes == 1 else "several nodes",
        network,
        inside if system.ranks_per_node > 1 else "one GPU a node",
        system.generation.value.capitalize(),
        "up to 16 GPUs" if system.ranks <= 16 else "more than 16 GPUs",
    )


@cache
def residuals() -> Residuals:
    """Content of ``residuals.yaml``."""
    plain = read_table(RESIDUALS_FILE)
    systems = tuple(
        LearnedSystem(
            one["name"],
            tuple(one["kind"]),
            tuple(one["transfer_shares"]),
            tuple(one["log_ratios"]),
            tuple(one["medians"].items()),
        )
        for one in plain["systems"]
    )
    return Residuals(systems, float(plain["tail_80"]), float(plain["tail_95"]))


def intervals(
    system: LibrarySystem, predictions: Sequence[Prediction], learned: Residuals | None = None
) -> tuple[Interval, ...]:
    """Intervals of the library's ``predictions`` on ``system``; never below their bounds.

    learned: other residuals than those that ship, for validation.
    """
    known = residuals() if learned is None else learned
    kind = kind_of(system)
    logs, origin = _quantiles(kind, known), _origin(kind, known.systems)
    found = []
    for one in predictions:
        share = one.bandwidth_seconds / one.predicted_seconds if one.predicted_seconds > 0 else 0.0
        factors = [float(np.exp(np.interp(share, _SHARES, column))) for column in logs]
        times = (max(one.bound_seconds, one.predicted_seconds * factor) for factor in factors)
        found.append(Interval(*times, origin))
    return tuple(found)


@cache
def _quantiles(kind: tuple[str, ...], known: Residuals) -> Floats:
    """Of log(measured / predicted), for the edges of Interval in its order, at each of _SHARES."""
    weights = _weights(kind, known.systems)
    shares = np.concatenate([one.transfer_shares for one in known.systems])
    logs = np.concatenate([one.log_ratios for one in known.systems])
    rows = np.concatenate(
        [
            np.full(len(one.log_ratios), weight / len(one.log_ratios))
            for one, weight in zip(known.systems, weights, strict=True)
        ]
    )
    order = np.argsort(logs)
    tails = np.array([known.tail_80, 1 - known.tail_80, known.tail_95, 1 - known.tail_95])
    found = []
    for share in _SHARES:
        near = rows * np.exp(-0.5 * ((shares - share) / SHARE_WIDTH) ** 2)
        heights = np.cumsum(near[order])
        places = np.searchsorted(heights, tails * heights[-1])
        found.append(logs[order][np.minimum(places, len(logs) - 1)])
    return np.stack(found, axis=1)


def typicality(
    system: LibrarySystem,
    size_bytes: Sequence[int],
    predicted_seconds: Sequence[float],
    measured_seconds: Sequence[float],
    learned: Residuals | None = None,
) -> dict[str, Typicality]:
    """Where ``system`` stands among the learned ones, by regime that was measured; none of too few systems.

    What counts is the median of measured over predicted time over the sizes of a regime.
    """
    known = residuals() if learned is None else learned
    kind = kind_of(system)
    logs = np.log(np.asarray(measured_seconds) / np.asarray(predicted_seconds))
    places = np.array([regime_of(size) for size in size_bytes])
    found = {}
    for regime, _ in REGIMES:
        there = [one for one in known.systems if regime in dict(one.medians)]
        if len(there) < FEWEST_SYSTEMS or not np.any(places == regime):
            continue
        median = float(np.median(logs[places == regime]))
        others = np.array([dict(one.medians)[regime] for one in there])
        weights = _weights(kind, there)
        # Weights are of mean one, so that p is never below 1 / (systems + 1).
        total = 1.0 + weights.sum()
        slow = (1.0 + weights[others >= median].sum()) / total
        fast = (1.0 + weights[others <= median].sum()) / total
        found[regime] = Typicality(float(slow), float(fast), len(there), _origin(kind, there))
    return found


def without(name: str, known: Residuals) -> Residuals:
    """``known`` without the system of that name."""
    rest = tuple(one for one in known.systems if one.name != name)
    return Residuals(rest, known.tail_80, known.tail_95)


@cache
def false_alarms() -> tuple[int, int]:
    """(healthy systems that would be called slow in some regime by what was learned from the others, systems)."""
    known = residuals()
    flagged = 0
    for one in known.systems:
        others = without(one.name, known).systems
        for regime, median in one.medians:
            there = [other for other in others if regime in dict(other.medians)]
            weights = _weights(one.kind, there)
            slower = np.array([dict(other.medians)[regime] >= median for other in there])
            if (1.0 + weights[slower].sum()) / (1.0 + weights.sum()) <= ALARM:
                flagged += 1
                break
    return flagged, len(known.systems)


def _weights(kind: tuple[str, ...], systems: Sequence[LearnedSystem]) -> Floats:
    """Of every system, by the words in which it differs from ``kind``; their mean is one."""
    differing = [sum(a != b for a, b in zip(kind, one.kind, strict=True)) for one in systems]
    weights = np.exp(-UNLIKE * np.array(differing, dtype=np.float64))
    return np.asarray(weights / weights.mean())


def _origin(kind: tuple[str, ...], systems: Sequence[LearnedSystem]) -> str:
    """In words, which systems an interval is from."""
    alike = sum(sum(a != b for a, b in zip(kind, one.kind, strict=True)) <= 1 for one in systems)
    return f"{len(systems)} systems, {alike or 'none'} of them like this one ({', '.join(kind[1:4])})"
