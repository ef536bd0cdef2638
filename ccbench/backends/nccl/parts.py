"""What of a case runs at the same time: groups of ranks, the one pair, and the collective beside another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ccbench.backends.base import ControlChannel
from ccbench.backends.kernels.layout import ALIGNMENT_BYTES, RankBuffers, rank_buffers, rounded_up
from ccbench.backends.nccl.types import Amounts
from ccbench.cases import ALL_GROUPS, UNEVEN, Case
from ccbench.collectives import collective, sent_elements
from ccbench.groups import Groups, Pair, format_ranks, parse_groups
from ccbench.verification import GROUP_SALTS

BARRIER_COUNT = 1
BARRIER_DTYPE = "uint8"
"""NCCL has no barrier: as torch.distributed does, a collective on one element stands for it."""

OWN_LANE, BESIDE_LANE, COMPUTING_LANE = 0, 1, 2
"""A lane is a stream, and a communicator where something is communicated: what is in different lanes runs at
the same time on one device."""


@dataclass(frozen=True)
class Part:
    """One collective of some ranks.

    case: as its members see it, who count from 0. members: their ranks in the team. number: of the part, for
    data of its own. together: the groups whose communicators are made at once, () for the one of all ranks; a
    group that runs alone has the communicator that it has beside the others. pair: in ranks of the team.
    """

    name: str
    case: Case
    members: tuple[int, ...]
    number: int
    lane: int = OWN_LANE
    together: Groups = ()
    pair: Pair | None = None

    def salted(self, salt: int) -> int:
        """The salt of this part's data."""
        return salt + self.number * GROUP_SALTS

    def place(self, rank: int) -> int:
        """What the team's ``rank`` is among the members."""
        return self.members.index(rank)

    def amounts(self, rank: int) -> Amounts | None:
        """What ``rank`` sends to and gets from every member, where that is not the same everywhere."""
        if self.case.collective != UNEVEN:
            return None
        sent = sent_elements(self.case.traffic, self.case.count, self.case.ranks)
        place = self.place(rank)
        return Amounts(tuple(sent[place].tolist()), tuple(sent[:, place].tolist()))

    def receives(self, rank: int) -> bool:
        """Whether ``rank`` has a result: of a pair one way only the target has."""
        return self.pair is None or self.pair.both or rank == self.pair.target


def parts_of(case: Case) -> tuple[Part, ...]:
    """Every part, the case's own first, then those of what runs beside it, which may have other groups."""
    beside = case.concurrent_case
    lanes = [case, *([beside] if beside else [])]
    found = [part for lane, one in enumerate(lanes) for part in _parts_of_lane(one, lane, len(lanes) > 1)]
    return tuple(replace(part, number=number) for number, part in enumerate(found))


def _parts_of_lane(case: Case, lane: int, several: bool) -> Iterator[Part]:
    groups = case.members
    seen = replace(case, ranks=case.group_ranks, groups="", active_group=ALL_GROUPS, pair="", concurrent="")
    for members in groups:
        yield Part(
            name=_name(members, case, len(groups) > 1, several),
            case=seen,
            members=members,
            number=0,
            lane=lane,
            together=parse_groups(case.groups, case.ranks) if case.groups else (),
            pair=case.one_pair,
        )


def _name(members: Sequence[int], case: Case, groups: bool, several: bool) -> str:
    words = [f"ranks {format_ranks(members)}"] if groups else []
    return " ".join([*([case.collective] if several else []), *words])


def part_samples(
    parts: Sequence[Part], samples: Mapping[int, Mapping[int, float]], exchange: ControlChannel
) -> tuple[tuple[float, ...], ...]:
    """What each part took in each sample: the longest of its ranks, in any process. Collective.

    samples: number of the sample -> number of the part -> seconds of the ranks here.
    """
    mine = [samples.get(sample, {}) for sample in sorted(samples)]
    told = [json.loads(one) for one in exchange.all_gather(json.dumps(mine).encode())]
    return tuple(
        tuple(
            max(float(one.get(str(part.number), 0.0)) for one in process)
            for process in zip(*told, strict=True)
        )
        for part in parts
    )


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
