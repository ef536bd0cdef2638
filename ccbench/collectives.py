"""The table of collectives: what each rank holds before and after, and how busbw is counted.

A rank's memory is a row of numbered *slots*. ``inputs`` says which slots are filled from the rank's
input buffer (in buffer order), ``outputs`` which slots are read off into its output buffer, and
``origins`` which contributions an output slot must then hold: everything else here (the proof's goal,
the NumPy reference, the verification of timed data) follows from those three.

Collectives whose buffer is split between ranks have exactly one slot a block (``blocked``), so they
have ``ranks`` pieces; the others may be cut into any number of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ccbench.errors import UsageError

SlotsOf = Callable[[int, int, int, int], range]
"""(rank, ranks, pieces, root) -> the slots, in buffer order; empty where the rank has no buffer."""


@dataclass(frozen=True)
class Collective:
    """One row of the table.

    name: as in nccl-tests, with underscores.
    reduces: contributions are combined with an op.
    rooted: one rank is told apart.
    blocked: buffers are made of one block per rank (pieces == ranks).
    inputs, outputs: see SlotsOf.
    origins: (rank, output index, ranks, root) -> the (rank, input index) pairs whose combination the
        output slot must hold; index counts slots within that rank's buffer.
    bus_factor: ranks -> busbw / algbw, from nccl-tests doc/PERFORMANCE.md.
    moves_data: False for barrier, whose only effect is that every rank has heard of every rank.
    """

    name: str
    reduces: bool
    rooted: bool
    blocked: bool
    inputs: SlotsOf
    outputs: SlotsOf
    origins: Callable[[int, int, int, int], Sequence[tuple[int, int]]]
    bus_factor: Callable[[int], float]
    moves_data: bool = True

    def slots(self, ranks: int, pieces: int) -> int:
        """Number of slots that inputs and outputs span; a schedule may add work slots after them."""
        spans = [
            span
            for rank in {0, ranks - 1}
            for span in (self.inputs(rank, ranks, pieces, 0), self.outputs(rank, ranks, pieces, 0))
        ]
        return max([span.stop for span in spans if len(span)] + [pieces])

    def input_count(self, count: int, ranks: int, rank: int, root: int) -> int:
        """Elements of ``rank``'s input buffer for a case of ``count``."""
        return self._elements(self.inputs(rank, ranks, ranks, root), count)

    def output_count(self, count: int, ranks: int, rank: int, root: int) -> int:
        """Elements of ``rank``'s output buffer for a case of ``count``."""
        return self._elements(self.outputs(rank, ranks, ranks, root), count)

    def _elements(self, slots: range, count: int) -> int:
        if not self.moves_data:
            return 0
        return len(slots) * count if self.blocked else count if len(slots) else 0

    def size_bytes(self, count: int, ranks: int, item_bytes: int) -> int:
        """nccl-tests' "size" of a case: the largest buffer of one rank."""
        if not self.moves_data:
            return 0
        return count * item_bytes * (ranks if self.blocked else 1)

    def count_for(self, size_bytes: int, ranks: int, item_bytes: int) -> int:
        """The largest count whose size does not exceed ``size_bytes`` (nccl-tests rounds down too)."""
        if not self.moves_data:
            return 0
        return size_bytes // item_bytes // (ranks if self.blocked else 1)


def _all(rank: int, ranks: int, pieces: int, root: int) -> range:
    return range(pieces)


def _own(rank: int, ranks: int, pieces: int, root: int) -> range:
    return range(rank, rank + 1)


def _all_at_root(rank: int, ranks: int, pieces: int, root: int) -> range:
    return range(pieces) if rank == root else range(0)


def _second_half(rank: int, ranks: int, pieces: int, root: int) -> range:
    return range(pieces, 2 * pieces)


def _from_everyone(rank: int, index: int, ranks: int, root: int) -> list[tuple[int, int]]:
    return [(origin, index) for origin in range(ranks)]


def _own_block_from_everyone(rank: int, index: int, ranks: int, root: int) -> list[tuple[int, int]]:
    return [(origin, rank) for origin in range(ranks)]


def _whole_from_owner(rank: int, index: int, ranks: int, root: int) -> list[tuple[int, int]]:
    return [(index, 0)]


def _from_root(rank: int, index: int, ranks: int, root: int) -> list[tuple[int, int]]:
    return [(root, index)]


def _own_block_from_root(rank: int, index: int, ranks: int, root: int) -> list[tuple[int, int]]:
    return [(root, rank)]


def _transposed(rank: int, index: int, ranks: int, root: int) -> list[tuple[int, int]]:
    return [(index, rank)]


def _from_left(rank: int, index: int, ranks: int, root: int) -> list[tuple[int, int]]:
    return [((rank - 1) % ranks, index)]


def _ring_share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _one(ranks: int) -> float:
    return 1.0


def _row(
    name: str,
    inputs: SlotsOf,
    outputs: SlotsOf,
    origins: Callable[[int, int, int, int], Sequence[tuple[int, int]]],
    bus_factor: Callable[[int], float],
    *,
    reduces: bool = False,
    rooted: bool = False,
    blocked: bool = False,
    moves_data: bool = True,
) -> Collective:
    return Collective(
        name, reduces, rooted, blocked, inputs, outputs, origins, bus_factor, moves_data
    )


COLLECTIVES: dict[str, Collective] = {
    row.name: row
    for row in (
        _row("all_reduce", _all, _all, _from_everyone, lambda n: 2 * (n - 1) / n, reduces=True),
        _row("all_gather", _own, _all, _whole_from_owner, _ring_share, blocked=True),
        _row(
            "reduce_scatter", _all, _own, _own_block_from_everyone, _ring_share,
            reduces=True, blocked=True,
        ),
        _row("broadcast", _all_at_root, _all, _from_root, _one, rooted=True),
        _row("reduce", _all, _all_at_root, _from_everyone, _one, reduces=True, rooted=True),
        _row("all_to_all", _all, _second_half, _transposed, _ring_share, blocked=True),
        _row("gather", _own, _all_at_root, _whole_from_owner, _ring_share, rooted=True, blocked=True),
        _row("scatter", _all_at_root, _own, _own_block_from_root, _ring_share, rooted=True, blocked=True),
        _row("send_recv", _all, _second_half, _from_left, _one),
        _row("barrier", _all, _all, _from_everyone, _one, moves_data=False),
    )
}  # fmt: skip


def collective(name: str) -> Collective:
    """The row called ``name``; UsageError lists the names when there is none."""
    try:
        return COLLECTIVES[name]
    except KeyError:
        known = ", ".join(COLLECTIVES)
        raise UsageError(f"collective: {name!r} is not known; one of {known}") from None
