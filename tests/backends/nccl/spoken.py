"""A library of any dialect on threads: real C functions by its table, real bytes, blocking calls."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ccbench.backends.nccl.dialects import Dialect
from ccbench.dtypes import numpy_dtype

from .clique import Reduction, moved


class Meetings:
    """Where the ranks of one communicator meet: each brings something, and each hears all."""

    def __init__(self, ranks: int) -> None:
        """Take 0 for a number of ranks that the first of them will bring; nobody meets before."""
        self.ranks = ranks
        self._brought: dict[int, Any] = {}
        self._here = threading.Barrier(ranks or 1, timeout=60)

    def all_of(self, rank: int, mine: Any) -> dict[int, Any]:
        self._brought[rank] = mine
        self._here.wait()
        brought = dict(self._brought)
        self._here.wait()
        return brought


class Spoken:
    """What ``ctypes.CDLL`` gives of a library of ``dialect``. refuse: our name of a function -> result."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.refuse: dict[str, int] = {}
        self._worlds: dict[bytes, Meetings] = {}
        self._members: dict[int, tuple[Meetings, int]] = {}
        self._lock = threading.Lock()
        self._texts = {code: name.encode() for code, name in dialect.results.items()}
        for ours, row in dialect.functions.items():
            result = ctypes.c_char_p if row.is_text else ctypes.c_int
            kind = ctypes.CFUNCTYPE(ctypes.c_void_p if row.is_text else result, *row.types)
            setattr(self, row.name, kind(self._guarded(ours, row.arguments)))

    def _guarded(self, ours: str, words: tuple[str, ...]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if ours in self.refuse:
                return self.refuse[ours]
            try:
                by_word = {
                    word.replace("*", "_at"): value
                    for word, value in zip(words, arguments, strict=True)
                }
                return int(getattr(self, ours, self._moves)(name=ours, **by_word) or 0)
            except threading.BrokenBarrierError:
                return max(self.dialect.results)

        return call

    # -- what the functions do -----------------------------------------------------------------------------

    def ncclGetVersion(self, name: str, number_at: Any) -> None:  # noqa: N802
        number_at[0] = 70_102

    def ncclGetErrorString(self, name: str, result: int) -> int:  # noqa: N802
        text = self._texts.setdefault(result, b"no such result")
        return ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0

    def ncclGetLastError(self, name: str, comm: int) -> int:  # noqa: N802
        return self.ncclGetErrorString(name, -1)

    def ncclGetUniqueId(self, name: str, id_at: int) -> None:  # noqa: N802
        with self._lock:
            text = f"world {len(self._worlds)}".encode().ljust(self.dialect.id_bytes, b"\xee")
            self._worlds[text] = Meetings(0)
        ctypes.memmove(id_at, text, len(text))

    def ncclCommInitRank(self, name: str, rank: int, comm_at: Any, **arguments: Any) -> int:  # noqa: N802
        size = self.dialect.id_bytes
        if "id" in arguments:
            unique = bytes(ctypes.string_at(ctypes.addressof(arguments["id"]), size))
        else:
            unique = ctypes.string_at(arguments["id_at"], size)
        ranks = arguments.get("ranks", arguments.get("count"))
        with self._lock:
            if unique not in self._worlds:
                return self.dialect.refusals[0]
            if not self._worlds[unique].ranks:
                self._worlds[unique] = Meetings(int(ranks or 0))
            comm_at[0] = handle = 1000 + len(self._members)
            self._members[handle] = self._worlds[unique], rank
        return 0

    def ncclCommDestroy(self, name: str, comm: int) -> int:  # noqa: N802
        return 0 if self._members.pop(comm, None) else self.dialect.refusals[0]

    def ncclCommGetAsyncError(self, name: str, comm: int, number_at: Any) -> None:  # noqa: N802
        number_at[0] = 0

    def ncclCommCount(self, name: str, comm: int, number_at: Any) -> None:  # noqa: N802
        number_at[0] = self._members[comm][0].ranks

    def ncclCommUserRank(self, name: str, comm: int, number_at: Any) -> None:  # noqa: N802
        number_at[0] = self._members[comm][1]

    def ncclCommSplit(  # noqa: N802
        self, name: str, comm: int, colour: int, key: int, comm_at: Any, config: int
    ) -> None:
        meetings, rank = self._members[comm]
        splits = meetings.all_of(rank, (colour, key, Meetings(0)))
        alike = sorted((k, peer) for peer, (c, k, _) in splits.items() if c == colour)
        part = splits[alike[0][1]][2]  # the first one's stands for all
        with self._lock:
            if not part.ranks:
                part.__init__(len(alike))
            if colour >= 0:
                comm_at[0] = handle = 1000 + len(self._members)
                self._members[handle] = part, alike.index((key, rank))

    def _moves(
        self, name: str, comm: int, count: int, dtype: int, stream: int, **arguments: int
    ) -> int:
        meetings, rank = self._members[comm]
        types = {number: text for text, number in self.dialect.dtypes.items()}
        if dtype not in types:
            return self.dialect.refusals[0]
        kind, ranks, root = numpy_dtype(types[dtype]), meetings.ranks, arguments.get("root", -1)
        own = arguments.get("buffer", 0)
        sends, into = arguments.get("send", own), arguments.get("recv", own)
        blocked = name in ("ncclReduceScatter", "ncclAlltoAll", "ncclScatter")
        sent = count * kind.itemsize * (ranks if blocked else 1)
        idle = name == "ncclScatter" and rank != root
        mine = b"" if idle else ctypes.string_at(sends, sent)
        by_rank = meetings.all_of(rank, mine)
        ops = {number: text for text, number in self.dialect.ops.items()}
        op = Reduction(ops[arguments["op"]] if "op" in arguments else "sum")
        result = moved(
            name,
            ranks,
            count,
            root,
            lambda peer, _: np.frombuffer(by_rank[peer], kind),
            [op] * ranks,
        )[rank]
        if result is not None:
            ctypes.memmove(into, result.tobytes(), result.nbytes)
        meetings.all_of(rank, None)
        return 0
