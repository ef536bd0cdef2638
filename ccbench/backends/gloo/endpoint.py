"""One launched rank that measures Gloo."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.apart import ApartEndpoint
from ccbench.backends.cpu.memory import Word
from ccbench.backends.gloo.calls import COPYING, Call, Place, Tensor, prepared
from ccbench.backends.gloo.groups import meet, open_group
from ccbench.exchange import Exchange
from ccbench.verification import Array


class GlooEndpoint(ApartEndpoint):
    """Implements ``ccbench.backends.crew.TeamEndpoint`` for a rank in a process of its own."""

    def __init__(self, rank: int, ranks: int, exchange: Exchange) -> None:
        super().__init__(exchange)
        torch = import_module("torch")
        distributed = import_module("torch._C._distributed_c10d")
        torch.set_num_threads(1)
        self._route = meet(exchange)
        self._everyone = open_group(self._route, "everyone", rank, ranks)
        self._groups: dict[tuple[tuple[int, ...], ...], Any] = {}
        self._barrier_options = distributed.BarrierOptions()
        self._broadcast_options = distributed.BroadcastOptions()
        self._gather_options = distributed.AllgatherOptions()
        self._decision = np.zeros(1, np.int64)
        self._decision_tensor = torch.from_numpy(self._decision)
        # Each rank has an address of its own; rank 0's stands for all where versions must be alike.
        way = exchange.broadcast(str(self._route).encode() if rank == 0 else None, 0).decode()
        self.version = f"torch {torch.__version__}, {way}"

    # -- one case ------------------------------------------------------------------------------------------

    def bind(self) -> Call:
        """The group's call, with options and tensors made beforehand."""
        scratch = np.empty(0, self.source.dtype)
        if self.part.collective == "reduce" and not self.case.in_place:
            scratch = np.empty_like(self._input)
        group = self._group()
        if self.case.pair:  # the group of all has both, under the numbers that the suite gave
            place = self._place_of(self._everyone, self.rank, self.ranks, scratch)
            return prepared(self.case, place)
        return prepared(self.part, self._place_of(group, self.member, self.part.ranks, scratch))

    def _place_of(self, group: Any, rank: int, ranks: int, scratch: Array) -> Place:
        return Place(group, rank, ranks, _tensor(self._input), _tensor(self._output), _tensor(scratch))

    def _group(self) -> Any:
        """The process group that this rank's part runs on; opened once and kept."""
        members = self.case.members
        if self.case.pair or len(members) == 1:
            return self._everyone
        if members not in self._groups:
            mine = next(group for group in members if self.rank in group)
            name = f"groups {len(self._groups)} of {mine}"
            self._groups[members] = open_group(self._route, name, self.member, self.part.ranks)
        return self._groups[members]

    def remark(self) -> str:
        """Where a copy is part of the time, that is said."""
        said = [super().remark()]
        if not self.rank and not self.case.in_place and self.case.collective in COPYING:
            said.append("Gloo works in place: the copy to the other buffer is part of the time")
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
