"""A gate in front of what is timed, so that events see the device alone.

An event is reached when the device gets there, so between two events lies whatever the host takes to ask for
what is between them, unless the device is kept from starting. A kernel of one warp in front of the first
event spins on a word in pinned memory of the host until all is enqueued; NVIDIA's nvbench does the same
("blocking kernel", NVIDIA/nvbench, nvbench/blocking_kernel.cuh). All devices of a host watch one word, so
that they start together, whether one process launches on all of them or each has its own.

The gate never holds a device for longer than LIMIT_SECONDS: it then notes that it gave up and ends, what is
behind it runs, and the host raises GateMissed instead of keeping a time that contains its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import OutOfMemory
from ccbench.backends.cpu.memory import fence
from ccbench.backends.cuda.context import DeviceContext
from ccbench.backends.cuda.modules import Kernel
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.kernels.sources import Program, kernel_folder
from ccbench.errors import BackendUnavailable, CcbenchError

LIMIT_SECONDS = 2.0
"""Enqueueing takes microseconds for each of at most MOST_HELD launches; a host that is swapped out may take
longer."""

MOST_HELD, MOST_ITEMS_HELD = 32, 512
"""Launches, and launches and copies together, that are enqueued behind a closed gate. A stream's queue is
bounded (no figure is documented), and a host that asked for more than it takes would wait for the gate that
it must open."""

OPENED, MISSED, WORD_BYTES, LINE_BYTES = 0, 128, 256, 128
"""Where the two words lie, each in a line of its own."""

TOKEN, TOKEN_BYTES = 64, 16

ARGUMENTS = np.dtype([("opened", "u8"), ("missed", "u8"), ("goal", "u8"), ("limit_nanoseconds", "u8")])

LANES = 32

SOURCE = """#include "system.cuh"
struct Gate {
    const ccb::u64* opened;
    ccb::u64* missed;
    ccb::u64 goal;
    ccb::u64 limit_nanoseconds;
};
extern "C" __global__ void ccb_kernel(const __grid_constant__ Gate gate) {
    if (threadIdx.x != 0) return;
    const ccb::Waiting host{};
    ccb::SpinLimit spin{gate.limit_nanoseconds};
    while (ccb::load_relaxed(gate.opened) < gate.goal) {
        if (ccb::exhausted(spin)) {
            ccb::store_relaxed(gate.missed, gate.goal);
            return;
        }
        ccb::back_off(spin.polls, host);
    }
}
"""


def gate_program() -> Program:
    """What NVRTC is given; it speaks to the machine through ``kernels/system.cuh`` alone."""
    header = (kernel_folder() / "system.cuh").read_text(encoding="utf-8")
    return Program(SOURCE, {"system.cuh": header}, ("-std=c++17",))


SWITCH = "CCBENCH_GATE"
"""Set to ``off`` under tools that make every launch wait for its end, such as Nsight Compute."""

BLOCKING_SWITCH = "CUDA_LAUNCH_BLOCKING"
"""CUDA's own, which does the same."""


def switched_off(environment: Mapping[str, str] | None = None) -> str:
    """The setting by which launches wait for their end, so that a gate would be waited for in vain; or ''."""
    given = os.environ if environment is None else environment
    if given.get(SWITCH, "").lower() == "off":
        return f"{SWITCH}=off"
    return _blocking(given)


def _blocking(environment: Mapping[str, str]) -> str:
    value = environment.get(BLOCKING_SWITCH, "0")
    return "" if value in ("", "0") else f"{BLOCKING_SWITCH}={value}"


def refuse_blocking(devices: int, instead: str) -> None:
    """BackendUnavailable where launches wait for their end and one process launches on several devices.

    The first kernel waits for the second, which is not launched before the first has ended.
    """
    blocking = _blocking(os.environ)
    if devices > 1 and blocking:
        raise BackendUnavailable(
            f"{blocking} lets every launch wait for its end, and kernels of {devices} GPUs wait for each "
            f"other: one process cannot launch them all; unset it, or take `{instead}`"
        )


def without_gate(reason: str) -> str:
    """What to say of times that were taken without one."""
    return f"times contain the host's launches, because nothing holds devices back ({reason})"


class GateMissed(CcbenchError):
    """The host did not open a gate in time: what was timed behind it contains the host's delay."""

    exit_code = 4


