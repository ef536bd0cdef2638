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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

from ccbench.cases.axes import AXIS, NO_ROOT, OVERLAP, Axis, Case, Variant
from ccbench.cases.capabilities import backend_names, backends_of_auto, capabilities_of
from ccbench.collectives import SETUPS, Collective, collective
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import CcbenchError, UsageError
from ccbench.suite.functions import functions_of
from ccbench.suite.grouping import why_no_groups, works
from ccbench.suite.model import IN_PLACE_COLLECTIVES, SWEPT, Suite, Sweep
from ccbench.suite.readers import MOST_POINTS, MOST_RANKS, Range, size_points
from ccbench.units import parse_size, shown, suggestion

MOST_REASONS = 5
"""Of what an empty suite asks for in vain, so many are named."""

MPI_PREFIX = "mpi:"


@dataclass(frozen=True)
class ExpansionContext:
    """Choices that a suite leaves open, and those that the command line overrides.

    backends, ranks: from the command line, instead of what the suite says; None where it does not say.
    auto_backends, auto_ranks: what ``auto`` means on this machine.
    algorithms_of: (backend, collective) -> the algorithms that backend offers besides ``default``.
    only: keep the cases whose label contains every one of these words.
    nodes: over how many machines the ranks are spread.
    added: (collective, name) of schedules of the user's files; they join what sweeps ask for.
    """

    backends: tuple[str, ...] | None
    auto_backends: tuple[str, ...]
    ranks: int | None
    auto_ranks: int
    algorithms_of: Callable[[str, str], tuple[str, ...]]
    only: str | None = None
    nodes: int = 1
    added: Set[tuple[str, str]] = frozenset()


Lacks = Mapping[Any, str]
"""Values that are asked for of one axis, each with what is missing for it here, in words; '' where nothing is."""


def _there(lacks: Lacks) -> list[Any]:
    return [value for value, lack in lacks.items() if not lack]


INNER = ("mode", "algorithm", "root", "dtype", "op", "in_place", "work", "variant")
"""Axes that a case gets after who communicates is known: the others vary slowest."""


@dataclass(frozen=True)
class _Block:
    """Cases that share sweep, backend, collective and ranks.

    values: of every other axis. ``mode`` goes together with ``overlap_with``, and ``work`` is who
    communicates with whom, no more than one above MOST_POINTS.
    """

    sweep: Sweep
    backend: str
    row: Collective
    ranks: int
    values: Mapping[str, Lacks]

    def count(self, kept: Iterable[Lacks], following: Iterable[Lacks] = ()) -> int:
        """Cases before equal ones are joined, by multiplication."""
        values = math.prod(map(len, (*map(_there, kept), *following)))
        sizes = self.sweep.size if values and self.row.sized else (0,)
        return values * sum(size.count() if isinstance(size, Range) else 1 for size in sizes)

    def left_out(self) -> Iterator[tuple[str, int]]:
        """Values that the sweep asks for and are not here, with the number of cases that go with each."""
        axes = [*self.values.values()]
        for place, lacks in enumerate(axes):
            for what, values in Counter(filter(None, lacks.values())).items():
                if cases := values * self.count(axes[:place], axes[place + 1 :]):
                    yield f"{self.backend} has no {what}", cases

    def cases(self, suite_name: str, nodes: int) -> Iterator[Case]:
        """Every case of the block; some of them may be equal."""
        row, values = self.row, {name: _there(lacks) for name, lacks in self.values.items()}
        settings = {name: has for name, has in values.items() if name not in INNER}
        for *chosen, work, dtype in product(
            *settings.values(), values["work"], values["dtype"]
        ):
            varied = Case(
                suite_name,
                self.backend,
                row.name,
                "",
                dtype,
                "",
                0,
                0,
                self.ranks,
                nodes=nodes,
                inexact=self.sweep.accuracy,
                **dict(zip(settings, chosen, strict=True)),
                **dict(work),
            )
            group_ranks = varied.group_ranks
            # Sizes are rounded down to whole elements of each block, and each point is there once.
            points = [(0, 0)]
            if row.sized:
                item_bytes = ITEM_BYTES[dtype]
                counts = (
                    row.count_for(size, group_ranks, item_bytes)
                    for size in size_points(self.sweep.size)
                )
                points = [
                    (row.size_bytes(n, group_ranks, item_bytes), n)
                    for n in dict.fromkeys(counts)
                ]
            # Nothing else runs while something is computed, and everybody computes.
            plain = varied.everybody and not varied.concurrent
            modes = [pair for pair in values["mode"] if plain or pair[0] != OVERLAP]
            for algorithm, op, root, in_place, (mode, computing), (
                size_bytes,
                count,
            ), variant in product(
                values["algorithm"],
                values["op"],
                values["root"],
                values["in_place"],
                modes,
                points,
                values["variant"],
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
                        variant=variant.name,
                        started_with=variant,
                    )


