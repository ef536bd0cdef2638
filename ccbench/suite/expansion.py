"""From a Suite to the cases it asks for on this machine.

Three rules decide about combinations. An axis that means nothing for a collective collapses to one value
(op where nothing is reduced, root where there is none, all of a barrier's data). A value that a backend or
a number of ranks does not offer is left out there. A value that is offered nowhere is a mistake of the suite.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ccbench.capabilities import backend_names, backends_of_auto, capabilities_of
from ccbench.cases import AXIS, NO_ROOT, OVERLAP, Axis, Case
from ccbench.collectives import COLLECTIVES, Collective
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import CcbenchError, UsageError
from ccbench.suite.grouping import why_no_groups, works
from ccbench.suite.model import IN_PLACE_COLLECTIVES, SWEPT, Suite, Sweep
from ccbench.suite.ranges import MOST_POINTS, MOST_RANKS, Range, size_points
from ccbench.units import parse_size, shown, suggestion

MOST_REASONS = 5
"""Of what an empty suite asks for in vain, so many are named."""

MPI_PREFIX = "mpi:"

Kept = tuple[int, Counter[str]]
"""How many values of an axis exist here, and how many of those that are asked for do not, by their names."""


@dataclass(frozen=True)
class ExpansionContext:
    """What a suite leaves open, and what the command line overrides.

    backends, ranks: from the command line, instead of what the suite says; None where it does not say.
    auto_backends, auto_ranks: what ``auto`` means on this machine.
    algorithms_of: (backend, collective) -> the algorithms that backend offers besides ``default``.
    only: keep the cases whose label contains every one of these words.
    nodes: over how many machines the ranks are spread.
    """

    backends: tuple[str, ...] | None
    auto_backends: tuple[str, ...]
    ranks: int | None
    auto_ranks: int
    algorithms_of: Callable[[str, str], tuple[str, ...]]
    only: str | None = None
    nodes: int = 1


@dataclass(frozen=True)
class _Block:
    """Cases that share sweep, backend, collective and ranks; every other axis as its values.

    values: of each axis in SWEPT but mode and computing, which go together in ``modes``. works: who
    communicates with whom; no more than one above MOST_POINTS. lacked: works that do not exist here.
    """

    sweep: Sweep
    backend: str
    row: Collective
    ranks: int
    algorithms: tuple[str, ...]
    roots: tuple[int, ...] | range
    modes: tuple[tuple[str, str], ...]
    values: Mapping[str, tuple[Any, ...]]
    works: tuple[Mapping[str, Any], ...]
    lacked: Counter[str]

    @property
    def axes(self) -> list[Kept]:
        row, sweep = self.row, self.sweep
        roots = sweep.root if row.rooted and not isinstance(sweep.root, str) else ()
        modes, named = [mode for mode, _ in self.modes], [name for name in sweep.algorithm if name != "all"]
        asked: tuple[tuple[str, Sequence[object], Iterable[object]], ...] = (
            ("mode ", modes, [mode for mode in sweep.asked("mode") if mode != OVERLAP or row.moves_data]),
            (f"{row.name} with algorithm ", self.algorithms, named),
            (f"root of {self.ranks} ranks: ", self.roots, roots),
        )
        own = [(len(has), Counter(f"{word}{v}" for v in all_ if v not in has)) for word, has, all_ in asked]
        return [*own, *(self._kept(axis) for axis in SWEPT if axis.name in self.values), self._kept_works]

    def _kept(self, axis: Axis) -> Kept:
        has = self.values[axis.name]
        asked = self.sweep.asked(axis.name) if exists_for(axis, self.row) else ()
        lacked = Counter(_lack(self, axis, value) for value in asked if value not in has)
        return len(has), lacked

    @property
    def _kept_works(self) -> Kept:
        return len(self.works), self.lacked

    def count(self, kept: Sequence[Kept], asked: Sequence[Kept] = ()) -> int:
        """Cases before equal ones are joined, by multiplication."""
        values = math.prod(has for has, _ in kept) * math.prod(has + more.total() for has, more in asked)
        sizes = self.sweep.size if values and self.row.moves_data else (0,)
        return values * sum(size.count() if isinstance(size, Range) else 1 for size in sizes)

    def left_out(self) -> Iterator[tuple[str, int]]:
        """What the sweep asks for and is not here, with the number of cases that go with it."""
        axes = self.axes
        for place, (_, lacked) in enumerate(axes):
            for what, values in lacked.items():
                if cases := values * self.count(axes[:place], axes[place + 1 :]):
                    yield f"{self.backend} has no {what}", cases


def offers(backend: str, name: str, value: object) -> bool:
    """Whether ``backend`` has that value of the axis ``name``; the default is had by all."""
    return value == AXIS[name].default or capabilities_of(backend).has(name, value)


def exists_for(axis: Axis, row: Collective) -> bool:
    """Whether the axis means anything for a collective; else it collapses to one value."""
    return not axis.needs or bool(getattr(row, axis.needs))


def _lack(block: _Block, axis: Axis, value: object) -> str:
    """What a backend has not, in words; of an axis of which it has nothing all values together."""
    if axis.name == "in_place":
        return f"{block.row.name} in place"
    return f"{axis.key} {value}" if axis.name in capabilities_of(block.backend).values else axis.key


def expand(suite: Suite, context: ExpansionContext) -> tuple[Case, ...]:
    """Every case of ``suite``, each once, in the order in which they should run.

    Raises SuiteError when a value exists nowhere, when nothing is left, or when there are more than
    MOST_POINTS cases (found out before they are made); UsageError when ``context`` asks for the impossible.
    """
    _check_context(context)
    blocks: list[_Block] = []
    total = 0
    for index, sweep in enumerate(suite.sweep):
        _check_algorithms(suite, index, sweep, context)
        for block in _blocks(suite, sweep, context):
            blocks.append(block)
            # An empty block counts as well, or a suite of nothing but empty blocks could go on for long.
            total += max(block.count(block.axes), 1)
            if total > MOST_POINTS:
                raise _too_many(suite, context, index)
    cases = tuple(dict.fromkeys(case for block in blocks for case in _cases(suite, block, context)))
    if not cases:
        raise suite.origin.error(("sweep",), _why_empty(suite, context))
    if suite.order == "interleaved":
        cases = _interleaved(cases, suite.seed)
    return _selected(cases, context.only)


def left_out(suite: Suite, context: ExpansionContext) -> Counter[str]:
    """How many cases ``expand`` leaves out, by the reason; equal ones are counted as often as asked for."""
    found: Counter[str] = Counter()
    for block in (block for sweep in suite.sweep for block in _blocks(suite, sweep, context)):
        found.update(dict(block.left_out()))
    return found


def _check_context(context: ExpansionContext) -> None:
    for backend in context.backends or ():
        if backend not in backend_names():
            raise UsageError(f"backend {shown(backend)} is not known; {suggestion(backend, backend_names())}")
    if context.ranks is not None and not 1 <= context.ranks <= MOST_RANKS:
        raise UsageError(f"{context.ranks} ranks cannot be; give 1 to {MOST_RANKS}")


def _backends(suite: Suite, context: ExpansionContext) -> tuple[str, ...]:
    if context.backends:
        return tuple(dict.fromkeys(context.backends))
    named = (context.auto_backends if name == "auto" else (name,) for name in suite.backends)
    return tuple(dict.fromkeys(name for names in named for name in names))


def _sweep_backends(suite: Suite, sweep: Sweep, context: ExpansionContext) -> tuple[str, ...]:
    """Of the suite's backends those that this sweep is for."""
    return tuple(name for name in _backends(suite, context) if name in sweep.backends)


