"""Kernels on a CPU: ranks' memory in one arena, launches by the engine in kernels/host.

A world is a communicator: its flags and counters live on from launch to launch. Times taken here say
nothing about any device.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.kernels import abi
from ccbench.backends.kernels.building import Build, built
from ccbench.backends.kernels.host_memory import Bytes, HostCommunicator, HostMemory
from ccbench.backends.kernels.plans import Plan
from ccbench.errors import CcbenchError

RECORD = np.dtype(
    [("entry", "S64"), ("arguments", abi.ARGUMENTS), ("device", "i4"), ("free_0", "i4")], align=True
)
OPTIONS = np.dtype(
    [("seed", "u8"), ("engine", "i4"), ("lanes", "i4"), ("resident", "i4"), ("free_0", "i4")], align=True
)

ENGINES = {"fibers": 0, "threads": 1}
REPORT_BYTES = 8192
SANITIZER_EXIT_CODE = 66
"""What the sanitizer exits with for whatever it reports: a race, and a crash as well."""

RACE_REPORTED = "ThreadSanitizer: data race"
SANITIZER_SECONDS = 240
UNEXPECTED_MAPPING = "unexpected memory mapping"

_ONE_AT_A_TIME = threading.Lock()
"""A loaded engine runs one call's launches at a time."""

_RESULTS = {3: "deadlock", 4: "unknown entry", 5: "bad options", 6: "bad file"}


class KernelFailed(CcbenchError):
    """A launch did not end: a wait was given up, or the engine found that nobody could go on."""

    exit_code = 4


class KernelDeadlock(KernelFailed):
    """No lane could go on; the message names every waiting block."""


class KernelRace(KernelFailed):
    """The thread sanitizer found a race; the message is its report."""


class KernelCrashed(KernelFailed):
    """The process that ran the launches died, for instance of an access to no memory."""


@dataclass(frozen=True)
class HostOptions:
    """How launches are run.

    lanes: per block. seed: of the fibers' order. resident: blocks of one device that run at once (fibers
    only), 0 for all. devices: over how many grids the ranks are split; grids of different devices drift.
    limit_nanoseconds: of one wait, 0 for none; with fibers it passes only when nothing else can happen.
    """

    engine: Literal["fibers", "threads"] = "fibers"
    lanes: int = 8
    seed: int = 0
    resident: int = 0
    devices: int = 1
    limit_nanoseconds: int = 0

    def __post_init__(self) -> None:
        if self.engine == "threads" and self.resident:
            raise ValueError("resident: threads all run at once; use engine='fibers'")


@dataclass(frozen=True, eq=False)
class HostCall:
    """One collective: which entry, on what.

    count: elements as ccbench counts them. inputs, outputs: an arena offset per rank (HostWorld.allocate),
    0 where the rank has no such buffer. plan: shape (channels, words); None where the kernel needs none.
    program: what ``schedule`` interprets. channels: None for all of the world's. communicator: whose members
    take part, in their order; None for all ranks of the world.
    """

    entry: str
    dtype: str
    count: int
    inputs: Sequence[int]
    outputs: Sequence[int]
    op: str = "sum"
    root: int = 0
    plan: Plan | None = None
    program: NDArray[np.int32] | None = None
    channels: int | None = None
    iterations: int = 1
    communicator: HostCommunicator | None = None


