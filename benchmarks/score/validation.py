"""Errors on systems that a fit did not see, each system weighing the same, and how often intervals held.

For each group of systems in turn (or each generation of GPUs), everything that was learned is learned again from
the others, from scales of one. Logs are of very different lengths, so a figure is first taken within a system.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.score.keys import (
    Report,
    at_sizes,
    machine_key,
    system_key,
)
from benchmarks.score.learning import fit
from benchmarks.score.logs import LogPoints
from benchmarks.score.scores import Errors
from benchmarks.score.statistics import BANDS
from ccbench.model import Prediction
from ccbench.model.calibrated import FEWEST_TO_HOLD_OUT
from ccbench.model.library import LibrarySystem
from ccbench.model.library.calibration import Calibrated, Observation, calibrate
from ccbench.model.library.constants import LibraryConstants, shipped
from ccbench.model.library.intervals import (
    REGIMES,
    LearnedSystem,
    Residuals,
    intervals,
    kind_of,
    octaves_from,
    regime_of,
    without,
)
from ccbench.model.library.predictor import nccl_seconds, priced

Floats = NDArray[np.float64]
Plain = dict[str, Any]

MOST_ROWS = 40
"""Rows of one system that a file of residuals keeps, evenly chosen in order of their transfer's share."""

ANCHORS: Mapping[str, tuple[int, ...]] = {
    "no size told": (),
    "told 1 KiB": (1 << 10,),
    "told 256 MiB": (1 << 28,),
    "told 1 KiB, 256 MiB": (1 << 10, 1 << 28),
    "told 1 KiB, 8 MiB, 256 MiB": (1 << 10, 8 << 20, 1 << 28),
}
"""Sizes whose times the model is told before it predicts others; the nearest measured ones stand for them."""

FULL_RANGE = (2 << 10, 128 << 20)
"""Logs with sizes from at most the first to at least the second have anchors..."""

FEWEST_SIZES = 8
"""...if at least as many sizes are left to be tested as are told at most."""

TAILS = (
    0.4,
    0.35,
    0.3,
    0.26,
    0.23,
    0.2,
    0.18,
    0.16,
    0.14,
    0.12,
    0.1,
    0.08,
    0.06,
    0.05,
    0.04,
    0.03,
    0.02,
    0.015,
    0.01,
    0.005,
)
"""Tails that are tried, twice the share of rows that an interval leaves out on each side."""

MOST_FOLDS = 12
"""Groups of machines that are left out together."""

RESAMPLES = 2000
SEED = 20261


@dataclass(frozen=True, eq=False)
class SystemErrors:
    """Rows of one system and what was predicted for them; arrays run along its rows.

    log_ratios: log(measured / predicted). transfer_shares: of the predicted time.
    octaves: from the nearest size that was told, empty where none was. of_nccl: log(measured / predicted) by NCCL's
    own constants.
    """

    system: LibrarySystem
    files: tuple[str, ...]
    size_bytes: NDArray[np.int64]
    log_ratios: Floats
    transfer_shares: Floats
    octaves: Floats = field(default_factory=lambda: np.empty(0))
    of_nccl: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def errors(self) -> Errors:
        """Relative errors, as those of logs are."""
        return Errors(
            tuple(self.size_bytes.tolist()), tuple(np.expm1(-self.log_ratios).tolist())
        )

    def band(self, least: int, most: int | None) -> NDArray[np.bool_]:
        """Rows of sizes from ``least`` to ``most`` bytes."""
        return np.asarray((self.size_bytes >= least) & (self.size_bytes <= (most or np.inf)))


Learn = Callable[[Sequence[Observation]], LibraryConstants]


@dataclass(frozen=True, eq=False)
class Validation:
    """What fits are worth on what they did not see: other systems, other generations of GPUs."""

    other_systems: tuple[SystemErrors, ...]
    other_generations: tuple[SystemErrors, ...]
    anchored: Mapping[str, tuple[SystemErrors, ...]]
    between: tuple[SystemErrors, ...]

    @classmethod
    def of(cls, logs: Sequence[LogPoints], report: Report, learn: Learn = fit) -> Validation:
        """Learn and calibrate on parts of ``logs``, of which only the healthy ones count."""
        by_system = folds(logs, system_key, report, learn, machine_key)
        return cls(
            held_out_systems(by_system),
            held_out_systems(folds(logs, lambda system: system.generation, report, learn)),
            anchored_systems(by_system),
            between_systems(by_system),
        )


def shipped_by_system(logs: Sequence[LogPoints]) -> tuple[SystemErrors, ...]:
    """Every healthy system as the shipped constants predict it."""
    pairs = [
        (log, observation)
        for log in logs
        if log.entry.healthy
        for observation in log.observations
    ]
    return systems_with(pairs, shipped())