def _rank_counts(sweep: Sweep, context: ExpansionContext) -> tuple[int, ...]:
    if context.ranks is not None:
        return (context.ranks,)
    # One rank communicates with nobody, so auto never means 1.
    return (max(context.auto_ranks, 2),) if isinstance(sweep.ranks, str) else sweep.ranks


def _blocks(suite: Suite, sweep: Sweep, context: ExpansionContext) -> Iterator[_Block]:
    for backend in _sweep_backends(suite, sweep, context):
        for name in sweep.collective:
            row = COLLECTIVES[name]
            algorithms = _algorithms(sweep, backend, name, context)
            values = {
                axis.name: _values(axis, sweep, backend, row)
                for axis in SWEPT
                if axis.name not in ("mode", "overlap_with")
            }
            for ranks in _rank_counts(sweep, context):
                found, lacked = _works(sweep, backend, row, ranks)
                yield _Block(
                    sweep=sweep,
                    backend=backend,
                    row=row,
                    ranks=ranks,
                    algorithms=algorithms,
                    roots=_roots(sweep, ranks) if row.rooted else (NO_ROOT,),
                    modes=_modes(sweep, backend, row),
                    values=values,
                    works=found,
                    lacked=lacked,
                )


def _values(axis: Axis, sweep: Sweep, backend: str, row: Collective) -> tuple[Any, ...]:
    """What the sweep asks for and the backend and the collective have."""
    if not exists_for(axis, row):
        return (axis.blank,)
    apart = axis.name == "in_place" and row.name not in IN_PLACE_COLLECTIVES
    asked = (value for value in sweep.asked(axis.name) if not (apart and value))
    return tuple(value for value in asked if offers(backend, axis.name, value))


