"""One rank to a process, on one host or several.

Processes are played by threads, each with an NCCL of its own upon one world of GPUs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

from ccbench.backends.base import Position
from ccbench.backends.cuda.blocking_kernel import BlockingKernelTimedOut, SharedWords
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.endpoint import PerProcessEndpoint
from ccbench.backends.nccl.bootstrap import LaunchedRank, own_host_name
from ccbench.cases.axes import Case
from ccbench.runner.measure import durations
from tests.backends.cuda.emulated import CudaError
from tests.backends.measuring import Channel, measured

from .computing import can_compute
from .double import Process, World, WorldRuntime
from .measuring import case_of

__all__ = ["can_compute"]

RANKS = 3
ONE_HOST = ("one",) * RANKS


class Meeting(Channel):
    """Implements ``ccbench.backends.base.ControlChannel`` between threads; ``hosts`` are the test's."""

    oversubscribed = False

    def __init__(
        self, rank: int, hosts: Sequence[str], payloads: list[bytes], wait: threading.Barrier
    ) -> None:
        self.rank, self.ranks, self.hosts = rank, len(hosts), tuple(hosts)
        self.one_clock = len(set(hosts)) == 1
        self.given, self.wait = payloads, wait
        self.positions: list[Position] = []

    def tell(self, message: Position) -> None:
        self.positions.append(message)

    def all_gather(self, mine: bytes) -> list[bytes]:
        self.given[self.rank] = mine
        self.wait.wait()
        gathered = list(self.given)
        self.wait.wait()
        return gathered


def together(play: Callable[[int], Any]) -> list[Any]:
    """``play(rank)`` on a thread for every rank; what each gave, the first exception raised."""
    with ThreadPoolExecutor(RANKS) as pool:
        played = [pool.submit(play, rank) for rank in range(RANKS)]
        ended, _ = wait(played, 120, FIRST_EXCEPTION)
        for one in ended:
            one.result()
        return [one.result() for one in played]


def launched(
    hosts: Sequence[str], blocked: bool = False, version: int = 22809, cupy: int = 14
) -> tuple[Callable[[int], LaunchedRank], World]:
    world = World(devices=RANKS, version=version, patience_seconds=30.0)
    shared = [b""] * RANKS, threading.Barrier(RANKS, timeout=60)

    def endpoint(rank: int) -> LaunchedRank:
        process = Process(world, cupy=cupy)
        cuda = Cuda(process.runtime, process.runtime)
        made = LaunchedRank(
            cuda, process.nccl, rank, Meeting(rank, hosts, *shared), blocked=blocked
        )
        made.connect()
        return made

    return endpoint, world


@pytest.mark.thinned(3)
@pytest.mark.parametrize("hosts", [ONE_HOST, ("a", "b", "b")], ids=["one host", "two hosts"])
@pytest.mark.parametrize(
    "case",
    [
        case_of("all_reduce", RANKS),
        case_of("all_reduce", RANKS, op="premulsum", registration="symmetric"),
        case_of("gather", RANKS, mode="graph"),
        case_of("all_gather", RANKS, groups="[[2, 0]]"),
        case_of("all_reduce", RANKS, groups="rank % 3", concurrent="all_to_all"),
        case_of("send_recv", RANKS, pair="2>0"),
        case_of("all_to_all", RANKS, aggregation=2, misalignment_bytes=4),
        case_of("all_to_all_v", RANKS, traffic="[[0, 1, 4], [0, 0, 0], [3, 0, 2]]"),
        case_of("all_reduce", RANKS, groups="rank % 3", active_group=1),
        case_of("all_reduce", RANKS, groups="[[0, 2]]", concurrent="all_gather on [[1, 2]]"),
        case_of("reduce_scatter", RANKS, groups="rank % 3", concurrent="all_to_all on all"),
        case_of("all_reduce", RANKS, mode="overlap", overlap_with="memory"),
        case_of("comm_init", RANKS, mode="isolated"),
        case_of("comm_split", RANKS, mode="isolated"),
        case_of("comm_init", RANKS, mode="isolated", groups="rank % 3"),
        case_of("comm_split", RANKS, mode="isolated", groups="[[2, 0]]"),
    ],
    ids=lambda case: case.label,
)
@pytest.mark.usefixtures("can_compute")
def test_ranks_give_exact_results_and_the_same_facts_and_bring_each_others_stamps(
    hosts: tuple[str, ...], case: Case
) -> None:
    endpoint_of, world = launched(hosts)

    def play(rank: int) -> Any:
        endpoint = endpoint_of(rank)
        assert isinstance(endpoint, PerProcessEndpoint)
        results = measured(endpoint, case)
        endpoint.share_words()
        assert endpoint.version == "NCCL 2.28.9"
        endpoint.close()
        return results

    results = together(play)
    assert [result.mismatch for result, _ in results] == [None] * RANKS
    stamps = [result.stamps for result, _ in results]
    assert all(np.array_equal(stamp, stamps[0]) for stamp in stamps)
    assert (durations(stamps[0]) > 0).all()
    if hosts != ONE_HOST:
        assert (stamps[0][:, :, 0] == 0).all()
    assert len({facts.group_samples_seconds for _, facts in results}) == 1
    assert not world.deadlocks


LATE_SECONDS = 0.5


