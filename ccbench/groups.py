"""Ranks that communicate with each other: groups by an expression, and single pairs.

An expression gives every rank a colour, and ranks of one colour are a group (MPI_Comm_split):
``rank // 4``, ``rank % 2``, ``rank & 3``, ``rank | 3``; nccl-tests' spellings of the same (``/4``, ``DIV 4``,
``%2``, ``MOD 2``, ``&0x3``, ``AND 0x3``, ``|0x3``, ``OR 0x3``: NCCL_TESTS_SPLIT in nccl-tests' README.md); or
the groups themselves, ``[[0, 1], [2, 3]]``; or those of an axis of a parallel layout, ``tp of tp2-dp4``. One
round of pairs is ``matching 2 per 8 ranks`` (two nodes of 8 ranks each are a group, drawn at random) or
``round_robin 5``: see ``PairingRound``. A concurrent collective has groups of its own,
``all_gather on rank % 2``: so a rank may be in several groups
at once. A pair is ``0>3`` (one way) or ``0<>3`` (both ways).

A layout gives every axis a size and all axes an order, the fastest varying first: ``tp2-cp1-ep1-dp4-pp1``
puts ranks 0 and 1 into one tensor parallel group and ranks 0, 2, 4, 6 into one data parallel group. The rules
are those of Megatron-LM (``RankGenerator`` in megatron/core/parallel_state.py, default order tp-cp-ep-dp-pp);
DeepSpeed's ``PipeModelDataParallelTopology`` (axes pipe, data, model; the last varies fastest) is the same
order with cp = ep = 1. Experts see the same ranks through axes of their own, etp x ep x edp x pp: ``ep``
takes its ranks from the data and context parallel ones, so it does not multiply the number of ranks.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ccbench.errors import UsageError
from ccbench.units import lists_of

Groups = tuple[tuple[int, ...], ...]

LAYOUT_AXES = ("tp", "cp", "ep", "dp", "pp")
MEGATRON_ORDER = "-".join(LAYOUT_AXES)

ORDERS = {"megatron": MEGATRON_ORDER, "deepspeed": MEGATRON_ORDER}
"""Names of orders; see the module for why these two are one."""

DENSE_AXES = ("tp", "cp", "dp", "pp")
EXPERT_AXES = ("etp", "ep", "edp")

_AS_EXPERT = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
"""Name of an axis of the order among the experts; context parallelism does not exist there."""

_WRITTEN = re.compile(
    r"((?:tp|cp|ep|dp|pp)[0-9]{1,7})(-(?:etp|tp|cp|ep|dp|pp)[0-9]{1,7}){0,5}", re.ASCII
)
_OF = re.compile(r"([a-z]{2,3}(?:-[a-z]{2,3}){0,3}) of ([a-z0-9-]{3,80})", re.ASCII)


@dataclass(frozen=True)
class Layout:
    """Sizes of the axes and their order, the fastest varying first.

    etp: tensor parallel ranks within an expert, ``tp`` unless said. Raises UsageError where experts and the
    rest would not need equally many ranks, or an order does not name each axis once.
    """

    order: str = MEGATRON_ORDER
    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    etp: int = 0

    def __post_init__(self) -> None:
        if sorted(self.order.split("-")) != sorted(LAYOUT_AXES):
            raise UsageError(
                f"layout: order {self.order!r} does not name each of {', '.join(LAYOUT_AXES)} once"
            )
        for name in LAYOUT_AXES:
            if getattr(self, name) < 1:
                raise UsageError(
                    f"layout: {name} is {getattr(self, name)}; write a number from 1 on"
                )
        if self.ranks % (self.expert_tp * self.ep * self.pp):
            raise UsageError(
                f"layout: {self.ranks} ranks do not divide into experts' etp {self.expert_tp} x ep {self.ep} "
                f"x pp {self.pp}; choose an ep that divides {self.ranks // self.pp} / {self.expert_tp}"
            )

    def __str__(self) -> str:
        """The one spelling: every axis in order, ``-etp1`` after them where it is not tp."""
        text = "-".join(f"{name}{getattr(self, name)}" for name in self.order.split("-"))
        return text if self.expert_tp == self.tp else f"{text}-etp{self.expert_tp}"

    @property
    def ranks(self) -> int:
        """tp x cp x dp x pp."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_tp(self) -> int:
        """Tensor parallel ranks within an expert."""
        return self.etp or self.tp

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same experts."""
        return self.ranks // (self.expert_tp * self.ep * self.pp)

    def size(self, axis: str) -> int:
        """Ranks of one group of ``axis``, or of axes joined by ``-`` such as ``dp-cp``."""
        return math.prod(self._sizes(axis)[name] for name in axis.split("-"))

    def groups(self, axis: str) -> Groups:
        """The groups of an axis, each in rank order; ``dp-cp`` joins several axes of one kind.

        UsageError for an axis that does not exist, or for one of the experts joined with one of the rest.
        """
        sizes = self._sizes(axis)
        joined = axis.split("-")
        strides: dict[str, int] = {}
        stride = 1
        for name, size in sizes.items():
            strides[name] = stride
            stride *= size
        # Axes in their order, the fastest first, so that a group's ranks ascend.
        inside = [name for name in sizes if name in joined]
        outside = [name for name in sizes if name not in joined]
        offsets = offsets_of([(sizes[name], strides[name]) for name in inside])
        starts = offsets_of([(sizes[name], strides[name]) for name in outside])
        return tuple(tuple(start + offset for offset in offsets) for start in sorted(starts))

    def _sizes(self, axis: str) -> dict[str, int]:
        """Sizes by axis, in order, of the kind (dense or experts) that ``axis`` is of."""
        names = axis.split("-")
        order = self.order.split("-")
        if len(set(names)) == len(names) and set(names) <= set(DENSE_AXES):
            return {name: getattr(self, name) for name in order if name in DENSE_AXES}
        if len(set(names)) == len(names) and set(names) <= {*EXPERT_AXES, "pp"}:
            of = {"etp": self.expert_tp, "ep": self.ep, "edp": self.expert_dp, "pp": self.pp}
            return {
                _AS_EXPERT[name]: of[_AS_EXPERT[name]] for name in order if name in _AS_EXPERT
            }
        raise UsageError(
            f"layout: {axis!r} is no axis; write one of {', '.join((*DENSE_AXES, *EXPERT_AXES))}, or several "
            "of tp, cp, dp, pp, or of etp, ep, edp, joined by '-'"
        )


def offsets_of(axes: Sequence[tuple[int, int]]) -> list[int]:
    """Every sum of (number below size) x stride, the first axis varying fastest."""
    offsets = [0]
    for size, stride in axes:
        offsets = [offset + number * stride for number in range(size) for offset in offsets]
    return offsets


def make_layout(values: Mapping[str, int | str], ranks: int) -> Layout:
    """A layout from a mapping such as ``{tp: 4, pp: 2}``; without ``dp``, as large as ``ranks`` allows.

    ``order`` may be a name (megatron, deepspeed) and may leave out axes of size 1. UsageError where a key is
    unknown or the sizes do not make ``ranks`` ranks.
    """
    unknown = sorted(set(values) - {*LAYOUT_AXES, "etp", "order"})
    if unknown:
        raise UsageError(
            f"layout: {unknown[0]!r} is no axis; write order, {', '.join(LAYOUT_AXES)} or etp"
        )
    order = str(values.get("order", MEGATRON_ORDER))
    order = full_order(ORDERS.get(order, order))
    sizes = {name: int(values.get(name, 1)) for name in (*LAYOUT_AXES, "etp") if name in values}
    if "dp" not in sizes:
        product = math.prod(sizes.get(name, 1) for name in ("tp", "cp", "pp"))
        if product < 1 or ranks % product:
            raise UsageError(
                f"layout: tp x cp x pp = {product} does not divide {ranks} ranks; choose sizes whose "
                f"product divides {ranks}, or another number of ranks"
            )
        sizes["dp"] = ranks // product
    made = Layout(order, **sizes)
    if made.ranks != ranks:
        raise UsageError(
            f"layout: {made} is of {made.ranks} ranks, not of {ranks}; leave dp out to fill them"
        )
    return made


def full_order(order: str) -> str:
    """An order with the axes that it leaves out where Megatron has them: before the next one of the rest."""
    named = order.split("-") if order else []
    for place, axis in reversed(list(enumerate(LAYOUT_AXES))):
        if axis not in named:
            later = [
                named.index(layout_ax)
                for layout_ax in LAYOUT_AXES[place + 1 :]
                if layout_ax in named
            ]
            named.insert(later[0] if later else len(named), axis)
    return "-".join(named)


@lru_cache(maxsize=1024)
def parse_layout(text: str) -> Layout:
    """``tp2-cp1-ep1-dp4-pp1``, as ``str(Layout)`` writes it; axes left out have size 1. UsageError if not."""
    if not _WRITTEN.fullmatch(text):
        raise UsageError(
            f"layout: {text[:80]!r} is no layout; write axes with sizes, such as tp2-dp4-pp2"
        )
    pairs = [re.fullmatch(r"([a-z]+)([0-9]+)", part) for part in text.split("-")]
    sizes = [(pair.group(1), int(pair.group(2))) for pair in pairs if pair]
    names = [name for name, _ in sizes]
    if len(set(names)) < len(names):
        raise UsageError(f"layout: {text!r} names an axis twice")
    order = full_order("-".join(name for name in names if name != "etp"))
    return Layout(order, **dict(sizes))


def read_layout_groups(text: str) -> str | None:
    """The one spelling of ``tp of tp2-dp4``; None where ``text`` is nothing of the kind."""
    parsed = _OF.fullmatch(text.strip())
    if not parsed:
        return None
    layout = parse_layout(parsed.group(2))
    layout.groups(parsed.group(1))
    return f"{parsed.group(1)} of {layout}"


def layout_groups(text: str, ranks: int) -> Groups:
    """The groups that ``tp of tp2-dp4`` names. UsageError where the layout is not of ``ranks`` ranks."""
    axis, written = text.split(" of ")
    layout = parse_layout(written)
    if layout.ranks != ranks:
        raise UsageError(
            f"groups: {written} is a layout of {layout.ranks} ranks, not of {ranks}"
        )
    return layout.groups(axis)


_ROUND = re.compile(
    r"(matching|round_robin) ([0-9]{1,6})(?: seed ([0-9]{1,9}))?(?: per ([0-9]{1,6}) ranks)?"
    r"(?: within ([0-9]{1,6}))?( by rail)?",
    re.ASCII,
)

PAIRINGS = ("matching", "round_robin")


@dataclass(frozen=True)
class PairingRound:
    """Round ``number`` of pairs of units, all of them at once: ``matching 2 seed 7 per 8 ranks within 16``.

    A unit is ``unit_ranks`` consecutive ranks, such as those of a node; a pair of units is a group of all
    their ranks or, ``by_rail``, a group for each place in the unit. Pairs are made inside blocks of
    ``within`` consecutive units, such as the nodes of one leaf switch; 0: among all. In n - 1 rounds (n, one
    unit sitting out in each, where n is odd) of a round robin every unit meets every other once: the circle
    method, one unit fixed, the others turning. Matchings are rounds of a round robin in an order drawn by
    ``seed``, of units numbered by it: each a random perfect matching, and no pair twice before all were had.
    """

    kind: str
    number: int
    seed: int = 0
    unit_ranks: int = 1
    within: int = 0
    by_rail: bool = False

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.number}{f' seed {self.seed}' if self.seed else ''}"
            f"{f' per {self.unit_ranks} ranks' if self.unit_ranks > 1 else ''}"
            f"{f' within {self.within}' if self.within else ''}{' by rail' if self.by_rail else ''}"
        )

    def groups(self, ranks: int) -> Groups:
        """The groups of ``ranks`` ranks. UsageError where these are no two whole units."""
        units, rest = divmod(ranks, self.unit_ranks)
        if rest or units < 2:
            raise UsageError(
                f"groups: {ranks} ranks are not two or more nodes of {self.unit_ranks}, which pairs need"
            )
        within, members = self.within or units, list[tuple[int, ...]]()
        for first in range(0, units, within):
            for source, target in self.pairs(min(within, units - first)):
                starts = (
                    (first + source) * self.unit_ranks,
                    (first + target) * self.unit_ranks,
                )
                places = range(self.unit_ranks)
                if self.by_rail:
                    members += [tuple(start + place for start in starts) for place in places]
                else:
                    members.append(tuple(start + place for start in starts for place in places))
        if not members:
            raise UsageError(
                f"groups: {self} pairs nobody of {units} units; take blocks of two or more"
            )
        return tuple(sorted(members))

    def pairs(self, units: int) -> list[tuple[int, int]]:
        """The pairs of ``units`` units, numbered from 0, the lower number first."""
        rounds = units - 1 + units % 2
        if rounds < 1:
            return []
        number, names = self.number % rounds, list(range(units))
        if self.kind == "matching":
            draw = random.Random(self.seed)
            order = list(range(rounds))
            draw.shuffle(names)
            draw.shuffle(order)
            number = order[number]
        # Of an odd number of units the one that meets the fixed place, which is empty, sits out.
        pairs = [] if units % 2 else [(units - 1, number)]
        pairs += [
            ((number + step) % rounds, (number - step) % rounds)
            for step in range(1, (rounds + 1) // 2)
        ]
        return sorted(
            (min(pair), max(pair))
            for pair in ((names[source], names[target]) for source, target in pairs)
        )


def parse_round(text: str) -> PairingRound | None:
    """``matching 2 per 8 ranks`` as a value; None where ``text`` is nothing of the kind."""
    parsed = _ROUND.fullmatch(" ".join(text.split()))
    if not parsed:
        return None
    kind, number, seed, unit_ranks, within, rail = parsed.groups()
    return PairingRound(
        kind,
        int(number),
        int(seed or 0),
        max(1, int(unit_ranks or 1)),
        int(within or 0),
        bool(rail),
    )


_COLOURS: dict[str, Callable[[int, int], int]] = {
    "//": lambda rank, number: rank // number,
    "%": lambda rank, number: rank % number,
    "&": lambda rank, number: rank & number,
    "|": lambda rank, number: rank | number,
}

_SPELLINGS = {"/": "//", "div": "//", "mod": "%", "and": "&", "or": "|"}

_EXPRESSION = re.compile(
    r"(?:ranks?)?\s*(//|/|%|&|\||div|mod|and|or)\s*(0x[0-9a-f]{1,8}|[0-9]{1,9})",
    re.ASCII | re.IGNORECASE,
)

_PAIR = re.compile(r"([0-9]{1,6})\s*(<>|>)\s*([0-9]{1,6})", re.ASCII)

LONGEST_LIST = 100_000
"""Letters of a list of groups."""


@dataclass(frozen=True)
class Pair:
    """Two ranks; what ``source`` sends arrives at ``target``, and the other way too where ``both``."""

    source: int
    target: int
    both: bool

    def __str__(self) -> str:
        return f"{self.source}{'<>' if self.both else '>'}{self.target}"


def read_groups(text: str) -> str:
    """The one spelling of an expression or list that cases are filed under; UsageError when it is none."""
    if text.lstrip().startswith("["):
        groups = lists_of(text, LONGEST_LIST)
        members = [rank for group in groups for rank in group]
        # ``true`` is an int for Python, and no rank.
        sound = all(groups) and all(
            type(rank) is int and 0 <= rank < 1_000_000 for rank in members
        )
        if not members or not sound:
            raise UsageError(
                f"groups: {text[:80]} is no list of lists of ranks; write [[0, 1], [2, 3]]"
            )
        if len(set(members)) < len(members):
            raise UsageError(
                f"groups: a rank is in {text[:80]} twice; a rank can be in one group at a time"
            )
        return json.dumps(groups)
    one_round = parse_round(text)
    if one_round is not None:
        return str(one_round)
    of_layout = read_layout_groups(text)
    if of_layout is not None:
        return of_layout
    parsed = _EXPRESSION.fullmatch(text.strip())
    if not parsed:
        raise UsageError(
            f"{text[:80]!r} does not say who belongs together; write 'rank // 4', 'rank % 2', 'rank & 3' or "
            "lists such as [[0, 1], [2, 3]]"
        )
    word = parsed.group(1).lower()
    operator, number = _SPELLINGS.get(word, word), int(parsed.group(2), 0)
    if operator in ("//", "%") and number == 0:
        raise UsageError(f"{text.strip()!r} divides by nothing; write a number from 1 on")
    return f"rank {operator} {number}"


@lru_cache(maxsize=1024)
def parse_groups(text: str, ranks: int) -> Groups:
    """The groups of ``ranks`` ranks; '' is one group of all.

    UsageError where groups differ in size (their figures could not be told by one), leave the ranks, or
    share one.
    """
    if not text:
        return (tuple(range(ranks)),)
    spelled = read_groups(text)
    groups: Groups
    if spelled[0] == "[":
        groups = tuple(map(tuple, json.loads(spelled)))
        if beyond := [rank for group in groups for rank in group if rank >= ranks]:
            raise UsageError(f"groups: {beyond[0]} is no rank of {ranks}; ranks count from 0")
    elif one_round := parse_round(spelled):
        groups = one_round.groups(ranks)
    elif " of " in spelled:
        groups = layout_groups(spelled, ranks)
    else:
        _, operator, number = spelled.split()
        of_colour: dict[int, list[int]] = {}
        for rank in range(ranks):
            of_colour.setdefault(_COLOURS[operator](rank, int(number)), []).append(rank)
        groups = tuple(map(tuple, of_colour.values()))
    sizes = sorted({len(group) for group in groups})
    if len(sizes) > 1:
        raise UsageError(
            f"groups: {spelled} makes groups of {sizes[0]} and {sizes[-1]} of {ranks} ranks; "
            "choose ranks or an expression that give equal ones"
        )
    return groups


@dataclass(frozen=True)
class Concurrent:
    """Concurrent collective, on ``groups`` of its own ('' for all ranks together).

    own_groups: False where it runs on the groups of the case itself.
    """

    collective: str
    groups: str = ""
    own_groups: bool = False

    def __str__(self) -> str:
        return (
            f"{self.collective} on {self.groups or ALL}" if self.own_groups else self.collective
        )


ALL = "all"
"""Words that a user writes for all ranks together."""


def read_concurrent(text: str) -> str:
    """The one spelling of ``all_gather`` or ``all_gather on rank % 2``; whether the collective exists is not
    looked at. UsageError where it is neither.
    """
    name, on, groups = (part.strip() for part in text.partition(" on "))
    if not re.fullmatch(r"[a-z][a-z_]{0,31}", name, re.ASCII) or (on and not groups):
        raise UsageError(
            f"concurrent: {text[:80]!r} is no collective with groups; write 'all_gather' or "
            "'all_gather on rank % 2'"
        )
    return (
        str(Concurrent(name, "" if groups == ALL else read_groups(groups), True))
        if groups
        else name
    )


def parse_concurrent(text: str) -> Concurrent:
    """Return the concurrent collective that ``text`` says, as ``read_concurrent`` spells it."""
    name, on, groups = read_concurrent(text).partition(" on ")
    return Concurrent(name, "" if groups == ALL else groups, bool(on))


def format_ranks(ranks: Sequence[int]) -> str:
    """``0-3``, ``0, 2, 4``: runs of neighbours by their ends."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_pair(text: str) -> Pair:
    """``0>3`` or ``0<>3``; UsageError when it is neither, or when both are the same rank."""
    parsed = _PAIR.fullmatch(text.strip())
    if not parsed or int(parsed.group(1)) == int(parsed.group(3)):
        raise UsageError(
            f"{text[:80]!r} is no pair of ranks; write '0>3' for one way or '0<>3' for both ways at once"
        )
    return Pair(int(parsed.group(1)), int(parsed.group(3)), parsed.group(2) == "<>")


def every_pair(ranks: int, both: bool) -> tuple[Pair, ...]:
    """Each ordered pair one way, or each pair once both ways."""
    return tuple(
        Pair(source, target, both)
        for source in range(ranks)
        for target in range(source + 1 if both else 0, ranks)
        if source != target
    )
