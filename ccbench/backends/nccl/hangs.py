"""Calls and launches that do not end: a limit, a watchdog that aborts, and a diagnosis in one line.

NCCL's own watch service is RAS, in NCCL from 2.24 on. Every NCCL process listens on one TCP port of its node
(NCCL_RAS_ADDR, by default localhost:28028). The text protocol is the one of NCCL's client
(src/ras/client.cc): ``CLIENT PROTOCOL 2`` is answered with ``SERVER PROTOCOL n``, ``TIMEOUT s`` with ``OK``,
and ``STATUS`` with a report, after which the server hangs up.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ccbench.cases import Case
from ccbench.errors import CcbenchError
from ccbench.units import format_seconds

LEAST_LIMIT_SECONDS = 15.0
SLOWEST_BYTES_PER_SECOND = 20e6
"""A launch gets LEAST_LIMIT_SECONDS and what its bytes take at this rate, a slow office network's."""

WATCHDOG_SECONDS = 0.5
"""How often the watchdog looks; between looks it takes no time from what is measured."""

FIRST_RAS_VERSION = 22_403
"""NCCL 2.24.3 (release notes: "RAS")."""

RAS_ADDRESS = ("localhost", 28028)
RAS_PROTOCOL = 2
PEER_TIMEOUT_SECONDS = 2
"""How long the node that answers waits for other nodes."""

REPORT_LIMIT_BYTES = 1 << 20
SUMMARY_LIMIT_CHARACTERS = 700


class CollectiveHung(CcbenchError):
    """A collective did not end in its time, or NCCL says that it never will."""

    exit_code = 4


def limit_for(case: Case, times: int) -> float:
    """Return the seconds that ``times`` launches may take."""
    moved = case.size_bytes * max(case.ranks, 1) * case.aggregation * times
    return LEAST_LIMIT_SECONDS + moved / SLOWEST_BYTES_PER_SECOND


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
            self._thread = threading.Thread(target=self._watch, name="ccbench-watchdog", daemon=True)
            self._thread.start()
        self._deadline = time.monotonic() + limit_seconds
        try:
            yield
        finally:
            self._deadline = 0.0

    def _watch(self) -> None:
        while not self._over.wait(WATCHDOG_SECONDS):
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
    what = "failed" if after_seconds is None else f"did not end in {format_seconds(after_seconds)}"
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


def _answer(connection: socket.socket, asked: str, deadline: float, whole: bool = False) -> str:
    """Return the line that answers ``asked``; whole: all that comes until the service hangs up."""
    connection.sendall(asked.encode())
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
    sections = _sections(report)
    lines = [line for title in ("Errors", "Warnings") for line in sections.get(title, ())]
    if not lines:
        lines = next((found for title, found in sections.items() if title.startswith("Communicators")), [])
    text = "; ".join(" ".join(line.split()) for line in lines)
    return text if len(text) <= SUMMARY_LIMIT_CHARACTERS else text[: SUMMARY_LIMIT_CHARACTERS - 3] + "..."


def _sections(report: str) -> dict[str, list[str]]:
    """Return the lines under each title, which is a line above a rule of ``=``."""
    lines = [line.rstrip() for line in report.splitlines()]
    found: dict[str, list[str]] = {}
    title = ""
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        if after and set(after) == {"="}:
            title = line.strip()
        elif not re.fullmatch(r"[=\-\s]*", line):
            found.setdefault(title, []).append(line.strip())
    return found