class HostWorld(HostMemory):
    """Some ranks' memory, zeroed once, and the launches on it."""

    def run(
        self,
        build: Build,
        calls: Sequence[HostCall],
        options: HostOptions | None = None,
        instead: Mapping[int, HostCall] | None = None,
    ) -> None:
        """Launch ``calls``, one after another on every device, and wait for all.

        Calls of different communicators are on devices of their own, so that they run at once.

        build: the kernel file that has the calls' entries; with ``sanitize`` in a process of its own.
        instead: what single devices launch in place of every call, to see what becomes of the others;
        devices count on from one communicator to the next.
        Raises KernelDeadlock, KernelRace, KernelCrashed, KernelFailed naming rank and peer: then reset it.
        """
        options = options or HostOptions()
        mark = self.used
        try:
            fixups: list[int] = []
            places = {id(one): place for place, one in enumerate(self._communicators_of(calls))}
            records = np.concatenate([self._records(call, options, fixups) for call in calls])
            shifts = [places[id(self._of(call))] * options.devices for call in calls]
            records["device"] += np.repeat(np.asarray(shifts, np.int32), options.devices)
            for device, call in (instead or {}).items():
                one = self._records(call, options, fixups)[device % options.devices]
                one["device"] = device
                records[records["device"] == device] = one
            (self._run_apart if build.sanitize else self._run_here)(built(build), records, options, fixups)
        finally:
            self.free_after(mark)
        given_up = self.errors()
        if given_up:
            raise KernelFailed("; ".join(map(str, given_up)))

    def _of(self, call: HostCall) -> HostCommunicator:
        return call.communicator or self.everybody

    def _communicators_of(self, calls: Sequence[HostCall]) -> list[HostCommunicator]:
        return list({id(self._of(call)): self._of(call) for call in calls}.values())

    def _put(self, words: NDArray[Any]) -> int:
        flat = np.ascontiguousarray(words).view(np.uint8).ravel()
        offset = self.allocate(len(flat))
        self.view(offset, len(flat))[:] = flat
        return offset

    def _views(self, call: HostCall, fixups: list[int]) -> int:
        views = np.zeros(self._of(call).ranks, abi.RANK_VIEW)
        for rank, areas in enumerate(self._of(call).areas):
            views[rank]["input"] = call.inputs[rank]
            views[rank]["output"] = call.outputs[rank]
            for name, offset in areas.items():
                views[rank][name] = offset
        offset = self._put(views)
        words = views.view(np.uint64)
        fixups.extend(offset + 8 * int(index) for index in np.flatnonzero(words))
        return offset

    def _records(self, call: HostCall, options: HostOptions, fixups: list[int]) -> NDArray[Any]:
        records = np.zeros(options.devices, RECORD)
        records["entry"] = call.entry.encode()
        records["device"] = np.arange(options.devices)
        given = records["arguments"]
        given["views"] = self._views(call, fixups)
        channels = self.channels if call.channels is None else call.channels
        if not 1 <= channels <= self.channels or (call.plan is not None and len(call.plan) < channels):
            raise ValueError(
                f"{call.entry}: {channels} channels, but this world has {self.channels} and the plan is for "
                f"{'any number' if call.plan is None else len(call.plan)}; use no more than both have"
            )
        if call.plan is not None:
            given["plan"] = self._put(np.asarray(call.plan, np.int32))
            given["plan_words"] = call.plan.shape[1]
        if call.program is not None:
            given["program"] = self._put(np.asarray(call.program, np.int32))
            given["program_words"] = call.program.size
        work = self._of(call).work
        first = np.arange(options.devices + 1) * work.ranks // options.devices
        given["first_rank"] = first[:-1]
        given["ranks_here"] = np.diff(first)
        given["limit_nanoseconds"] = options.limit_nanoseconds
        given["channels"] = channels
        for name in ("count", "root", "iterations"):
            given[name] = getattr(call, name)
        for name in ("ranks", "slots", "slot_bytes", "packets_bytes", "staging_bytes"):
            given[name] = getattr(work, name)
        given["type"] = abi.type_number(call.dtype)
        given["op"] = abi.op_number(call.op)
        return records

    def _run_here(
        self, library: Path, records: NDArray[Any], options: HostOptions, fixups: Sequence[int]
    ) -> None:
        base = np.uint64(self.arena.ctypes.data)
        words = self.arena[: len(self.arena) // 8 * 8].view(np.uint64)
        at = np.asarray(fixups, np.int64) // 8
        words[at] += base
        given = records["arguments"]
        for name in ("views", "plan", "program"):
            given[name] = np.where(given[name] > 0, given[name] + base, given[name])
        report = ctypes.create_string_buffer(REPORT_BYTES)
        settings = _options(options)
        with _ONE_AT_A_TIME:
            result = _library(library).ccb_host_launch(
                ctypes.c_void_p(records.ctypes.data),
                ctypes.c_int(len(records)),
                ctypes.c_void_p(settings.ctypes.data),
                report,
                ctypes.c_int(REPORT_BYTES),
            )
        words[at] -= base
        _raise_for(result, report.value.decode())

    def _run_apart(
        self, executable: Path, records: NDArray[Any], options: HostOptions, fixups: Sequence[int]
    ) -> None:
        used = self.arena[: self.used]
        header = np.array([len(used), len(records), len(fixups)], np.uint64)
        with tempfile.NamedTemporaryFile(prefix="ccbench-launches-") as file:
            for part in (header, _options(options), records, np.asarray(fixups, np.uint64), used):
                file.write(part.tobytes())
            file.flush()
            done = sanitized([str(executable), file.name])
            _raise_for_sanitized(done.returncode, done.stderr.strip())
            file.seek(-len(used), 2)
            after = np.frombuffer(file.read(), np.uint8).copy()
        self._take_back(after, fixups)

    def _take_back(self, after: Bytes, fixups: Sequence[int]) -> None:
        """``after`` has the other process's addresses where ``fixups`` say; those words stay as they were."""
        at = np.asarray(fixups, np.int64)[:, None] + np.arange(8)
        after[at] = self.arena[at]
        self.arena[: len(after)] = after


def sanitized(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program of the thread sanitizer; again without address randomisation where that stops it.

    Sanitizers cannot start where the kernel randomises addresses by more bits than they were made for
    (google/sanitizers issue 1716); setarch needs a permission that containers may withhold, so it is not
    the first choice.
    """
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=SANITIZER_SECONDS,
        env={"TSAN_OPTIONS": f"exitcode={SANITIZER_EXIT_CODE} history_size=4"},
    )
    setarch = shutil.which("setarch")
    if UNEXPECTED_MAPPING in done.stderr and setarch is not None and words[0] != setarch:
        done = sanitized([setarch, "-R", *words])
    if UNEXPECTED_MAPPING in done.stderr or "setarch:" in done.stderr:
        raise KernelFailed(
            f"the thread sanitizer cannot start here ({done.stderr.strip().splitlines()[0]}); "
            "allow it fewer random addresses: sysctl vm.mmap_rnd_bits=28"
        )
    return done


def _options(options: HostOptions) -> NDArray[Any]:
    words = np.zeros(1, OPTIONS)
    words["seed"] = options.seed
    words["engine"] = ENGINES[options.engine]
    words["lanes"] = options.lanes
    words["resident"] = options.resident
    return words


def _raise_for_sanitized(result: int, report: str) -> None:
    """The exit code does not tell a race from a crash; the report's words do. A race that was found before a
    crash is the likelier cause of both, and its report holds the crash's."""
    if RACE_REPORTED in report:
        raise KernelRace(report)
    if result < 0:
        raise KernelCrashed(f"ended by {signal.Signals(-result).name}: {report or 'it said nothing'}")
    if result == SANITIZER_EXIT_CODE:
        raise KernelCrashed(f"the thread sanitizer reports no race, but: {report or 'nothing'}")
    _raise_for(result, report)


def _raise_for(result: int, report: str) -> None:
    if result == 3:
        raise KernelDeadlock(report)
    if result != 0:
        raise KernelFailed(f"{_RESULTS.get(result, f'exit code {result}')}: {report}")


@functools.lru_cache(maxsize=64)
def _library(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


def layout(path: Path) -> dict[str, int]:
    """Sizes and offsets of the structures as a built library has them."""
    function = _library(path).ccb_host_layout
    function.restype = ctypes.c_char_p
    lines = function().decode().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def words_combined(
    path: Path, dtype: str, op: str, received: NDArray[np.uint64], own: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The kernels' arithmetic alone: words of elements combined, as a built library does it."""
    return _words(path, dtype, op, 1, received, own)


def words_finished(path: Path, dtype: str, ranks: int, total: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The kernels' division of an average's total alone."""
    return _words(path, dtype, "avg", ranks, total, None)


def _words(
    path: Path, dtype: str, op: str, ranks: int, first: NDArray[np.uint64], second: NDArray[np.uint64] | None
) -> NDArray[np.uint64]:
    first = np.ascontiguousarray(first)
    second = None if second is None else np.ascontiguousarray(second)
    result = np.empty_like(first)
    _library(path).ccb_host_words(
        ctypes.c_int(abi.type_number(dtype)),
        ctypes.c_int(abi.op_number(op)),
        ctypes.c_int(ranks),
        ctypes.c_longlong(len(first)),
        ctypes.c_void_p(first.ctypes.data),
        ctypes.c_void_p(None if second is None else second.ctypes.data),
        ctypes.c_void_p(result.ctypes.data),
    )
    return result
