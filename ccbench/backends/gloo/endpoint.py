"""One launched rank that measures Gloo."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import ControlChannel
from ccbench.backends.cpu.memory import Word
from ccbench.backends.gloo.calls import (
    COPYING,
    SILENT,
    Call,
    ConcurrentCalls,
    Place,
    Tensor,
    options_of,
)
from ccbench.backends.gloo.groups import meet, open_group
from ccbench.backends.rank_buffers import OWN, RankBuffers
from ccbench.backends.rank_endpoint import RankEndpoint
from ccbench.cases import OVERLAP, Case
from ccbench.verification import Array

LOOKED_AFTER = "Gloo's own thread runs the collective, which is asked between repetitions whether it is over"
WAITED_FOR = (
    "the collective does not tell when it is over, and is waited for after its share of the computation"
)
AT_ONCE = "each collective runs in the thread of a process group of its own"


class GlooEndpoint(RankEndpoint):
    """Implements ``ccbench.backends.endpoint.TeamEndpoint`` for a rank in a process of its own."""

    def __init__(self, exchange: ControlChannel) -> None:
        super().__init__(exchange)
        torch = import_module("torch")
        torch.set_num_threads(1)
        self._route = meet(exchange)
        self._everyone = open_group(self._route, "everyone", self.rank, self.ranks)
        self._groups: dict[tuple[tuple[int, ...], int], Any] = {}
        self._barrier_options = options_of("barrier")
        self._broadcast_options = options_of("broadcast")
        self._gather_options = options_of("all_gather")
        self._decision = np.zeros(1, np.int64)
        self._decision_tensor = torch.from_numpy(self._decision)
        # Each rank has an address of its own; rank 0's stands for all where versions must be alike.
        way = exchange.broadcast(str(self._route).encode() if self.rank == 0 else None, 0).decode()
        self.version = f"torch {torch.__version__}, {way}"

    # -- one case ------------------------------------------------------------------------------------------

    def _group_of(self, members: tuple[int, ...], lane: int = OWN) -> Any:
        """The process group of ``members``, who all ask for it at the same time; kept for other cases.

        Nobody waits in a circle: groups of one lane are disjoint, and those of the case's own are opened
        first.
        """
        if lane == OWN and members == tuple(range(self.ranks)):
            return self._everyone
        if (members, lane) not in self._groups:
            name = f"{lane} of {members}"
            group_rank = members.index(self.rank)
            self._groups[members, lane] = open_group(self._route, name, group_rank, len(members))
        return self._groups[members, lane]

    def bind(self) -> Any:
        """The groups' calls, with options and tensors made beforehand."""
        calls = [self._call_of(lane) if lane.part else None for lane in self._lanes]
        if self.other:
            return ConcurrentCalls(calls, self.times.running if self.times else None)
        assert calls[0] is not None, "a rank that stands by binds nothing"
        if self.case.mode == OVERLAP:
            self.background = calls[0]
        return calls[0].launch

    def _call_of(self, lane: RankBuffers) -> Call:
        scratch = np.empty(0, lane.source.dtype)
        if lane.case.collective == "reduce" and not lane.case.in_place:
            scratch = np.empty_like(lane.input)
        tensors = (_tensor(lane.input), _tensor(lane.output), _tensor(scratch))
        if lane.case.pair:  # the group of all has both, under the numbers that the suite gave
            return Call(lane.case, Place(self._everyone, self.rank, self.ranks, *tensors))
        assert lane.part is not None, "a rank that stands by binds nothing"
        group = self._group_of(lane.part.members, lane.number)
        return Call(lane.part.case, Place(group, lane.part.group_rank, len(lane.part.members), *tensors))

    def tells_apart(self, other: Case) -> bool:
        """Where at least one of the two says when it is over."""
        return self.case.collective not in SILENT or other.collective not in SILENT

    def remark(self) -> str:
        """Where a copy is part of the time, that is said."""
        said = [super().remark()]
        if not self.rank and not self.case.in_place and self.case.collective in COPYING:
            said.append("Gloo works in place: the copy to the other buffer is part of the time")
        if not self.rank and self.case.mode == OVERLAP:
            said.append(WAITED_FOR if self.case.collective in SILENT else LOOKED_AFTER)
        if not self.rank and self.case.concurrent:
            said.append(AT_ONCE)
        return "; ".join(text for text in said if text)

    def close(self) -> None:
        """Say goodbye: connections are closed when nobody needs them any more."""
        self._everyone.barrier(self._barrier_options).wait()
        self._groups.clear()
        self._everyone = None

    # -- numbers from all ranks ----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Gloo's own, so that ranks leave it as they do in programs."""
        self._everyone.barrier(self._barrier_options).wait()
        self.control.words[self.control.index(self.rank, Word.BARRIER)] += 1

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        self._decision[0] = value
        self._everyone.broadcast([self._decision_tensor], self._broadcast_options).wait()
        return int(self._decision[0])

    def gather_numbers(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """Every rank's array, by rank: shape (ranks, elements). Collective."""
        told = np.empty((self.ranks, len(mine)), np.float64)
        if len(mine):
            self._everyone._allgather_base(
                _tensor(told.reshape(-1)), _tensor(np.ascontiguousarray(mine)), self._gather_options
            ).wait()
        return told


def _tensor(array: Array) -> Tensor:
    """A tensor on the same memory."""
    torch = import_module("torch")
    if array.dtype.kind == "V" or array.dtype.name == "bfloat16":  # ml_dtypes' type, which torch cannot read
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
