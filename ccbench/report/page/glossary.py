"""The words of the page, with the formula of each collective's bus bandwidth taken from the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ccbench.collectives import COLLECTIVES
from ccbench.machine.flags import Flag
from ccbench.results import Point
from ccbench.tables import Table, columns

FORMS: tuple[tuple[str, Callable[[int], float]], ...] = (
    ("2(n-1)/n", lambda n: 2 * (n - 1) / n),
    ("(n-1)/n", lambda n: (n - 1) / n),
    ("1", lambda n: 1.0),
)
"""How bus factors are written; which one a collective has is found by comparing numbers."""


def formula_table(points: Iterable[Point]) -> Table:
    """busbw over algbw of every collective that moves data, worked out for the run's own numbers of ranks."""
    ranks: dict[str, set[int]] = {}
    for point in points:
        if point.group_ranks > 1:
            ranks.setdefault(point.collective, set()).add(point.group_ranks)
    rows = [
        (
            row.name,
            formula_of(row.bus_factor),
            ", ".join(f"{row.bus_factor(n):.4g} for {n} ranks" for n in sorted(ranks.get(row.name, ()))[:6]),
        )
        for row in COLLECTIVES.values()
        if row.moves_data
    ]
    return Table(columns("<collective", "<factor (n ranks)", "<here"), rows)


def formula_of(factor: Callable[[int], float]) -> str:
    """The formula that has the values of ``factor``; words where none of FORMS has."""
    for text, form in FORMS:
        if all(abs(factor(n) - form(n)) < 1e-12 for n in range(2, 130)):
            return text
    return "see collectives.py"


TERMS: Sequence[tuple[str, str]] = (
    ("size", "nccl-tests' size: the largest buffer of one rank. Sizes are binary: 1 KiB is 1024 bytes."),
    (
        "time",
        "Median of the rounds' medians with a 95 % interval by order statistics. A sample lasts from the "
        "first rank's start to the last rank's end. Imported points have the one time that was printed.",
    ),
    (
        "algbw",
        "Size divided by time: what an application sees. Rates are decimal: 1 GB/s is 1e9 bytes a second.",
    ),
    (
        "busbw",
        "algbw times the factor below: what each rank's link must carry if every rank sends and receives the "
        "least that is possible without help from a switch. It can be compared with the speed of the wire "
        "and between numbers of ranks.",
    ),
    (
        "why busbw may exceed the wire",
        "The formula of all_reduce assumes that each rank sends 2(n-1)/n times its data. Where the switch "
        "adds, less crosses a rank's link: with NVLS (NVLink SHARP) it sends and receives its data once and "
        "one n-th more, (n+1)/n, so busbw may reach 2(n-1)/(n+1) times the link's rate; with SHARP in the "
        "network once, so up to 2(n-1)/n times. busbw is then a convention, not traffic.",
    ),
    (
        "prediction",
        "The price of the algorithm that ran on the machine's graph: latency and bandwidth terms of every "
        "phase, with the shipped or calibrated constants.",
    ),
    (
        "bound",
        "What no schedule can beat on these links: data that must cross a cut over the rate of the cut, and "
        "the latency of the farthest pair. Of bound: the bound's time over the measured one.",
    ),
    (
        "flagged",
        "Something made the figure doubtful while it was measured; hollow in figures, ~ in the table.",
    ),
)


def terms_of(points: Iterable[Point]) -> tuple[tuple[str, str], ...]:
    """(word, meaning) of TERMS and of every flag that ``points`` carry."""
    seen = {flag for point in points for flag in point.flags}
    return (*TERMS, *((flag, f"{flag.meaning}. Do: {flag.advice}.") for flag in Flag if flag in seen))
