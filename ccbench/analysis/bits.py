"""What must be pinned so that the bits of a sum stay: rules on the points of a run that has inexact data.

Bits are compared element by element over what two points have in common: the same numbers went in, whatever the
message's size. Cases that differ in one thing alone show whether bits depend on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from operator import ne
from statistics import mean

from ccbench.cases.axes import AXES
from ccbench.cases.measurement import BY_BLOCKS
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

BEYOND = 1e-9
"""Share that stands for differences after the first period of results, of which nobody knows how many."""

EQUAL_NUMBERS = POINT.without("size_bytes", "in_place", "backend", *CHOICES).beside(
    "inexact_data"
)
"""Of points into which the same numbers went."""

UNTRIED = {
    "sizes": "other sizes",
    "placement": "the other placement",
    "starts": "fresh starts (start_ranks: each_round)",
}
"""What a sentence names where it was not varied."""

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
        point = self.point
        data = f"on {point.inexact_data} data" if point.inexact_data != "normal" else ""
        return " ".join(filter(None, (point.run, replace(point, in_place=False).name, data)))

    @property
    def accumulation(self) -> str:
        """Types and orders of additions, one after the other where they change with the size."""
        return " | ".join(
            dict.fromkeys(point.accumulation for point in self.points if point.accumulation)
        )

    @property
    def correctly_rounded_share(self) -> float:
        """Least share of results that are rounded right."""
        return min(point.correctly_rounded_share or 0.0 for point in self.points)

    @property
    def largest_error_ulp(self) -> float:
        """Largest error in units in the last place."""
        return max(point.largest_error_ulp or 0.0 for point in self.points)

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
        """True if its bits are the same in all that was tried, sizes or positions among it."""
        tried = "sizes" in self.shares or "positions" in self.shares
        return not any(self.shares.values()) and (tried or self.point.group_ranks == 2)

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
    bits, other_bits = bits[:common], other_bits[:common]
    # Most pairs are equal, and tuples say so at once; arrays of them take ten times as long to make.
    return 0.0 if bits == other_bits else sum(map(ne, bits, other_bits)) / common


def changed_share(base: Point, new: Point) -> float | None:
    """Return the share of elements whose bits differ, BEYOND where only those after the first period do.

    None where one has no bits, or other numbers went in: other work, another number of ranks, other inexact data.
    """
    if EQUAL_NUMBERS(base) != EQUAL_NUMBERS(new):
        return None
    share = differing_share(base.result_bits, new.result_bits)
    hidden = base.size_bytes == new.size_bytes and base.result_digests != new.result_digests
    return BEYOND if share == 0 and hidden else share


def not_compared(base: Point, new: Point) -> str:
    """Return why the bits of two points that have some are not compared; empty where they are, or have none."""
    if not base.result_bits and not new.result_bits:
        return ""
    if not base.result_bits or not new.result_bits:
        return f"{'new' if base.result_bits else 'base'} has none"
    if changed_share(base, new) is not None:
        return ""
    if base.inexact_data != new.inexact_data:
        return f"other inexact data ({base.inexact_data} / {new.inexact_data})"
    return "other numbers are added"


def bit_rows(points: Iterable[Point]) -> tuple[BitRow, ...]:
    """Return a row for every configuration of ``points`` that has bits, in their order."""
    having = [point for point in points if point.result_bits]
    beside = {name: grouped(having, SAME_DATA.without(name)) for name in CHOICES}
    rows = []
    for members in grouped(having, CONFIGURATION).values():
        by_size = sorted(members, key=lambda point: point.size_bytes)
        shares = {
            name: _largest(getattr(point, f"differing_over_{name}") for point in members)
            for name in UNSTABLE
        }
        positions = [point.differing_over_positions for point in by_size]
        blocks = any(BY_BLOCKS in point.accumulation for point in members)
        # Of the largest message in which anything differs: small ones repeat few numbers.
        shares["positions"] = next(
            (share for share in reversed(positions) if share),
            BEYOND if blocks else _largest(positions),
        )
        sizes = _between(grouped(by_size, SAME_DATA.without("size_bytes")).values())
        # What depends on the position depends on the size, though the first elements may not show it.
        shares["sizes"] = None if sizes is None else max(sizes, shares["positions"] or 0.0)
        shares["placement"] = _between(grouped(by_size, SAME_DATA.without("in_place")).values())
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
        changed_share(point, other)
        for points in groups
        for point, other in combinations(points, 2)
    )


def share_text(share: float) -> str:
    """Return ``31 %``, ``same``, or ``differ`` where nobody knows how many."""
    return "same" if not share else "differ" if share == BEYOND else percent(share)


def bits_sentence(rows: Sequence[BitRow]) -> str:
    """Return the answer in one sentence: what changes bits, how many configurations and elements, what to pin."""
    if not rows:
        return ""
    of_all = f"of {plural(len(rows), 'configuration')}"
    # What no pin helps against comes before what a pin does.
    unstable = [row for row in rows if row.unstable]
    if unstable:
        words = ", ".join(dict.fromkeys(word for row in unstable for word in row.unstable))
        return f"BITS DIFFER {words} in {len(unstable)} {of_all}, first {unstable[0].subject}"
    kept = [
        words
        for name, words in KEPT.items()
        if {row.shares[name] for row in rows if name in row.shares} == {0.0}
    ]
    tried = f"the same {', '.join(kept)}"
    untried = [
        words for name, words in UNTRIED.items() if not any(name in row.shares for row in rows)
    ]
    rest = f"; not tried: {', '.join(untried)}" if untried else ""
    pinned = [row for row in rows if row.pins]
    if not pinned and all(row.point.group_ranks == 2 for row in rows):
        more = "larger groups" if rows[0].point.groups else "more, such as --ranks 4"
        return f"Bits are {tried}; two ranks have one order of additions: ask with {more}"
    if not pinned:
        return f"Bits are {tried}{rest}; the number of ranks must always be pinned"
    pins = ", ".join(dict.fromkeys(pin for row in pinned for pin in row.pins))
    share = max(row.pinned_share for row in pinned)
    amount = "bits" if share == BEYOND else f"up to {percent(share)} of elements"
    return (
        f"To keep bits, pin {pins}: they change {amount} in {len(pinned)} {of_all}; "
        f"bits are {tried}{rest}"
    )


def bits_are_unstable(run: Run) -> bool:
    """Return whether bits of one request differ anywhere in ``run``, which is as bad as wrong data."""
    return any(row.unstable for row in bit_rows(run.points))


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
        point
        for row in rows
        for point in row.points
        if any(
            EXACT_LIMIT.get(name, math.inf) < EXACT_LIMIT.get(point.dtype, 0)
            for name in re.findall(r"(?:^|; rank \d+: )(\w+)", point.accumulation)
        )
    ]
    if narrow:
        point = narrow[0]
        yield Finding(
            "doubt",
            "narrow_sums",
            (),
            f"{point.label}: {point.accumulation}, {percent(point.correctly_rounded_share or 0.0)} rounded right",
            "ask the library for sums in the type of the data, or count with this error",
            f"Sums are added in a narrower type than their own in {plural(len(narrow), 'case')}",
            len(narrow),
        )


def reproducible_cases(runs: Iterable[Run]) -> frozenset[str]:
    """Return ids of cases, of each kind of work those of the fastest choices that give equal bits at all sizes.

    Choices whose own bits depend on anything that was tried are left out, and so are those without bits.
    UsageError where no case has any.
    """
    # Either placement is a situation of its own.
    every = [
        row
        for run in runs
        for in_place in (False, True)
        for row in bit_rows(point for point in run.points if point.in_place is in_place)
    ]
    if not every:
        raise UsageError(
            "--reproducible: no case has bits; measure floating point sums of several ranks with "
            "'accuracy: bits' in the suite's sweep"
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
    work = CONFIGURATION.beside("in_place").without("backend", *CHOICES)
    kept: set[str] = set()
    for alike in grouped(rows, lambda row: work(row.point)).values():
        # A choice for small sizes and another for large ones keep bits together where both add alike.
        classes: list[list[BitRow]] = []
        for row in alike:
            bits = row.point.result_bits
            alike_bits = next(
                (
                    group
                    for group in classes
                    if differing_share(group[0].point.result_bits, bits) == 0
                ),
                None,
            )
            if alike_bits is None:
                classes.append([row])
            else:
                alike_bits.append(row)
        best = min(classes, key=cost)
        kept |= {point.case_id for row in best for point in row.points}
    return frozenset(kept)
