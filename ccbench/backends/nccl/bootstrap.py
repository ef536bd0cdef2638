"""Start of ranks: preflight checks, one process that drives all GPUs, one process for each rank.

Ranks with processes of their own, on one host or on many, share no memory and perhaps no clock; what they
must tell each other goes over the team's control channel.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from ccbench.backends.base import CannotRun, ControlChannel, Position, gathered, local_rank
from ccbench.backends.control_block import Control, anonymous_file
from ccbench.backends.cuda.blocking_kernel import (
    TOKEN_BYTES,
    SharedWords,
    refuse_launch_blocking,
    shared_bytes,
)
from ccbench.backends.cuda.runtime import Cuda, device_count, device_uuid, open_cuda, starting
from ccbench.backends.endpoint import PerProcessEndpoint, SingleProcessGroup
from ccbench.backends.kernels.layout import device_of_rank, ranks_of_devices
from ccbench.backends.nccl.collectives import Call, prepared
from ccbench.backends.nccl.dialects import NCCL, RCCL, Dialect
from ccbench.backends.nccl.endpoint import NcclRanks
from ccbench.backends.nccl.library import Library, LibraryFailed, open_by_cupy
from ccbench.cases.axes import Case
from ccbench.errors import BackendUnavailable

HOST_NAME = "NCCL_HOSTID"

SAMPLE_CAPACITY = 4096
SCRATCH_BYTES = 4096

SHARED_GPU_VERSION = 23_000
"""From NCCL 2.30 on ranks may share a GPU, where NCCL_MULTI_RANK_GPU_ENABLE=1 says so (NCCL user guide,
"Environment Variables")."""

SAME_EVERYWHERE = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_CTA_POLICY",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_BUFFSIZE",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
)
"""Settings by which ranks agree on how data move; ranks that differ wait for each other forever."""


# -- preflight checks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankFacts:
    """Facts that every rank tells the others before a communicator is made.

    gpu: PCI bus id and UUID, for MIG the instance's. settings: those of SAME_EVERYWHERE that are set.
    """

    rank: int
    host: str
    gpu: str
    nccl_version: int
    settings: Mapping[str, str]

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def facts_of(cuda: Cuda, nccl: Library, devices: Mapping[int, int]) -> list[RankFacts]:
    """Return what the ranks of this process tell the others."""
    settings = {name: os.environ[name] for name in SAME_EVERYWHERE if name in os.environ}
    host = socket.gethostname()
    gpus = {
        rank: f"{cuda.facts(device).bus_id} {device_uuid(device)}"
        for rank, device in devices.items()
    }
    return [
        RankFacts(rank, host, gpu.rstrip(), nccl.version, settings)
        for rank, gpu in gpus.items()
    ]


def refuse_what_hangs(everyone: Sequence[RankFacts]) -> None:
    """Raise BackendUnavailable for what NCCL would hang with; every rank comes to the same answer."""
    first = everyone[0]
    versions = Counter(facts.nccl_version for facts in everyone).most_common()
    if len(versions) > 1:
        # The version that the fewest ranks have is the one to change.
        (usual, _), *_, (odd, _) = versions
        who = next(facts for facts in everyone if facts.nccl_version == odd)
        raise BackendUnavailable(
            f"nccl: {who} has NCCL {NCCL.version_text(odd)}, others have {NCCL.version_text(usual)}; "
            "install one version of nvidia-nccl on all hosts (NCCL does not mix versions)"
        )
    for facts in everyone:
        for name in SAME_EVERYWHERE:
            here, there = first.settings.get(name), facts.settings.get(name)
            if here != there:
                raise BackendUnavailable(
                    f"nccl: {name} is {here or 'not set'} for {first} and {there or 'not set'} for {facts}; "
                    "ranks that differ wait for each other forever: set it alike everywhere"
                )


def shared_gpu(everyone: Sequence[RankFacts]) -> str:
    """Return which ranks have the same GPU, and how they may; '' where all have their own."""
    owners: dict[tuple[str, str], RankFacts] = {}
    for facts in everyone:
        earlier = owners.setdefault((facts.host, facts.gpu), facts)
        if earlier is not facts:
            cure = "start as many ranks as there are GPUs, or look at CUDA_VISIBLE_DEVICES; "
            if facts.nccl_version >= SHARED_GPU_VERSION:
                cure += "NCCL_MULTI_RANK_GPU_ENABLE=1 lets processes share a GPU"
            else:
                cure += (
                    "NCCL shares GPUs from 2.30 on, or as ranks that talk over the network: "
                )
                cure += "processes: per_gpu with transport: network"
            return f"ranks {earlier.rank} and {facts.rank} on {facts.host} have the same GPU {facts.gpu}; {cure}"
    return ""


def checked(
    cuda: Cuda, nccl: Library, devices: Mapping[int, int], exchange: ControlChannel
) -> str:
    """Tell all, hear all, and refuse what hangs; returns ``shared_gpu``. Collective."""
    own = [asdict(facts) for facts in facts_of(cuda, nccl, devices)]
    by_process = gathered(exchange, own)
    everyone = [RankFacts(**facts) for facts in itertools.chain.from_iterable(by_process)]
    refuse_what_hangs(everyone)
    return shared_gpu(everyone)


def connected(endpoint: NcclRanks, shared: str) -> NcclRanks:
    """Return ``endpoint`` with its communicator; CannotRun with NCCL's words where there is none."""
    try:
        endpoint.connect()
    except LibraryFailed as error:
        # NCCL alone knows whether ranks may share a GPU: its version, variables and host names decide.
        raise CannotRun(
            f"{endpoint.nccl.dialect.label} does not start: {error}{shared and f'; {shared}'}"
        ) from None
    return endpoint


