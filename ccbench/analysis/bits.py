"""What must be pinned so that the bits of a sum stay: rules on the points of a run that has inexact data.

Bits are compared element by element over what two points have in common: the same numbers went in, whatever the
message's size. Cases that differ in one thing alone show whether bits depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import mean

import numpy as np

from ccbench.cases.axes import AXES
from ccbench.dtypes import EXACT_LIMIT
from ccbench.errors import UsageError
from ccbench.findings import Finding
from ccbench.results import Point, Run
from ccbench.results.keys import POINT, grouped
from ccbench.units import percent, plural

CHOICES = tuple(axis.name for axis in AXES if axis.choice)
"""Axes that are a library's choice: bits may depend on each."""

SAME_DATA = POINT.beside("run", "inexact_data")
"""Of points of one run with equal numbers: no others may be compared."""

CONFIGURATION = SAME_DATA.without("size_bytes", "in_place")
"""Of points that differ in size and placement alone."""

UNSTABLE = {
    "launches": "from launch to launch",
    "rounds": "whenever buffers are made anew",
    "starts": "from one start of the ranks to the next",
    "ranks": "between ranks",
}
"""Where nothing can be pinned: results of the same request that should be the same."""

PINNED = {
    "positions": "the size of messages",
    "sizes": "the size of messages",
    "placement": "the placement (in or out of place)",
}
"""What to pin where bits differ between these."""

KEPT = {
    "launches": "from launch to launch",
    "starts": "over fresh starts",
    "ranks": "on all ranks",
    "sizes": "at all sizes",
    "placement": "in and out of place",
}
"""Where bits were tried and are the same everywhere."""


@dataclass(frozen=True)
class BitRow:
    """Bits of one configuration: a backend's collective in one type, with the choices that were asked for.

    points: with bits, the smallest first. shares: by what was varied the largest share of elements that differ; what
    was not tried is not there. ``choices`` of them: axis -> share, where the run has other values of that alone.
    """

    points: tuple[Point, ...]
    shares: dict[str, float] = field(default_factory=dict)
    choices: dict[str, float] = field(default_factory=dict)

    @property
    def point(self) -> Point:
        """The largest of the points, for what they share."""
        return self.points[-1]

    @property
    def subject(self) -> str:
        """What tells it from other configurations, in one line."""
        return f"{self.point.run} {replace(self.point, in_place=False).name}".strip()

    @property
    def unstable(self) -> tuple[str, ...]:
        """Words of UNSTABLE that hold."""
        return tuple(words for name, words in UNSTABLE.items() if self.shares.get(name))

    @property
    def pins(self) -> tuple[str, ...]:
        """What must be pinned so that bits stay."""
        pins = [words for name, words in PINNED.items() if self.shares.get(name)]
        pins += [
            f"the {name.replace('_', ' ')}" for name, share in self.choices.items() if share
        ]
        return tuple(dict.fromkeys(pins))

    @property
    def reproducible(self) -> bool:
        """True if its bits are the same in all that was tried with this configuration."""
        return not any(self.shares.values())

    @property
    def pinned_share(self) -> float:
        """Largest share of elements that change with what can be pinned."""
        shares = [self.shares.get(name, 0.0) for name in PINNED]
        return max([*shares, *self.choices.values()])


def differing_share(bits: Sequence[int], other_bits: Sequence[int]) -> float | None:
    """Return the share of elements that differ among those that both have; None where there are none."""
    # The shorter message is the beginning of the longer one.
    common = min(len(bits), len(other_bits))
    if not common:
        return None
    differs = np.array(bits[:common]) != np.array(other_bits[:common])
    return float(np.mean(differs))


def bit_rows(points: Iterable[Point]) -> tuple[BitRow, ...]:
    """Return a row for every configuration of ``points`` that has bits, in their order."""
    having = [point for point in points if point.result_bits]
    beside = {name: grouped(having, SAME_DATA.without(name)) for name in CHOICES}
    rows = []
    for members in grouped(having, CONFIGURATION).values():
        by_size = sorted(members, key=lambda point: point.size_bytes)
        shares = {
            "launches": _largest(point.differing_over_launches for point in members),
            "rounds": _largest(point.differing_over_rounds for point in members),
            "starts": _largest(point.differing_over_starts for point in members),
            "ranks": _largest(point.differing_over_ranks for point in members),
            # Of the largest message in which anything differs: small ones repeat few numbers.
            "positions": next(
                (
                    point.differing_over_positions
                    for point in reversed(by_size)
                    if point.differing_over_positions
                ),
                _largest(point.differing_over_positions for point in members),
            ),
            "sizes": _between(grouped(by_size, SAME_DATA.without("size_bytes")).values()),
            "placement": _between(grouped(by_size, SAME_DATA.without("in_place")).values()),
        }
        choices = {
            name: _between(
                (point, alike)
                for point in members
                for alike in groups[SAME_DATA.without(name)(point)]
                if alike is not point
            )
            for name, groups in beside.items()
        }
        rows.append(BitRow(tuple(by_size), _tried(shares), _tried(choices)))
    return tuple(rows)


def _tried(shares: dict[str, float | None]) -> dict[str, float]:
    return {name: share for name, share in shares.items() if share is not None}


def _largest(shares: Iterable[float | None]) -> float | None:
    return max((share for share in shares if share is not None), default=None)


