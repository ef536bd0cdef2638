"""Calls and launches that do not end, and what NCCL tells of itself: its tuning log, its watch service.

A launch has a limit, a watchdog aborts what exceeds it, and a diagnosis says in one line what hangs.

What NCCL chose stands in its tuning log, which rank 0 of a communicator writes with ``NCCL_DEBUG=INFO`` and
``NCCL_DEBUG_SUBSYS=TUNING``. Three forms are known, from NCCL's ``src/enqueue.cc`` and ``src/sym_kernels.cc``
and from published logs:

- from 2.24: ``AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}`` (names in any case);
- 2.6 to 2.23: ``AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008``, earlier without the name;
- from 2.27, kernels on symmetric memory: ``AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R
  nchannels 8 nthreads 512``.

Point-to-point calls, and what is made of them, write no such line.

NCCL's own watch service is RAS, in NCCL from 2.24 on. Every NCCL process listens on one TCP port of its node
(NCCL_RAS_ADDR, by default localhost:28028). The text protocol is the one of NCCL's client
(src/ras/client.cc): ``CLIENT PROTOCOL 2`` is answered with ``SERVER PROTOCOL n``, ``TIMEOUT s`` with ``OK``,
and ``STATUS`` with a report, after which the server hangs up.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ccbench.backends.nccl import CALLED, DEFAULT, TUNED, tuned
from ccbench.cases.axes import Case
from ccbench.collectives import SETUPS
from ccbench.errors import CcbenchError
from ccbench.units import format_seconds

LEAST_LIMIT_SECONDS = 15.0
SLOWEST_BYTES_PER_SECOND = 20e6
"""A launch gets LEAST_LIMIT_SECONDS and what its bytes take at this rate, a slow office network's."""

WATCHDOG_SECONDS = 0.5
"""Interval at which the watchdog looks; between looks it takes no time from what is measured."""

FIRST_RAS_VERSION = 22_403
"""NCCL 2.24.3 (release notes: "RAS")."""

RAS_ADDRESS = ("localhost", 28028)
RAS_PROTOCOL = 2
PEER_TIMEOUT_SECONDS = 2
"""Time that the node that answers waits for other nodes."""

REPORT_LIMIT_BYTES = 1 << 20
SUMMARY_LIMIT_CHARACTERS = 700


class CollectiveHung(CcbenchError):
    """A collective did not end in its time, or NCCL says that it never will."""

    exit_code = 4


def limit_for(case: Case, times: int) -> float:
    """Return the seconds that ``times`` launches may take."""
    moved = case.size_bytes * max(case.ranks, 1) * case.aggregation * times
    least = LEAST_LIMIT_SECONDS * (times if case.collective in SETUPS else 1)
    return least + moved / SLOWEST_BYTES_PER_SECOND


class Watchdog:
    """A thread that calls ``on_expiry`` once when what stands in ``limited`` takes longer than its limit.

    A call of NCCL's that waits in vain cannot be left, only aborted from outside. The thread starts with the
    first use, in the process that uses it: threads do not survive a fork.
    """

    def __init__(self, on_expiry: Callable[[], None]) -> None:
        self._on_expiry = on_expiry
        self._deadline = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.expired = False

    @contextmanager
    def limited(self, limit_seconds: float) -> Iterator[None]:
        """Watch over what is done inside; ``expired`` tells afterwards whether it had to be ended."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, name="ccbench-watchdog", daemon=True
            )
            self._thread.start()
        self._deadline = time.monotonic() + limit_seconds
        try:
            yield
        finally:
            self._deadline = 0.0

    def _watch(self) -> None:
        while not self._over.wait(WATCHDOG_SECONDS):
            # Taken once: the other thread sets it back to 0 at any time.
            deadline = self._deadline
            if deadline and time.monotonic() > deadline and not self.expired:
                self.expired = True
                self._on_expiry()

    def close(self) -> None:
        """End the thread."""
        self._over.set()


def diagnosed(
    case: Case,
    where: str,
    sample: int,
    after_seconds: float | None,
    busy: Sequence[str],
    failures: Sequence[str],
    version: int,
) -> CollectiveHung:
    """Return the error for a launch of ``case``; asks NCCL's watch service, so call it before aborting.

    after_seconds: how long was waited; None where a call failed at once. failures: NCCL's own words.
    """
    when = f"sample {sample}" if sample >= 0 else "warming up"
    what = (
        "failed" if after_seconds is None else f"did not end in {format_seconds(after_seconds)}"
    )
    words = [f"{where}: {case.label} {what} ({when})"]
    if busy:
        words.append(f"still waiting: {', '.join(busy)}")
    words += [f"NCCL says: {text}" for text in dict.fromkeys(failures)]
    if version >= FIRST_RAS_VERSION:
        summary = ras_summary(ras_report())
        words.append(f"RAS: {summary}" if summary else "RAS does not answer")
    return CollectiveHung("; ".join(words) + "; the communicator was aborted")


# -- RAS -----------------------------------------------------------------------------------------------------


def ras_address() -> tuple[str, int]:
    """Return where this node's service listens: NCCL_RAS_ADDR (host:port), else the default."""
    host, _, port = os.environ.get("NCCL_RAS_ADDR", "").rpartition(":")
    return (host.strip("[]") or RAS_ADDRESS[0], int(port)) if port.isdigit() else RAS_ADDRESS