def offers(backend: str, name: str, value: object) -> bool:
    """Return whether ``backend`` has that value of the axis ``name``; the default is had by all."""
    return value == AXIS[name].default or capabilities_of(backend).has(name, value)


def expand(suite: Suite, context: ExpansionContext) -> tuple[Case, ...]:
    """Every case of ``suite``, each once, in the order in which they should run.

    Raises SuiteError when a value exists nowhere, when nothing is left, or when there are more than
    MOST_POINTS cases (found out before they are made); UsageError when ``context`` asks for the impossible.
    """
    for backend in context.backends or ():
        if backend not in backend_names():
            raise UsageError(
                f"backend {shown(backend)} is not known; {suggestion(backend, backend_names())}"
            )
    if context.ranks is not None and not 1 <= context.ranks <= MOST_RANKS:
        raise UsageError(f"{context.ranks} ranks cannot be; give 1 to {MOST_RANKS}")
    blocks: list[_Block] = []
    total = 0
    for index, sweep in enumerate(suite.sweep):
        _check_algorithms(suite, index, sweep, context)
        for block in _blocks(suite, sweep, context):
            blocks.append(block)
            # An empty block counts as well, or a suite of nothing but empty blocks could go on for long.
            total += max(block.count(block.values.values()), 1)
            if total > MOST_POINTS:
                raise suite.origin.error(
                    ("sweep", index) if len(suite.sweep) > 1 else ("sweep",),
                    f"asks for more than {MOST_POINTS:,} cases on {', '.join(_backends(suite, context))}; "
                    "take fewer sizes, dtypes or ranks",
                )
    distinct: dict[Case, Case] = {}
    for block in blocks:
        for case in block.cases(suite.name, context.nodes):
            # Of two sweeps for one case that which asks for accuracy, too, counts.
            if distinct.setdefault(case, case).inexact is None:
                distinct[case] = case
    cases = tuple(distinct.values())
    if not cases:
        raise suite.origin.error(("sweep",), _why_empty(suite, context))
    if suite.order == "interleaved":
        chance = random.Random(suite.seed)
        points: dict[Case, list[Case]] = {}
        for case in cases:
            points.setdefault(case.point, []).append(case)
        groups = list(points.values())
        chance.shuffle(groups)
        for group in groups:
            if len(group) > 1:
                chance.shuffle(group)
        cases = tuple(case for group in groups for case in group)
    return selected(cases, context.only)


def sweeps_elsewhere(suite: Suite, context: ExpansionContext) -> tuple[int, str]:
    """Return the number of sweeps that are for other backends alone, and these."""
    dropped = [each for each in suite.sweep if not _sweep_backends(suite, each, context)]
    names = dict.fromkeys(name for each in dropped for name in each.backends)
    return len(dropped), ", ".join(
        name for name in names if not capabilities_of(name).callables
    )


def left_out(suite: Suite, context: ExpansionContext) -> Counter[str]:
    """Number of cases that ``expand`` leaves out, by reason; equal ones count as often as asked for."""
    counts: Counter[str] = Counter()
    for block in (block for sweep in suite.sweep for block in _blocks(suite, sweep, context)):
        counts.update(dict(block.left_out()))
    return counts


def _backends(suite: Suite, context: ExpansionContext) -> tuple[str, ...]:
    if context.backends:
        return tuple(dict.fromkeys(context.backends))
    named = (context.auto_backends if name == "auto" else (name,) for name in suite.backends)
    return tuple(dict.fromkeys(chain.from_iterable(named)))


def _sweep_backends(suite: Suite, sweep: Sweep, context: ExpansionContext) -> tuple[str, ...]:
    """Of the suite's backends those that this sweep is for, and those that run the functions it names."""
    return tuple(
        name
        for name in _backends(suite, context)
        if name
        in (
            functions_of(sweep.algorithm).values()
            if capabilities_of(name).callables
            else sweep.backends
        )
    )


def _rank_counts(sweep: Sweep, context: ExpansionContext) -> tuple[int, ...]:
    # One rank communicates with nobody, so auto never means 1.
    rank_counts = (max(context.auto_ranks, 2),) if isinstance(sweep.ranks, str) else sweep.ranks
    if context.ranks is not None:
        rank_counts = (context.ranks,)
    return tuple(
        ranks for ranks in rank_counts if sweep.fewest_ranks <= ranks <= sweep.most_ranks
    )