def _between(groups: Iterable[Sequence[Point]]) -> float | None:
    """Return the largest share that differs between two points of one group."""
    return _largest(
        differing_share(point.result_bits, other.result_bits)
        for points in groups
        for point, other in combinations(points, 2)
    )


def bits_sentence(rows: Sequence[BitRow]) -> str:
    """Return the answer in one sentence: what changes bits, how many configurations and elements, what to pin."""
    if not rows:
        return ""
    of_all = f"of {plural(len(rows), 'configuration')}"
    # What no pin helps against comes before what a pin does.
    unstable = [row for row in rows if row.unstable]
    if unstable:
        words = ", ".join(dict.fromkeys(word for row in unstable for word in row.unstable))
        return (
            f"BITS DIFFER {words} in {len(unstable)} {of_all}, first {unstable[0].subject}: "
            "nothing that was pinned keeps them"
        )
    pinned = [row for row in rows if row.pins]
    kept = [
        words
        for name, words in KEPT.items()
        if any(name in row.shares for row in rows)
        and not any(row.shares.get(name) for row in rows)
        # What depends on the position depends on the size, though the first elements may not show it.
        and not (name == "sizes" and any(row.shares.get("positions") for row in rows))
    ]
    tried = f"the same {', '.join(kept)}"
    if all(row.point.group_ranks == 2 for row in rows):
        return f"Bits are {tried}; two ranks have one order of additions, so ask with more: --ranks 4"
    if not pinned:
        return (
            f"Bits stay: {tried}; nothing that was tried must be pinned but the number of ranks"
        )
    pins = ", ".join(dict.fromkeys(pin for row in pinned for pin in row.pins))
    share = percent(max(row.pinned_share for row in pinned))
    return (
        f"To keep bits, pin {pins}: they change up to {share} of elements in {len(pinned)} {of_all}; "
        f"bits are {tried}"
    )


def bits_findings(points: Sequence[Point]) -> Iterator[Finding]:
    """Sums whose bits differ where nothing changed, and sums that are added in a narrower type than their own."""
    rows = bit_rows(points)
    unstable = [row for row in rows if row.unstable]
    if unstable:
        first = next(
            (point for row in unstable for point in row.points if point.first_difference),
            unstable[0].point,
        )
        yield Finding(
            "problem",
            "bits_differ",
            (),
            f"{first.label}: {first.first_difference}",
            "one rank alone points to its library, device or memory; all ranks to an order that is not fixed: "
            "repeat with algorithm and channels pinned",
            f"Bits of the same request differ in {plural(len(unstable), 'configuration')}",
            sum(len(row.points) for row in unstable),
        )
    narrow = [
        row
        for row in rows
        if EXACT_LIMIT.get(row.point.accumulation.partition(",")[0], math.inf)
        < EXACT_LIMIT.get(row.point.dtype, 0)
    ]
    if narrow:
        point = narrow[0].point
        yield Finding(
            "doubt",
            "narrow_sums",
            (),
            f"{point.label}: {point.accumulation}, {percent(point.correctly_rounded_share or 0.0)} rounded right",
            "ask the library for sums in the type of the data, or count with this error",
            f"Sums are added in a narrower type than their own in {plural(len(narrow), 'configuration')}",
            sum(len(row.points) for row in narrow),
        )


def changed_share(base: Point, new: Point) -> float | None:
    """Return the share of elements whose bits differ; None where one has none, or of other inexact data."""
    if not base.result_bits or base.inexact_data != new.inexact_data:
        return None
    share = differing_share(base.result_bits, new.result_bits)
    if share == 0.0 and base.result_digests != new.result_digests:
        return 1 / len(new.result_bits)  # what differs is beyond the first period
    return share


def reproducible_cases(runs: Iterable[Run]) -> frozenset[str]:
    """Return ids of cases, of each kind of work those of the fastest choices that give equal bits at all sizes.

    Choices whose own bits depend on anything that was tried are left out, and so are those without bits.
    UsageError where no case has any.
    """
    every = [row for run in runs for row in bit_rows(run.points)]
    if not every:
        raise UsageError(
            "--reproducible: no case has bits; measure with 'accuracy: bits' in the suite's sweep"
        )

    def cost(rows: Sequence[BitRow]) -> tuple[int, float]:
        """Minus the sizes that the rows cover, then the mean logarithm of the shortest time at each."""
        seconds: dict[tuple[int, bool], float] = {}
        for point in (point for row in rows for point in row.points):
            if point.is_timed:
                key = point.size_bytes, point.in_place
                shortest = seconds.get(key, math.inf)
                seconds[key] = min(shortest, point.median_seconds or math.inf)
        return -len(seconds), mean(map(math.log, seconds.values())) if seconds else math.inf

    rows = [row for row in every if row.reproducible]
    work = CONFIGURATION.without("backend", *CHOICES)
    kept: set[str] = set()
    for alike in grouped(rows, lambda row: work(row.point)).values():
        # A choice for small sizes and another for large ones keep bits together where both add alike.
        classes: list[list[BitRow]] = []
        for row in alike:
            bits = row.point.result_bits
            same = (
                group
                for group in classes
                if differing_share(group[0].point.result_bits, bits) == 0
            )
            group = next(same, None)
            if group is None:
                classes.append([row])
            else:
                group.append(row)
        best = min(classes, key=cost)
        kept |= {point.case_id for row in best for point in row.points}
    return frozenset(kept)
