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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ccbench.cases import ALL_GROUPS, NO_OP, NO_ROOT, OVERLAP, Case
from ccbench.collectives import COLLECTIVES, Collective
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import CcbenchError, UsageError
from ccbench.suite.axes import (
    BACKENDS,
    GPU_BACKENDS,
    GPU_MODE_BACKENDS,
    GPU_ONLY_DTYPES,
    GPU_ONLY_MODES,
    MPI_BACKENDS,
    MPI_ONLY_MODES,
    MPI_PREFIX,
    NCCL_BACKENDS,
    NCCL_ONLY_OPS,
    OVERLAP_BACKENDS,
    PLACEMENTS,
)
from ccbench.suite.grouping import why_no_groups
from ccbench.suite.model import IN_PLACE_COLLECTIVES, Suite, Sweep
from ccbench.suite.ranges import MOST_POINTS, MOST_RANKS, Range, size_points
from ccbench.suite.variations import Axis, Variation, variations
from ccbench.units import parse_size, shown, suggestion

BARRIER_DTYPE = "uint8"
"""What a case without data is filed under."""


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
    """Cases that share sweep, backend, collective and ranks; every other axis as its values."""

    sweep: Sweep
    backend: str
    row: Collective
    ranks: int
    algorithms: tuple[str, ...]
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    roots: tuple[int, ...] | range
    placements: tuple[bool, ...]
    modes: tuple[tuple[str, str], ...]
    variations: tuple[Variation, ...]
    variation_axes: list[Axis]

    @property
    def axes(self) -> list[Axis]:
        row, sweep = self.row, self.sweep
        roots = sweep.root if row.rooted and not isinstance(sweep.root, str) else ()
        away = row.moves_data and "in_place" in sweep.placement and row.name not in IN_PLACE_COLLECTIVES
        modes, named = [mode for mode, _ in self.modes], [name for name in sweep.algorithm if name != "all"]
        asked: tuple[tuple[str, Sequence[object], Iterable[object]], ...] = (
            ("mode", modes, [mode for mode in sweep.mode if mode != OVERLAP or row.moves_data]),
            (f"{row.name} with algorithm", self.algorithms, named),
            ("dtype", self.dtypes, sweep.dtype if row.moves_data else ()),
            ("op", self.ops, sweep.op if row.reduces else ()),
            (f"root of {self.ranks} ranks:", self.roots, roots),
            (row.name, self.placements, ["in place"] if away else ()),
        )
        own = [(len(has), Counter(f"{word} {v}" for v in all_ if v not in has)) for word, has, all_ in asked]
        return [*own, *self.variation_axes]

    def count(self, kept: Sequence[Axis], asked: Sequence[Axis] = ()) -> int:
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
                    yield f"{self.backend} has no {what.removesuffix('_bytes')}", cases


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
        if backend not in BACKENDS:
            raise UsageError(f"backend {shown(backend)} is not known; {suggestion(backend, BACKENDS)}")
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
        dtypes = tuple(name for name in sweep.dtype if backend in GPU_BACKENDS or name not in GPU_ONLY_DTYPES)
        ops = tuple(name for name in sweep.op if backend in NCCL_BACKENDS or name not in NCCL_ONLY_OPS)
        for name in sweep.collective:
            row = COLLECTIVES[name]
            algorithms = _algorithms(sweep, backend, name, context)
            had = PLACEMENTS if name in IN_PLACE_COLLECTIVES else ("out_of_place",)
            placements = tuple(one == "in_place" for one in sweep.placement if one in had)
            for ranks in _rank_counts(sweep, context):
                made, axes = variations(sweep, backend, row, ranks)
                yield _Block(
                    sweep=sweep,
                    backend=backend,
                    row=row,
                    ranks=ranks,
                    algorithms=algorithms,
                    dtypes=dtypes if row.moves_data else (BARRIER_DTYPE,),
                    ops=ops if row.reduces else (NO_OP,),
                    roots=_roots(sweep, ranks) if row.rooted else (NO_ROOT,),
                    placements=placements if row.moves_data else (False,),
                    modes=_modes(sweep, backend, row),
                    variations=made,
                    variation_axes=axes,
                )


def _roots(sweep: Sweep, ranks: int) -> tuple[int, ...] | range:
    if isinstance(sweep.root, str):
        return range(ranks)
    return tuple(root for root in sweep.root if root < ranks)


def _modes(sweep: Sweep, backend: str, row: Collective) -> tuple[tuple[str, str], ...]:
    """(mode, what is computed meanwhile) that the backend and the collective have."""
    return tuple(
        (mode, computing)
        for mode in sweep.mode
        # A barrier waits: there is nothing to hide.
        if _has_mode(backend, mode) and (mode != OVERLAP or row.moves_data)
        for computing in (sweep.computing if mode == OVERLAP else ("",))
    )


def _has_mode(backend: str, mode: str) -> bool:
    if mode == OVERLAP:
        return backend in OVERLAP_BACKENDS
    if mode in MPI_ONLY_MODES:
        return backend in MPI_BACKENDS
    return backend in GPU_MODE_BACKENDS or mode not in GPU_ONLY_MODES


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
        others = dict.fromkeys((*chosen, *suite.backends, *context.auto_backends, "cpu"))
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
    blank = Case(suite.name, block.backend, row.name, "", "", "", 0, 0, block.ranks, nodes=context.nodes)
    for variation, dtype in product(block.variations, block.dtypes):
        varied = replace(blank, dtype=dtype, **vars(variation))
        group_ranks = varied.group_ranks
        points = _points(block.sweep, row, group_ranks, ITEM_BYTES[dtype])
        # Nothing else runs while something is computed, and everybody computes.
        plain = not (variation.pair or variation.beside) and variation.alone == ALL_GROUPS
        modes = [one for one in block.modes if plain or one[0] != OVERLAP]
        for algorithm, op, root, in_place, (mode, computing), (size_bytes, count) in product(
            block.algorithms, block.ops, block.roots, block.placements, modes, points
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
                    computing=computing,
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
        key = replace(case, backend="", suite="")
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
