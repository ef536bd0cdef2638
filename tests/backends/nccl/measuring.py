"""Cases of NCCL, and an endpoint on the double that measures them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ccbench.backends.cpu.memory import Control
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.nccl.bootstrap import OneProcess
from ccbench.backends.nccl.endpoint import NcclRanks
from ccbench.cases import NO_ROOT, Case, CaseFacts, Sampling
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.runner.measure import RankResult, measure

from .double import Process, World

SAMPLING = Sampling(
    rounds=1, minimum_samples=2, maximum_samples=3, warmup_seconds=0.0, minimum_sample_seconds=0.0, launches=2
)
"""With as few launches as make a row of them: the emulation takes a thousand times as long as a device."""


def case_of(collective: str, ranks: int = 4, count: int = 777, **changes: Any) -> Case:
    """A case of ``count`` elements of float32, with ``changes``."""
    row = COLLECTIVES[collective]
    values: dict[str, Any] = {
        "suite": "s",
        "backend": "nccl",
        "collective": collective,
        "algorithm": "default",
        "dtype": "float32",
        "op": "sum" if row.reduces else "none",
        "size_bytes": 0,
        "count": count if row.moves_data else 0,
        "ranks": ranks,
        "root": 1 if row.rooted else NO_ROOT,
        **changes,
    }
    case = Case(**values)
    return replace(case, size_bytes=row.size_bytes(case.count, case.group_ranks, ITEM_BYTES[case.dtype]))


def opened(
    ranks: int = 4, version: int = 22809, gated: bool = False, **facts: Any
) -> tuple[NcclRanks, Process]:
    """An endpoint that drives all of ``ranks`` devices, and the process whose NCCL it uses."""
    process = Process(World(devices=ranks, version=version), **facts)
    cuda = Cuda(process.runtime, process.runtime)
    devices = {rank: rank for rank in range(ranks)}
    return NcclRanks(Control(1, 64), cuda, process.nccl, devices, ranks, OneProcess(), gated), process


def measured(endpoint: NcclRanks, case: Case) -> tuple[RankResult, CaseFacts]:
    """One round of ``case``, as a worker makes it."""
    endpoint.prepare(case)
    result = measure(endpoint, case, SAMPLING, endpoint.next_salt())
    facts = endpoint.facts()
    endpoint.finish()
    return result, facts


def wrong_elements(endpoint: NcclRanks, case: Case) -> int:
    """What a round of ``case`` finds wrong."""
    mismatch = measured(endpoint, case)[0].mismatch
    return mismatch.wrong_elements if mismatch else 0