Fold = tuple[list[tuple[LogPoints, Observation]], LibraryConstants]
"""Observations that were left out, and what all others taught."""


def folds(
    logs: Sequence[LogPoints],
    key: Callable[[LibrarySystem], Hashable],
    report: Report,
    learn: Learn,
    together: Callable[[LibrarySystem], Hashable] | None = None,
) -> tuple[Fold, ...]:
    """The healthy observations of each key, and what others taught: all but those of its group.

    together: key of what is never in two groups, ``key`` itself if None; dealt into at most MOST_FOLDS groups, in
    order. By ``machine_key`` two nodes of a cluster teach nothing about four of it.
    """
    healthy = [
        (log, observation)
        for log in logs
        if log.entry.healthy
        for observation in log.observations
    ]
    deal = together or key
    dealt = dict.fromkeys(deal(one.system) for _, one in healthy)
    parts = {whole: place % MOST_FOLDS for place, whole in enumerate(dealt)}
    found = []
    for part in range(min(MOST_FOLDS, len(dealt))):
        report(f"learned without {part + 1} of {min(MOST_FOLDS, len(dealt))}")
        taught = learn([one for _, one in healthy if parts[deal(one.system)] != part])
        groups: dict[Hashable, list[tuple[LogPoints, Observation]]] = defaultdict(list)
        for log, one in healthy:
            if parts[deal(one.system)] == part:
                groups[key(one.system)].append((log, one))
        found += [(pairs, taught) for pairs in groups.values()]
    return tuple(found)


def held_out_systems(left_out: Sequence[Fold]) -> tuple[SystemErrors, ...]:
    """Every system of ``left_out``, predicted with what those of other keys taught."""
    return tuple(one for pairs, taught in left_out for one in systems_with(pairs, taught))


def anchored_systems(left_out: Sequence[Fold]) -> dict[str, tuple[SystemErrors, ...]]:
    """By name of ANCHORS, errors at the sizes that no anchor is of; then those of other collectives there.

    left_out: by system. Of their logs those of FULL_RANGE.
    """
    found: dict[str, list[SystemErrors]] = defaultdict(list)
    least, most = FULL_RANGE
    for held_out, taught in left_out:
        system = held_out[0][1].system  # the others' names and origins may be worded otherwise
        pairs = [
            (log, replace(one, system=system))
            for log, one in held_out
            if min(one.request.size_bytes) <= least
            and max(one.request.size_bytes) >= most
            and len(one.seconds) >= FEWEST_SIZES
        ]
        for name, anchors in ANCHORS.items() if pairs else ():
            fits = [
                calibrate([_near(one, anchors)], taught) if anchors else None
                for _, one in pairs
            ]
            rest = [(log, _near(one, EVERY_ANCHOR, without=True)) for log, one in pairs]
            found[name].append(_together(rest, fits, taught, anchors))
            others = [
                (pair, fitted)
                for (_, told), fitted in zip(pairs, fits, strict=True)
                for pair in rest
                if pair[1].request.collective != told.request.collective
            ]
            if others:
                chosen, carried = zip(*others, strict=True)
                found[f"{name}, other collectives"].append(
                    _together(chosen, carried, taught, ())
                )
    return {name: tuple(systems) for name, systems in found.items()}


EVERY_ANCHOR = tuple(dict.fromkeys(size for anchors in ANCHORS.values() for size in anchors))


def _near(one: Observation, sizes: Sequence[int], without: bool = False) -> Observation:
    """``one`` at its sizes nearest to each of ``sizes``, or at all others."""
    logs = np.log(one.request.size_bytes)
    nearest = {int(np.argmin(np.abs(logs - np.log(size)))) for size in sizes}
    return one.taking([place for place in range(len(logs)) if (place in nearest) != without])


def _together(
    pairs: Sequence[tuple[LogPoints, Observation]],
    fits: Sequence[Calibrated | None],
    taught: LibraryConstants,
    anchors: Sequence[int],
) -> SystemErrors:
    """Errors of all ``pairs``, which are of one system, each by its fit, or as ``taught`` says."""
    rows = []
    for pair, fitted in zip(pairs, fits, strict=True):
        (plain,) = systems_with([pair], taught)
        request, seconds = pair[1].request, np.asarray(pair[1].seconds)
        logs = plain.log_ratios if fitted is None else np.log(seconds / fitted.seconds(request))
        octaves = np.array(octaves_from(anchors, request.size_bytes))
        rows.append(replace(plain, log_ratios=logs, octaves=octaves))
    return _joined(rows)