def board_bytes(processes: int) -> int:
    """The size of a GateBoard: whole pages, as the driver pins them."""
    return -(-(WORD_BYTES + processes * LINE_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE


class GateBoard:
    """The words of a gate that several processes of a host have in common.

    Made before they are forked, or of a ``file`` of ``board_bytes`` that each of them has opened. Behind the
    words of every gate comes a line for each process: the number of the last gate that it reached. token:
    room for a sign by which processes know the file.
    """

    def __init__(self, processes: int, file: int = -1) -> None:
        self.size_bytes = board_bytes(processes)
        self._memory = mmap.mmap(file, self.size_bytes)
        self.token = memoryview(self._memory)[TOKEN : TOKEN + TOKEN_BYTES]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        lines = memoryview(self._memory)[WORD_BYTES : WORD_BYTES + processes * LINE_BYTES]
        self._reached = lines.cast("q")[:: LINE_BYTES // 8]

    def meet(self, process: int, goal: int, limit_seconds: float) -> bool:
        """Return True as soon as all processes have reached the gate, False where one does not come.

        Nobody sleeps: what one comes late by, all devices would stand still.
        """
        fence()
        self._reached[process] = goal
        deadline = time.monotonic() + limit_seconds
        while min(self._reached) < goal:
            if time.monotonic() > deadline:
                return False
            os.sched_yield()
        return True


class Gate:
    """One word that the streams of any number of devices wait for.

    board: where other processes wait for it too. Of ``process`` it is then this one's side.
    """

    def __init__(
        self,
        cuda: Cuda,
        limit_seconds: float = LIMIT_SECONDS,
        board: GateBoard | None = None,
        process: int = 0,
    ) -> None:
        self._cuda = cuda
        self._limit_seconds = limit_seconds
        self._board, self._process = board, process
        if board is None:
            self._address = device = cuda.allocate_pinned(WORD_BYTES)
            ctypes.memset(self._address, 0, WORD_BYTES)
        else:
            self._address, device = board.address, cuda.register_host(board.address, board.size_bytes)
        self._arguments: NDArray[Any] = np.zeros(1, ARGUMENTS)
        self._arguments["opened"] = device + OPENED
        self._arguments["missed"] = device + MISSED
        self._arguments["limit_nanoseconds"] = max(1, int(limit_seconds * 1e9))
        self._kernels: dict[int, Kernel] = {}

    def load(self, context: DeviceContext) -> None:
        """Have the kernel ready on this device."""
        if context.facts.number not in self._kernels:
            self._kernels[context.facts.number] = context.extra_kernel(gate_program(), LANES)

    def close(self) -> None:
        """From here on what ``hold`` is called for waits."""
        self._arguments["goal"] += 1

    def hold(self, context: DeviceContext) -> None:
        """What is enqueued on this device's stream next waits until the gate opens."""
        context.launch_one_block(self._kernels[context.facts.number], self._arguments)

    def open(self) -> None:
        """Let everything go, once every process has come so far; the second time nothing happens."""
        goal = int(self._arguments["goal"][0])
        board = self._board if self._word(OPENED).value < goal else None
        if board and not board.meet(self._process, goal, self._limit_seconds):
            self._word(MISSED).value = goal
        self.abandon()

    def abandon(self) -> None:
        """Let everything go whoever else comes: something went wrong here."""
        self._word(OPENED).value = int(self._arguments["goal"][0])

    def raise_if_missed(self) -> None:
        """GateMissed when a device gave up waiting; call it after the devices have ended."""
        if self._word(MISSED).value >= int(self._arguments["goal"][0]):
            raise GateMissed(
                f"a GPU waited longer than {self._limit_seconds:g} s for "
                f"{'the processes of this host' if self._board else 'this process'} to finish launching: "
                "the time that was taken is void; look for what keeps the process from running (limits of "
                f"processor time, swapping), or set {SWITCH}=off under a tool that makes launches wait"
            )

    def _word(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_address(self._address + offset)

    @property
    def shared(self) -> bool:
        """Whether other processes wait for it too: then only what all are about to launch may be held."""
        return self._board is not None

    @staticmethod
    def most_held(items_per_launch: int) -> int:
        """Launches of so many items each that may be enqueued while the gate is closed; at least one."""
        return max(1, min(MOST_HELD, MOST_ITEMS_HELD // items_per_launch))

    def free(self) -> None:
        """Give the word back; no gate may be closed."""
        if self._board:
            self._cuda.unregister_host(self._address)
        else:
            self._cuda.free_pinned(self._address)
        self._address = 0


@contextmanager
def holding(gate: Gate | None, contexts: Iterable[DeviceContext]) -> Iterator[Callable[[], None]]:
    """What is enqueued inside waits on all ``contexts``, until what this gives is called, or to the end."""
    if gate is None:
        yield lambda: None
        return
    gate.close()
    for context in contexts:
        gate.hold(context)
    try:
        yield gate.open
    except BaseException:
        gate.abandon()
        raise
    gate.open()


def open_gate(
    cuda: Cuda,
    contexts: Sequence[DeviceContext],
    side: tuple[GateBoard, int] | None = None,
    least: Callable[[int], int] = int,
) -> tuple[Gate | None, str]:
    """A gate in front of all ``contexts``; None and the reason where there can be none.

    side: that of all processes of a host, and which one this is. least: the least value of all processes,
    which have all a gate or none.
    """
    gate, reason = _own_gate(cuda, contexts, *(side or (None, 0)))
    if least(int(gate is not None)) == 0 and gate is not None:
        gate.free()
        return None, "the process of another rank cannot have one"
    return gate, reason


def _own_gate(
    cuda: Cuda, contexts: Sequence[DeviceContext], board: GateBoard | None, process: int
) -> tuple[Gate | None, str]:
    refused = switched_off() or cuda.host_memory_refused(context.facts.number for context in contexts)
    if refused:
        return None, refused
    gate: Gate | None = None
    try:
        cuda.use(contexts[0].facts.number)
        gate = Gate(cuda, board=board, process=process)
        for context in contexts:
            cuda.use(context.facts.number)
            gate.load(context)
    # No compiler, one that does not know the device, no memory, or what CuPy raises of the driver: times
    # without a gate, for were it raised, the processes of other ranks would wait in ``least`` for this one.
    except (CcbenchError, OutOfMemory, RuntimeError) as error:
        if gate is not None:
            gate.free()
        return None, str(error)
    return gate, ""
