"""Errors of the library's model on systems that it had not learned from, and what follows for others.

``residuals.yaml`` holds, for every system of the published logs, logarithms of measured over predicted time
with levels that were learned without it; ``benchmarks.score`` writes it. Intervals are quantiles over those
systems, each of which weighs the same whatever its number of rows: conformal prediction (Vovk, Gammerman and
Shafer, Algorithmic Learning in a Random World, 2005) with a system as the unit that is exchanged. Systems
like the one at hand weigh more (Tibshirani et al., Conformal Prediction Under Covariate Shift, NeurIPS 2019),
and so do rows in which transfers take a like share of the time: where bandwidth rules, errors are small.
``anchored.yaml`` has the same of predictions by ``calibrate`` with one to three measured sizes; rows as far
from these, and on the same side, weigh more there. ``between.yaml`` has it of every size of a sweep as
predicted with those on either side of it. Of one node whose GPUs nothing but PCIe joins, ``pcie_residuals.yaml``
counts alone, and of that what has the same path: no other fact says as much (``paths``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.documents import read_installed
from ccbench.model import Prediction, PredictionInterval
from ccbench.model.library import Intra, LibrarySystem, PciePath
from ccbench.model.library.constants import FOLDER
from ccbench.model.library.costs import SOCKETS

Floats = NDArray[np.float64]

RESIDUALS_FILE = FOLDER / "residuals.yaml"
ANCHORED_FILE = FOLDER / "anchored.yaml"
BETWEEN_FILE = FOLDER / "between.yaml"
PCIE_FILE = FOLDER / "pcie_residuals.yaml"

REGIMES: tuple[tuple[str, int | None], ...] = (
    ("latency", 32 << 10),
    ("middle", 32 << 20),
    ("large", None),
)
"""Name and the most bytes: where latency rules, in between, and where bandwidth rules."""

UNLIKE = 0.6
"""A system that differs in one word of its kind weighs exp(-UNLIKE)."""

SHARE_WIDTH = 0.2
"""Standard deviation of the Gaussian weight of rows in their transfer's share of the time."""

OCTAVES_WIDTH = 2.0
MOST_OCTAVES = 20
"""Distances in octaves from the nearest measured size, of which more than MOST_OCTAVES count as that."""

MOST_BETWEEN = 3.0
"""Octaves from a measured size on either side: sweeps of the published logs have no longer steps."""

ALARM = 0.1
"""p-value at or below which a regime may be called slow, or fast. Where all three regimes are looked at, 29
systems of a regime can support as little, and fewer cannot."""

GAPS = {"latency": 5.0, "middle": 5.0, "large": 1.75}
"""The least factor between measured and predicted time of what is called slow, or fast: healthy systems of
the published logs show less, but for one. Chosen with these logs in view; ``false_alarms`` counts what it
leaves. From it on what none of the known systems shows counts too, even where they are too few for ALARM."""

NEARLY = 1.25
"""Small and middle sizes of the fastest known systems vary by as much with what nobody states: launches, proxies."""

FEWEST_SYSTEMS = 8
"""With fewer nothing is said."""

BEYOND_EXTREMES = 4.0
"""Over the number of boxes with PCIe alone: how much wider than its extremes the 95 % interval is. That of a normal
sample's next value lies 1.40 times as far out as the extremes of 12 are expected, and 1.24 times of 16."""

FEWEST_ALIKE = 3
"""Healthy systems of the same nodes, network and links without which nothing is called slow or low."""

PATHS = {
    PciePath.DIRECT: "PCIe from GPU to GPU",
    PciePath.ACROSS: "PCIe from GPU to GPU",
    PciePath.HOST: "PCIe through host memory",
    PciePath.UNKNOWN: "PCIe, the path not known",
}
"""Words of ``kind_of`` for one node whose GPUs nothing but PCIe joins."""

UNIFORM = frozenset({"NVSwitch", "one GPU a node", *PATHS.values()})
"""What joins the GPUs of a node in the same form in every generation; bridges and meshes differ by theirs."""

TAIL_SHARES = (0.05, 0.5, 0.95)
"""Transfer's shares of the time that small, middle and large sizes mostly have: each has tails of its own, since
errors of middle sizes, where protocols change, have the longest."""

_SHARES = np.linspace(0.0, 1.0, 21)


