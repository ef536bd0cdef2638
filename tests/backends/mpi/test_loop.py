"""Launches from C ask MPI for the same as those from Python; the loop stops at the first error."""

from __future__ import annotations

import ctypes
import platform
import shutil
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.mpi.calls import (
    MACHINES,
    MOST_ARGUMENTS,
    CallStep,
    MpiCall,
    _Step,
    built_loop,
    c_loop,
    steps_of,
)
from ccbench.cases.axes import Case
from ccbench.errors import MissingDependency

COUNTS = (1, 3, 5, 6, 7, 8, 9, 12)
"""Of arguments that MPI's functions have here."""

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or platform.machine() not in MACHINES,
    reason="no C compiler, or calls unknown",
)


def steps_to(function: object, arguments: list[int], count: int = 1) -> ctypes.Array[_Step]:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]  # a callback is a pointer
    return (_Step * count)(
        *[
            _Step(address, len(arguments), (ctypes.c_ssize_t * MOST_ARGUMENTS)(*arguments))
            for _ in range(count)
        ]
    )


@needs_compiler
@given(st.sampled_from(COUNTS), st.data())
def test_every_argument_arrives_whole(count: int, data: st.DataObject) -> None:
    word = st.integers(-(2**63), 2**63 - 1)
    arguments = data.draw(st.lists(word, min_size=count, max_size=count))
    calls: list[tuple[int, ...]] = []
    callback = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_ssize_t] * count)(
        lambda *words: calls.append(words) or 0  # type: ignore[func-returns-value]  # append returns None
    )
    steps = steps_to(callback, arguments)
    assert (
        ctypes.CDLL(str(built_loop())).ccbench_launch(
            steps, ctypes.c_ssize_t(1), ctypes.c_ssize_t(3)
        )
        == 0
    )
    assert calls == [tuple(arguments)] * 3


@needs_compiler
def test_the_first_error_ends_it() -> None:
    calls: list[int] = []

    def fails_at_the_third(word: int) -> int:
        calls.append(word)
        return 15 if len(calls) == 3 else 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ssize_t)(fails_at_the_third)
    steps = steps_to(callback, [7], count=2)
    own = ctypes.CDLL(str(built_loop()))
    assert own.ccbench_launch(steps, ctypes.c_ssize_t(2), ctypes.c_ssize_t(100)) == 15
    assert calls == [7, 7, 7]


@needs_compiler
def test_a_number_of_arguments_that_no_function_has_is_an_error() -> None:
    callback = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    steps = steps_to(callback, [0] * (MOST_ARGUMENTS - 1))
    assert (
        ctypes.CDLL(str(built_loop())).ccbench_launch(
            steps, ctypes.c_ssize_t(1), ctypes.c_ssize_t(1)
        )
        == -1
    )


def test_where_there_is_no_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    built_loop.cache_clear()
    with pytest.raises(MissingDependency, match="no C compiler"):
        built_loop()
    built_loop.cache_clear()


class _Nothing:
    """Not mpi4py."""

    __file__ = "/no/such/library.so"


def test_what_is_no_library_leaves_launches_to_python() -> None:
    assert isinstance(c_loop(_Nothing()), str)


# -- what the steps are -----------------------------------------------------------------------------------


class _Communicator:
    """Of two ranks, as mpi4py shows it."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


class _Mpi:
    """What functions are written down with: handles, types, sizes."""

    UINT8_T, memory = 11, SimpleNamespace(frombuffer=lambda data: data)

    @staticmethod
    def _handleof(handle: object) -> int:
        return handle if isinstance(handle, int) else 99


def pair_steps(rank: int, one_way: bool) -> tuple[CallStep, ...]:
    """Of two ranks, which the library sees as a communicator of their own."""
    case = Case("t", "mpi", "send_recv", "default", "uint8", "none", 64, 64, 2)
    source, target = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    pair_of_steps = steps_of(
        MpiCall(_Mpi, _Communicator(rank), case, (source, target), one_way)
    )
    assert pair_of_steps is not None
    return pair_of_steps.steps


def test_one_way_the_first_only_sends_and_the_second_only_receives() -> None:
    names = [[step.name for step in pair_steps(rank, True)] for rank in (0, 1)]
    assert names == [["MPI_Send"], ["MPI_Recv"]]


@pytest.mark.parametrize("rank", [0, 1])
def test_both_ways_each_sends_and_receives(rank: int) -> None:
    assert [step.name for step in pair_steps(rank, False)] == ["MPI_Sendrecv"]
