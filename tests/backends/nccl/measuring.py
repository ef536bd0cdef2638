"""Cases of NCCL, and an endpoint on the double that measures them."""

from __future__ import annotations

from typing import Any

from ccbench.backends.control_block import Control
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.nccl.bootstrap import OneProcess
from ccbench.backends.nccl.collectives import Binding
from ccbench.backends.nccl.endpoint import NcclRanks
from ccbench.cases.axes import Case
from tests.backends import measuring

from .double import Process, World


def case_of(collective: str, ranks: int = 4, count: int = 777, **changes: Any) -> Case:
    """A case of ``count`` elements of float32, with ``changes``."""
    return measuring.case_of(
        "nccl", collective, changes.pop("algorithm", "default"), ranks, count, **changes
    )


def opened(
    ranks: int = 4, version: int = 22809, blocked: bool = False, **facts: Any
) -> tuple[NcclRanks, Process]:
    """An endpoint that drives all of ``ranks`` devices, and the process whose NCCL it uses."""
    process = Process(World(devices=ranks, version=version), **facts)
    cuda = Cuda(process.runtime, process.runtime)
    devices = {rank: rank for rank in range(ranks)}
    return NcclRanks(
        Control(1, 64), cuda, process.nccl, devices, ranks, OneProcess(), blocked
    ), process


def bindings(endpoint: NcclRanks) -> list[Binding]:
    """What the case that is prepared binds to each rank and group."""
    assert endpoint._prepared is not None
    return list(endpoint._prepared.bindings)


def close_clean(endpoint: NcclRanks, process: Process) -> None:
    """Close, and see that nothing is left and nothing went wrong behind the endpoint's back."""
    endpoint.close()
    left = (
        process.runtime.allocated,
        process.runtime.graphs,
        process.nccl_memory,
        process.members,
    )
    assert not any(left)
    assert not any((process.exceptions, process.world.deadlocks))