@dataclass(frozen=True)
class LearnedSystem:
    """One system of the published logs, as predicted without it.

    kind: see ``kind_of``. transfer_shares, log_ratios: of a choice of its rows, the share of the predicted
    time that transfers take, and log(measured / predicted). medians: of all its log_ratios, by regime.
    errors: median |predicted / measured - 1| of all its rows, by the model and by NCCL's own constants.
    """

    name: str
    kind: tuple[str, ...]
    transfer_shares: tuple[float, ...]
    log_ratios: tuple[float, ...]
    medians: tuple[tuple[str, float], ...]
    octaves: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Residuals:
    """Errors that were learned. Quantiles tail and 1 - tail hold 80 % and 95 % of a system's rows.

    tail_80, tail_95: one for each of TAIL_SHARES, in between on the line between them.
    """

    systems: tuple[LearnedSystem, ...]
    tail_80: tuple[float, ...]
    tail_95: tuple[float, ...]


@dataclass(frozen=True)
class Typicality:
    """Place of one regime of a system among the learned systems.

    ratio: median of measured over predicted time. p_slow, p_fast: share of the systems, this one counted,
    that are at least as slow, or as fast, for their prediction; times the number of regimes that were looked
    at (Bonferroni), at most 1. as_slow, as_fast: how many of ``systems`` are, whatever their weights. alike:
    how many of them have the same nodes, network and links. nearest: name and ratio of the one most alike.
    fastest: the least ratio of all.
    """

    regime: str
    ratio: float
    p_slow: float
    p_fast: float
    as_slow: int
    as_fast: int
    systems: int
    origin: str
    alike: int
    nearest: tuple[str, float]
    fastest: float

    @property
    def unknown_speed(self) -> bool:
        """True if it is faster than every known system; where latency rules by more than NEARLY."""
        return self.ratio < self.fastest / (1.0 if self.regime == "large" else NEARLY)

    @property
    def slow(self) -> bool:
        """True if healthy systems hardly ever are as slow."""
        return self.ratio >= GAPS[self.regime] and (self.p_slow <= ALARM or not self.as_slow)

    @property
    def fast(self) -> bool:
        """True if healthy systems hardly ever are as fast."""
        return 1 / self.ratio >= GAPS[self.regime] and (
            self.p_fast <= ALARM or not self.as_fast
        )


def regime_of(size_bytes: int) -> str:
    """Regime of a size in the sense of nccl-tests."""
    return next(name for name, most in REGIMES if most is None or size_bytes <= most)


def kind_of(system: LibrarySystem) -> tuple[str, ...]:
    """Words in which systems are alike or not: nodes, network, links inside nodes, generation, GPUs."""
    word = system.network.word if system.network is not None and system.nodes > 1 else ""
    network = (
        "no network"
        if not word
        else "sockets"
        if word in SOCKETS
        else "EFA"
        if word == "efa"
        else "RDMA"
    )
    inside = {Intra.NVSWITCH: "NVSwitch", Intra.PCIE: "PCIe", Intra.HOST: "PCIe"}.get(
        system.intra, "direct links"
    )
    if is_pcie_alone(system):
        gigabytes = system.intra_bytes_per_second / 1e9
        return (
            "one node",
            "no network",
            PATHS[system.path],
            f"PCIe of {gigabytes:.0f} GB/s",
            "",
        )
    return (
        "one node" if system.nodes == 1 else "several nodes",
        network,
        inside if system.ranks_per_node > 1 else "one GPU a node",
        system.generation.value.upper()
        if system.is_amd
        else system.generation.value.capitalize(),
        "up to 16 GPUs" if system.ranks <= 16 else "more than 16 GPUs",
    )


def is_pcie_alone(system: LibrarySystem) -> bool:
    """True for one node of several GPUs that nothing but PCIe joins."""
    one = system.nodes == 1 and system.ranks_per_node > 1
    return one and system.intra in (Intra.PCIE, Intra.HOST)


def known_of(system: LibrarySystem, learned: Residuals | None = None) -> Residuals:
    """Return what is known of systems that are predicted as ``system`` is. learned: what is known of all."""
    if not is_pcie_alone(system):
        return learned or residuals()
    known, path = learned or residuals(PCIE_FILE), PATHS[system.path]
    alike = tuple(one for one in known.systems if one.kind[2] == path)
    return replace(known, systems=alike) if alike else known


def residuals(path: Path = RESIDUALS_FILE) -> Residuals:
    """Content of ``residuals.yaml``, or ``anchored.yaml``. Raises MachineError for a damaged file."""
    content: Residuals = read_installed(path, _made)
    return content


def _made(plain: Any) -> Residuals:
    systems = tuple(
        LearnedSystem(
            str(row["name"]),
            tuple(map(str, row["kind"])),
            tuple(map(float, row["transfer_shares"])),
            tuple(map(float, row["log_ratios"])),
            tuple((str(regime), float(median)) for regime, median in row["medians"].items()),
            tuple(map(float, row.get("octaves", ()))),
            tuple(map(float, row.get("errors", ()))),
        )
        for row in plain["systems"]
    )
    # Every system has some rows, with a share each, and as many words of its kind as the others.
    even = len({len(system.kind) for system in systems}) == 1
    rows = [
        (len(system.log_ratios), len(system.transfer_shares), len(system.octaves))
        for system in systems
    ]
    if not (
        even and all(count == shares > 0 and far in (0, count) for count, shares, far in rows)
    ):
        raise ValueError("systems without rows, of unequal form, or none at all")
    tails = [tuple(map(float, plain[name])) for name in ("tail_80", "tail_95")]
    if any(len(tail) != len(TAIL_SHARES) for tail in tails):
        raise ValueError(f"not {len(TAIL_SHARES)} tails")
    return Residuals(systems, *tails)


