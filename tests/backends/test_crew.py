"""Crews: who drives what, and what happens where nobody can."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from typing import cast

import pytest

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cpu.memory import Control, Word
from ccbench.backends.crew import CREWS, TeamEndpoint, WholeEndpoint, open_crew
from ccbench.cases import Case, Sampling, Status
from ccbench.errors import UsageError
from ccbench.verification import expected_parts
from ccbench.worker import _rank_case, refuse_all

CASE = Case("s", "cuda", "all_gather", "ring", "int32", "none", 24, 3, 2)


@pytest.mark.parametrize("backend", CREWS)
def test_a_crew_has_a_process_for_every_rank_or_one_for_all(backend: str) -> None:
    crew = open_crew(backend, 3, 16)
    assert crew.processes == (1 if crew.whole else 3)
    assert crew.control.stamps.shape == (crew.processes, 16, 2)


def test_a_backend_without_processes_is_refused() -> None:
    with pytest.raises(UsageError, match="'simulated' starts no processes; one of cpu, "):
        open_crew("simulated", 2, 16)


def test_who_cannot_start_answers_every_case_with_the_reason() -> None:
    ours, theirs = Pipe()
    thread = threading.Thread(target=refuse_all, args=("no driver", theirs))
    thread.start()
    for _ in range(2):
        ours.send((CASE, Sampling()))
        report = ours.recv()
        assert (report.status, report.detail) == (Status.UNSUPPORTED, "no driver")
    ours.close()
    thread.join()
    theirs.close()


def test_an_endpoint_of_all_ranks_counts_every_wrong_element_and_names_the_first_rank() -> None:
    endpoint = WholeEndpoint(Control(1, 16))
    endpoint.arm(CASE)
    right = [
        next(values for start, values in expected_parts(CASE, rank, 3, 7, 1) if start == 0).copy()
        for rank in range(2)
    ]
    outputs = {rank: right[rank].copy() for rank in range(2)}
    assert endpoint.checked(CASE, outputs.items(), 7, 1) is None
    outputs[1][1:] += 1
    outputs[0][0] += 1
    found = endpoint.checked(CASE, outputs.items(), 7, 1)
    assert found is not None
    assert (found.rank, found.wrong_elements, found.offset) == (0, 3, 0)


def test_the_watchdog_reads_the_sample() -> None:
    endpoint = WholeEndpoint(Control(1, 16))
    endpoint.watch(5)
    assert endpoint.control.read(0, Word.SAMPLE) == 5
    endpoint.barrier()
    assert endpoint.agree(9) == 9


class Refusing(WholeEndpoint):
    """Cannot even get ready."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Control(1, 16))
        self._error = error

    def prepare(self, case: Case) -> str:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CannotRun("too many blocks"), Status.UNSUPPORTED),
        (OutOfMemory("too many bytes"), Status.OUT_OF_MEMORY),
    ],
)
def test_what_shows_only_when_a_case_is_prepared_has_its_own_status(error: Exception, status: Status) -> None:
    endpoint = cast(TeamEndpoint, Refusing(error))
    report = _rank_case(endpoint, CASE, Sampling())
    assert (report.status, report.detail) == (status, str(error))
