"""``python -m benchmarks.peer_rank PEER RANKS SOCKET CONTROL PINNED``: one rank of a peer library.

The rank runs ccbench's own worker loop and ccbench's own ``measure`` on ccbench's own data and check; only
the timed call is the peer's. What differs is thus the library, not the way of measuring. Between two visits
it blocks on a socket, outside the library, so that it takes no processor from whoever is measured.
"""

from __future__ import annotations

import importlib
import mmap
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from benchmarks.points import GLOO, INTELMPI, MEMCPY, MPICH, OPENMPI, SHARED
from ccbench.backends.control_block import LINE_WORDS, Control
from ccbench.backends.cpu.endpoint import CpuEndpoint
from ccbench.backends.cpu.price import Probe
from ccbench.backends.mpi.calls import MpiCall, c_loop, steps_of
from ccbench.cases.axes import Case
from ccbench.collectives import collective
from ccbench.dtypes import numpy_dtype
from ccbench.runner.workers.leader import SAMPLE_CAPACITY
from ccbench.runner.workers.rank import run_rank
from ccbench.verification import Array, Mismatch, check, fill, poison

RANK_VARIABLES = ("CCBENCH_PEER_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"

Launch = Callable[[int], object]
"""So many calls back to back."""


class Hello(NamedTuple):
    """A rank's first words. processors: where it may run."""

    rank: int
    pid: int
    version: str
    setting: str
    processors: tuple[int, ...]


def control_bytes(ranks: int) -> int:
    """Size of the file that holds a team's flags and time stamps."""
    return ranks * (LINE_WORDS * 8 + SAMPLE_CAPACITY * 16)


class FileControl(Control):
    """A control block in a file, because the ranks of an MPI are not forked from one process."""

    def __init__(self, path: str, ranks: int) -> None:
        with open(path, "r+b") as file:
            mapping = mmap.mmap(file.fileno(), control_bytes(ranks))
        word_bytes = ranks * LINE_WORDS * 8
        self.ranks = ranks
        self.words = memoryview(mapping)[:word_bytes].cast("q")
        self.stamps = np.frombuffer(
            mapping, np.float64, ranks * SAMPLE_CAPACITY * 2, word_bytes
        ).reshape(ranks, SAMPLE_CAPACITY, 2)


def repeated(call: Callable[[], object]) -> Launch:
    """``call`` so many times, from Python."""

    def launch(times: int) -> None:
        for _ in range(times):
            call()

    return launch


class MpiLibrary:
    """mpi4py, with the thread level at which the MPI is fastest."""

    def __init__(self, expected: str, rank: int, ranks: int, thread_level: str) -> None:
        importlib.import_module("mpi4py").rc.thread_level = thread_level
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._world = self._mpi.COMM_WORLD
        seen = " ".join(
            self._mpi.Get_library_version().split("\n")[0].split("\0")[0].split(",")[0].split()
        )
        if expected not in seen:
            raise SystemExit(f"this interpreter's mpi4py loads {seen!r}, not {expected}")
        if (self._world.rank, self._world.size) != (rank, ranks):
            raise SystemExit(
                f"rank {self._world.rank} of {self._world.size} instead of {rank} of {ranks}: "
                "mpiexec and mpi4py belong to different MPIs"
            )
        loop = c_loop(self._mpi)
        if isinstance(loop, str):
            raise SystemExit(f"MPI is not called from C: {loop}")
        self._loop = loop
        self.version = f"{seen}, launched from C"
        levels = {self._mpi.THREAD_SINGLE: "single", self._mpi.THREAD_MULTIPLE: "multiple"}
        self.setting = f"thread level {levels.get(self._mpi.Query_thread(), 'between single and multiple')}"

    def barrier(self) -> None:
        """The library's barrier."""
        self._world.Barrier()

    def launches(self, case: Case, source: Array, target: Array) -> Launch:
        """The collective on these buffers, so many times, in the loop in C of the backend mpi."""
        # A call through mpi4py takes half a microsecond of Python, more than the library takes for 8 bytes.
        launch = self._loop.launch(
            steps_of(MpiCall(self._mpi, self._world, case, (source, target)))
        )
        if launch is None:
            raise ValueError(f"{case.label}: this call does not go into a loop in C")
        return launch


class GlooLibrary:
    """torch.distributed over loopback TCP, which is all that Gloo has between processes of one host."""

    def __init__(self, rank: int, ranks: int, rendezvous: str) -> None:
        os.environ.setdefault(INTERFACE_VARIABLE, "lo")
        torch = importlib.import_module("torch")
        self._torch = torch
        self._group = importlib.import_module("torch.distributed")
        torch.set_num_threads(1)
        self._group.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks
        )
        self.version = f"PyTorch {torch.__version__}"
        self.setting = f"TCP on {os.environ[INTERFACE_VARIABLE]}"

    def barrier(self) -> None:
        """The library's barrier."""
        self._group.barrier()

    def launches(self, case: Case, source: Array, target: Array) -> Launch:
        """The collective on tensors that share these buffers, so many times."""
        receive = self._torch.from_numpy(target)
        if case.collective == "all_reduce" and case.in_place:
            return repeated(partial(self._group.all_reduce, receive))
        if case.collective == "all_gather":
            send = self._torch.from_numpy(source)
            return repeated(partial(self._group.all_gather_into_tensor, receive, send))
        if case.collective == "broadcast" and case.in_place:
            return repeated(partial(self._group.broadcast, receive, case.root))
        raise ValueError(f"{case.label}: no Gloo call is known for this")