def intervals(
    system: LibrarySystem,
    predictions: Sequence[Prediction],
    learned: Residuals | None = None,
    octaves: Sequence[float] = (),
    between: bool = False,
) -> tuple[PredictionInterval, ...]:
    """Intervals of the library's ``predictions`` on ``system``; never below their bounds.

    learned: other residuals than those that ship, for validation. octaves: of predictions by ``calibrate``,
    see ``octaves_from``. between: sizes on either side were measured.
    """
    near = between and max(map(abs, octaves)) <= MOST_BETWEEN
    told = BETWEEN_FILE if near else ANCHORED_FILE
    basis = learned or residuals(told) if octaves else known_of(system, learned)
    kind = kind_of(system)
    origin = _origin(kind, basis.systems) + (
        "; by sizes as far from a measured one" if octaves else ""
    )
    origin += f"; {path}" if (path := system.origins.get("path")) else ""
    few = (
        1 + BEYOND_EXTREMES / len(basis.systems) if is_pcie_alone(system) and not octaves else 1
    )
    edges = []
    for place, prediction in enumerate(predictions):
        share = (
            prediction.bandwidth_seconds / prediction.predicted_seconds
            if prediction.predicted_seconds > 0
            else 0.0
        )
        away = round(octaves[place]) if octaves else None
        low_80, high_80, low_95, high_95 = (
            max(
                prediction.bound_seconds,
                # An interval holds its prediction, also where all known systems are slower, or faster.
                prediction.predicted_seconds
                * float(np.exp(side(0.0, wider * np.interp(share, _SHARES, column)))),
            )
            for column, wider, side in zip(
                _quantiles(kind, basis, away),
                (1.0, 1.0, few, few),
                (min, max, min, max),
                strict=True,
            )
        )
        edges.append(PredictionInterval(low_80, high_80, low_95, high_95, origin))
    return tuple(edges)


def octaves_from(measured_bytes: Sequence[int], size_bytes: Sequence[int]) -> list[float]:
    """Logarithm to base two of each size over the nearest of ``measured_bytes``; empty where none was measured."""
    if not measured_bytes:
        return []
    away = np.log2(np.maximum(size_bytes, 1))[:, None] - np.log2(np.maximum(measured_bytes, 1))
    nearest = np.take_along_axis(away, np.abs(away).argmin(axis=1)[:, None], axis=1)
    return [float(octave) for octave in np.clip(nearest[:, 0], -MOST_OCTAVES, MOST_OCTAVES)]


@cache
def _quantiles(kind: tuple[str, ...], learned: Residuals, octaves: int | None) -> Floats:
    """Of log(measured / predicted), for the edges of Interval in its order, at each of _SHARES.

    octaves: from the nearest measured size, None where none was measured.
    """
    weights = _weights(kind, learned.systems)
    shares = np.concatenate([system.transfer_shares for system in learned.systems])
    logs = np.concatenate([system.log_ratios for system in learned.systems])
    rows = np.concatenate(
        [
            np.full(len(system.log_ratios), weight / len(system.log_ratios))
            for system, weight in zip(learned.systems, weights, strict=True)
        ]
    )
    if octaves is not None:
        away = np.concatenate([system.octaves for system in learned.systems])
        rows = rows * np.exp(-0.5 * ((away - octaves) / OCTAVES_WIDTH) ** 2)
    order = np.argsort(logs)
    columns = []
    for share in _SHARES:
        tail_80, tail_95 = (
            float(np.interp(share, TAIL_SHARES, tail))
            for tail in (learned.tail_80, learned.tail_95)
        )
        tails = np.array([tail_80, 1 - tail_80, tail_95, 1 - tail_95])
        near = rows * np.exp(-0.5 * ((shares - share) / SHARE_WIDTH) ** 2)
        heights = np.cumsum(near[order])
        places = np.searchsorted(heights, tails * heights[-1])
        columns.append(logs[order][np.minimum(places, len(logs) - 1)])
    return np.stack(columns, axis=1)


