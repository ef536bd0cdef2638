"""Cases of any backend, and what a round of them finds on any endpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import pytest

from ccbench.backends.base import Position
from ccbench.backends.cuda.context import DeviceContext, DeviceOutput
from ccbench.cases.axes import NO_ROOT, Case
from ccbench.cases.measurement import CaseFacts, Sampling
from ccbench.collectives import collective as row_of
from ccbench.dtypes import ITEM_BYTES
from ccbench.runner.measure import RankResult, measure
from ccbench.verification import Array

SAMPLING = Sampling(
    rounds=1,
    minimum_samples=2,
    maximum_samples=3,
    warmup_seconds=0.0,
    minimum_sample_seconds=0.0,
    launches=2,
)
"""With as few launches as make a row of them: an emulation takes a thousand times as long as a device."""


LACKED = {
    "protocol": "ll",
    "channels": 2,
    "aggregation": 4,
    "registration": "local",
    "transport": "host",
    "mode": "graph",
}
"""What libraries on processors cannot be asked for."""

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(("all_reduce", {axis: value}, f"no {axis} {value}") for axis, value in LACKED.items()),
    ("all_reduce", {"misalignment_bytes": 4}, "no misalignment 4"),
    ("all_reduce", {"mode": "overlap", "overlap_with": "matmul"}, "no mode overlap"),
    ("all_to_all_v", {"in_place": True}, "no all_to_all_v in place"),
    ("all_reduce", {"concurrent": "all_gather"}, "no concurrent all_gather"),
]
"""Collectives, changes, and what is said of them on all libraries on processors."""


class Channel(Protocol):
    """What control channels between ranks of a test have in common."""

    def all_gather(self, mine: bytes) -> list[bytes]:
        """What every rank gives."""

    def broadcast(self, mine: bytes | None, root: int) -> bytes:
        return self.all_gather(mine or b"")[root]

    def barrier(self) -> None:
        self.all_gather(b"")

    def tell(self, message: Position) -> None:
        """Nobody watches."""
        assert message


def case_of(
    backend: str,
    collective: str,
    algorithm: str = "default",
    ranks: int = 4,
    count: int = 777,
    **changes: Any,
) -> Case:
    """A case of ``count`` elements of float32, with ``changes``; its root is the last rank of a group."""
    row = row_of(collective)
    count = count if row.sized else 0
    op = "sum" if row.reduces else "none"
    values = {
        "dtype": "float32",
        "op": op,
        "size_bytes": 0,
        "count": count,
        "ranks": ranks,
        **changes,
    }
    case = Case("s", backend, collective, algorithm, **values)
    members = case.group_ranks
    root = changes.get("root", members - 1 if row.rooted else NO_ROOT)
    return replace(
        case, root=root, size_bytes=row.size_bytes(case.count, members, ITEM_BYTES[case.dtype])
    )


def measured(
    endpoint: Any, case: Case, sampling: Sampling = SAMPLING
) -> tuple[RankResult, CaseFacts]:
    """One round of ``case``, as a worker makes it."""
    endpoint.prepare(case)
    result = measure(endpoint, case, sampling, endpoint.next_seed())
    facts = endpoint.facts()
    endpoint.finish()
    return result, facts


def wrong_elements(endpoint: Any, case: Case, sampling: Sampling = SAMPLING) -> int:
    """The number of elements that a round of ``case`` finds wrong."""
    mismatch = measured(endpoint, case, sampling)[0].mismatch
    return mismatch.wrong_elements if mismatch else 0


def command(*words: str) -> int:
    """The exit code of ``ccbench`` with these words."""
    from ccbench.cli import main  # doubles in processes of their own need none of it

    with pytest.raises(SystemExit) as leaving:
        main(list(words))
    return int(leaving.value.code or 0)


def launched(endpoint: Any, case: Case, launches: int = 1, seed: int = 1) -> None:
    """Launch ``case`` on the data of ``seed``, for the test to look at what is there before it ends."""
    endpoint.prepare(case)
    endpoint.poison()
    endpoint.refill(seed)
    endpoint.launch(launches)


def spoilt(endpoint: Any, seed: int = 1) -> tuple[int, int, int] | None:
    """(first wrong rank, wrong elements, first one's offset) after one launch; None where all is right."""
    mismatch = endpoint.check(seed, 1)
    return mismatch and (mismatch.rank, mismatch.wrong_elements, mismatch.offset)


def compares_on_the_device(endpoint: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """See that of an all-gather only the first round and one that is wrong are read back."""
    assert wrong_elements(endpoint, case) == 0
    reads: list[int] = []
    read = DeviceOutput.read

    def counted(output: DeviceOutput) -> Array:
        reads.append(output.elements)
        return read(output)

    monkeypatch.setattr(DeviceOutput, "read", counted)
    assert wrong_elements(endpoint, case) == 0
    assert reads == []
    endpoint.prepare(case)
    endpoint.poison()
    endpoint.refill(3)
    assert spoilt(endpoint, 3) == (0, case.ranks**2 * case.count, 0)
    assert len(reads) == case.ranks
    endpoint.finish()


def launch_without_last_rank(context: DeviceContext) -> None:
    """Enqueue the loaded kernel for all ranks here but the last, which the others wait for in vain."""
    channels = context._grid // len(context.ranks)
    context._arguments["ranks_here"] = len(context.ranks) - 1
    context._grid -= channels
    try:
        context.launch()
    finally:
        context._arguments["ranks_here"] = len(context.ranks)
        context._grid += channels
