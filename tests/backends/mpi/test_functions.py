"""Launches from C ask MPI for what launches from Python ask it for."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends.mpi.functions import Step, steps_of
from ccbench.cases import Case


class _Communicator:
    """Of two ranks, as mpi4py shows it."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


class _Mpi:
    """What functions are written down with: handles, types, sizes."""

    Request, UINT8_T, ANY_TAG = object, 11, -1

    @staticmethod
    def _sizeof(kind: object) -> int:
        return 8

    @staticmethod
    def _handleof(handle: object) -> int:
        return handle if isinstance(handle, int) else 99


def pair_steps(rank: int, one_way: bool, mode: str = "streaming") -> tuple[Step, ...]:
    """Of two ranks, which the library sees as a communicator of their own."""
    case = Case("t", "mpi", "send_recv", "default", "uint8", "none", 64, 64, 2, mode=mode)
    source, target = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    found = steps_of(_Mpi, _Communicator(rank), case, source, target, (), one_way)
    assert found is not None
    return found.steps


@pytest.mark.parametrize("mode", ["streaming", "isolated", "nonblocking"])
def test_one_way_the_first_only_sends_and_the_second_only_receives(mode: str) -> None:
    sends, receives = (pair_steps(rank, True, mode)[0].name.lower() for rank in (0, 1))
    assert sends in ("mpi_send", "mpi_isend")
    assert receives in ("mpi_recv", "mpi_irecv")


@pytest.mark.parametrize("rank", [0, 1])
def test_both_ways_each_sends_and_receives(rank: int) -> None:
    assert [step.name for step in pair_steps(rank, False)] == ["MPI_Sendrecv"]
