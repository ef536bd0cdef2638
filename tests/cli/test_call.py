"""Callables of a user's file, right ones and planted ones, on NumPy arrays of real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.backends import open_backend
from ccbench.backends.base import TeamRequest
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


def measured(
    ccbench: Command, folder: Path, sizes: str, *names: str, placements: str = "both"
) -> Seen:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(PROGRAM)
    algorithms = ", ".join(f"'mine.py:{name}'" for name in names)
    axes = f"collective: all_reduce, algorithm: [{algorithms}], size: [{sizes}], ranks: 2"
    placement = "[out_of_place, in_place]" if placements == "both" else placements
    suite = folder / "own.yaml"
    suite.write_text(f"sweep: {{{axes}, placement: {placement}}}")
    words = "--allow-libraries --rounds 1 -n 5 -q --no-report"
    ccbench("run", str(suite), *words.split(), "-o", str(folder / "out"))
    rows = load_run(folder / "out").table.to_pylist()
    return {
        (row["algorithm"].rpartition(":")[2], row["size_bytes"], row["in_place"]): (
            row["status"],
            row["detail"],
        )
        for row in rows
    }


EXPECTED: Seen = {
    ("right", 1024, False): (Status.OK, ""),
    ("right", 4096, False): (Status.OK, ""),
    ("right", 4096, True): (Status.UNSUPPORTED, "works out of place"),
    ("in_place", 4096, True): (Status.OK, ""),
    ("in_place", 4096, False): (Status.UNSUPPORTED, "works in place"),
    ("wrong", 1024, False): (Status.OK, ""),
    ("wrong", 4096, False): (Status.WRONG, "1 wrong, first at element 7"),
    ("racing", 4096, False): (Status.WRONG, ""),
    ("filling", 4096, False): (Status.OK, ""),
    ("limited", 1024, False): (Status.OK, ""),
    ("limited", 4096, False): (Status.UNSUPPORTED, "limited: up to 1 KiB"),
    ("one_sided", 4096, False): (Status.UNSUPPORTED, "rank 1: "),
    ("lonely", 4096, False): (
        Status.UNSUPPORTED,
        "lonely takes no (tensor, group): too many positional arguments",
    ),
    ("overwriting", 4096, False): (
        Status.FAILED,
        "mine.py:overwriting changed the input of this rank",
    ),
    ("straying", 4096, False): (
        Status.FAILED,
        "mine.py:straying wrote beside a buffer of 4096 bytes",
    ),
    ("short", 4096, False): (
        Status.FAILED,
        "returned 1023 elements of float32, expected 1024",
    ),
    ("raising", 4096, False): (Status.FAILED, "rank 1: ValueError: no such peer (mine.py:"),
    ("scalar", 4096, False): (Status.FAILED, "returned 1 elements of float32, expected 1024"),
    ("leaving", 4096, False): (Status.FAILED, "rank 1: SystemExit: bye (mine.py:"),
}


@pytest.mark.parametrize(
    ("broken", "sizes", "placements"), [(False, "1K,4K", "both"), (True, "4K", "out_of_place")]
)
def test_right_and_wrong_callables_are_told_apart_and_named(
    ccbench: Command, tmp_path: Path, broken: bool, sizes: str, placements: str
) -> None:
    expected = {
        key: told for key, told in EXPECTED.items() if (told[0] == Status.FAILED) == broken
    }
    names = dict.fromkeys(name for name, _, _ in expected)
    seen = measured(ccbench, tmp_path, sizes, *names, placements=placements)
    for key, (status, words) in expected.items():
        assert seen[key][0] == status, key
        assert words in seen[key][1], key


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


def test_a_run_goes_on_with_the_same_text_alone_and_where_functions_are_allowed(
    ccbench: Command, tmp_path: Path
) -> None:
    seen = measured(ccbench, tmp_path, "1K", "right", placements="out_of_place")
    assert seen["right", 1024, False][0] == Status.OK
    words = f"run {tmp_path}/own.yaml --rounds 1 -n 5 -q --no-report --resume {tmp_path}/out"
    assert "run it with --allow-libraries" in ccbench(*words.split()).refused.err
    again = [*words.split(), "--allow-libraries"]
    assert ccbench(*again).code == 0
    (tmp_path / "mine.py").write_text(f"{PROGRAM}\n")
    assert "options.callables of this run differs" in ccbench(*again).refused.err


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


@pytest.mark.parametrize(("tensors", "pinned"), [("numpy", True), ("torch", False)])
def test_ranks_with_threads_of_their_own_are_not_pinned(
    tmp_path: Path, tensors: str, pinned: bool
) -> None:
    (tmp_path / "mine.py").write_text(f"TENSORS = '{tensors}'\ndef f(tensor, group): ...\n")
    backend = open_backend("call")
    case = case_of("call", "all_reduce", f"{tmp_path}/mine.py:f", 2)
    launch = backend.launch(
        TeamRequest(backend.name, 2, environment=backend.team_settings(case))
    )
    assert launch is not None
    assert launch.pinned == pinned


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
