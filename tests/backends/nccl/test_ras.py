"""NCCL's watch service, played by a socket that speaks its text protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from ccbench.backends.nccl.diagnostics import SUMMARY_LIMIT_CHARACTERS, ras_address, ras_report, ras_summary

REPORT = """NCCL version 2.28.9 compiled with CUDA 12.9

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING      OK

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  1 ranks have launched up to operation 6650
  1 ranks have launched up to operation 6649
"""


@contextmanager
def service(
    greeting: bytes, report: bytes, hangs: bool = False
) -> Iterator[tuple[tuple[str, int], list[str]]]:
    heard: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            # Whoever does not understand the greeting hangs up at once.
            with suppress(OSError), connection, connection.makefile("r") as lines:
                heard.append(lines.readline())
                connection.sendall(greeting)
                heard.append(lines.readline())
                connection.sendall(b"OK\n")
                heard.append(lines.readline())
                connection.sendall(report)
                if hangs:
                    lines.readline()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[:2], heard
        thread.join(5.0)


def test_the_report_is_asked_for_in_the_clients_words() -> None:
    with service(b"SERVER PROTOCOL 2\n", REPORT.encode()) as (address, heard):
        assert ras_report(address) == REPORT
    assert heard == ["CLIENT PROTOCOL 2\n", "TIMEOUT 2\n", "STATUS\n"]


def test_what_is_wrong_is_told_in_one_line() -> None:
    assert ras_summary(REPORT) == (
        "#0-0 (27a079b828ff1a75) MISMATCH; Communicator ranks have different collective operation counts; "
        "1 ranks have launched up to operation 6650; 1 ranks have launched up to operation 6649"
    )


def test_without_troubles_the_table_of_communicators_is_told() -> None:
    summary = ras_summary(REPORT.partition("Warnings")[0])
    assert summary.endswith("0 1 1 2 2 2 RUNNING OK")


def test_a_long_report_is_cut() -> None:
    long = "Errors\n======\n" + "\n".join(f"rank {number} is lost" for number in range(1000))
    assert len(ras_summary(long)) == SUMMARY_LIMIT_CHARACTERS
    assert ras_summary("") == ""


def test_nobody_who_answers_is_no_report() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    assert ras_report(address, 0.5) == ""


def test_somebody_else_on_the_port_is_no_report() -> None:
    with service(b"HTTP/1.1 400 Bad Request\n", b"") as (address, _):
        assert ras_report(address, 1.0) == ""


def test_a_service_that_hangs_is_left_after_the_limit_with_what_it_said() -> None:
    with service(b"SERVER PROTOCOL 2\n", b"Errors\n======\nlost\n", hangs=True) as (address, _):
        assert ras_summary(ras_report(address, 0.5)) == "lost"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("localhost", 28028)),
        ("node7:1234", ("node7", 1234)),
        ("[::1]:99", ("::1", 99)),
        ("nonsense", ("localhost", 28028)),
    ],
)
def test_the_address_is_the_users(
    monkeypatch: pytest.MonkeyPatch, text: str, address: tuple[str, int]
) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", text)
    assert ras_address() == address