def pooled(anchored: Mapping[str, Sequence[SystemErrors]]) -> tuple[SystemErrors, ...]:
    """Each system with its rows of all anchors: those of intervals around anchored predictions."""
    systems: dict[str, list[SystemErrors]] = defaultdict(list)
    for name, tested in anchored.items():
        for one in tested if ANCHORS.get(name) else ():
            systems[one.system.name].append(one)
    return tuple(map(_joined, systems.values()))


def between_systems(left_out: Sequence[Fold]) -> tuple[SystemErrors, ...]:
    """Errors at each size of a sweep but the first and the last, told every other: those on either side."""
    found = []
    for held_out, taught in left_out:
        rows = []
        for log, one in held_out:
            sizes = sorted(set(one.request.size_bytes))
            for told in (sizes[::2], sizes[1::2]):
                if len(sizes) >= FEWEST_TO_HOLD_OUT:
                    fitted = calibrate(at_sizes([one], {*told}), taught)
                    (tested,) = at_sizes([one], {*sizes[1:-1]} - {*told})
                    rows.append(_together([(log, tested)], [fitted], taught, told))
        found += [_joined(rows)] if rows else []
    return tuple(found)


def _joined(rows: Sequence[SystemErrors]) -> SystemErrors:
    """All ``rows``, which are of one system, as one."""
    return replace(
        rows[0],
        files=tuple(dict.fromkeys(file for row in rows for file in row.files)),
        size_bytes=np.concatenate([row.size_bytes for row in rows]),
        log_ratios=np.concatenate([row.log_ratios for row in rows]),
        transfer_shares=np.concatenate([row.transfer_shares for row in rows]),
        of_nccl=np.empty(0),
        octaves=np.concatenate([row.octaves for row in rows]),
    )


def systems_with(
    pairs: Sequence[tuple[LogPoints, Observation]], constants: LibraryConstants
) -> tuple[SystemErrors, ...]:
    """The systems of ``pairs`` as ``constants`` predict them."""
    systems: dict[Hashable, list[tuple[LogPoints, Observation]]] = defaultdict(list)
    for log, one in pairs:
        systems[system_key(one.system)].append((log, one))
    found = []
    for members in systems.values():
        sizes, logs, shares, theirs = (
            list[int](),
            list[Floats](),
            list[Floats](),
            list[Floats](),
        )
        for _, one in members:
            prices = priced(one.system, one.request, constants.table)
            seconds, best = prices.seconds, prices.best
            transfers = np.array(
                [prices.options[option].bandwidth_seconds[at] for at, option in enumerate(best)]
            )
            sizes += one.request.size_bytes
            logs.append(np.log(np.asarray(one.seconds) / seconds))
            theirs.append(
                np.log(np.asarray(one.seconds) / nccl_seconds(one.system, one.request))
            )
            shares.append(transfers / seconds)
        files = tuple(dict.fromkeys(log.entry.file for log, _ in members))
        found.append(
            SystemErrors(
                members[0][1].system,
                files,
                np.array(sizes),
                np.concatenate(logs),
                np.concatenate(shares),
                of_nccl=np.concatenate(theirs),
            )
        )
    return tuple(found)


def figures(tested: Sequence[SystemErrors]) -> Plain:
    """Median of the systems' median errors, its 95 % interval, 90th percentile, bias; by band and kind.

    Errors are |predicted / measured - 1|, as fractions; bias is the median of the systems' median errors with
    their sign. The interval is from systems that were drawn again, with replacement.
    """
    found: Plain = _summary([one.log_ratios for one in tested])
    found["bands"] = {
        name: _summary([one.log_ratios[one.band(least, most)] for one in tested])
        for name, least, most in BANDS
    }
    by: dict[str, Callable[[SystemErrors], str]] = {
        "networks": lambda one: kind_of(one.system)[1],
    }
    for title, word in by.items():
        words = sorted({word(one) for one in tested})
        found[title] = {
            name: _summary([one.log_ratios for one in tested if word(one) == name])
            for name in words
        }
    return found


