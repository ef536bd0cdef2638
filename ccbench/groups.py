"""Which ranks communicate with each other: groups by an expression, and single pairs.

An expression gives every rank a colour, and ranks of one colour are a group (MPI_Comm_split):
``rank // 4``, ``rank % 2``, ``rank & 3``, ``rank | 3``; nccl-tests' spellings of the same (``/4``, ``DIV 4``,
``%2``, ``MOD 2``, ``&0x3``, ``AND 0x3``, ``|0x3``, ``OR 0x3``: NCCL_TESTS_SPLIT in nccl-tests' README.md); or
the groups themselves, ``[[0, 1], [2, 3]]``; or those of an axis of a parallel layout, ``tp of tp2-dp4``
(``ccbench.layouts``). What runs beside a collective has groups of its own, ``all_gather on rank % 2``: so a
rank may be in several groups at once. A pair is ``0>3`` (one way) or ``0<>3`` (both ways).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ccbench.errors import UsageError
from ccbench.layouts import layout_groups, read_layout_groups

Groups = tuple[tuple[int, ...], ...]

_COLOURS: dict[str, Callable[[int, int], int]] = {
    "//": lambda rank, number: rank // number,
    "%": lambda rank, number: rank % number,
    "&": lambda rank, number: rank & number,
    "|": lambda rank, number: rank | number,
}

_SPELLINGS = {"/": "//", "div": "//", "mod": "%", "and": "&", "or": "|"}

_EXPRESSION = re.compile(
    r"(?:ranks?)?\s*(//|/|%|&|\||div|mod|and|or)\s*(0x[0-9a-f]{1,8}|[0-9]{1,9})", re.ASCII | re.IGNORECASE
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
        return json.dumps(_listed(text))
    of_layout = read_layout_groups(text)
    if of_layout is not None:
        return of_layout
    found = _EXPRESSION.fullmatch(text.strip())
    if not found:
        raise UsageError(
            f"{text[:80]!r} does not say who belongs together; write 'rank // 4', 'rank % 2', 'rank & 3' or "
            "lists such as [[0, 1], [2, 3]]"
        )
    word = found.group(1).lower()
    operator, number = _SPELLINGS.get(word, word), int(found.group(2), 0)
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
    groups = _spelled_groups(spelled, ranks)
    sizes = sorted({len(group) for group in groups})
    if len(sizes) > 1:
        raise UsageError(
            f"groups: {spelled} makes groups of {sizes[0]} and {sizes[-1]} of {ranks} ranks; "
            "choose ranks or an expression that give equal ones"
        )
    return groups


def _spelled_groups(spelled: str, ranks: int) -> Groups:
    if spelled[0] == "[":
        return _of_list(json.loads(spelled), ranks)
    return layout_groups(spelled, ranks) if " of " in spelled else _of_colours(spelled, ranks)


def _of_colours(spelled: str, ranks: int) -> Groups:
    _, operator, number = spelled.split()
    colour = _COLOURS[operator]
    groups: dict[int, list[int]] = {}
    for rank in range(ranks):
        groups.setdefault(colour(rank, int(number)), []).append(rank)
    return tuple(tuple(group) for group in groups.values())


def _of_list(groups: list[list[int]], ranks: int) -> Groups:
    members = [rank for group in groups for rank in group]
    beyond = [rank for rank in members if rank >= ranks]
    if beyond:
        raise UsageError(f"groups: {beyond[0]} is no rank of {ranks}; ranks count from 0")
    return tuple(tuple(group) for group in groups)


def _listed(text: str) -> list[list[int]]:
    """Lists of ranks, none of them twice."""
    groups: Any = None
    with suppress(ValueError, RecursionError):
        groups = json.loads(text) if len(text) <= LONGEST_LIST else None
    sound = isinstance(groups, list) and groups and all(isinstance(one, list) and one for one in groups)
    members = [rank for group in groups for rank in group] if sound and isinstance(groups, list) else []
    if not members or not all(type(rank) is int and 0 <= rank < 1_000_000 for rank in members):
        raise UsageError(f"groups: {text[:80]} is no list of lists of ranks; write [[0, 1], [2, 3]]")
    if len(set(members)) < len(members):
        raise UsageError(f"groups: a rank is in {text[:80]} twice; a rank can be in one group at a time")
    found: list[list[int]] = groups
    return found


@dataclass(frozen=True)
class Beside:
    """What runs at the same time: a collective, on ``groups`` of its own ('' for all ranks together).

    own_groups: False where it runs on the groups of the case itself.
    """

    collective: str
    groups: str = ""
    own_groups: bool = False

    def __str__(self) -> str:
        return f"{self.collective} on {self.groups or ALL}" if self.own_groups else self.collective


ALL = "all"
"""What a user writes for all ranks together."""


def read_beside(text: str) -> str:
    """The one spelling of ``all_gather`` or ``all_gather on rank % 2``; whether the collective exists is not
    looked at. UsageError where it is neither.
    """
    name, on, groups = (part.strip() for part in text.partition(" on "))
    if not re.fullmatch(r"[a-z][a-z_]{0,31}", name, re.ASCII) or (on and not groups):
        raise UsageError(
            f"beside: {text[:80]!r} is no collective with groups; write 'all_gather' or "
            "'all_gather on rank % 2'"
        )
    return str(Beside(name, "" if groups == ALL else read_groups(groups), True)) if groups else name


def parse_beside(text: str) -> Beside:
    """What ``read_beside`` spelled."""
    name, on, groups = read_beside(text).partition(" on ")
    return Beside(name, "" if groups == ALL else groups, bool(on))


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
    found = _PAIR.fullmatch(text.strip())
    if not found or int(found.group(1)) == int(found.group(3)):
        raise UsageError(
            f"{text[:80]!r} is no pair of ranks; write '0>3' for one way or '0<>3' for both ways at once"
        )
    return Pair(int(found.group(1)), int(found.group(3)), found.group(2) == "<>")


def every_pair(ranks: int, both: bool) -> tuple[Pair, ...]:
    """Each ordered pair one way, or each pair once both ways."""
    return tuple(
        Pair(one, other, both)
        for one in range(ranks)
        for other in range(one + 1 if both else 0, ranks)
        if one != other
    )