def _works(
    sweep: Sweep, backend: str, row: Collective, ranks: int
) -> tuple[tuple[Mapping[str, Any], ...], Counter[str]]:
    """Who communicates with whom, each once, and what the backend lacks of it."""
    lacked: Counter[str] = Counter()
    found: dict[tuple[tuple[str, Any], ...], None] = {}
    for work in works(sweep, row, ranks, pairs=offers(backend, "pair", "0>1")):
        missing = [name for name, value in work.items() if not offers(backend, name, value)]
        if not offers(backend, "collective", row.name):
            missing = [row.name]
        lacked.update(missing[:1])
        if not missing:
            found[tuple(work.items())] = None
        if len(found) > MOST_POINTS:
            break
    return tuple(map(dict, found)), lacked


def _roots(sweep: Sweep, ranks: int) -> tuple[int, ...] | range:
    if isinstance(sweep.root, str):
        return range(ranks)
    return tuple(root for root in sweep.root if root < ranks)


def _modes(sweep: Sweep, backend: str, row: Collective) -> tuple[tuple[str, str], ...]:
    """(mode, what is computed meanwhile) that the backend and the collective have."""
    return tuple(
        (mode, computing)
        for mode in sweep.asked("mode")
        # A barrier waits: there is nothing to hide.
        if offers(backend, "mode", mode) and (mode != OVERLAP or row.moves_data)
        for computing in (sweep.asked("overlap_with") if mode == OVERLAP else ("",))
    )


def _base(algorithm: str) -> str:
    return algorithm if algorithm.startswith(MPI_PREFIX) else algorithm.split(":", 1)[0]


def _algorithms(sweep: Sweep, backend: str, collective: str, context: ExpansionContext) -> tuple[str, ...]:
    """What the sweep asks for and the backend offers; ``default`` is always offered."""
    if sweep.algorithm == ("default",):
        return sweep.algorithm
    offered = context.algorithms_of(backend, collective)
    bases = {"default", *map(_base, offered)}
    found: list[str] = []
    for name in sweep.algorithm:
        if name == "all":
            found.extend(offered or ("default",))
        elif _base(name) in bases:
            found.append(name)
    return tuple(dict.fromkeys(found))


def _check_algorithms(suite: Suite, index: int, sweep: Sweep, context: ExpansionContext) -> None:
    """Refuse a name that no backend in sight offers for any of the sweep's collectives."""
    named = [name for name in sweep.algorithm if name not in ("all", "default")]
    if not named:
        return
    chosen = asked = _sweep_backends(suite, sweep, context) or sweep.backends
    if _unknown(named, chosen, sweep, context):
        # --backend may have taken away the one that knows the name: that leaves it out, it is no mistake.
        there = (*context.auto_backends, *backends_of_auto(gpus=False))
        others = dict.fromkeys((*chosen, *suite.backends, *there))
        chosen = tuple(name for name in others if name in sweep.backends)
    for name in _unknown(named, chosen, sweep, context):
        known = sorted(_offered(asked, sweep, context))
        raise suite.origin.error(
            ("sweep", index, "algorithm"),
            f"{name!r} is no algorithm of {', '.join(asked)} for {', '.join(sweep.collective)}; "
            f"{suggestion(_base(name), known) if known else 'write default'}",
        )


def _unknown(
    named: list[str], backends: Iterable[str], sweep: Sweep, context: ExpansionContext
) -> tuple[str, ...]:
    offered = _offered(backends, sweep, context)
    return tuple(name for name in named if _base(name) not in offered)


def _offered(backends: Iterable[str], sweep: Sweep, context: ExpansionContext) -> set[str]:
    asked = product(backends, sweep.collective)
    return {name for backend, collective in asked for name in _names(backend, collective, context)}


def _names(backend: str, collective: str, context: ExpansionContext) -> tuple[str, ...]:
    try:
        return tuple(map(_base, context.algorithms_of(backend, collective)))
    except CcbenchError:
        return ()  # a backend that cannot even be asked offers nothing here