class CopyLibrary:
    """No library: every process copies from one of its buffers to the other."""

    version = f"np.copyto of NumPy {np.__version__}"
    setting = "no library"

    def barrier(self) -> None:
        """Nothing but the endpoint's own barrier is needed."""

    def launches(self, case: Case, source: Array, target: Array) -> Launch:
        """The copy, so many times."""
        return repeated(partial(np.copyto, target, source))


Library = MpiLibrary | GlooLibrary | CopyLibrary


def new_buffer(elements: int, dtype: np.dtype[Any], memory: str = "") -> Array:
    """Private memory from NumPy, which asks for huge pages, or an anonymous shared mapping."""
    if memory == SHARED:
        return np.frombuffer(mmap.mmap(-1, max(1, elements * dtype.itemsize)), dtype, elements)
    return np.empty(elements, dtype)


class PeerEndpoint(CpuEndpoint):
    """ccbench's endpoint with buffers of the rank's own and another library's call."""

    def __init__(self, library: Library, rank: int, control: Control, cores: int) -> None:
        super().__init__(rank, control, [], cores, Probe(control.ranks))
        self._library = library

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; returns what ran."""
        self._case = case
        row, dtype = collective(case.collective), numpy_dtype(case.dtype)
        root = max(case.root, 0)
        read = row.input_count(case.count, case.ranks, self._data_rank, root)
        written = row.output_count(case.count, case.ranks, self._data_rank, root)
        self.refuse_too_much((read + written) * dtype.itemsize * self.ranks)
        self._output = new_buffer(written, dtype, case.algorithm)
        if case.in_place:
            self._input = self._output[:read]
        else:
            self._input = new_buffer(read, dtype, case.algorithm)
        self._launches = self._library.launches(case, self._input, self._output)
        return case.algorithm

    @property
    def _data_rank(self) -> int:
        return self.rank

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill this rank's input with the data of ``seed``."""
        fill(self._case, self._data_rank, self._input, seed, launches)

    def poison(self) -> None:
        """Make the output wrong everywhere."""
        poison(self._output)

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare this rank's output with what is right."""
        return check(self._case, self._data_rank, self._output, seed, launches)

    def launch(self, times: int) -> None:
        """Call the library ``times`` times, back to back."""
        self._launches(times)

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; a library does not tell how long it waited, so no seconds."""
        self.launch(times)
        return 0.0

    def barrier(self) -> None:
        """The library's barrier, to finish what it left behind; then flags, so that all start at once."""
        self._library.barrier()
        super().barrier()

    def finish(self) -> None:
        """Drop the buffers."""
        del self._launches
        self._input = self._output = np.empty(0, np.uint8)
        self._held_bytes = 0
        self.barrier()


class CopyEndpoint(PeerEndpoint):
    """Processes that copy side by side; each is rank 0 of a case of its own."""

    @property
    def _data_rank(self) -> int:
        return 0


def load(peer: str, rank: int, ranks: int, oversubscribed: bool, rendezvous: str) -> Library:
    """Import and start the peer's library. Collective.

    mpi4py's own default is the thread level multiple, which costs MPICH up to a microsecond a call. Below it
    MPICH 5.0 spins without ever yielding: with more ranks than processors 8 bytes then take milliseconds
    instead of microseconds, so there it gets multiple.
    """
    if peer == OPENMPI:
        return MpiLibrary("Open MPI", rank, ranks, "single")
    if peer == MPICH:
        return MpiLibrary("MPICH", rank, ranks, "multiple" if oversubscribed else "single")
    if peer == INTELMPI:
        return MpiLibrary("Intel(R) MPI", rank, ranks, "single")
    if peer == GLOO:
        return GlooLibrary(rank, ranks, rendezvous)
    if peer == MEMCPY:
        return CopyLibrary()
    raise SystemExit(f"{peer!r} is no peer")


def main(arguments: list[str]) -> None:
    """Join the team, then measure until the benchmark hangs up."""
    peer, ranks_text, address, control_path, pinned = arguments
    ranks = int(ranks_text)
    rank = int(next(os.environ[name] for name in RANK_VARIABLES if name in os.environ))
    cpus = sorted(os.sched_getaffinity(0))
    if pinned == "pinned":
        # Before the library is loaded, so that its threads stay on the rank's processor too.
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    control = FileControl(control_path, ranks)
    oversubscribed = ranks > len(cpus)
    library = load(peer, rank, ranks, oversubscribed, f"{address}.rendezvous")
    end = socket.socket(socket.AF_UNIX)
    end.connect(address)
    connection = Connection(end.detach())
    endpoint_class = CopyEndpoint if peer == MEMCPY else PeerEndpoint
    endpoint = endpoint_class(library, rank, control, len(cpus))
    processors = tuple(sorted(os.sched_getaffinity(0)))
    # As a plain tuple: this module is __main__ here, which the other side could not look up.
    connection.send(
        tuple(Hello(rank, os.getpid(), library.version, library.setting, processors))
    )
    run_rank(endpoint, connection)


if __name__ == "__main__":
    main(sys.argv[1:])
