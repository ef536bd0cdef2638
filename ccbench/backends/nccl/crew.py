"""The crews of ``nccl``, one process that drives all ranks, and of ``nccl-processes``, one for each rank."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from ccbench.backends.base import CannotRun, ControlChannel
from ccbench.backends.cpu.memory import Control
from ccbench.backends.crew import WholeCrew
from ccbench.backends.cuda.gate import GateBoard, refuse_blocking
from ccbench.backends.cuda.runtime import Cuda, device_count, device_uuid, open_cuda, starting
from ccbench.backends.kernels.layout import device_of_rank, ranks_of_devices
from ccbench.backends.nccl.endpoint import NcclRanks
from ccbench.backends.nccl.exchanges import Alone, Board, Forked
from ccbench.backends.nccl.library import Nccl, open_nccl
from ccbench.backends.nccl.refusals import SAME_EVERYWHERE, RankFacts, facts_from_bytes, refuse
from ccbench.backends.nccl.types import NcclFailed
from ccbench.errors import BackendUnavailable

SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
HOST_NAME = "NCCL_HOSTID"

START_LIMIT_SECONDS = 120.0
"""How long ranks wait for each other's CUDA to start: contexts on many GPUs take tens of seconds."""


def facts_of(
    cuda: Cuda, nccl: Nccl, devices: Mapping[int, int], ranks: int, variables: Mapping[str, str]
) -> list[RankFacts]:
    """What the ranks of this process tell the others."""
    settings = tuple((name, variables[name]) for name in SAME_EVERYWHERE if name in variables)
    return [
        RankFacts(
            rank=rank,
            ranks=ranks,
            host=socket.gethostname(),
            gpu=f"{cuda.facts(device).bus_id} {device_uuid(device)}".rstrip(),
            nccl_version=nccl.version,
            apart=variables.get(HOST_NAME, ""),
            shares=variables.get(SHARING, "0") not in ("", "0"),
            settings=settings,
        )
        for rank, device in devices.items()
    ]


def refuse_together(own: Sequence[RankFacts], exchange: ControlChannel) -> bool:
    """Tell all, hear all, and refuse what cannot end well; True where ranks share a device. Collective."""
    told = exchange.all_gather(b"\n".join(one.as_bytes() for one in own))
    everyone = [facts_from_bytes(line) for text in told for line in text.splitlines()]
    refuse(everyone)
    return len({(one.host, one.gpu) for one in everyone}) < len(everyone)


def opened(
    control: Control,
    cuda: Cuda,
    nccl: Nccl,
    devices: Mapping[int, int],
    ranks: int,
    exchange: ControlChannel,
    gated: bool = True,
    gate_side: tuple[GateBoard, int] | None = None,
) -> NcclRanks:
    """The endpoint, with its communicator. Collective; CcbenchError where NCCL cannot start."""
    shared = refuse_together(facts_of(cuda, nccl, devices, ranks, os.environ), exchange)
    return connected(NcclRanks(control, cuda, nccl, devices, ranks, exchange, gated, shared, gate_side))


def connected(endpoint: NcclRanks) -> NcclRanks:
    """``endpoint`` with its communicator; CannotRun with NCCL's words where there is none."""
    try:
        endpoint.connect()
    except NcclFailed as error:
        raise CannotRun(f"NCCL does not start: {error}") from None
    return endpoint


def device_for(rank: int, ranks: int, devices: int) -> int:
    """Ranks of one host on its devices: one each, or neighbours together where there are fewer devices."""
    return device_of_rank(ranks_of_devices(ranks, devices), rank)


def told_apart(rank: int, ranks: int, devices: int, variables: Mapping[str, str]) -> str:
    """A name of its own for the host of a rank that shares its GPU, where data go over the network anyway.

    NCCL then takes the ranks for ranks of different hosts, which may have GPUs of the same number; '' where
    that is not so, or the user has named the host.
    """
    over_network = all(variables.get(name) == "1" for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"))
    if ranks <= devices or not over_network or variables.get(HOST_NAME):
        return ""
    return f"{socket.gethostname()}-ccbench-{rank}"


class NcclCrew(WholeCrew):
    """Implements ``ccbench.backends.crew.Crew``."""

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        super().__init__(sample_capacity)
        self._ranks = ranks

    def endpoint(self, process: int) -> NcclRanks:
        """The one endpoint; CUDA and NCCL start here, in the process that uses them."""
        with starting():
            cuda = open_cuda(own_kernels=False)
            count = device_count(cuda)
            devices = {rank: device_for(rank, self._ranks, count) for rank in range(self._ranks)}
            refuse_blocking(len(set(devices.values())), "backend: nccl-processes")
            return opened(self.control, cuda, open_nccl(), devices, self._ranks, Alone())


class ProcessesCrew:
    """Implements ``ccbench.backends.crew.Crew``."""

    pinned = False
    whole = False
    oversubscribed = False

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        self.processes = ranks
        self.control = Control(ranks, sample_capacity)
        self._board = Board(ranks)
        self._gate_board = GateBoard(ranks)

    def endpoint(self, process: int) -> NcclRanks:
        """The endpoint of rank ``process``."""
        ranks = self.processes
        exchange = Forked(process, self.control, self._board, START_LIMIT_SECONDS)
        with starting():
            failed: Exception | None = None
            try:
                cuda = open_cuda(own_kernels=False)
                count = device_count(cuda)
                name = told_apart(process, ranks, count, os.environ)
                if name:
                    os.environ[HOST_NAME] = name
                nccl = open_nccl()
            except Exception as error:
                failed = error
            # Who cannot start says so before the others wait for it.
            if b"no" in exchange.all_gather(b"no" if failed else b"yes"):
                raise failed or BackendUnavailable("another rank's process could not start CUDA or NCCL")
            devices = {process: device_for(process, ranks, count)}
            return opened(
                self.control, cuda, nccl, devices, ranks, exchange, gate_side=(self._gate_board, process)
            )