def _cases(suite: Suite, block: _Block, context: ExpansionContext) -> Iterator[Case]:
    row = block.row
    settings = {
        name: values for name, values in block.values.items() if name not in ("dtype", "op", "in_place")
    }
    for *chosen, work, dtype in product(*settings.values(), block.works, block.values["dtype"]):
        varied = Case(
            suite.name, block.backend, row.name, "", dtype, "", 0, 0, block.ranks, nodes=context.nodes,
            **dict(zip(settings, chosen, strict=True)), **work,
        )  # fmt: skip
        group_ranks = varied.group_ranks
        points = _points(block.sweep, row, group_ranks, ITEM_BYTES[dtype])
        # Nothing else runs while something is computed, and everybody computes.
        plain = varied.everybody and not varied.concurrent
        modes = [one for one in block.modes if plain or one[0] != OVERLAP]
        for algorithm, op, root, in_place, (mode, computing), (size_bytes, count) in product(
            block.algorithms, block.values["op"], block.roots, block.values["in_place"], modes, points
        ):
            if root < group_ranks:
                yield replace(
                    varied,
                    algorithm=algorithm,
                    op=op,
                    size_bytes=size_bytes,
                    count=count,
                    root=root,
                    in_place=in_place,
                    mode=mode,
                    overlap_with=computing,
                )


def _points(sweep: Sweep, row: Collective, ranks: int, item_bytes: int) -> list[tuple[int, int]]:
    """(size in bytes, count) of every point: rounded down to whole elements of each block, each once."""
    if not row.moves_data:
        return [(0, 0)]
    counts = (row.count_for(size, ranks, item_bytes) for size in size_points(sweep.size))
    return [(row.size_bytes(count, ranks, item_bytes), count) for count in dict.fromkeys(counts)]


def _too_many(suite: Suite, context: ExpansionContext, index: int) -> CcbenchError:
    return suite.origin.error(
        ("sweep", index) if len(suite.sweep) > 1 else ("sweep",),
        f"asks for more than {MOST_POINTS:,} cases on {', '.join(_backends(suite, context))}; "
        "take fewer sizes, dtypes or ranks",
    )


def _why_empty(suite: Suite, context: ExpansionContext) -> str:
    backends = ", ".join(_backends(suite, context)) or "no backend"
    ranks = ", ".join(
        dict.fromkeys(str(n) for sweep in suite.sweep for n in _rank_counts(sweep, context)[:8])
    )
    nothing = f"nothing is left to run on {backends} with {ranks} rank{'' if ranks == '1' else 's'}"
    asked = ((sweep, count) for sweep in suite.sweep for count in _rank_counts(sweep, context)[:8])
    reasons = {why_no_groups(*one) for one in asked}
    if "" not in reasons and len(reasons) == 1:
        return f"{nothing}: {reasons.pop()}"
    if lacking := "; ".join(list(left_out(suite, context))[:MOST_REASONS]):
        return f"{nothing}: {lacking}"
    return (
        f"{nothing}: take algorithms, dtypes, roots, placements, modes, groups and traffic that exist there "
        "and go together (nothing runs beside a group alone, a pair or a computation)"
    )


def _interleaved(cases: tuple[Case, ...], seed: int) -> tuple[Case, ...]:
    """Shuffled by points, the backends of one point together, in an order that changes from point to point.

    Drift of the machine then falls on all cases alike instead of on the last ones, and backends meet the
    same conditions. Points of different teams mix: teams stay open and idle ones block, so changing costs
    nothing (S. Hunold and A. Carpen-Amarie, "Reproducible MPI Benchmarking Is Still Not as Easy as You
    Think", IEEE TPDS 27 (2016), on randomising the order of experiments).
    """
    chance = random.Random(seed)
    points: dict[Case, list[Case]] = {}
    for case in cases:
        key = replace(case, backend="", processes="", suite="")
        points.setdefault(key, []).append(case)
    groups = list(points.values())
    chance.shuffle(groups)
    for group in groups:
        if len(group) > 1:
            chance.shuffle(group)
    return tuple(case for group in groups for case in group)


_SIZE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?\s*(?:[KMGT]i?)?B\b")
"""A size as plans and reports show it; labels have bytes."""


def _selected(cases: tuple[Case, ...], only: str | None) -> tuple[Case, ...]:
    if not (only or "").strip():
        return cases
    sizes = [parse_size(found[0]) for found in _SIZE.finditer(only or "")]
    words = _SIZE.sub(" ", only or "").split()
    chosen = []
    for case in cases:
        label = case.label
        is_of_size = all(re.search(rf"(?<!\d){size} B\b", label) for size in sizes)
        if is_of_size and all(word in label for word in words):
            chosen.append(case)
    if not chosen:
        raise UsageError(f"only {shown(only)} matches none of {len(cases)} cases, such as {cases[0].label!r}")
    return tuple(chosen)
