"""Worker groups: who drives what, and what happens where nobody can."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing import Pipe

import numpy as np
import pytest

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.control_block import Control
from ccbench.backends.endpoint import SingleProcessEndpoint, open_worker_group
from ccbench.cases.axes import Case
from ccbench.cases.capabilities import DECLARED
from ccbench.cases.measurement import Sampling, Status
from ccbench.runner.workers.rank import rank_report, refuse_all
from ccbench.verification import Array, Mismatch, Piece, expected_pieces

CASE = Case("s", "cuda", "all_gather", "ring", "int32", "none", 24, 3, 2)


class OnDevice:
    """A result whose device says ``told`` of it, or fails; by default what is true."""

    def __init__(
        self, output: Array, answer: tuple[int, int] | Exception | None = None
    ) -> None:
        self.output, self.answer = output, answer
        self.reads = self.compared = 0

    @property
    def elements(self) -> int:
        return len(self.output)

    def read(self) -> Array:
        self.reads += 1
        return self.output

    def differing(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        self.compared += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        right = np.concatenate([part for piece in pieces for _, part in piece.parts()])
        (differs,) = np.nonzero(self.output != right)
        return self.answer or (len(differs), int(differs[0]) if len(differs) else -1)


class AllRanks(SingleProcessEndpoint):
    """One without a backend behind it."""

    def __init__(self) -> None:
        super().__init__(Control(1, 16))

    def prepare(self, case: Case) -> str:
        return "none"

    def refill(self, seed: int, launches: int = 1) -> None: ...

    def poison(self) -> None: ...

    def launch(self, times: int) -> None: ...

    def check(self, seed: int, launches: int) -> Mismatch | None:
        return None


def right(case: Case = CASE, rank: int = 0) -> Array:
    pieces = expected_pieces(case, rank, 6, 7, 1)
    return np.concatenate([part for piece in pieces for _, part in piece.parts()])


MODELS = [(name, model) for name, able in DECLARED.items() for model in able.workers]


@pytest.mark.parametrize(("backend", "processes"), MODELS)
def test_a_worker_group_has_a_process_for_every_rank_or_one_for_all(
    backend: str, processes: str
) -> None:
    group = open_worker_group(backend, 3, 16, processes)
    assert group.processes == (1 if group.single_process else 3)
    assert group.control.stamps.shape == (group.processes, 16, 2)


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
    endpoint = AllRanks()
    endpoint.arm(CASE)
    outputs = {rank: OnDevice(right(rank=rank)) for rank in range(2)}
    assert endpoint.checked(CASE, outputs.items(), 7, 1) is None
    outputs[1].output[1:] += 1
    outputs[0].output[0] += 1
    mismatch = endpoint.checked(CASE, outputs.items(), 7, 1)
    assert mismatch is not None
    assert (mismatch.rank, mismatch.wrong_elements, mismatch.offset) == (0, 6, 0)


class Refusing(AllRanks):
    """Cannot even get ready."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def prepare(self, case: Case) -> str:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CannotRun("too many blocks"), Status.UNSUPPORTED),
        (OutOfMemory("bytes"), Status.OUT_OF_MEMORY),
    ],
)
def test_what_shows_only_when_a_case_is_prepared_has_its_own_status(
    error: Exception, status: Status
) -> None:
    report = rank_report(Refusing(error), CASE, Sampling())
    assert (report.status, report.detail) == (status, str(error))
