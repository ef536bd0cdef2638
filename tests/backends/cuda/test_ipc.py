"""One process for each rank: they end a case alike, whoever fails, and close in an order that is defined."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from ccbench.backends.base import CannotRun
from ccbench.backends.control_block import Control
from ccbench.backends.cuda import ipc
from ccbench.backends.cuda.ipc import Board, IpcEndpoint, IpcWorkerGroup
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.kernels.layout import all_buffers
from ccbench.backends.kernels.sources import choose
from ccbench.cases.axes import PER_GPU
from ccbench.errors import BackendUnavailable
from ccbench.machine.host import single_threaded
from ccbench.runner.workers.team import CLOSE_SECONDS

from .cases import case_of
from .emulated import CudaError, EmulatedRuntime

ROOT = Path(__file__).resolve().parents[3]
RANKS = 3
CASE = case_of("all_reduce", "ring", RANKS, processes=PER_GPU)


@dataclass
class SharedRuntime(EmulatedRuntime):
    """Knows who has whose memory open: to free it then is an error here, and undefined in CUDA."""

    open_everywhere: dict[int, int] = field(default_factory=dict)

    def ipcOpenMemHandle(self, handle: bytes) -> int:  # noqa: N802 - as CUDA spells it
        address = super().ipcOpenMemHandle(handle)
        self.open_everywhere[address] = self.open_everywhere.get(address, 0) + 1
        return address

    def ipcCloseMemHandle(self, address: int) -> None:  # noqa: N802 - as CUDA spells it
        super().ipcCloseMemHandle(address)
        self.open_everywhere[address] -= 1

    def free(self, address: int) -> None:
        assert not self.open_everywhere.get(address), "freed while a peer has it open"
        super().free(address)


@dataclass
class World:
    """Endpoints of ranks whose processes are threads here."""

    endpoints: list[IpcEndpoint]
    runtimes: list[SharedRuntime]
    board: Board

    def all(
        self, step: Callable[[IpcEndpoint], object], ranks: range = range(RANKS)
    ) -> list[object]:
        """What every rank got from ``step``, all at once; errors are results too."""

        def outcome(rank: int) -> object:
            try:
                return step(self.endpoints[rank])
            except Exception as error:  # looked at by the test
                return error

        with ThreadPoolExecutor(len(ranks)) as pool:
            return list(pool.map(outcome, ranks, timeout=30))


@pytest.fixture
def world() -> World:
    control, board = Control(RANKS, 16), Board(RANKS)
    opened: dict[int, int] = {}
    runtimes = [SharedRuntime(devices=RANKS, open_everywhere=opened) for _ in range(RANKS)]
    calls = [Cuda(runtime, runtime) for runtime in runtimes]
    return World(
        [IpcEndpoint(rank, control, board, calls[rank]) for rank in range(RANKS)],
        runtimes,
        board,
    )


def test_a_kernel_that_fits_everywhere_but_on_one_rank_is_refused_by_all(world: World) -> None:
    world.runtimes[2].blocks_per_processor = 0
    outcomes = world.all(lambda endpoint: endpoint.prepare(CASE))
    assert all(isinstance(outcome, CannotRun) for outcome in outcomes)
    assert all("run 0 of them at once" in str(outcome) for outcome in outcomes)


def test_ranks_take_as_many_channels_as_the_one_with_the_least_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of("all_reduce", "ring", RANKS, 1 << 20, processes=PER_GPU)
    monkeypatch.setattr(world.endpoints[1].contexts[0], "channels", lambda kernel, requested: 3)

    def load(endpoint: IpcEndpoint) -> int:
        reserve(endpoint, case.count)
        endpoint._load(choose(case))
        return int(endpoint.contexts[0]._arguments["channels"][0])

    assert world.all(load) == [3] * RANKS


@pytest.mark.parametrize("call", ["ipcGetMemHandle", "ipcOpenMemHandle"])
def test_memory_that_one_rank_cannot_share_is_closed_everywhere(
    world: World, call: str
) -> None:
    world.runtimes[1].failing[call] = [CudaError(201)]
    outcomes = world.all(lambda endpoint: endpoint.prepare(CASE))
    assert isinstance(outcomes[1], CudaError)
    assert all(str(outcomes[rank]) == "rank 1: cudaError 201" for rank in (0, 2))
    assert [runtime.opened for runtime in world.runtimes] == [0, 0, 0]


def reserve(endpoint: IpcEndpoint, count: int = 777) -> None:
    case = case_of("all_reduce", "ring", RANKS, count, processes=PER_GPU)
    endpoint._case, endpoint._layout = case, all_buffers(case)
    endpoint.reserve_work()
    endpoint.reserve_buffers()


def test_exported_memory_is_freed_when_nobody_has_it_open_any_more(world: World) -> None:
    assert world.all(reserve) == [None] * RANKS
    assert [runtime.opened for runtime in world.runtimes] == [2 * (RANKS - 1)] * RANKS
    assert world.all(IpcEndpoint.close) == [None] * RANKS
    assert not any(runtime.allocated for runtime in world.runtimes)


def test_memory_that_must_grow_is_closed_everywhere_before_it_goes(world: World) -> None:
    for count in (10, 1 << 20, 100, 3 << 20):
        assert world.all(partial(reserve, count=count)) == [None] * RANKS
    assert [len(runtime.allocated) for runtime in world.runtimes] == [2] * RANKS
    assert [runtime.opened for runtime in world.runtimes] == [2 * (RANKS - 1)] * RANKS


def test_closing_does_not_wait_for_the_dead_and_keeps_what_they_may_have_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc, "CLOSE_LIMIT_SECONDS", 0.05)
    assert world.all(reserve) == [None] * RANKS
    assert world.all(IpcEndpoint.close, range(RANKS - 1)) == [None] * (
        RANKS - 1
    )  # the last one died
    for runtime in world.runtimes[: RANKS - 1]:
        assert runtime.opened == 0
        assert (
            len(runtime.allocated) == 2
        )  # its work and its buffers, which the dead rank had open


def test_a_rank_without_a_device_is_waited_for_by_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.board.leave(2, "CUDA does not start: exclusive")
    outcomes = world.all(lambda endpoint: endpoint.prepare(CASE), range(2))
    assert all(isinstance(outcome, CannotRun) for outcome in outcomes)
    assert {str(outcome) for outcome in outcomes} == {"rank 2: CUDA does not start: exclusive"}
    monkeypatch.setattr(ipc, "CLOSE_LIMIT_SECONDS", 20.0)
    assert world.all(IpcEndpoint.close, range(2)) == [None, None]


def test_a_worker_group_leaves_word_of_a_rank_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exclusive() -> Cuda:
        raise CudaError(46)

    monkeypatch.setattr(ipc, "open_cuda", exclusive)
    group = IpcWorkerGroup(2, 16)
    with pytest.raises(BackendUnavailable):
        group.endpoint(1)
    assert group._board.absence(0) == ""
    assert group._board.absence(1) == "CUDA does not start: CudaError: cudaError 46"


def test_devices_without_peer_access_are_refused_with_the_other_backend_as_cure() -> None:
    runtime = EmulatedRuntime(devices=2, peers=False)
    endpoint = IpcEndpoint(0, Control(2, 16), Board(2), Cuda(runtime, runtime))
    with pytest.raises(
        CannotRun, match=r"no peer access.*take `processes: one`, which goes through the host"
    ):
        endpoint.prepare(case_of("all_reduce", "ring", 2, processes=PER_GPU))


# -- real processes ---------------------------------------------------------------------------------------


def printed(*words: str) -> list[str]:
    """Lines that a module beside this file prints."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**single_threaded(os.environ), "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return [line.strip() for line in done.stdout.splitlines()]


def test_ranks_in_processes_of_their_own_reduce_and_gather_right() -> None:
    lines = printed("tests.backends.cuda.ipc_on_cpu")
    statuses = [line.split()[0] for line in lines]
    assert statuses == ["ok"] * 4 + ["out_of_memory", "ok", "unsupported"], lines
    assert lines[-1].endswith("CUDA does not start: CudaError: cudaError 46")
    ok = [line.split() for line in lines if line.startswith("ok")]
    assert [wrong for _, wrong, *_ in ok] == ["0"] * 5
    # Of streaming the first launch is enqueued before the devices start, of the others all.
    assert [behind for _, _, behind, *_ in ok] == [
        "1",
        *(launches for _, _, _, launches, *_ in ok[1:]),
    ]
    assert all(
        "loopback" in line for line in lines if line.startswith("ok")
    )  # three ranks on two devices


def test_a_team_closes_before_the_runner_kills_it_even_where_a_rank_is_dead() -> None:
    assert ipc.CLOSE_LIMIT_SECONDS < ipc.CLOSING_SECONDS < CLOSE_SECONDS
