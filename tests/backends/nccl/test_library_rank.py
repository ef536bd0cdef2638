"""Ranks with processes of their own: on a double that speaks any dialect, and on oneCCL where it is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ccbench.backends import open_backend
from ccbench.backends.base import CannotRun
from ccbench.backends.control_block import Control
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.nccl import amd_missing, dialects
from ccbench.backends.nccl.bootstrap import opened
from ccbench.backends.nccl.dialects import ONECCL, RCCL, Dialect, functions
from ccbench.backends.nccl.library import Library, LibraryFailed, open_by_loader
from ccbench.backends.nccl.library_rank import LibraryRank
from ccbench.cases.axes import NO_OP, Case
from ccbench.errors import MissingDependency
from tests.backends import measuring
from tests.backends.measuring import measured

from .double import Process, World
from .spoken import Spoken
from .test_processes import Meeting

SETTINGS = {"CCL_YIELD": "sched_yield"}
FABLE = replace(
    ONECCL,
    name="fable",
    label="Fable",
    functions=functions(
        """
        GetVersion/Age          0 number*
        GetErrorString/Meaning  0 result
        GetUniqueId/Name        0 id*
        CommInitRank/Join       70101 id* rank ranks comm*
        CommCount/Size          0 comm number*
        CommUserRank/Place      0 comm number*
        CommDestroy/Leave       0 comm
        AllReduce/AddUp         0 dtype count op recv send comm stream
        AllGather/Collect       0 recv send count dtype comm stream
        Broadcast/Tell          0 root buffer count dtype comm stream
        Reduce/AddUpAt          0 root send recv count dtype op comm stream
        ReduceScatter/Share     70103 send recv count dtype op comm stream
        """,
        "fable",
        texts=("GetErrorString",),
    ),
    dtypes={"float32": 40, "int32": 41},
    ops={"sum": 7, "min": 9},
    results={0: "fableFine", 1: "fableNo"},
    refusals=(1,),
    id_bytes=16,
)
"""A library that nobody has: one table, and ccbench measures it."""

RANKS = 3

Play = Callable[[LibraryRank], Any]


case_of = partial(measuring.case_of, "oneccl", ranks=RANKS, count=37)


def on_ranks(dialect: Dialect, play: Play, native: Any = None) -> list[Any]:
    """What ``play`` gives on each rank of a library that speaks ``dialect``."""
    native = native or Spoken(dialect)
    payloads, wait = [b""] * RANKS, threading.Barrier(RANKS, timeout=60)

    def rank(number: int) -> Any:
        meeting = Meeting(number, ("host",) * RANKS, payloads, wait)
        return play(LibraryRank(meeting, Library(dialect, native), SETTINGS))

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(rank, range(RANKS), timeout=120))


def all_right(dialect: Dialect, cases: Sequence[Case], **how: Any) -> None:
    def play(rank: LibraryRank) -> list[Any]:
        mismatches = [measured(rank, case)[0].mismatch for case in cases]
        rank.close()
        return mismatches

    for answer in on_ranks(dialect, play, **how):
        assert answer == [None] * len(cases)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("in_place", [False, True], ids=["out of place", "in place"])
@pytest.mark.parametrize("dialect", [ONECCL, FABLE], ids=lambda dialect: str(dialect.name))
def test_a_dialect_takes_one_table(dialect: Dialect, in_place: bool) -> None:
    names = ["all_reduce", "all_gather", "reduce", "barrier"]
    names += ["reduce_scatter"] if dialect is not FABLE else []
    names += ["all_to_all"] if dialect is not FABLE and not in_place else []
    names += ["broadcast"] if dialect is ONECCL or in_place else []
    cases = [case_of(name, in_place=in_place and name != "barrier") for name in names]
    cases += [
        case_of("all_reduce", dtype="int32", op="min"),
        case_of("all_reduce", count=0),
    ]
    all_right(dialect, cases)


@pytest.mark.parametrize(
    "dialect", [ONECCL, FABLE], ids=["by a split", "by an id for each group"]
)
def test_groups_have_communicators_of_their_own(dialect: Dialect) -> None:
    all_right(
        dialect,
        [
            case_of("all_reduce", groups="[[2, 0]]"),
            case_of("all_gather", groups="[[0], [2], [1]]", active_group=1),
            case_of("all_reduce"),
        ],
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"collective": "reduce_scatter"},
            r"^Fable 7\.1\.2 has no fableShare, which came with 7\.1\.3",
        ),
        ({"collective": "all_to_all"}, "^Fable has no function such as ncclSend$"),
        ({"dtype": "float64"}, "^Fable has no float64; it has float32, int32$"),
        ({"op": "prod"}, "^Fable has no prod; it has sum, min$"),
        ({"collective": "broadcast", "op": NO_OP}, "^Fable has no broadcast out of place"),
    ],
)
def test_what_a_dialect_lacks_is_refused_in_one_line(
    changes: dict[str, Any], words: str
) -> None:
    def play(rank: LibraryRank) -> str:
        with pytest.raises(CannotRun, match=words) as caught:
            rank.prepare(case_of(**{"collective": "all_reduce", **changes}))
        return str(caught.value)

    assert all("\n" not in text for text in on_ranks(FABLE, play))


def test_a_call_that_the_library_refuses_cannot_run_and_one_that_fails_has_failed() -> None:
    native = Spoken(ONECCL)

    def play(rank: LibraryRank) -> tuple[str, str]:
        rank.prepare(case_of("all_gather"))
        native.refuse["ncclAllGather"] = 12
        with pytest.raises(CannotRun, match="onecclAllGather: onecclNotImplemented") as refused:
            rank.launch_and_time_waits(1)
        rank.exchange.barrier()
        native.refuse["ncclAllGather"] = 8
        with pytest.raises(LibraryFailed, match="onecclAllGather: onecclFailureCPU") as failed:
            rank.launch_and_time_waits(1)
        return str(refused.value), str(failed.value)

    assert len(set(on_ranks(ONECCL, play, native))) == 1


# -- loading -----------------------------------------------------------------------------------------------


def test_a_wheel_is_found_and_what_it_needs_is_loaded_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("libccl.so.2", "libneeded.so.1", "libccl_legacy_cpu.so"):
        (tmp_path / "lib" / name).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    loaded: list[str] = []

    def load(path: str, mode: int) -> Any:
        name = Path(path).name
        if name == "libccl.so.2" and "libneeded.so.1" not in loaded:
            raise OSError(
                "libneeded.so.1: cannot open shared object file: No such file or directory"
            )
        loaded.append(name)
        return Spoken(ONECCL)

    library = open_by_loader(ONECCL, load)
    assert loaded == ["libneeded.so.1", "libccl.so.2", "libccl_legacy_cpu.so"]
    assert library.path == str(tmp_path / "lib" / "libccl.so.2")
    assert open_backend("oneccl").unavailable() is None
    (tmp_path / "lib" / "libccl.so.2").unlink()
    assert "oneCCL is not installed: pip install" in str(open_backend("oneccl").unavailable())


def test_a_library_that_is_not_there_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccbench.backends.nccl.library.library_folder", lambda dialect: "")
    with pytest.raises(
        MissingDependency, match=r"Fable cannot be loaded \(libfable.so: .*pip install"
    ):
        open_by_loader(replace(FABLE, files=("libfable.so",)))


def test_tables_of_ours_agree_with_each_other() -> None:
    for dialect in (dialects.NCCL, dialects.RCCL, ONECCL):
        assert len(set(dialect.dtypes.values())) == len(dialect.dtypes)
        for row in dialect.functions.values():
            if "stream" in row.arguments:
                assert row.arguments[-2:] == ("comm", "stream") or row.name.endswith("Config")
    assert SimpleNamespace(**ONECCL.dtypes).bfloat16 == dialects.NCCL.dtypes["bfloat16"]


# -- RCCL --------------------------------------------------------------------------------------------------


def test_rccl_runs_as_nccl_does_under_its_own_name(tmp_path: Path) -> None:
    process = Process(World(devices=2, version=22703))
    cuda = Cuda(process.runtime, process.runtime)
    library = Library(RCCL, process.native, process.module, process.runtime)
    endpoint = opened(Control(1, 64), cuda, library, {0: 0, 1: 1})
    result, _ = measured(endpoint, measuring.case_of("rccl", "all_gather", ranks=2))
    assert result.mismatch is None
    assert endpoint.remark().startswith("RCCL 2.27.3, device time")
    endpoint.close()
    assert "no /dev/kfd" in str(amd_missing(tmp_path))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    assert str(amd_missing(tmp_path)).startswith(
        "CuPy for ROCm is not installed; pip install '.[rocm7]'"
    )
    assert open_backend("rccl").version() == "RCCL of the system, CuPy unknown"
