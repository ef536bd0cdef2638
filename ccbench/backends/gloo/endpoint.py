"""One launched rank that measures Gloo."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.background import ComputingEndpoint
from ccbench.backends.base import ControlChannel
from ccbench.backends.beside import LANE
from ccbench.backends.cpu.memory import Word
from ccbench.backends.gloo.background import (
    AT_ONCE,
    LOOKED_AFTER,
    SILENT,
    WAITED_FOR,
    BothAtOnce,
    GlooBackground,
)
from ccbench.backends.gloo.calls import COPYING, Begin, Call, Place, Tensor, prepared, started
from ccbench.backends.gloo.groups import meet, open_group
from ccbench.cases import OVERLAP, Case
from ccbench.verification import Array


class GlooEndpoint(ComputingEndpoint):
    """Implements ``ccbench.backends.crew.TeamEndpoint`` for a rank in a process of its own."""

    def __init__(self, exchange: ControlChannel) -> None:
        super().__init__(exchange)
        torch = import_module("torch")
        distributed = import_module("torch._C._distributed_c10d")
        torch.set_num_threads(1)
        self._route = meet(exchange)
        self._everyone = open_group(self._route, "everyone", self.rank, self.ranks)
        self._groups: dict[tuple[tuple[int, ...], int], Any] = {}
        self._barrier_options = distributed.BarrierOptions()
        self._broadcast_options = distributed.BroadcastOptions()
        self._gather_options = distributed.AllgatherOptions()
        self._decision = np.zeros(1, np.int64)
        self._decision_tensor = torch.from_numpy(self._decision)
        # Each rank has an address of its own; rank 0's stands for all where versions must be alike.
        way = exchange.broadcast(str(self._route).encode() if self.rank == 0 else None, 0).decode()
        self.version = f"torch {torch.__version__}, {way}"

    # -- one case ------------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; returns the algorithm that runs. Collective."""
        self.background = None
        return super().prepare(case)

    def _group_of(self, members: tuple[int, ...], lane: int = 0) -> Any:
        """The process group of ``members``, who all ask for it at the same time; kept for other cases.

        Nobody waits in a circle: groups of one lane are disjoint, and those of lane 0 are opened first.
        """
        if lane == 0 and members == tuple(range(self.ranks)):
            return self._everyone
        if (members, lane) not in self._groups:
            name = f"{lane} of {members}"
            seat = members.index(self.rank)
            self._groups[members, lane] = open_group(self._route, name, seat, len(members))
        return self._groups[members, lane]

    def bind(self) -> Call:
        """The group's call, with options and tensors made beforehand."""
        if self.beside:
            seconds = self.part_times.running if self.part_times else None
            own = started(*self._own_side()) if self.member >= 0 else None
            names = (self.part.collective, self.beside.part.collective)
            return BothAtOnce((own, self._started_beside()), names, seconds)
        if self.case.mode == OVERLAP:
            self.background = background = GlooBackground(started(*self._own_side()), self.case.collective)
            return background.launch
        return prepared(*self._own_side())

    def _own_side(self) -> tuple[Case, Place]:
        """The case as those see it whom this rank communicates with, and this rank's side of it."""
        scratch = np.empty(0, self.source.dtype)
        if self.part.collective == "reduce" and not self.case.in_place:
            scratch = np.empty_like(self._input)
        tensors = (_tensor(self._input), _tensor(self._output), _tensor(scratch))
        if self.case.pair:  # the group of all has both, under the numbers that the suite gave
            return self.case, Place(self._everyone, self.rank, self.ranks, *tensors)
        assert self._seat is not None, "a rank that stands by binds nothing"
        group = self._group_of(self._seat.members)
        return self.part, Place(group, self.member, self.part.ranks, *tensors)

    def _started_beside(self) -> Begin | None:
        beside = self.beside
        if beside is None or beside.seat is None:
            return None
        scratch = np.empty_like(beside.source) if beside.part.collective == "reduce" else beside.source[:0]
        group = self._group_of(beside.seat.members, LANE)
        tensors = (_tensor(beside.source), _tensor(beside.target), _tensor(scratch))
        return started(beside.part, Place(group, beside.member, beside.part.ranks, *tensors))

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