def _blocks(suite: Suite, sweep: Sweep, context: ExpansionContext) -> Iterator[_Block]:
    for backend, name in product(_sweep_backends(suite, sweep, context), sweep.collective):
        row = collective(name)
        # A barrier waits: there is nothing to hide. What is set up is given back between samples.
        requested_modes = [
            mode for mode in sweep.values_of("mode") if mode != OVERLAP or row.moves_data
        ]
        requested_modes = ["isolated"] if name in SETUPS else requested_modes
        # A variant that sets nothing is the backend as it is.
        started = (
            each if offers(backend, "variant", each.name) else replace(each, name="")
            for each in suite.variants or (Variant(),)
        )
        # One that sets something, and that the backend cannot have, is left out.
        variants = {
            each: "" if each.name or each == Variant() else "variants" for each in started
        }
        modes: dict[tuple[str, str], str] = {}
        for mode in requested_modes:
            lack = "" if offers(backend, "mode", mode) else f"mode {mode}"
            meanwhile = sweep.values_of("overlap_with") if mode == OVERLAP else ("",)
            modes |= dict.fromkeys([(mode, computing) for computing in meanwhile], lack)
        # A backend that is not installed here can be planned with its default, and cannot be asked.
        added = {schedule for of, schedule in context.added if of == name}
        offered = (
            ()
            if sweep.algorithm == ("default",) and not added
            else context.algorithms_of(backend, name)
        )
        algorithms = _algorithms(sweep, backend, offered, name, added)
        if capabilities_of(backend).callables and all(modes.values()):
            modes["streaming", ""] = ""  # without a GPU functions run outside of graphs
        values = {
            axis.name: _values(axis, sweep, backend, row)
            for axis in SWEPT
            if axis.name not in ("mode", "overlap_with")
        }
        for ranks in _rank_counts(sweep, context):
            roots = range(ranks) if isinstance(sweep.root, str) else sweep.root
            # A root that so many ranks do not have is left out; with other numbers of ranks it may exist.
            missing = f"root of {ranks} ranks: "
            lacks = {root: f"{missing}{root}" if root >= ranks else "" for root in roots}
            every = {
                "mode": modes,
                "algorithm": algorithms,
                "root": lacks if row.rooted else {NO_ROOT: ""},
                **values,
                "work": _works(sweep, backend, row, ranks, context.nodes),
                "variant": variants,
            }
            yield _Block(sweep, backend, row, ranks, every)


def _algorithms(
    sweep: Sweep,
    backend: str,
    offered: Sequence[str],
    collective: str,
    added: Collection[str],
) -> Lacks:
    # Functions are for the backends that run them, which run nothing else.
    functions = functions_of(sweep.algorithm)
    if capabilities_of(backend).callables:
        return {word: "" for word, taker in functions.items() if taker == backend}
    bases = {"default", *map(_base, offered)}
    everything = {"all": offered or ("default",)}
    everything |= dict.fromkeys(functions, ())
    requested = [
        algorithm for word in sweep.algorithm for algorithm in everything.get(word, (word,))
    ]
    # Kernels that interpret schedules offer them behind a colon.
    requested += [algorithm for algorithm in offered if algorithm.rpartition(":")[2] in added]
    return {
        algorithm: (
            f"{collective} with algorithm {algorithm}" if _base(algorithm) not in bases else ""
        )
        for algorithm in requested
    }


def _values(axis: Axis, sweep: Sweep, backend: str, row: Collective) -> Lacks:
    """Of an axis that means nothing for a collective there is one value."""
    if axis.needs and not getattr(row, axis.needs):
        return {axis.blank: ""}
    if axis.name == "processes" and axis.name not in capabilities_of(backend).values:
        return {axis.default: ""}  # its ranks are what they are

    def lack(value: Any) -> str:
        if axis.name == "in_place":
            there = row.name in IN_PLACE_COLLECTIVES and offers(backend, axis.name, value)
            return "" if there or not value else f"{row.name} in place"
        if offers(backend, axis.name, value):
            return ""
        # Of an axis of which it has nothing all values are missing together.
        return (
            f"{axis.key} {value}" if axis.name in capabilities_of(backend).values else axis.key
        )

    return {value: lack(value) for value in sweep.values_of(axis.name)}


