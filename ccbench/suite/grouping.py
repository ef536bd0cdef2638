"""Communication partners in a sweep: layouts, groups, concurrent collectives, uneven traffic.

A sweep says ``layout: {tp: 2}`` and ``groups: [tp, dp]``; a case says ``tp of tp2-cp1-ep1-dp4-pp1``. Only
with a number of ranks at hand is one made of the other, and what so many ranks cannot form is left out there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ccbench.cases.axes import ALL_GROUPS, UNEVEN
from ccbench.collectives import BALANCED, COLLECTIVES, Collective, read_traffic
from ccbench.errors import UsageError
from ccbench.groups import (
    DENSE_AXES,
    EXPERT_AXES,
    LAYOUT_AXES,
    MEGATRON_ORDER,
    ORDERS,
    Layout,
    PairingRound,
    every_pair,
    full_order,
    make_layout,
    parse_groups,
    parse_pair,
    read_groups,
)
from ccbench.suite.readers import (
    MOST_RANKS,
    MisfitError,
    read_at,
    refuse_unknown,
    several,
    whole_number,
    words,
)
from ccbench.units import shown, suggestion

LayoutSizes = tuple[tuple[str, int | str], ...]
"""A layout as a sweep writes it: keys with values, without a number of ranks."""

NO_LAYOUT = "none"
NOTHING = "nothing"

PAIRS_OF_RING = "ring"
PAIR_SETS = (PAIRS_OF_RING, "each", "both")
"""The ring shift of all ranks, every ordered pair one way, every pair both ways."""

GROUP_MODES = ("concurrent", "isolated", "each")
"""All groups at once, the first group alone, every group alone by turns."""

UNITS = ("rank", "node")
"""Units of which rounds of pairs are made."""

NODE = "node"
"""Groups of the ranks of each node."""

MOST_ROUNDS = 1024

_PAIRING = re.compile(r"matching:([1-9][0-9]{0,3})(?::([0-9]{1,9}))?", re.ASCII)

MOST_GROUPED_RANKS = 2**17
"""Ranks that are told apart in groups."""

MOST_PAIRED_RANKS = 500
"""Their pairs are more cases than a suite may have, so those of more ranks need not be counted up."""

MOST_UNEVEN_RANKS = 1024
"""Ranks of a group with uneven traffic: amounts are a matrix of ranks x ranks."""

CONCURRENT_COLLECTIVES = tuple(name for name, row in COLLECTIVES.items() if row.moves_data)

_LAYOUT_KEYS = ("order", *LAYOUT_AXES, "etp")
_AXIS_NAMES = {*DENSE_AXES, *EXPERT_AXES}


# -- readers: from what a file says to what a Sweep holds ---------------------------------------------------


def read_layout(value: Any) -> LayoutSizes:
    """``{order: tp-cp-ep-dp-pp, tp: 2}`` by key; () for none."""
    if value in (NO_LAYOUT, ()):
        return ()
    if isinstance(value, tuple):
        value = dict(value)
    if not isinstance(value, Mapping) or not value:
        raise MisfitError(
            f"{shown(value)} is not a layout; write sizes of axes such as {{tp: 2, pp: 2}}"
        )
    refuse_unknown(value, _LAYOUT_KEYS)

    def ranks_of(size: Any) -> int:
        return whole_number(size, 1, MOST_RANKS, "number of ranks")

    sizes: dict[str, int | str] = {
        name: read_at((name,), _order if name == "order" else ranks_of, value[name])
        for name in _LAYOUT_KEYS
        if name in value
    }
    if "dp" in sizes:
        # Without dp it takes what the other axes leave of the ranks; with it, all sizes are said.
        ranks = math.prod(int(sizes.get(name, 1)) for name in DENSE_AXES)
        if ranks > MOST_RANKS:
            raise MisfitError(f"layout: of {ranks} ranks; write at most {MOST_RANKS}")
        read_at((), lambda every: make_layout(every, ranks), sizes)
    return tuple(sizes.items())


def _order(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 64:
        raise MisfitError(
            f"{shown(value)} is not an order; write {MEGATRON_ORDER} or {', '.join(sorted(ORDERS))}"
        )
    try:
        Layout(full_order(ORDERS.get(value, value)))
    except UsageError:
        raise MisfitError(
            f"{shown(value)} is not an order; name {', '.join(LAYOUT_AXES)}, each at most once, joined by "
            "'-' and the fastest varying first"
        ) from None
    return value


def read_group_expressions(value: Any) -> tuple[str, ...]:
    """Expressions and axes; ``all`` for all ranks together; a list of lists of ranks is one value."""
    groups = value if _is_list(value) else ()
    if groups and all(
        _is_list(group) and all(isinstance(rank, int) for rank in group) for group in groups
    ):
        value = [value]
    return several("expression", _groups)(value)


def _groups(item: Any) -> str:
    if item in ("all", ""):
        return ""
    if is_axis(item) or item in (NODE, "round_robin"):
        return str(item)
    if isinstance(item, str) and (match := _PAIRING.fullmatch(item)):
        if int(match[1]) > MOST_ROUNDS:
            raise MisfitError(f"{match[1]} matchings; write at most {MOST_ROUNDS}")
        return item
    return read_groups(
        item if isinstance(item, str) else str(item).replace("(", "[").replace(")", "]")
    )


def is_axis(item: Any) -> bool:
    """Return whether ``item`` names axes of a layout, joined by ``-``; MisfitError if none can be."""
    if not isinstance(item, str) or not item or not set(item.split("-")) <= _AXIS_NAMES:
        return False
    read_at((), Layout().size, item)
    return True


read_group_modes = words("group mode", GROUP_MODES)


def read_within(value: Any) -> int | str:
    """Return the scope of pairs: 'all', 'rail', or blocks of so many consecutive units."""
    return (
        value
        if value in ("all", "rail")
        else whole_number(value, 2, MOST_RANKS, "number of nodes")
    )


def _concurrent(item: Any) -> str:
    """A collective, with ``on`` and groups of its own; ``nothing`` for none."""
    if item in (NOTHING, ""):
        return ""
    parts = item.partition(" on ") if isinstance(item, str) else (item, "", "")
    name, on, groups = (part.strip() if isinstance(part, str) else part for part in parts)
    if name not in CONCURRENT_COLLECTIVES:
        raise MisfitError(
            f"{shown(name)} is not a collective that can run concurrently; "
            f"{suggestion(name, (NOTHING, *CONCURRENT_COLLECTIVES))}"
        )
    return f"{name} on {_groups(groups) or 'all'}" if on else name


read_concurrent = several("collective", _concurrent)


def _is_list(item: Any) -> bool:
    return isinstance(item, (list, tuple))


def read_traffics(value: Any) -> tuple[str, ...]:
    """``balanced``, ``zipf:1.2``, ``hot:0.5``; a list of lists of numbers is one value."""
    rows = value if _is_list(value) else ()
    if rows and all(_is_list(row) and not any(map(_is_list, row)) for row in rows):
        value = [value]
    return several(
        "traffic", lambda item: read_traffic(item if isinstance(item, str) else _as_text(item))
    )(value)


def _as_text(item: Any) -> str:
    if not _is_list(item):
        raise MisfitError(
            f"{shown(item)} is no traffic; write {BALANCED}, 'zipf:1.2', 'hot:0.5' or a matrix of amounts"
        )
    try:
        return json.dumps(item)
    except (TypeError, ValueError, OverflowError):
        raise MisfitError(
            f"{shown(item)} is no matrix of amounts; write a row for each source, such as [[0, 1], [2, 0]]"
        ) from None


def _pair(item: Any) -> str:
    """``ring``, ``each``, ``both``, or a pair such as ``0>3`` and ``0<>3``."""
    if item in PAIR_SETS:
        return str(item)
    try:
        return str(parse_pair(item if isinstance(item, str) else shown(item)))
    except UsageError as problem:
        raise MisfitError(f"{problem}; or one of {', '.join(PAIR_SETS)}") from None


read_pairs = several("pair", _pair)


class Partners(Protocol):
    """The fields of a sweep that say who communicates with whom."""

    ranks: tuple[int, ...] | str
    layout: LayoutSizes
    groups: tuple[str, ...]
    per: str
    within: int | str
    group_mode: tuple[str, ...]
    concurrent: tuple[str, ...]
    pairs: tuple[str, ...]
    traffic: tuple[str, ...]


# -- what fits together in one sweep ------------------------------------------------------------------------


def check_layout(sweep: Partners) -> None:
    """MisfitError where axes are named without a layout, a layout without axes, or ranks do not fit it."""
    named = [("groups", axis) for axis in sweep.groups if axis and is_axis(axis)]
    named += [
        ("concurrent", axis)
        for _, axis in map(_parts_of, sweep.concurrent)
        if axis and is_axis(axis)
    ]
    if not sweep.layout:
        for key, axis in named:
            raise MisfitError(
                f"{axis!r} is an axis; say of what, such as 'layout: {{tp: 2}}'", key
            )
        return
    if not named:
        raise MisfitError("is used by nothing; name its axes: 'groups: [tp, dp]'", "layout")
    sizes = dict(sweep.layout)
    for key, axis in named:
        # What is left over, dp, may have any size, and what experts leave over likewise.
        parts = set(axis.split("-"))
        if parts <= {"tp", "cp", "ep", "pp"} and all(sizes.get(name, 1) == 1 for name in parts):
            raise MisfitError(
                f"{axis!r} has one rank in this layout; give it a size in 'layout'", key
            )
    if isinstance(sweep.ranks, tuple):
        problems = []
        for ranks in sweep.ranks:
            try:
                make_layout(sizes, ranks)
            except UsageError as problem:  # noqa: PERF203  # of several numbers of ranks one that fits is enough
                problems.append(str(problem))
        if len(problems) == len(sweep.ranks):
            raise MisfitError(problems[0].removeprefix("layout: "), "layout")


def _parts_of(concurrent: str) -> tuple[str, str]:
    """Return (collective, groups) of a concurrent collective; no groups where it has none of its own."""
    name, _, groups = concurrent.partition(" on ")
    return name, groups


# -- with a number of ranks at hand -------------------------------------------------------------------------

Work = dict[str, Any]
"""``pair``, ``groups``, ``active_group``, ``concurrent`` and ``traffic`` of a case."""


def works(
    sweep: Partners, row: Collective, ranks: int, pairs: bool, nodes: int = 1
) -> Iterator[Work]:
    """Values of the axes of ``Work`` that the sweep asks for and this collective has on so many ranks.

    nodes: over which the ranks are spread, in order.
    pairs: whether single pairs can be asked for at all; else they are not even counted up.
    """
    for groups in _groupings(sweep, ranks, nodes):
        members = parse_groups(groups, ranks)
        # One group is always alone, which says nothing.
        groups_of_mode = {
            "concurrent": (ALL_GROUPS,),
            "isolated": (0,),
            "each": range(len(members)),
        }
        numbers = [number for name in sweep.group_mode for number in groups_of_mode[name]]
        for alone in dict.fromkeys(numbers) if len(members) > 1 else (ALL_GROUPS,):
            for concurrent in _concurrents(sweep, row, ranks, groups):
                if concurrent and alone != ALL_GROUPS:
                    continue  # with a group alone nothing else runs
                # A pair is alone already.
                is_free = pairs and not groups and not concurrent
                named = [name for name in sweep.pairs if is_free or name == PAIRS_OF_RING]
                for traffic in _traffics(sweep.traffic, row, len(members[0])):
                    for pair in pairs_of(named, row, ranks):
                        yield {
                            "pair": pair,
                            "groups": groups,
                            "active_group": alone,
                            "concurrent": concurrent,
                            "traffic": traffic,
                        }


def pairs_of(names: Sequence[str], row: Collective, ranks: int) -> Iterator[str]:
    """The pairs that ``names`` mean, '' for the ring; of send_recv alone."""
    for name in names:
        if name == PAIRS_OF_RING:
            yield ""
        elif row.name != "send_recv":
            continue
        elif name in PAIR_SETS:
            yield from map(str, every_pair(min(ranks, MOST_PAIRED_RANKS), both=name == "both"))
        elif max(parse_pair(name).source, parse_pair(name).target) < ranks:
            yield name


def _groupings(sweep: Partners, ranks: int, nodes: int) -> Iterator[str]:
    """Those that so many ranks can form; one of all ranks in their order is the plain case.

    Axes and expressions that make the same groups are one, and one of single ranks is none; lists are taken
    as they are written.
    """
    visited = set()
    for expression in (
        expression
        for group in sweep.groups
        for expression in rounds_of(group, sweep, ranks, nodes)
    ):
        try:
            spelled = _spelled(expression, sweep.layout, ranks)
            groups = parse_groups(spelled, ranks)
        except UsageError:
            continue
        if spelled and not spelled.startswith("["):
            if groups in visited or len(groups[0]) == 1:
                continue
            visited.add(groups)
        yield "" if groups == (tuple(range(ranks)),) else spelled


def rounds_of(expression: str, sweep: Partners, ranks: int, nodes: int) -> Iterator[str]:
    """Yield the expression of each round of ``matching:3`` or ``round_robin``; any other as it is.

    Of pairs of nodes nothing where there is one node, and of ``node`` all ranks then.
    """
    node_ranks = ranks // nodes
    if expression == NODE:
        yield f"rank // {node_ranks}" if nodes > 1 else ""
        return
    match = _PAIRING.fullmatch(expression)
    if not match and expression != "round_robin":
        yield expression
        return
    by_node = sweep.per == "node" or sweep.within == "rail"
    units, unit_ranks = (nodes, node_ranks) if by_node else (ranks, 1)
    block = min(sweep.within, units) if isinstance(sweep.within, int) else units
    rounds, seed = block - 1 + block % 2 if units > 1 else 0, 0
    kind = "round_robin"
    if match:
        kind, rounds, seed = "matching", min(rounds, int(match[1])), int(match[2] or 0)
    for number in range(rounds):
        made = PairingRound(
            kind, number, seed, unit_ranks, block % units, sweep.within == "rail"
        )
        yield str(made)


def _spelled(expression: str, layout: LayoutSizes, ranks: int) -> str:
    """Return the expression of cases: an axis with its layout. UsageError where so many ranks cannot form it."""
    if expression and ranks > MOST_GROUPED_RANKS:
        raise UsageError(
            f"{ranks} ranks are too many for groups; take at most {MOST_GROUPED_RANKS}"
        )
    if expression and is_axis(expression):
        expression = f"{expression} of {make_layout(dict(layout), ranks)}"
    parse_groups(expression, ranks)
    return expression


def why_no_groups(sweep: Partners, ranks: int, nodes: int) -> str:
    """Reason why so many ranks form none of the sweep's groups, the first one's; '' where they form some."""
    if any(True for _ in _groupings(sweep, ranks, nodes)):
        return ""
    if ranks % nodes and (
        sweep.per == NODE or sweep.groups[0] == NODE or sweep.within == "rail"
    ):
        return f"groups {sweep.groups[0]}: {ranks} ranks are no equal numbers on {nodes} nodes"
    expression = next(rounds_of(sweep.groups[0], sweep, ranks, nodes), "")
    if not expression:
        return f"groups {sweep.groups[0]}: pairs need two nodes or more (--nodes), not {nodes}"
    try:
        expression = _spelled(expression, sweep.layout, ranks)
    except UsageError as problem:
        return str(problem)
    return f"{expression} puts every rank into a group of its own; take groups of two or more"


def _concurrents(sweep: Partners, row: Collective, ranks: int, groups: str) -> Iterator[str]:
    """Yield concurrent collectives: not the same of the same ranks, and none with a barrier."""
    if not row.moves_data:
        yield ""
        return
    for concurrent in sweep.concurrent:
        name, own = _parts_of(concurrent)
        if own and own != "all":
            try:
                own = _spelled(own, sweep.layout, ranks)
            except UsageError:
                continue
            members = parse_groups(own, ranks)
            if len(members[0]) == 1:
                continue
            own = "all" if members == (tuple(range(ranks)),) else own
        if own and parse_groups("" if own == "all" else own, ranks) == parse_groups(
            groups, ranks
        ):
            own = ""
        if own or name != row.name:
            yield f"{name} on {own}" if own else name


def _traffics(traffics: Sequence[str], row: Collective, group_ranks: int) -> Iterator[str]:
    """Of all_to_all_v alone; a matrix has a row for each rank of a group."""
    if row.name != UNEVEN:
        yield ""
        return
    for traffic in traffics:
        # A matrix has a row for each rank of a group; formulas are of any number of ranks.
        is_matrix = traffic.startswith("[")
        fits = (
            len(json.loads(traffic)) == group_ranks
            if is_matrix
            else group_ranks <= MOST_UNEVEN_RANKS
        )
        if not traffic or fits:
            yield traffic
