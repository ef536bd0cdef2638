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

def filling(tensor, group):
    group.outputs[group.rank][:] = right(tensor, group)

def one_sided(tensor, group):
    result = right(tensor, group)
    return result if group.rank == 0 else None

def limited(tensor, group):
    if tensor.nbytes > 1024:
        raise NotImplementedError("up to 1 KiB")
    return right(tensor, group)

def scalar(tensor, group):
    return right(tensor, group)[0]

def leaving(tensor, group):
    if group.rank == 1:
        raise SystemExit("bye")
    return right(tensor, group)

def lonely(tensor):
    return tensor

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
        ("overwriting", "mine.py:overwriting changed the input of this rank"),
        ("straying", "mine.py:straying wrote beside a buffer of 4096 bytes"),
        ("short", "returned 1023 elements of float32, expected 1024"),
        ("raising", "rank 1: ValueError: no such peer (mine.py:"),
        ("scalar", "returned 1 elements of float32, expected 1024"),
        ("leaving", "rank 1: SystemExit: bye (mine.py:"),
    ],
)
def test_a_callable_that_breaks_its_promise_is_named(
    ccbench: Command, tmp_path: Path, name: str, words: str
) -> None:
    status, detail = measured(ccbench, tmp_path, "4K", name)[name, 4096, False]
    assert status == Status.FAILED
    assert words in detail


def test_helpers_of_one_name_in_two_folders_stay_apart(
    ccbench: Command, tmp_path: Path
) -> None:
    calls = []
    for folder, error in (("a", 1), ("b", 0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper.py").write_text(f"ERROR = {error}\n")
        mine = tmp_path / folder / "mine.py"
        adding = "def sums(t, group):\n    return right(t, group) + t.dtype.type(ERROR)\n"
        mine.write_text(f"{PROGRAM}\nfrom helper import ERROR\n{adding}")
        calls += ["--call", f"{mine}:sums"]
    words = "run all_reduce --sizes 1K --ranks 2 --rounds 1 -n 5 -q --no-report"
    assert ccbench(*words.split(), *calls, "-o", str(tmp_path / "out")).code == 1
    rows = load_run(tmp_path / "out").table.to_pylist()
    seen = {row["algorithm"]: row["status"] for row in rows if not row["in_place"]}
    assert seen == {calls[1]: Status.WRONG, calls[3]: Status.OK}
    assert all(row["backend_version"].startswith("mine.py ") for row in rows)  # and a digest


def test_a_size_or_a_rank_that_a_callable_does_not_serve_is_told(
    ccbench: Command, tmp_path: Path
) -> None:
    seen = measured(ccbench, tmp_path, "1K,4K", "limited", "one_sided", "lonely")
    assert seen["limited", 1024, False][0] == Status.OK
    for name, words in (
        ("limited", "limited: up to 1 KiB"),
        ("one_sided", "rank 1: "),
        ("lonely", "lonely takes no (tensor, group): too many positional arguments"),
    ):
        status, detail = seen[name, 4096, False]
        assert (status, words in detail) == (Status.UNSUPPORTED, True), detail


def test_a_run_goes_on_with_the_same_text_alone(ccbench: Command, tmp_path: Path) -> None:
    measured(ccbench, tmp_path, "1K", "right")
    file = tmp_path / "mine.py"
    words = f"run all_reduce --sizes 1K --ranks 2 --rounds 1 -n 5 -q --no-report --call {file}:right".split()
    again = [*words, "--resume", str(tmp_path / "out")]
    assert ccbench(*again).code == 0
    file.write_text(f"{PROGRAM}\n")
    assert "options.callables of this run differs" in ccbench(*again).refused.err


def test_an_output_that_is_filled_and_not_returned_is_the_result(
    ccbench: Command, tmp_path: Path
) -> None:
    seen = measured(ccbench, tmp_path, "4K", "filling")
    assert seen["filling", 4096, False][0] == Status.OK


@pytest.mark.parametrize(
    ("text", "word", "said"),
    [
        ("", "mine.py", "'mine.py' is no FILE.py:FUNCTION"),
        ("", "none.py:f", "none.py: cannot be read: No such file"),
        ("def f(:", "mine.py:f", "mine.py:1: invalid syntax"),
        ("TENSORS: str = T", "mine.py:f", "TENSORS is 'TENSORS: str = T', expected one of"),
        (
            "TENSORS = 'jax'",
            "mine.py:f",
            "TENSORS is 'jax', expected one of numpy, torch, torch.cuda, cupy",
        ),
        (
            "TENSORS = 'cupy'",
            "mine.py:f",
            "backend call-cuda: this machine has no NVIDIA driver",
        ),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_anything_starts(
    ccbench: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    word: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text)
    assert said in ccbench("run", "all_reduce", "--call", word).refused.err


def test_what_is_no_callable_is_refused(tmp_path: Path) -> None:
    backend, file = open_backend("call"), tmp_path / "mine.py"
    assert "--call FILE.py:FUNCTION" in str(
        backend.refused(case_of("call", "all_reduce", "default", 2))
    )
    assert "no file that is there" in str(
        backend.refused(case_of("call", "all_reduce", f"{file}:f", 2))
    )
    with pytest.raises(CcbenchError, match="no such file"):
        callable_of(f"{file}:f")
    file.write_text("TENSORS = 'jax'\ndef f(tensor, group): ...\n")
    with pytest.raises(CcbenchError, match="has no function g"):
        callable_of(f"{file}:g")
    assert "takes jax, and call has numpy, torch" in str(
        backend.refused(case_of("call", "all_reduce", f"{file}:f", 2))
    )


def test_a_function_of_a_suite_is_found_beside_it_and_runs_where_that_is_allowed(
    ccbench: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    (tmp_path / "own.yaml").write_text(
        "sweep: {collective: all_reduce, algorithm: mine.py:right, size: 64, ranks: 2}"
    )
    words = [
        "run",
        str(tmp_path / "own.yaml"),
        "-q",
        "--no-report",
        "-o",
        str(tmp_path / "out"),
    ]
    assert "run it with --allow-libraries" in ccbench(*words).refused.err
    assert ccbench(*words, "--allow-libraries").code == 0
    assert load_run(tmp_path / "out").table.to_pylist()[0]["status"] == Status.OK