def typicality(
    system: LibrarySystem,
    size_bytes: Sequence[int],
    predicted_seconds: Sequence[float],
    measured_seconds: Sequence[float],
    learned: Residuals | None = None,
) -> dict[str, Typicality]:
    """Place of ``system`` among the learned ones, by regime that was measured; none of too few systems.

    What counts is the median of measured over predicted time over the sizes of a regime.
    """
    logs = np.log(np.asarray(measured_seconds) / np.asarray(predicted_seconds))
    regimes = np.array([regime_of(size) for size in size_bytes])
    medians = {
        str(name): float(np.median(logs[regimes == name]))
        for name in dict.fromkeys(regimes.tolist())
    }
    kind, found = (
        kind_of(system),
        _typicality(kind_of(system), medians, known_of(system, learned)),
    )
    if is_pcie_alone(system) and learned is None:
        # Small and middle sizes of one path were measured on too few boxes: there all with PCIe alone count.
        rest = {regime: median for regime, median in medians.items() if regime not in found}
        found |= _typicality(kind, rest, residuals(PCIE_FILE))
    return found


def _typicality(
    kind: tuple[str, ...], medians: Mapping[str, float], learned: Residuals
) -> dict[str, Typicality]:
    """By regime; medians: log(measured / predicted) by regime."""
    by_regime = {}
    for regime, median in medians.items():
        there = [system for system in learned.systems if regime in dict(system.medians)]
        if len(there) < FEWEST_SYSTEMS:
            continue
        their_medians = np.array([dict(system.medians)[regime] for system in there])
        # The system at hand counts as one of mean weight, which makes the least share 1 / (systems + 1). Its
        # own weight is higher, and with it (Tibshirani et al.) so few systems could show nothing.
        weights = _weights(kind, there)
        slower, faster = their_medians >= median, their_medians <= median
        p_slow, p_fast = (
            min(1.0, len(medians) * float((1.0 + weights[those].sum()) / (1.0 + weights.sum())))
            for those in (slower, faster)
        )
        counts = int(slower.sum()), int(faster.sum())
        near = int(weights.argmax())
        by_regime[regime] = Typicality(
            regime,
            float(np.exp(median)),
            p_slow,
            p_fast,
            *counts,
            len(there),
            _origin(kind, there),
            len(_alike(kind, there)),
            (there[near].name, float(np.exp(their_medians[near]))),
            float(np.exp(their_medians.min())),
        )
    return by_regime


def without(name: str, learned: Residuals) -> Residuals:
    """``learned`` without the system of that name."""
    rest = tuple(system for system in learned.systems if system.name != name)
    return Residuals(rest, learned.tail_80, learned.tail_95)


@cache
def false_alarms(path: str = "") -> tuple[int, int]:
    """Healthy systems that are called slow by what was learned from the others, and all such systems.

    path: a word of PATHS, for those that PCIe alone joins by that path.
    """
    learned = residuals(PCIE_FILE if path else RESIDUALS_FILE)
    alike = tuple(one for one in learned.systems if path in ("", one.kind[2]))
    learned = replace(learned, systems=alike or learned.systems)
    typicalities = [
        _typicality(system.kind, dict(system.medians), without(system.name, learned))
        for system in learned.systems
    ]
    flagged = [any(at.slow for at in regimes.values()) for regimes in typicalities]
    return sum(flagged), len(flagged)


def _weights(kind: tuple[str, ...], systems: Sequence[LearnedSystem]) -> Floats:
    """Weight of every system, by the words in which it differs from ``kind``; their mean is one."""
    differing = [
        sum(a != b for a, b in zip(kind, system.kind, strict=True)) for system in systems
    ]
    weights = np.exp(-UNLIKE * np.array(differing, dtype=np.float64))
    return np.asarray(weights / weights.mean())


def _origin(kind: tuple[str, ...], systems: Sequence[LearnedSystem]) -> str:
    """In words, which systems an interval is from."""
    words = ", ".join(kind[1 : _shared(kind)])
    alike = _alike(kind, systems)
    errors = [system.errors for system in alike if system.errors]
    off = ""
    if errors:
        ours, theirs = (f"{100 * np.median(of):.0f} %" for of in zip(*errors, strict=True))
        library = "RCCL" if kind[3].startswith("CDNA") else "NCCL"
        off = f", in the median {ours} off, by {library}'s own constants {theirs}"
    return f"{len(systems)} systems, {len(alike) or 'none'} of them like this one: {words}{off}"


def _shared(kind: tuple[str, ...]) -> int:
    """Number of the words of ``kind``, from the first, that systems like it share."""
    return 3 if kind[2] in UNIFORM else 4


def _alike(kind: tuple[str, ...], systems: Sequence[LearnedSystem]) -> list[LearnedSystem]:
    """Return those of ``systems`` with the nodes, network and links of ``kind``."""
    shared = kind[: _shared(kind)]
    return [system for system in systems if system.kind[: len(shared)] == shared]
