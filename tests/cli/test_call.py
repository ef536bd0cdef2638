"""Callables of a user's file, right ones and planted ones, on NumPy arrays of real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.backends import open_backend
from ccbench.backends.call import callable_of
from ccbench.cases.measurement import Status
from ccbench.errors import CcbenchError
from ccbench.results.loading import load_run
from tests.backends.measuring import case_of
from tests.cli.conftest import Command

PROGRAM = """
import ctypes

def right(tensor, group):
    group.barrier()
    total = sum(other.astype(tensor.dtype) for other in group.inputs[1:])
    total = group.inputs[0] + total
    group.barrier()
    return total

def wrong(tensor, group):
    result = right(tensor, group)
    result[7:8] += len(result) == 1024
    return result

def racing(tensor, group):
    return group.inputs[0] + group.inputs[1]

def in_place(tensor, group):
    tensor[:] = right(tensor, group)

def overwriting(tensor, group):
    result = right(tensor, group)
    tensor[:] = result
    return result

def straying(tensor, group):
    result = right(tensor, group)
    ctypes.memset(tensor.ctypes.data + tensor.nbytes, 1, 3)
    return result

def short(tensor, group):
    return right(tensor, group)[:-1]

def raising(tensor, group):
    if group.rank == 1:
        raise ValueError("no such peer")
    return right(tensor, group)
"""


Seen = dict[tuple[str, int, bool], tuple[str, str]]
"""Status and detail by callable, size and placement."""


def measured(ccbench: Command, tmp_path: Path, sizes: str, *names: str) -> Seen:
    file = tmp_path / "mine.py"
    file.write_text(PROGRAM)
    words = f"run all_reduce --sizes {sizes} --ranks 2 --rounds 1 -n 5 -q --no-report"
    calls = [word for name in names for word in ("--call", f"{file}:{name}")]
    ccbench(*words.split(), *calls, "-o", str(tmp_path / "out"))
    rows = load_run(tmp_path / "out").table.to_pylist()
    return {
        (row["algorithm"].rpartition(":")[2], row["size_bytes"], row["in_place"]): (
            row["status"],
            row["detail"],
        )
        for row in rows
    }


def test_right_and_wrong_callables_are_told_apart(ccbench: Command, tmp_path: Path) -> None:
    names = "right", "wrong", "racing", "in_place"
    seen = measured(ccbench, tmp_path, "1K,4K", *names)
    assert seen["right", 1024, False][0] == seen["right", 4096, False][0] == Status.OK
    status, detail = seen["right", 4096, True]
    assert (status, "works out of place" in detail) == (Status.UNSUPPORTED, True)
    assert seen["in_place", 4096, True][0] == Status.OK
    status, detail = seen["in_place", 4096, False]
    assert (status, "works in place" in detail) == (Status.UNSUPPORTED, True)
    assert seen["wrong", 1024, False][0] == Status.OK
    status, detail = seen["wrong", 4096, False]
    assert (status, "1 wrong, first at element 7" in detail) == (Status.WRONG, True)
    assert seen["racing", 4096, False][0] == Status.WRONG


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("overwriting", "mine.py:overwriting changed its input"),
        ("straying", "wrote 3 bytes beside a buffer of 4096 bytes"),
        ("short", "returned 1023 elements of float32, expected 1024"),
        ("raising", "rank 1: ValueError: no such peer (mine.py:"),
    ],
)
def test_a_callable_that_breaks_its_promise_is_named(
    ccbench: Command, tmp_path: Path, name: str, words: str
) -> None:
    status, detail = measured(ccbench, tmp_path, "4K", name)[name, 4096, False]
    assert status == Status.FAILED
    assert words in detail


def test_what_is_no_callable_is_refused(tmp_path: Path) -> None:
    backend, file = open_backend("call"), tmp_path / "mine.py"
    assert "--call FILE.py:FUNCTION" in str(
        backend.refused(case_of("call", "all_reduce", "default", 2))
    )
    missing = case_of("call", "all_reduce", f"{file}:f", 2)
    assert backend.refused(missing) == f"{file}: no such file"
    file.write_text("TENSORS = 'jax'\ndef f(tensor, group): ...\n")
    with pytest.raises(CcbenchError, match="has no function g; it has f"):
        callable_of(f"{file}:g")
    with pytest.raises(CcbenchError, match="TENSORS is 'jax', expected one of numpy, torch"):
        callable_of(f"{file}:f")
