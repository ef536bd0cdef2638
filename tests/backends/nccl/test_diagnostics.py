"""NCCL's watch service, played by a socket that speaks its text protocol; its tuning log; limits of hangs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.nccl.diagnostics import (
    SUMMARY_LIMIT_CHARACTERS,
    LibraryChoice,
    limit_for,
    ras_address,
    ras_report,
    ras_summary,
    read_choice,
)

from .measuring import case_of

REPORT = """NCCL version 2.28.9 compiled with CUDA 12.9

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


def test_without_troubles_the_table_of_communicators_is_told() -> None:
    summary = ras_summary(REPORT.partition("Warnings")[0])
    assert summary.endswith("0 1 1 2 2 2 RUNNING OK")


def test_a_long_report_is_cut() -> None:
    long = "Errors\n======\n" + "\n".join(f"rank {number} is lost" for number in range(1000))
    assert len(ras_summary(long)) == SUMMARY_LIMIT_CHARACTERS
    assert ras_summary("") == ""


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


def test_a_limit_grows_with_what_is_moved() -> None:
    small = case_of("all_reduce", 2, 1)
    assert limit_for(small, 1) == pytest.approx(15.0, rel=1e-3)
    large = case_of("all_reduce", 8, 1 << 28)
    assert limit_for(large, 10) > 10 * (1 << 30) * 8 / 20e6


# -- the tuning log, as versions from 2.6 on write it ----------------------------------------------------

NAMED = "node-0:42:99 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{{}..{}}}"


@pytest.mark.parametrize(
    ("line", "collective", "choice"),
    [
        (NAMED.format("RING", "LL", 0, 1), "all_reduce", LibraryChoice("ring", "ll", 2)),
        (NAMED.format("Tree", "Simple", 2, 2), "barrier", LibraryChoice("tree", "simple", 1)),
        (
            NAMED.format("NVLS_TREE", "SIMPLE", 0, 15),
            "all_reduce",
            LibraryChoice("nvlstree", "simple", 16),
        ),
        (
            NAMED.format("COLLNET_DIRECT", "SIMPLE", 0, 3),
            "all_reduce",
            LibraryChoice("collnetdirect", "simple", 4),
        ),
        (
            "NCCL INFO AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008",
            "all_gather",
            LibraryChoice("ring", "simple", 0),
        ),
        (
            "NCCL INFO 8 Bytes -> Algo 0 proto 0 time 4.4",
            "all_reduce",
            LibraryChoice("tree", "ll", 0),
        ),
        (
            "NCCL INFO ReduceScatter: 8 Bytes -> Algo 6 proto 2 time 4.4",
            "reduce_scatter",
            LibraryChoice("pat", "simple"),
        ),
        (
            "AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1",
            "all_reduce",
            LibraryChoice("symmetric", "agxll_r", 8),
        ),
        (NAMED.format("RING", "LL", 0, 1), "all_gather", LibraryChoice()),
        (NAMED.format("RING", "LL", 0, 1), "send_recv", LibraryChoice()),
        ("AllReduce: 4096 Bytes -> Algo 99 proto 99 time 1", "all_reduce", LibraryChoice()),
        ("", "all_reduce", LibraryChoice()),
    ],
)
def test_every_known_form_is_read(line: str, collective: str, choice: LibraryChoice) -> None:
    assert read_choice(line, collective) == choice


@given(st.text(alphabet="Bytes->Algo protchanel{LoHi.}=0123456789:[] \n", max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    choice = read_choice(text, "all_reduce")
    assert choice.channels >= 0 or choice.algorithm
