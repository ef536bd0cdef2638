"""A gate in front of what is timed, so that events see the device alone.

An event is reached when the device gets there, so between two events lies whatever the host takes to ask for
what is between them, unless the device is kept from starting. A kernel of one warp in front of the first
event spins on a word in pinned memory of the host until all is enqueued; NVIDIA's nvbench does the same
("blocking kernel", NVIDIA/nvbench, nvbench/blocking_kernel.cuh). All devices watch one word, so that they
start together.

The gate never holds a device for longer than LIMIT_SECONDS: it then notes that it gave up and ends, what is
behind it runs, and the host raises GateMissed instead of keeping a time that contains its own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.cuda.group import Group
from ccbench.backends.cuda.modules import Kernel
from ccbench.backends.cuda.runtime import Cuda
from ccbench.errors import CcbenchError
from ccbench.kernels.sources import Program, kernel_folder

LIMIT_SECONDS = 2.0
"""Enqueueing takes microseconds for each of at most MOST_HELD launches; a host that is swapped out may take
longer."""

MOST_HELD, MOST_ITEMS_HELD = 32, 512
"""Launches, and launches and copies together, that are enqueued behind a closed gate. A stream's queue is
bounded (no figure is documented), and a host that asked for more than it takes would wait for the gate that
it must open."""

OPENED, MISSED, WORD_BYTES = 0, 128, 256
"""Where the two words lie, each in a line of its own."""

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
    blocking = given.get(BLOCKING_SWITCH, "0")
    return "" if blocking in ("", "0") else f"{BLOCKING_SWITCH}={blocking}"


def without_gate(reason: str) -> str:
    """What to say of times that were taken without one."""
    return f"times contain the host's launches, because nothing holds devices back ({reason})"


class GateMissed(CcbenchError):
    """The host did not open a gate in time: what was timed behind it contains the host's delay."""

    exit_code = 4


class Gate:
    """One word that the streams of any number of devices wait for."""

    def __init__(self, cuda: Cuda, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._cuda = cuda
        self._limit_seconds = limit_seconds
        self._address = cuda.allocate_pinned(WORD_BYTES)
        ctypes.memset(self._address, 0, WORD_BYTES)
        self._arguments: NDArray[Any] = np.zeros(1, ARGUMENTS)
        self._arguments["opened"] = self._address + OPENED
        self._arguments["missed"] = self._address + MISSED
        self._arguments["limit_nanoseconds"] = max(1, int(limit_seconds * 1e9))
        self._kernels: dict[int, Kernel] = {}

    def load(self, group: Group) -> None:
        """Have the kernel ready on this device."""
        if group.facts.number not in self._kernels:
            self._kernels[group.facts.number] = group.extra_kernel(gate_program(), LANES)

    def close(self) -> None:
        """From here on what ``hold`` is called for waits."""
        self._arguments["goal"] += 1

    def hold(self, group: Group) -> None:
        """What is enqueued on this device's stream next waits until the gate opens."""
        group.launch_one_block(self._kernels[group.facts.number], self._arguments)

    def open(self) -> None:
        """Let everything go."""
        self._word(OPENED).value = int(self._arguments["goal"][0])

    def raise_if_missed(self) -> None:
        """GateMissed when a device gave up waiting; call it after the devices have ended."""
        if self._word(MISSED).value >= int(self._arguments["goal"][0]):
            raise GateMissed(
                f"a GPU waited longer than {self._limit_seconds:g} s for this process to finish launching: "
                "the time that was taken is void; look for what keeps the process from running (limits of "
                f"processor time, swapping), or set {SWITCH}=off under a tool that makes launches wait"
            )

    def _word(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_address(self._address + offset)

    @staticmethod
    def most_held(items_per_launch: int) -> int:
        """Launches of so many items each that may be enqueued while the gate is closed; at least one."""
        return max(1, min(MOST_HELD, MOST_ITEMS_HELD // items_per_launch))

    def free(self) -> None:
        """Give the word back; no gate may be closed."""
        self._cuda.free_pinned(self._address)
        self._address = 0


def open_gate(cuda: Cuda, groups: Sequence[Group]) -> tuple[Gate | None, str]:
    """A gate in front of all ``groups``; None and the reason where there can be none."""
    refused = switched_off() or cuda.host_memory_refused(group.facts.number for group in groups)
    if refused:
        return None, refused
    gate = Gate(cuda)
    try:
        for group in groups:
            cuda.use(group.facts.number)
            gate.load(group)
    except CcbenchError as error:  # no compiler, or one that does not know the device: times without a gate
        gate.free()
        return None, str(error)
    return gate, ""