def ras_report(address: tuple[str, int] | None = None, limit_seconds: float = 5.0) -> str:
    """Return the service's report as far as it came in ``limit_seconds``, '' when nobody answers."""
    deadline = time.monotonic() + limit_seconds
    address = address or ras_address()
    with (
        suppress(OSError),
        socket.create_connection(address, timeout=min(1.0, limit_seconds)) as connection,
    ):
        greeting = _answer(connection, f"CLIENT PROTOCOL {RAS_PROTOCOL}\n", deadline)
        if greeting.upper().startswith("SERVER PROTOCOL"):
            _answer(connection, f"TIMEOUT {PEER_TIMEOUT_SECONDS}\n", deadline)
            return _answer(connection, "STATUS\n", deadline, whole=True)
    return ""


def _answer(
    connection: socket.socket, command: str, deadline: float, whole: bool = False
) -> str:
    """Return the line that answers ``command``; whole: all that comes until the service hangs up."""
    connection.sendall(command.encode())
    received = bytearray()
    with suppress(OSError):  # of a service that hangs, what it has said counts
        while (whole or b"\n" not in received) and len(received) < REPORT_LIMIT_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            piece = connection.recv(65_536)
            if not piece:
                break
            received += piece
    return received.decode(errors="replace")


def ras_summary(report: str) -> str:
    """Return what a report says is wrong, in one line: errors and warnings, else its communicators."""
    # Lines stand under titles, and a title is a line above a rule of ``=``.
    every = [line.rstrip() for line in report.splitlines()]
    sections: dict[str, list[str]] = {}
    title = ""
    for line, after in zip(every, [*every[1:], ""], strict=False):
        if after and set(after) == {"="}:
            title = line.strip()
        elif not re.fullmatch(r"[=\-\s]*", line):
            sections.setdefault(title, []).append(line.strip())
    lines = [line for title in ("Errors", "Warnings") for line in sections.get(title, ())]
    if not lines:
        lines = next(
            (
                section
                for title, section in sections.items()
                if title.startswith("Communicators")
            ),
            [],
        )
    text = "; ".join(" ".join(line.split()) for line in lines)
    return (
        text
        if len(text) <= SUMMARY_LIMIT_CHARACTERS
        else text[: SUMMARY_LIMIT_CHARACTERS - 3] + "..."
    )


# -- the tuning log ----------------------------------------------------------------------------------------

NO_FALLBACK_VERSION = 22_403
"""From 2.24 on NCCL fails where it has not what NCCL_ALGO names; before, it ran ring without a word."""

ALGORITHM_NUMBERS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
"""NCCL_ALGO_* of src/include/nccl_common.h; 2 was plain CollNet before 2.14."""

PROTOCOL_NUMBERS = ("ll", "ll128", "simple")
"""NCCL_PROTO_*."""

LOG_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")

RESET = "ncclResetDebugInit"
"""Has NCCL read LOG_VARIABLES again; in its header from 2.24 on."""

