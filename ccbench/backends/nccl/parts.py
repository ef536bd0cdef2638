"""What of a case runs at the same time: groups of ranks, the one pair, and the collective beside another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ccbench.cases import NO_OP, NO_ROOT, Case
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes
from ccbench.groups import Pair
from ccbench.kernels.layout import ALIGNMENT_BYTES, RankBuffers, rank_buffers, rounded_up
from ccbench.verification import GROUP_SALTS

BARRIER_COUNT = 1
BARRIER_DTYPE = "uint8"
"""NCCL has no barrier: as torch.distributed does, a collective on one element stands for it."""

OWN_LANE, BESIDE_LANE = 0, 1
"""A lane is a stream and a communicator: what is in different lanes runs at the same time on one device."""


@dataclass(frozen=True)
class Part:
    """One collective of some ranks.

    case: as its members see it, who count from 0. members: their ranks in the team. number: of the part, for
    data of its own. grouped: it needs a communicator of its members alone. pair: in ranks of the team.
    """

    name: str
    case: Case
    members: tuple[int, ...]
    number: int
    lane: int = OWN_LANE
    grouped: bool = False
    pair: Pair | None = None

    def salted(self, salt: int) -> int:
        """The salt of this part's data."""
        return salt + self.number * GROUP_SALTS

    def place(self, rank: int) -> int:
        """What the team's ``rank`` is among the members."""
        return self.members.index(rank)

    def receives(self, rank: int) -> bool:
        """Whether ``rank`` has a result: of a pair one way only the target has."""
        return self.pair is None or self.pair.both or rank == self.pair.target


def parts_of(case: Case) -> tuple[Part, ...]:
    """Every part, the case's own first."""
    groups = case.members
    own = replace(case, ranks=case.group_ranks, groups="", pair="")
    lanes = [own, *([beside_case(own)] if case.beside else [])]
    several = len(lanes) > 1
    return tuple(
        Part(
            name=_name(members, one, len(groups) > 1, several),
            case=replace(one, beside=""),
            members=members,
            number=lane * len(groups) + number,
            lane=lane,
            grouped=bool(case.groups),
            pair=case.one_pair,
        )
        for lane, one in enumerate(lanes)
        for number, members in enumerate(groups)
    )


def beside_case(own: Case) -> Case:
    """The collective beside, of the same size; never in place, so that it stands any number of launches."""
    row = collective(own.beside)
    size = item_bytes(own.dtype)
    count = row.count_for(own.size_bytes, own.ranks, size)
    op = (own.op if own.op not in (NO_OP, "premulsum") else "sum") if row.reduces else NO_OP
    return replace(
        own,
        collective=row.name,
        beside="",
        count=count,
        size_bytes=row.size_bytes(count, own.ranks, size),
        op=op,
        root=0 if row.rooted else NO_ROOT,
        in_place=False,
    )


def _name(members: Sequence[int], case: Case, groups: bool, several: bool) -> str:
    words = ([f"ranks {_ranges(members)}"] if groups else []) + ([case.collective] if several else [])
    return " ".join(words)


def _ranges(ranks: Sequence[int]) -> str:
    """``0-3`` of 0, 1, 2, 3 and ``0,2,4`` of others."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


@dataclass(frozen=True)
class Copies:
    """Where a rank's buffers for one part are in an allocation: ``number`` of them, each as ``one`` says.

    first: offset of the first. Collectives of one group call have buffers of their own, so that each one's
    result can be checked and none waits for another's.
    """

    one: RankBuffers
    number: int
    first: int
    total_bytes: int

    def offsets(self) -> range:
        """Where each copy begins."""
        stride = max(self.one.total_bytes, ALIGNMENT_BYTES)
        return range(self.first, self.first + self.number * stride, stride)


def alike_bytes(part: Part) -> int:
    """What every member's allocation must have where all register it together: the most that one needs."""
    return max(copies_for(part, rank).total_bytes for rank in part.members)


def copies_for(part: Part, rank: int) -> Copies:
    """The team's ``rank``'s buffers for ``part``; a barrier has one element in and one out."""
    case = part.case
    one = rank_buffers(case, part.place(rank))
    if not collective(case.collective).moves_data:
        one = RankBuffers(0, BARRIER_COUNT, ALIGNMENT_BYTES, BARRIER_COUNT, 2 * ALIGNMENT_BYTES)
    stride = max(one.total_bytes, ALIGNMENT_BYTES)
    total = rounded_up(case.misalignment_bytes + case.aggregation * stride, ALIGNMENT_BYTES)
    return Copies(one, case.aggregation, case.misalignment_bytes, total)
