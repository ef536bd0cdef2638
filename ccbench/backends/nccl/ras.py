"""What NCCL's own watch service knows of a job that hangs: RAS, in NCCL from 2.24 on.

Every NCCL process listens on one TCP port of its node (NCCL_RAS_ADDR, by default localhost:28028). The text
protocol is the one of NCCL's client (src/ras/client.cc): ``CLIENT PROTOCOL 2`` is answered with ``SERVER
PROTOCOL n``, ``TIMEOUT s`` with ``OK``, and ``STATUS`` with a report, after which the server hangs up.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress

DEFAULT_ADDRESS = ("localhost", 28028)
PROTOCOL = 2
PEER_TIMEOUT_SECONDS = 2
"""How long the node that answers waits for other nodes."""

REPORT_LIMIT_BYTES = 1 << 20
SUMMARY_LIMIT_CHARACTERS = 700

_RULE = re.compile(r"[=\-\s]*")
_TROUBLE = ("Errors", "Warnings")


def ras_address() -> tuple[str, int]:
    """Where this node's service listens: NCCL_RAS_ADDR (host:port), else the default."""
    host, _, port = os.environ.get("NCCL_RAS_ADDR", "").rpartition(":")
    return (host.strip("[]") or DEFAULT_ADDRESS[0], int(port)) if port.isdigit() else DEFAULT_ADDRESS


def ras_report(address: tuple[str, int] | None = None, limit_seconds: float = 5.0) -> str:
    """The service's report as it came, '' when nobody answers in ``limit_seconds``."""
    deadline = time.monotonic() + limit_seconds
    with (
        suppress(OSError, ValueError),
        socket.create_connection(address or ras_address(), timeout=min(1.0, limit_seconds)) as connection,
    ):
        reader = _Reader(connection, deadline)
        connection.sendall(f"CLIENT PROTOCOL {PROTOCOL}\n".encode())
        if not reader.line().upper().startswith("SERVER PROTOCOL"):
            return ""
        connection.sendall(f"TIMEOUT {PEER_TIMEOUT_SECONDS}\n".encode())
        reader.line()
        connection.sendall(b"STATUS\n")
        return reader.rest()
    return ""


class _Reader:
    """Lines and the rest of what a socket sends, until a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._pending = b""

    def _more(self) -> bool:
        left = self._deadline - time.monotonic()
        if left <= 0 or len(self._pending) >= REPORT_LIMIT_BYTES:
            return False
        self._connection.settimeout(left)
        try:
            received = self._connection.recv(65_536)
        except TimeoutError:
            return False
        self._pending += received
        return bool(received)

    def line(self) -> str:
        while b"\n" not in self._pending and self._more():
            pass
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode(errors="replace").strip()

    def rest(self) -> str:
        while self._more():
            pass
        return self._pending.decode(errors="replace")


def ras_summary(report: str) -> str:
    """What a report says is wrong, in one line: its errors and warnings, else its table of communicators."""
    sections = _sections(report)
    lines = [line for title in _TROUBLE for line in sections.get(title, ())]
    if not lines:
        lines = next((found for title, found in sections.items() if title.startswith("Communicators")), [])
    text = "; ".join(" ".join(line.split()) for line in lines)
    return text if len(text) <= SUMMARY_LIMIT_CHARACTERS else text[: SUMMARY_LIMIT_CHARACTERS - 3] + "..."


def _sections(report: str) -> dict[str, list[str]]:
    """Lines under each title, which is a line above a rule of ``=``."""
    lines = [line.rstrip() for line in report.splitlines()]
    found: dict[str, list[str]] = {}
    title = ""
    for line, after in zip(lines, [*lines[1:], ""], strict=False):
        if after and set(after) == {"="}:
            title = line.strip()
        elif not _RULE.fullmatch(line):
            found.setdefault(title, []).append(line.strip())
    return found