_NAMED = re.compile(
    r"(?:(?P<function>\w+):\s+)?(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
_SYMMETRIC = re.compile(
    r"(?P<function>\w+) \[Symmetric\]: (?P<bytes>\d+) Bytes -> Kernel (?P<kernel>\w+)"
    r"(?:.*?nchannels (?P<channels>\d+))?"
)


@dataclass(frozen=True)
class LibraryChoice:
    """Algorithm, protocol and channels that ran; empty and 0 where not reported.

    protocol: of a symmetric kernel the kernel's name.
    """

    algorithm: str = ""
    protocol: str = ""
    channels: int = 0


def other_than_asked(case: Case, ran: LibraryChoice) -> str:
    """Return what NCCL ran instead of what ``case`` asks for, where it told; '' where that is the same.

    Before 2.24 NCCL fell back to ring and Simple without a word where it had not what NCCL_ALGO named.
    """
    as_asked = case.algorithm in (DEFAULT, ran.algorithm) or (
        case.algorithm == "collnet" and ran.algorithm in CALLED
    )
    if ran.algorithm and not as_asked:
        return f"asked for {case.algorithm}, NCCL ran {ran.algorithm} {ran.protocol}"
    if ran.protocol and case.protocol not in (DEFAULT, ran.protocol):
        return f"asked for protocol {case.protocol}, NCCL ran {ran.algorithm} {ran.protocol}"
    return ""


def observed_choice(native: Any, collective: str, launch: Callable[[], None]) -> LibraryChoice:
    """Do ``launch`` once with NCCL's tuning log on, and return what it says; then the log is off again.

    An empty Choice where this NCCL cannot switch its log, or the user keeps one. native: the library by
    ctypes. What ``launch`` raises passes through, with the log off again.
    """
    reset = getattr(native, RESET, None)
    # NCCL opens a user's own log anew after each switch, and what was in it would be gone.
    if reset is None or os.environ.get("NCCL_DEBUG_FILE"):
        launch()
        return LibraryChoice()
    reset.restype = None
    with tempfile.TemporaryDirectory(prefix="ccbench-nccl-") as folder:
        file = Path(folder) / "tuning.log"
        before = {name: os.environ.pop(name) for name in LOG_VARIABLES if name in os.environ}
        os.environ.update(zip(LOG_VARIABLES, ("INFO", "TUNING", str(file)), strict=True))
        reset()
        try:
            launch()
        finally:
            for name in LOG_VARIABLES:
                os.environ.pop(name, None)
            os.environ.update(before)
            reset()  # NCCL closes the file with the first line that it would write after this
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    return read_choice(text, collective)


def read_choice(text: str, collective: str) -> LibraryChoice:
    """Return what the log ``text`` says of ``collective``; an empty Choice where it says nothing.

    Of several lines (aggregation, groups) the first one's words count, with the most channels of all.
    """
    function, choices = TUNED.get(tuned(collective)), list[LibraryChoice]()
    for line in text.splitlines():
        if symmetric := _SYMMETRIC.search(line):
            name = symmetric["function"]
            # ``AGxLL_R`` of ``AllReduce_AGxLL_R`` is what tells kernels of one function apart.
            kernel = (symmetric["kernel"].partition("_")[2] or symmetric["kernel"]).lower()
            choice = LibraryChoice("symmetric", kernel, int(symmetric["channels"] or 0))
        elif named := _NAMED.search(line):
            name = named["function"] or ""
            channels = int(named["high"]) - int(named["low"]) + 1 if named["high"] else 0
            algorithm = _word(named["algorithm"], ALGORITHM_NUMBERS)
            choice = LibraryChoice(
                algorithm, _word(named["protocol"], PROTOCOL_NUMBERS), channels
            )
        else:
            continue
        if function and name in ("", function):
            choices.append(choice)
    return (
        replace(choices[0], channels=max(choice.channels for choice in choices))
        if choices
        else LibraryChoice()
    )


def _word(text: str, numbered: tuple[str, ...]) -> str:
    if text.isdigit():
        return numbered[int(text)] if int(text) < len(numbered) else ""
    return text.replace("_", "").lower()