# -- one process for all ranks -------------------------------------------------------------------------------


class OneProcess:
    """A control channel of a process that drives all ranks and has nobody to talk to."""

    rank = 0
    ranks = 1
    one_clock = True
    oversubscribed = False

    def __init__(self) -> None:
        self.hosts: tuple[str, ...] = (socket.gethostname(),)

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Return what this process gave."""
        return [mine]

    def broadcast(self, mine: bytes | None, root: int) -> bytes:
        """Return what this process gave."""
        return mine or b""

    def barrier(self) -> None:
        """Return at once."""

    def tell(self, message: Position) -> None:
        """Do nothing: the leader reads the control words."""


class NcclWorkerGroup(SingleProcessGroup):
    """Implements ``ccbench.backends.endpoint.WorkerGroup``."""

    dialect = NCCL

    def endpoint(self, process: int) -> NcclRanks:
        """Return the one endpoint; CUDA and NCCL start here, in the process that uses them."""
        with starting():
            cuda = open_cuda(own_kernels=False)
            shares = ranks_of_devices(self.ranks, device_count(cuda))
            devices = {rank: device_of_rank(shares, rank) for rank in range(self.ranks)}
            refuse_launch_blocking(len(shares))
            return opened(self.control, cuda, open_by_cupy(self.dialect), devices)


class RcclWorkerGroup(NcclWorkerGroup):
    """Workers of RCCL, over CuPy for ROCm."""

    dialect = RCCL


def opened(
    control: Control, cuda: Cuda, nccl: Library, devices: Mapping[int, int]
) -> NcclRanks:
    """Return the endpoint of a process that drives all ranks, with its communicator."""
    exchange = OneProcess()
    shared = checked(cuda, nccl, devices, exchange)
    made = NcclRanks(
        control, cuda, nccl, devices, len(devices), exchange, blocked=True, shared=bool(shared)
    )
    return connected(made, shared)


# -- one process for each rank -------------------------------------------------------------------------------


class LaunchedRank(PerProcessEndpoint, NcclRanks):
    """One rank.

    Ranks start a sample together by a collective of NCCL's own on one element: words over the team's
    connection arrive at times that differ by more than a small collective takes.
    """

    def __init__(
        self,
        cuda: Cuda,
        nccl: Library,
        device: int,
        exchange: ControlChannel,
        blocked: bool = True,
        shared: bool = False,
    ) -> None:
        control = Control(exchange.ranks, SAMPLE_CAPACITY)
        devices, side = {exchange.rank: device}, side_of_host(exchange) if blocked else None
        super().__init__(
            control, cuda, nccl, devices, exchange.ranks, exchange, blocked, shared, side
        )
        self._cuda = cuda
        self._meeting = 0

    def prepare(self, case: Case) -> str:
        """Get ready as one process does; stamps are shared anew."""
        self._shared_stamps = 0
        return super().prepare(case)

    def barrier(self) -> None:
        """Return when every rank has called it: exchanged over NCCL once it works, or over the connection."""
        self._met = True
        if self._prepared is None:
            self.exchange.barrier()
            return
        context = self._contexts[self.rank]
        if not self._meeting:
            context.use()
            self._meeting = self._cuda.allocate(SCRATCH_BYTES + 4 * self.ranks)
        limit = self._limit
        with self._watchdog.limited(2 * limit):
            at = self._meeting
            call = Call("barrier", at, at, 1, "int32")
            # A collective that the forced algorithm has: PAT has no all_reduce.
            if os.environ.get("NCCL_ALGO", "").upper() == "PAT":
                call = Call("all_gather", at, at + SCRATCH_BYTES, 1, "int32")
            prepared(self._communicators.world()[self.rank], call, context.stream)()
        self._launches.wait(limit)

    def close(self) -> None:
        """Give everything back."""
        at, self._meeting = self._meeting, 0
        self._cuda.free(at)
        super().close()


def side_of_host(exchange: ControlChannel) -> tuple[SharedWords, int] | None:
    """Return the blocking kernel's words for all ranks of this host, and this one's place. Collective.

    Its memory is a file without a name, which the first of them made and the others find among that
    process's open files. None where a rank is the only one of its host, and everywhere where one does not
    find it, as in a container of its own: then each has words for itself.
    """
    hosts, rank = exchange.hosts, exchange.rank
    here = [peer for peer, host in enumerate(hosts) if host == hosts[rank]]
    file, words, message = -1, None, b""
    if rank == here[0]:
        file = anonymous_file()
        os.ftruncate(file, shared_bytes(len(here)))
        words = SharedWords(len(here), file)
        # In another container a process and a file may have the same numbers: the token tells.
        words.token[:] = os.urandom(TOKEN_BYTES)
        message = bytes(words.token) + f"/proc/{os.getpid()}/fd/{file}".encode()
    message = exchange.all_gather(message)[here[0]]
    with suppress(OSError, ValueError):  # not to be opened, or too small: another file
        file = file if words else os.open(message[TOKEN_BYTES:], os.O_RDWR)
        words = words or SharedWords(len(here), file)
    shared = words is not None and bytes(words.token) == message[:TOKEN_BYTES]
    everybody = b"0" not in exchange.all_gather(b"1" if shared else b"0")
    if file >= 0:
        os.close(file)
    return (words, here.index(rank)) if words and everybody and len(here) > 1 else None


def own_host_name(rank: int, ranks: int, devices: int, variables: Mapping[str, str]) -> str:
    """Return a name of its own for the host of a rank that shares its GPU, where data go over the network.

    NCCL then takes the ranks for ranks of different hosts, which may have GPUs of the same number; '' where
    that is not so, or the user has named the host.
    """
    over_network = all(
        variables.get(name) == "1" for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
    )
    if ranks <= devices or not over_network or variables.get(HOST_NAME):
        return ""
    return f"{socket.gethostname()}-ccbench-{rank}"


def open_launched_rank(exchange: ControlChannel, dialect: Dialect = NCCL) -> NcclRanks:
    """Return this process's rank, on the GPU of its number on its host. Collective."""
    with starting():
        cuda = open_cuda(own_kernels=False)
        count = device_count(cuda)
        here = exchange.hosts.count(exchange.hosts[exchange.rank])
        # A launcher may show each process its own GPU alone; then its number is 0 everywhere.
        device = local_rank(exchange.hosts, exchange.rank) % count
        name = (
            own_host_name(exchange.rank, here, count, os.environ)
            if count > 1 or here > 1
            else ""
        )
        if name:
            os.environ[HOST_NAME] = name
        nccl = open_by_cupy(dialect)
        shared = checked(cuda, nccl, {exchange.rank: device}, exchange)
        return connected(
            LaunchedRank(cuda, nccl, device, exchange, shared=bool(shared)), shared
        )


def open_launched_rccl_rank(exchange: ControlChannel) -> NcclRanks:
    """Return this process's rank of RCCL. Collective."""
    return open_launched_rank(exchange, RCCL)
