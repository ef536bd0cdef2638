"""The loop in C runs steps as often as told, hands words over whole, and stops at the first error."""

from __future__ import annotations

import ctypes
import platform
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.mpi.loop import MACHINES, MOST_ARGUMENTS, _Step, _words, built_loop, c_loop
from ccbench.errors import MissingDependency

COUNTS = (1, 2, 3, 5, 6, 7, 8, 9, 10, 12)
"""Of arguments that MPI's functions have here."""

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or platform.machine() not in MACHINES, reason="no C compiler, or calls unknown"
)


def steps_to(function: object, arguments: list[int], count: int = 1) -> ctypes.Array[_Step]:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]  # a callback is a pointer
    return (_Step * count)(*[_Step(address, len(arguments), _words(arguments)) for _ in range(count)])


@needs_compiler
@given(st.sampled_from(COUNTS), st.data())
def test_every_argument_arrives_whole(count: int, data: st.DataObject) -> None:
    word = st.integers(-(2**63), 2**63 - 1)
    arguments = data.draw(st.lists(word, min_size=count, max_size=count))
    seen: list[tuple[int, ...]] = []
    callback = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_ssize_t] * count)(
        lambda *words: seen.append(words) or 0  # type: ignore[func-returns-value]  # append returns None
    )
    steps = steps_to(callback, arguments)
    assert ctypes.CDLL(str(built_loop())).ccbench_launch(steps, ctypes.c_ssize_t(1), ctypes.c_ssize_t(3)) == 0
    assert seen == [tuple(arguments)] * 3


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
        ctypes.CDLL(str(built_loop())).ccbench_launch(steps, ctypes.c_ssize_t(1), ctypes.c_ssize_t(1)) == -1
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