def _works(sweep: Sweep, backend: str, row: Collective, ranks: int, nodes: int) -> Lacks:
    """Groups, pairs, concurrent collectives and traffic of the sweep, each combination once, as pairs."""
    lacks: dict[tuple[tuple[str, Any], ...], str] = {}
    has_row = offers(backend, "collective", row.name)
    for work in works(sweep, row, ranks, offers(backend, "pair", "0>1"), nodes):
        missing = [name for name, value in work.items() if not offers(backend, name, value)]
        lacks[tuple(work.items())] = next(iter(missing), "") if has_row else row.name
        if len(lacks) > MOST_POINTS:
            break
    return lacks


def _base(algorithm: str) -> str:
    return algorithm if algorithm.startswith(MPI_PREFIX) else algorithm.split(":", 1)[0]


def _check_algorithms(
    suite: Suite, index: int, sweep: Sweep, context: ExpansionContext
) -> None:
    """Refuse a name that no backend in sight offers for any of the sweep's collectives."""
    named = [
        name
        for name in sweep.algorithm
        if name not in ("all", "default", *functions_of(sweep.algorithm))
    ]
    if not named:
        return
    # Who runs functions alone knows no other names: that these run elsewhere is no mistake.
    backends = [
        name
        for name in _sweep_backends(suite, sweep, context) or sweep.backends
        if not capabilities_of(name).callables
    ]
    offered = _offered(backends, sweep, context)
    if not backends or offered.issuperset(map(_base, named)):
        return
    # --backend may have taken away the one that knows the name: that leaves it out, it is no mistake.
    elsewhere = {*suite.backends, *context.auto_backends, *backends_of_auto(gpus=False)}
    anywhere = offered | _offered(elsewhere.intersection(sweep.backends), sweep, context)
    for name in named:
        if _base(name) not in anywhere:
            raise suite.origin.error(
                ("sweep", index, "algorithm"),
                f"{name!r} is no algorithm of {', '.join(backends)} for {', '.join(sweep.collective)}; "
                f"{suggestion(_base(name), sorted(offered)) if offered else 'write default'}",
            )


def _offered(backends: Iterable[str], sweep: Sweep, context: ExpansionContext) -> set[str]:
    bases: set[str] = set()
    for backend, name in product(backends, sweep.collective):
        # A backend that cannot even be asked offers nothing here.
        with suppress(CcbenchError):
            bases.update(map(_base, context.algorithms_of(backend, name)))
    return bases


def _why_empty(suite: Suite, context: ExpansionContext) -> str:
    backends = ", ".join(_backends(suite, context)) or "no backend"
    ranks = ", ".join(
        dict.fromkeys(str(n) for sweep in suite.sweep for n in _rank_counts(sweep, context)[:8])
    )
    nothing = (
        f"nothing is left to run on {backends} with {ranks} rank{'' if ranks == '1' else 's'}"
    )
    dropped, elsewhere = sweeps_elsewhere(suite, context)
    if dropped == len(suite.sweep):
        return f"{nothing}: its sweeps are for {elsewhere}"
    sweeps = (
        (sweep, count) for sweep in suite.sweep for count in _rank_counts(sweep, context)[:8]
    )
    reasons = {why_no_groups(*sweep_and_ranks, context.nodes) for sweep_and_ranks in sweeps}
    if "" not in reasons and len(reasons) == 1:
        return f"{nothing}: {reasons.pop()}"
    if lacking := "; ".join(list(left_out(suite, context))[:MOST_REASONS]):
        return f"{nothing}: {lacking}"
    return (
        f"{nothing}: take algorithms, dtypes, roots, placements, modes, groups and traffic that exist there "
        "and go together (nothing is concurrent with a group alone, a pair or a computation)"
    )


_SIZE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?\s*(?:[KMGT]i?)?B\b")
"""A size as plans and reports show it; labels have bytes."""


def selected(cases: tuple[Case, ...], only: str | None) -> tuple[Case, ...]:
    """Return the cases whose label has every word of ``only``, all without one. UsageError where none has."""
    if not (only or "").strip():
        return cases
    sizes = [parse_size(match[0]) for match in _SIZE.finditer(only or "")]
    words = _SIZE.sub(" ", only or "").split()
    chosen = []
    for case in cases:
        label = case.label
        is_of_size = all(re.search(rf"(?<!\d){size} B\b", label) for size in sizes)
        if is_of_size and all(word in label for word in words):
            chosen.append(case)
    if not chosen:
        raise UsageError(
            f"only {shown(only)} matches none of {len(cases)} cases, such as {cases[0].label!r}"
        )
    return tuple(chosen)
