"""Worlds for tests: under the thread sanitizer, and with devices that launch something else.

A race, a crash and a deadlock are told apart by what the sanitizer reports.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.kernels import abi
from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import (
    HostCall,
    HostOptions,
    HostWorld,
    KernelFailed,
    option_words,
    raise_for,
)
from ccbench.verification import Array, Piece

SANITIZER_EXIT_CODE = 66
"""What the sanitizer exits with for whatever it reports: a race, and a crash as well."""

RACE_REPORTED = "ThreadSanitizer: data race"
SANITIZER_SECONDS = 240
UNEXPECTED_MAPPING = "unexpected memory mapping"


class KernelRace(KernelFailed):
    """The thread sanitizer found a race; the message is its report."""


class KernelCrashed(KernelFailed):
    """The process that ran the launches died, for instance of an access to no memory."""


class CheckedWorld(HostWorld):
    """A HostWorld that runs sanitized builds, too; KernelRace and KernelCrashed say what these find."""

    _sanitize = False
    _instead: Mapping[int, HostCall] = {}

    def run(
        self,
        build: Build,
        calls: Sequence[HostCall],
        options: HostOptions | None = None,
        instead: Mapping[int, HostCall] | None = None,
    ) -> None:
        """Launch ``calls``.

        instead: what single devices launch in place of every call, to see what becomes of the others;
        devices count on from one communicator to the next.
        """
        self._sanitize, self._instead = build.sanitize, instead or {}
        super().run(build, calls, options)

    def records(
        self, calls: Sequence[HostCall], options: HostOptions, fixups: list[int]
    ) -> NDArray[Any]:
        """Those of all launches, with what single devices launch instead."""
        records = super().records(calls, options, fixups)
        for device, call in self._instead.items():
            record = self.records_of(call, options, fixups)[device % options.devices]
            record["device"] = device
            records[records["device"] == device] = record
        return records

    def launch(
        self, library: Path, records: NDArray[Any], options: HostOptions, fixups: Sequence[int]
    ) -> None:
        """As the engine does; a program of the thread sanitizer runs in a process of its own."""
        if not self._sanitize:
            super().launch(library, records, options, fixups)
            return
        used = self.arena[: self.used]
        header = np.array([len(used), len(records), len(fixups)], np.uint64)
        with tempfile.NamedTemporaryFile(prefix="ccbench-launches-") as file:
            for part in (
                header,
                option_words(options),
                records,
                np.asarray(fixups, np.uint64),
                used,
            ):
                file.write(part.tobytes())
            file.flush()
            done = sanitized([str(library), file.name])
            report = done.stderr.strip()
            # The exit code does not tell a race from a crash; the report's words do. A race that was found
            # before a crash is the likelier cause of both, and its report holds the crash's.
            if RACE_REPORTED in report:
                raise KernelRace(report)
            if done.returncode < 0:
                name = signal.Signals(-done.returncode).name
                raise KernelCrashed(f"ended by {name}: {report or 'it said nothing'}")
            if done.returncode == SANITIZER_EXIT_CODE:
                raise KernelCrashed(
                    f"the thread sanitizer reports no race, but: {report or 'nothing'}"
                )
            raise_for(done.returncode, report)
            file.seek(-len(used), 2)
            after = np.frombuffer(file.read(), np.uint8).copy()
        # Words that hold the other process's addresses stay as they were here.
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


COMPARE, COMPARING_LANES = Build("compare.cu"), 8


@dataclass(frozen=True)
class HostOutput:
    """Compares ``output``, a view of the world's memory."""

    world: HostWorld
    output: Array
    build: Build = COMPARE

    def differing(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """By the kernel ``compare``, which a rank runs alone."""
        # One rank of its own runs it, with flags that no collective uses, and everything is given back.
        world, mark = self.world, self.world.used
        table, periods = abi.compare_tables(pieces)
        alone = world.communicator([0])
        at = world.allocate(periods.nbytes)
        world.view(at, periods.nbytes)[:] = periods.view(np.uint8)
        place = self.output.ctypes.data - world.arena.ctypes.data
        dtype = abi.COPY_TYPES[self.output.itemsize]
        call = HostCall(
            "compare", dtype, 0, [at], [place], program=table.view(np.int32), communicator=alone
        )
        world.run(self.build, [call], HostOptions(lanes=COMPARING_LANES))
        lanes = (
            world.area(0, "staging", alone)
            .view(abi.COMPARED)[: world.channels * COMPARING_LANES]
            .copy()
        )
        world.free_after(mark)
        return abi.compared(lanes)