def _summary(systems: Sequence[Floats]) -> Plain:
    there = [np.expm1(-logs) for logs in systems if len(logs)]
    if not there:
        return {"systems": 0}
    medians = np.array([np.median(np.abs(errors)) for errors in there])
    drawn = np.random.default_rng(SEED).choice(medians, (RESAMPLES, len(medians)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return {
        "systems": len(there),
        "median_error": float(np.median(medians)),
        "low": float(low),
        "high": float(high),
        "percentile_90": float(np.quantile(medians, 0.9)),
        "bias": float(np.median([np.median(errors) for errors in there])),
    }


def coverage(tested: Sequence[SystemErrors], learned: Residuals) -> Plain:
    """Share of the measured times inside their intervals, mean over systems, and the median width.

    A system's own residuals are left out. A width is the factor sqrt(high / low) of the 95 % interval: how
    far an edge lies from the middle.
    """
    if len(learned.systems) < 2:
        return {"bands": {}}
    inside_80, inside_95, widths = list[Floats](), list[Floats](), list[Floats]()
    for one in tested:
        predictions = [
            Prediction(0.0, 1.0, 1.0 - share, share, "")
            for share in one.transfer_shares.tolist()
        ]
        known = without(one.system.name, learned)
        rows = [
            (
                edges.low_80_seconds,
                edges.high_80_seconds,
                edges.low_95_seconds,
                edges.high_95_seconds,
            )
            for edges in intervals(one.system, predictions, known, one.octaves.tolist())
        ]
        measured, edges_of = np.exp(one.log_ratios), np.array(rows).T
        inside_80.append((edges_of[0] <= measured) & (measured <= edges_of[1]))
        inside_95.append((edges_of[2] <= measured) & (measured <= edges_of[3]))
        widths.append(np.sqrt(edges_of[3] / edges_of[2]))

    def of(rows: Sequence[NDArray[np.bool_]]) -> Plain:
        there = [place for place, chosen in enumerate(rows) if chosen.any()]
        if not there:
            return {}
        return {
            "coverage_80": float(
                np.mean([inside_80[place][rows[place]].mean() for place in there])
            ),
            "coverage_95": float(
                np.mean([inside_95[place][rows[place]].mean() for place in there])
            ),
            "median_width": float(
                np.median([np.median(widths[place][rows[place]]) for place in there])
            ),
        }

    found = of([np.ones(len(one.log_ratios), dtype=bool) for one in tested])
    found["bands"] = {
        name: of([one.band(least, most) for one in tested]) for name, least, most in BANDS
    }
    return found


def residuals_of(tested: Sequence[SystemErrors]) -> Residuals:
    """Content of ``residuals.yaml``; its tails are the widest with which intervals hold often enough."""
    systems = []
    for one in tested:
        order = np.argsort(one.transfer_shares, kind="stable")
        chosen = order[
            np.unique(
                np.linspace(0, len(order) - 1, min(MOST_ROWS, len(order))).round().astype(int)
            )
        ]
        regimes = np.array([regime_of(size) for size in one.size_bytes.tolist()])
        medians = tuple(
            (name, round(float(np.median(one.log_ratios[regimes == name])), 4))
            for name, _ in REGIMES
            if np.any(regimes == name)
        )
        systems.append(
            LearnedSystem(
                one.system.name,
                kind_of(one.system),
                tuple(round(share, 3) for share in one.transfer_shares[chosen].tolist()),
                tuple(round(ratio, 4) for ratio in one.log_ratios[chosen].tolist()),
                medians,
                tuple(round(away, 1) for away in one.octaves[chosen].tolist())
                if len(one.octaves)
                else (),
                tuple(
                    round(float(np.median(np.abs(np.expm1(-ratios)))), 3)
                    for ratios in (one.log_ratios, one.of_nccl)
                    if len(one.of_nccl)
                ),
            )
        )
    # Wider and wider tails, of which the last that holds enough of a band stays.
    tails = {name: [TAILS[-1] / 2] * len(BANDS) for name in ("coverage_80", "coverage_95")}
    for tail in reversed(TAILS):
        same = (tail / 2,) * len(BANDS)
        held = coverage(tested, Residuals(tuple(systems), same, same))["bands"]
        for name, kept in tails.items():
            for place, (band, _, _) in enumerate(BANDS):
                if held.get(band, {}).get(name, 0.0) >= int(name[-2:]) / 100:
                    kept[place] = tail / 2
    return Residuals(tuple(systems), *map(tuple, tails.values()))


def plain_residuals(learned: Residuals, learned_on: str) -> Plain:
    """``learned`` as ``residuals.yaml`` has it."""
    return {
        "learned_on": learned_on,
        "tail_80": list(learned.tail_80),
        "tail_95": list(learned.tail_95),
        "systems": [
            {
                "name": system.name,
                "kind": list(system.kind),
                "medians": dict(system.medians),
                "transfer_shares": list(system.transfer_shares),
                "log_ratios": list(system.log_ratios),
                **({"octaves": list(system.octaves)} if system.octaves else {}),
                **({"errors": list(system.errors)} if system.errors else {}),
            }
            for system in learned.systems
        ],
    }
