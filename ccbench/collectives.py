"""The table of collectives: what each rank holds before and after, and how busbw is counted.

A rank's memory is a row of numbered *slots*. ``inputs`` says which slots are filled from the rank's
input buffer (in buffer order), ``outputs`` which slots are read off into its output buffer, and
``origins`` which contributions an output slot must then hold: everything else here (the proof's goal,
the verification of timed data) follows from those three. ``reference`` says the same a second time, by
hand and with NumPy, so that either can be tested against the other.

Collectives whose buffer is split between ranks have exactly one slot a block (``blocked``), so they
have ``ranks`` pieces; the others may be cut into any number of pieces. Blocks are of one size, but for those
of all_to_all_v: which slot goes where does not depend on how much is in it.

Traffic says who sends how much to whom in an all_to_all_v. ``balanced``: as much to everyone. ``zipf:S``: the
k-th rank gets a share proportional to 1 / (k + 1)^S, from every source alike: a few experts are asked for
most. ``hot:F``: rank 0 gets the share F, the others the rest
evenly. ``[[1, 2], [3, 4]]``: relative amounts, a row for each source. The rank with the most to send sends
``count`` x ranks elements, which is the case's size; the others in proportion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ccbench.errors import UsageError
from ccbench.units import lists_of, suggestion

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Buffer = NDArray[Any]
    Amounts = NDArray[np.int64]
    Shares = NDArray[np.float64]

OPS = ("sum", "prod", "min", "max", "avg")
"""Operations that combine contributions; avg is the sum divided by the ranks."""

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
    moves_data: False for SETUPS and for barrier, whose only effect is that all have heard of all.
    sized: there is a buffer, so that the case has a size.
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
    sized: bool = True

    def slots(self, ranks: int, pieces: int) -> int:
        """Number of slots that inputs and outputs span; a schedule may add work slots after them."""
        spans = [
            span
            for rank in {0, ranks - 1}
            for span in (
                self.inputs(rank, ranks, pieces, 0),
                self.outputs(rank, ranks, pieces, 0),
            )
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
        if not self.sized:
            return 0
        return count * item_bytes * (ranks if self.blocked else 1)

    def count_for(self, size_bytes: int, ranks: int, item_bytes: int) -> int:
        """The largest count whose size does not exceed ``size_bytes`` (nccl-tests rounds down too)."""
        if not self.sized:
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


def _whole_from_owner(rank: int, index: int, ranks: int, root: int) -> list[tuple[int, int]]:
    return [(index, 0)]


def _transposed(rank: int, index: int, ranks: int, root: int) -> list[tuple[int, int]]:
    return [(index, rank)]


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
    sized: bool = False,
) -> Collective:
    return Collective(
        name,
        reduces,
        rooted,
        blocked,
        inputs,
        outputs,
        origins,
        bus_factor,
        moves_data,
        moves_data or sized,
    )


COLLECTIVES: dict[str, Collective] = {
    row.name: row
    for row in (
        _row("all_reduce", _all, _all, _from_everyone, lambda n: 2 * (n - 1) / n, reduces=True),
        _row("all_gather", _own, _all, _whole_from_owner, _ring_share, blocked=True),
        _row(
            "reduce_scatter",
            _all,
            _own,
            lambda rank, index, ranks, root: [(origin, rank) for origin in range(ranks)],
            _ring_share,
            reduces=True,
            blocked=True,
        ),
        _row(
            "broadcast",
            _all_at_root,
            _all,
            lambda rank, index, ranks, root: [(root, index)],
            _one,
            rooted=True,
        ),
        _row("reduce", _all, _all_at_root, _from_everyone, _one, reduces=True, rooted=True),
        _row("all_to_all", _all, _second_half, _transposed, _ring_share, blocked=True),
        _row("all_to_all_v", _all, _second_half, _transposed, _ring_share, blocked=True),
        _row(
            "gather",
            _own,
            _all_at_root,
            _whole_from_owner,
            _ring_share,
            rooted=True,
            blocked=True,
        ),
        _row(
            "scatter",
            _all_at_root,
            _own,
            lambda rank, index, ranks, root: [(root, rank)],
            _ring_share,
            rooted=True,
            blocked=True,
        ),
        _row(
            "send_recv",
            _all,
            _second_half,
            lambda rank, index, ranks, root: [((rank - 1) % ranks, index)],
            _one,
        ),
        _row("barrier", _all, _all, _from_everyone, _one, moves_data=False),
    )
}

SETUPS: dict[str, Collective] = {
    name: _row(name, _all, _all, _from_everyone, _one, moves_data=False, sized=False)
    for name in ("comm_init", "comm_split")
}
"""Calls of a library before it communicates, which have a time and no bandwidth: a new communicator of all
ranks, and one for the even and one for the odd ones.
Measured one at a time, and checked over what was made, which is given back out of the measured time."""


def collective(name: str) -> Collective:
    """The row called ``name``, SETUPS included; UsageError lists the names when there is none."""
    row = COLLECTIVES.get(name) or SETUPS.get(name)
    if row is None:
        raise UsageError(_unknown(name))
    return row


def _unknown(name: str) -> str:
    return f"collective: {name!r} is not known; {suggestion(name, (*COLLECTIVES, *SETUPS))}"


def reference(
    inputs: Sequence[Buffer], op: str, collective: str, root: int, sent: Amounts | None = None
) -> list[Buffer]:
    """Return what each rank must hold afterwards, in the plainest NumPy: the definition of collectives.

    inputs: one array per rank, shape (elements,), all of one dtype; empty where the rank has no buffer.
        Blocked collectives: blocks of equal size, one per rank, in rank order.
    op: one of OPS; not looked at by collectives that do not reduce.
    root: not looked at by collectives without one.
    sent: of all_to_all_v, the elements of each block, [source, target]; None where all are equal, and of the
        other collectives.
    Returns one array per rank, shape (elements,), same dtype; empty where the rank has no output.
    """
    import numpy as np

    if collective not in COLLECTIVES:
        raise UsageError(_unknown(collective))
    nothing = inputs[0][:0]
    ranks = len(inputs)

    def blocks(source: int) -> list[Buffer]:
        return np.split(inputs[source], ranks if sent is None else sent[source].cumsum()[:-1])

    def only_root(result: Buffer) -> list[Buffer]:
        return [result.copy() if rank == root else nothing.copy() for rank in range(ranks)]

    match collective:
        case "all_reduce":
            result = combined(inputs, op)
            return [result.copy() for _ in range(ranks)]
        case "reduce":
            return only_root(combined(inputs, op))
        case "reduce_scatter":
            return [block.copy() for block in np.split(combined(inputs, op), ranks)]
        case "all_gather":
            return [np.concatenate(inputs) for _ in range(ranks)]
        case "gather":
            return only_root(np.concatenate(inputs))
        case "broadcast":
            return [inputs[root].copy() for _ in range(ranks)]
        case "scatter":
            return [block.copy() for block in np.split(inputs[root], ranks)]
        case "all_to_all" | "all_to_all_v":
            return [
                np.concatenate(column)
                for column in zip(*map(blocks, range(ranks)), strict=True)
            ]
        case "send_recv":
            return [inputs[rank - 1].copy() for rank in range(ranks)]
    return [nothing.copy() for _ in range(ranks)]


def combined(buffers: Sequence[Buffer], op: str) -> Buffer:
    """All ``buffers`` combined element by element; UsageError for an unknown op.

    avg is the sum, then divided by the ranks; whole numbers are divided towards zero, as C does. Sums and
    products of whole numbers wrap around as their dtype does. Floating point types of 16 bits and fewer
    are combined in float32 and rounded once at the end; executors may do so too, or round every time.
    """
    import numpy as np

    if op not in OPS:
        raise UsageError(f"op: {op!r} is not known; {suggestion(op, OPS)}")
    dtype = buffers[0].dtype
    whole = dtype.kind in "iu"
    wide = dtype if whole or dtype.itemsize >= 4 else np.dtype(np.float32)
    stacked = np.stack(buffers).astype(wide)
    result: Buffer
    # What exceeds the dtype becomes infinite, as on every device: a result, nothing to warn about.
    with np.errstate(over="ignore"):
        if op == "min":
            result = np.min(stacked, axis=0)
        elif op == "max":
            result = np.max(stacked, axis=0)
        elif op == "prod":
            result = np.prod(stacked, axis=0, dtype=wide)
        else:
            result = np.sum(stacked, axis=0, dtype=wide)
            if op == "avg" and not whole:
                result = result / np.asarray(len(buffers), dtype=result.dtype)
            elif op == "avg":
                # 64 bits, because the number of ranks need not fit the dtype. Floor division, then one up
                # again where a negative sum did not divide evenly: towards zero.
                sums = result.astype(np.int64 if dtype.kind == "i" else np.uint64)
                result, rest = np.divmod(sums, sums.dtype.type(len(buffers)))
                result += ((sums < 0) & (rest != 0)).astype(sums.dtype)
        narrowed: Buffer = result.astype(dtype)
        return narrowed


BALANCED = "balanced"

LONGEST_MATRIX = 100_000
"""Letters of a matrix."""

_NAMED = re.compile(r"(zipf|hot):([0-9]{1,3}(?:\.[0-9]{1,6})?)", re.ASCII)


def read_traffic(text: str) -> str:
    """The one spelling that cases are filed under, '' for balanced; UsageError where it is none."""
    text = text.strip()
    if text in ("", BALANCED):
        return ""
    if text.startswith("["):
        rows = lists_of(text, LONGEST_MATRIX)
        numbers = [one for row in rows for one in row]
        square = all(len(row) == len(rows) for row in rows)
        if not square or not all(
            type(number) in (int, float) and 0 <= number < 1e12 for number in numbers
        ):
            numbers = []
        # Shares of what the busiest source sends need one that sends something.
        if not any(numbers):
            raise UsageError(
                f"traffic: {text[:80]} is no square matrix of amounts from 0 on, one of them not 0; write a "
                "row for each source, such as [[0, 1], [2, 0]]"
            )
        return json.dumps(rows)
    named = _NAMED.fullmatch(text)
    value = float(named.group(2)) if named else 0.0
    if not named or (named.group(1) == "hot" and not 0 < value <= 1):
        raise UsageError(
            f"traffic: {text[:80]!r} is none; write balanced, zipf:1.2, hot:0.5 (a share above 0, at most 1) "
            "or a matrix such as [[0, 1], [2, 0]]"
        )
    return f"{named.group(1)}:{value:g}" if value else ""


@lru_cache(maxsize=64)
def shares(text: str, ranks: int) -> Shares:
    """Return [source, target] -> what is sent, as shares of what the busiest source sends.

    UsageError where a matrix is not of ``ranks`` ranks.
    """
    import numpy as np

    spelled = read_traffic(text)
    if spelled.startswith("["):
        matrix = np.array(json.loads(spelled), dtype=np.float64)
        if len(matrix) != ranks:
            raise UsageError(
                f"traffic: a matrix of {len(matrix)} rows for {ranks} ranks; write a row for each"
            )
        relative = matrix / matrix.sum(axis=1).max()
    else:
        name, _, number = spelled.partition(":")
        targets: Shares = np.full(ranks, 1 / ranks)
        if name == "zipf":
            weights = np.arange(1, ranks + 1, dtype=np.float64) ** -float(number)
            targets = weights / weights.sum()
        elif name == "hot" and ranks > 1:
            targets = np.full(ranks, (1 - float(number)) / (ranks - 1))
            targets[0] = float(number)
        # Every source prefers the same targets: that is what makes traffic uneven for receivers.
        relative = np.tile(targets, (ranks, 1))
    relative.setflags(write=False)
    return np.asarray(relative)


@lru_cache(maxsize=256)
def sent_elements(text: str, count: int, ranks: int) -> Amounts:
    """Elements that each source sends to each target, [source, target], int64.

    Whole numbers by largest remainders: a source's sum is what its shares make of ``count`` x ``ranks``,
    rounded down, and no amount is more than one element off its share. Balanced: ``count`` everywhere.
    """
    import numpy as np

    exact = shares(text, ranks) * (count * ranks)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    missing = np.floor(exact.sum(axis=1) + 1e-6).astype(np.int64) - whole.sum(axis=1)
    # The largest remainders first; of equal ones the lowest rank.
    places = np.argsort(-(exact - whole), axis=1, kind="stable")
    for source in np.nonzero(missing > 0)[0]:
        whole[source, places[source, : missing[source]]] += 1
    whole.setflags(write=False)
    return whole