def launched_late(endpoint: LaunchedRank, world: World, mode: str, launches: int) -> float:
    """Rank 0's device time of ``launches`` that the last rank comes to late, by the devices' clock."""
    endpoint.prepare(case_of("all_reduce", RANKS, 10, mode=mode))
    endpoint.poison()
    endpoint.refill(1)
    endpoint.barrier()
    if endpoint.rank == RANKS - 1:
        first = next(stream for stream in world.streams.values() if stream.device == 0)
        deadline = time.monotonic() + 10
        while not first.queue and time.monotonic() < deadline:
            time.sleep(1e-4)
        time.sleep(0.02)  # who waits for no word of all has begun by now
        with world.changed:
            world.advance()
            world.seconds += LATE_SECONDS
    endpoint.launch(launches)
    seconds = endpoint.device_seconds()
    assert endpoint.check(1, launches) is None
    return seconds


@pytest.mark.parametrize(
    ("mode", "launches"), [("isolated", 1), ("streaming", 3), ("graph", 3), ("cold", 1)]
)
def test_a_process_that_comes_late_is_in_no_ranks_device_time(mode: str, launches: int) -> None:
    endpoint_of, world = launched(ONE_HOST, blocked=True)
    seconds = together(lambda rank: launched_late(endpoint_of(rank), world, mode, launches))
    assert seconds[0] < LATE_SECONDS / 2
    assert not world.deadlocks


def test_launches_that_no_barrier_precedes_wait_for_nobody() -> None:
    """Else measuring could not have ranks enter launches at different times, which shows missing waits."""
    endpoint_of, _ = launched(ONE_HOST, blocked=True)

    def play(rank: int) -> tuple[int | None, int | None]:
        endpoint = endpoint_of(rank)
        endpoint.prepare(case_of("all_reduce", RANKS, 10))
        endpoint.refill(1)
        endpoint.launch(1)
        endpoint.device_seconds()
        before = endpoint.facts().blocked_launches
        endpoint.barrier()
        endpoint.launch(1)
        endpoint.device_seconds()
        return before, endpoint.facts().blocked_launches

    assert together(play) == [(0, 1)] * RANKS


def test_processes_have_a_blocking_kernel_together_or_none_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register = WorldRuntime.hostRegister

    def refused_on_one(runtime: WorldRuntime, address: int, size: int, flags: int) -> None:
        if runtime.device == 1:
            raise CudaError(801)
        register(runtime, address, size, flags)

    monkeypatch.setattr(WorldRuntime, "hostRegister", refused_on_one)
    endpoint_of, _ = launched(ONE_HOST, blocked=True)
    reasons = together(lambda rank: endpoint_of(rank)._not_blocked)
    assert reasons[1] == "CUDA cannot pin memory that processes share: cudaError 801"
    assert {reasons[0], reasons[2]} == {"the process of another rank cannot have one"}


def test_a_process_that_never_comes_voids_the_sample_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SharedWords, "meet", lambda *_: False)
    endpoint_of, _ = launched(ONE_HOST, blocked=True)

    def play(rank: int) -> None:
        endpoint = endpoint_of(rank)
        endpoint.prepare(case_of("all_reduce", RANKS, 10))
        endpoint.barrier()
        with pytest.raises(BlockingKernelTimedOut, match="for the processes of this host"):
            endpoint.launch(1)

    together(play)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("cupy", [13, 14])
def test_the_same_team_goes_from_case_to_case_with_either_cupys_unique_ids(cupy: int) -> None:
    endpoint_of, world = launched(ONE_HOST, version=22105, cupy=cupy)

    def play(rank: int) -> list[Any]:
        endpoint = endpoint_of(rank)
        cases = [
            case_of("reduce", RANKS, 10),
            case_of("reduce", RANKS, 5000),
            case_of("barrier", RANKS),
        ]
        return [measured(endpoint, case)[0].mismatch for case in cases]

    assert together(play) == [[None] * 3] * RANKS
    assert not world.deadlocks


def test_pat_meets_by_an_all_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "PAT")
    endpoint_of, _ = launched(("a",) * RANKS)

    def play(rank: int) -> Any:
        endpoint = endpoint_of(rank)
        assert measured(endpoint, case_of("all_gather", RANKS))[0].mismatch is None
        return set(endpoint.nccl.module._state.log)

    assert together(play) == [{"ncclAllGather"}] * RANKS


# -- where ranks go ------------------------------------------------------------------------------------------


def test_ranks_that_share_a_gpu_over_the_network_pretend_to_be_on_hosts_of_their_own() -> None:
    network = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    names = {own_host_name(rank, 2, 1, network) for rank in range(2)}
    assert len(names) == 2
    assert "" not in names
    assert own_host_name(0, 2, 2, network) == ""
    assert own_host_name(0, 2, 1, {"NCCL_P2P_DISABLE": "1"}) == ""
    assert own_host_name(0, 2, 1, {**network, "NCCL_HOSTID": "mine"}) == ""


def test_launched_ranks_tell_the_leader_where_they_are() -> None:
    endpoint_of, _ = launched(("a",) * RANKS)

    def play(rank: int) -> Any:
        endpoint = endpoint_of(rank)
        measured(endpoint, case_of("all_reduce", RANKS))
        exchange: Any = endpoint.exchange
        return [position.activity for position in exchange.positions]

    for activities in together(play):
        assert activities[0] == 1
        assert activities[-1] == 0
        assert {2, 3, 4} <= set(activities)
