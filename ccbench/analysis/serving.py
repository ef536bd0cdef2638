"""Which implementation is the fastest at each size, and between which sizes that changes.

A winner stays until another leads it by ``LEAD``, so that a few percent at one size are no change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ccbench.analysis.tuning import Situation, Timing, timings_of
from ccbench.cases.capabilities import capabilities_of
from ccbench.flags import Flag
from ccbench.results.keys import grouped
from ccbench.results.loading import SERVERS, load_published

LEAD = 0.10
"""Time of the winner so far over that of another, minus one, from which the other takes its place."""

FEWEST_FOR_P99 = 100
"""Samples of which one lies beyond the 99th percentile."""

Best = Mapping[tuple[Situation, int], Timing]
"""The fastest published by its work, without a place, and size in bytes."""


@dataclass(frozen=True)
class Fastest:
    """The winner at one size; times in seconds per launch.

    p99_seconds: None with fewer than ``FEWEST_FOR_P99`` samples. rivals: how many others ran. published: the fastest
    published of the same work on such devices, where there is one.
    """

    size_bytes: int
    name: str
    p50_seconds: float
    p99_seconds: float | None
    rivals: int
    published: Timing | None

    @property
    def times_published(self) -> float | None:
        """The winner's time as a multiple of the best published."""
        return self.p50_seconds / self.published.seconds if self.published else None


@dataclass(frozen=True)
class Winners:
    """The winners of one situation, sizes ascending."""

    situation: Situation
    winners: tuple[Fastest, ...]

    @property
    def contested(self) -> bool:
        """True if two ran at any one size."""
        return any(each.rivals for each in self.winners)

    def at(self, size_bytes: int) -> tuple[float | None, Fastest, Fastest]:
        """Return (seconds, the measured sizes below and above) of the winner at any size.

        On a straight line between the logarithms of sizes and times; outside of what was measured (None, the least
        size, the largest).
        """
        below = [each for each in self.winners if each.size_bytes <= size_bytes]
        above = [each for each in self.winners if each.size_bytes >= size_bytes]
        if not below or not above:
            return None, self.winners[0], self.winners[-1]
        low, high = below[-1], above[0]
        sizes = np.log((low.size_bytes, high.size_bytes))
        times = np.log((low.p50_seconds, high.p50_seconds))
        return float(np.exp(np.interp(np.log(size_bytes), sizes, times))), low, high


def answers_of(timings: Sequence[Timing], best: Best) -> list[Winners]:
    """Return the answer of each situation, all_reduce and graphs first; without machines that were ill."""
    kept = (timing for timing in sound(timings) if timing.kept)
    situations = grouped(kept, lambda timing: timing.situation)

    def order(situation: Situation) -> tuple[bool, bool, Situation]:
        return situation.collective != "all_reduce", situation.mode != "graph", situation

    return [
        Winners(situation, tuple(winners_of(situations[situation], best)))
        for situation in sorted(situations, key=order)
    ]


def best_published(devices: Set[str]) -> Best:
    """Return the fastest published on ``devices``; nothing for several kinds."""
    if len(devices) != 1:
        return {}
    timings = sorted(
        sound(timings_of([load_published(SERVERS)])), key=lambda timing: -timing.seconds
    )
    return {_work(timing): timing for timing in timings if timing.situation.place in devices}


def sound(timings: Sequence[Timing]) -> list[Timing]:
    """Return ``timings`` without those that have flags that nobody knows: the machine was ill."""
    return [timing for timing in timings if {*timing.point.flags} <= {*Flag}]


def _work(timing: Timing) -> tuple[Situation, int]:
    return replace(timing.situation, place=""), timing.point.size_bytes


def _name(timing: Timing) -> str:
    # Releases tell apart what others printed; those of a run are variants, which the label has.
    choice, version = timing.choice, timing.point.backend_version
    if not version or len(timing.point.samples_seconds):
        return choice.label
    return f"{version} {choice.label.removeprefix(f'{choice.backend} ')}"


def winners_of(timings: Sequence[Timing], best: Best) -> Iterator[Fastest]:
    """Yield the winner at each size of one situation."""
    held = ""
    for size, at in sorted(grouped(timings, lambda timing: timing.point.size_bytes).items()):
        named = grouped(at, _name)
        times = {
            name: median(timing.seconds for timing in members)
            for name, members in named.items()
        }
        fastest = min(sorted(times), key=times.__getitem__)
        if times.get(held, math.inf) >= times[fastest] * (1 + LEAD):
            held = fastest
        samples = np.concatenate([timing.point.samples_seconds for timing in named[held]])
        # What hosts do is no match for tables of GPUs.
        on_gpus = not len(samples) or capabilities_of(named[held][0].choice.backend).on_gpus
        yield Fastest(
            size,
            held,
            times[held],
            float(np.quantile(samples, 0.99)) if len(samples) >= FEWEST_FOR_P99 else None,
            len(times) - 1,
            best.get(_work(at[0])) if on_gpus else None,
        )
