"""Structures that a kernel is handed, in NumPy: the mirror of kernels/abi.cuh, compared with it by a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.dtypes import ITEM_BYTES

_TYPE_NAMES = (
    *("float16", "bfloat16", "float8_e4m3", "float8_e5m2", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
TYPES: dict[str, int] = {name: number for number, name in enumerate(_TYPE_NAMES)}
"""Element types that kernels compute with, by the names of ccbench.dtypes (and the 16-bit whole numbers)."""

TYPE_BYTES: dict[str, int] = {**ITEM_BYTES, "int16": 2, "uint16": 2}
"""Bytes of one element of each type."""

COPY_TYPES: dict[int, str] = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
"""Element size -> the type that entries are compiled for which only copy."""

OPS: dict[str, int] = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4}

FLAG_KINDS = 4
FLAG_STRIDE_WORDS = 16
STATE_KINDS = 8
VECTOR_BYTES = 16
"""Buffers aligned to this, and slots that are multiples of it, are moved 16 bytes at a time."""

MAX_LANES = 512
"""Lanes of a block on a GPU: what the kernels' registers are limited for."""

ARGUMENTS = np.dtype(
    [
        *((name, "u8") for name in ("views", "plan", "program", "limit_nanoseconds")),
        *((name, "i8") for name in ("count", "slot_bytes", "packets_bytes", "staging_bytes")),
        *(
            (name, "i4")
            for name in ("ranks", "first_rank", "ranks_here", "channels", "root", "type", "op")
        ),
        *(
            (name, "i4")
            for name in ("slots", "plan_words", "program_words", "iterations", "free_0")
        ),
    ],
    align=True,
)
"""Passed by value to every kernel: an array of one element. Addresses: as the executing device sees them."""

RANK_VIEW = np.dtype(
    [
        (name, "u8")
        for name in (
            "input",
            "output",
            "fifo",
            "packets",
            "staging",
            "flags",
            "state",
            "errors",
        )
    ],
    align=True,
)
"""One rank's memory; ``Arguments.views`` is an array of these by rank, in the executing device's memory."""

ERROR_WORD = np.dtype(
    [
        ("code", "i4"),
        ("rank", "i4"),
        ("peer", "i4"),
        ("channel", "i4"),
        ("goal", "u8"),
        ("seen", "u8"),
    ],
    align=True,
)
"""Why a wait was given up; one per (rank, channel), all zero where none was."""

PIECE = np.dtype([(name, "i8") for name in ("begin", "elements", "source", "period")])
"""A piece of a right output as ``compare`` takes it; source: where in the input its period begins."""

NONE_DIFFERS = (0, -1)

COMPARED = np.dtype([("differing", "i8"), ("first", "i8")])
"""Output of one lane of ``compare``: how many elements differ, and the first; huge where none does."""

WAITED_FOR: dict[int, str] = {
    1: "rank {peer} to send (message {goal}, the last one seen was {seen})",
    2: "rank {peer} to take what was sent to it (message {goal}, the last one taken was {seen})",
    3: "rank {peer} to open its output (time {goal}, seen {seen})",
    4: "rank {peer} at a barrier (number {goal}, seen {seen})",
    5: "a packet of rank {peer} (launch {goal}, seen {seen})",
}
"""Meaning of each code of an error word; 6 is a plan that does not fit."""

BAD_PLAN = 6


@dataclass(frozen=True)
class GivenUp:
    """One wait that lasted longer than its limit; ``str`` is the sentence for the user."""

    code: int
    rank: int
    peer: int
    channel: int
    goal: int
    seen: int

    def among(self, members: Sequence[int]) -> GivenUp:
        """Return it with ranks by their numbers in the team, where ``members`` counted among themselves."""
        peer = members[self.peer] if 0 <= self.peer < len(members) else self.peer
        return replace(self, rank=members[self.rank], peer=peer)

    def __str__(self) -> str:
        if self.code == BAD_PLAN:
            return f"rank {self.rank}, channel {self.channel}: the plan does not fit rank {self.peer}"
        what = WAITED_FOR.get(self.code, "rank {peer} (unknown code)")
        waited = what.format(peer=self.peer, goal=self.goal, seen=self.seen)
        return f"rank {self.rank}, channel {self.channel}: waited too long for {waited}"


def given_up(errors: NDArray[Any]) -> Iterator[GivenUp]:
    """Every wait that was given up. errors: any shape, dtype ERROR_WORD, copied from the ranks' memory."""
    for word in errors.ravel():
        if word["code"]:
            yield GivenUp(*(int(word[name]) for name in ERROR_WORD.names or ()))


def compare_tables(pieces: Sequence[tuple[int, int, NDArray[Any]]]) -> list[NDArray[Any]]:
    """[PIECE records, all periods one behind the other] of what ``compare`` is to find.

    pieces: where one begins, how many elements it has, and the period of which it is made.
    """
    lengths = [len(period) for _, _, period in pieces]
    # Periods lie one behind the other; each piece says where its own begins.
    sources = np.cumsum([0, *lengths[:-1]]).tolist()
    rows = zip(pieces, sources, lengths, strict=True)
    table = np.array([(*piece[:2], source, length) for piece, source, length in rows], PIECE)
    return [
        table,
        np.concatenate([period.view(f"u{period.itemsize}") for _, _, period in pieces]),
    ]


def compared(lanes: NDArray[Any]) -> tuple[int, int]:
    """(elements that differ, the first); NONE_DIFFERS where none does. lanes: of all lanes, COMPARED."""
    differing = int(lanes["differing"].sum())
    return (differing, int(lanes["first"].min())) if differing else NONE_DIFFERS
