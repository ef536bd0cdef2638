"""Calls, groups, errors and the choice of the library, on the double of NCCL."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ccbench.backends.base import CannotRun
from ccbench.backends.nccl.collectives import Call, nccl_calls, prepared
from ccbench.backends.nccl.dialects import NCCL
from ccbench.backends.nccl.library import (
    Library,
    LibraryFailed,
    communicator_of,
    communicators_of,
    loaded_library,
    open_by_cupy,
)
from ccbench.errors import BackendUnavailable, MissingDependency
from ccbench.machine.files import Files
from tests.backends.cuda.emulated import CudaError

from .double import Process, World

OLD, NEW = 21903, 22809
"""NCCL without and with calls of its own for all-to-all, gather and scatter."""


class Bench:
    """One process with a communicator, a stream and buffers on each device."""

    def __init__(self, ranks: int, version: int = NEW, **process: Any) -> None:
        self.world = World(devices=ranks, version=version)
        self.process = Process(self.world, **process)
        self.nccl: Library = self.process.nccl
        devices = dict(enumerate(range(ranks)))
        unique_id = self.nccl.unique_id()
        self.comms = communicators_of(self.nccl, ranks, unique_id, devices)
        self.streams = []
        for device in range(ranks):
            self.process.runtime.setDevice(device)
            self.streams.append(self.process.runtime.streamCreateWithFlags(1))

    def place(self, values: NDArray[Any], device: int) -> int:
        self.process.runtime.setDevice(device)
        address = self.process.runtime.malloc(values.nbytes)
        self.world.view(address, values.nbytes, device)[...] = values.view(np.uint8)
        return address

    def close(self) -> None:
        for comm in self.comms:
            comm.destroy()
        assert self.process.members == {}
        assert self.process.exceptions == []


def all_reduce(bench: Bench, addresses: Sequence[int], count: int = 2) -> None:
    for comm, address, stream in zip(bench.comms, addresses, bench.streams, strict=True):
        prepared(comm, Call("all_reduce", address, address, count, "int64", "sum"), stream)()


# -- what NCCL refuses ---------------------------------------------------------------------------------------


def test_a_communicator_that_blocks_and_has_failed_is_aborted() -> None:
    bench = Bench(2)
    bench.process.members_of(1)[0].error = 6
    bench.close()
    assert bench.process.group.depth == 0


def test_what_nccl_does_not_have_is_named_with_the_version_that_has_it() -> None:
    nccl = Bench(1, 22304).nccl
    with pytest.raises(
        CannotRun, match=r"NCCL 2\.23\.4 has no float8_e4m3, which came with 2\.24\.3"
    ):
        nccl.dtype_number("float8_e4m3")
    with pytest.raises(CannotRun, match=r"no ncclCommWindowRegister, which came with 2\.27\.3"):
        nccl.function("ncclCommWindowRegister")
    assert not nccl.has("ncclAlltoAll")


def test_ranks_that_have_one_device_or_never_come_are_refused_in_nccls_words() -> None:
    nccl = Process(World(devices=2, patience_seconds=0.05)).nccl
    with pytest.raises(
        LibraryFailed, match=r"ncclCommInitRank: ncclInvalidUsage.*Duplicate GPU"
    ):
        communicators_of(nccl, 2, nccl.unique_id(), {0: 0, 1: 0})
    with pytest.raises(LibraryFailed, match="deadlock: ncclCommInitRank"):
        communicator_of(nccl, 2, nccl.unique_id(), 0, 0)


def test_too_old_or_two_libraries_are_refused() -> None:
    with pytest.raises(BackendUnavailable, match=r"NCCL 2\.13\.4 is too old, 2\.14\.3"):
        _ = Process(World(version=21304)).nccl
    newer, older = Process(World(version=22809)), Process(World(version=22304))
    with pytest.raises(BackendUnavailable, match=r"says it is 2\.23\.4, CuPy uses 2\.28\.9"):
        Library(NCCL, older.native, newer.module, newer.runtime)


def test_the_loaded_library_is_found_in_the_processs_maps() -> None:
    line = "7f00-7f10 r-xp 00000000 08:01 123   /opt/my libs/{}\n"
    assert loaded_library(line.format("libnccl.so.2") * 3) == "/opt/my libs/libnccl.so.2"
    assert loaded_library(line.format("libnccl-net.so") + "7f-8f rw-p 0 0 0\n") == ""
    with pytest.raises(BackendUnavailable, match="several NCCL libraries"):
        loaded_library(line.format("libnccl.so.2") + line.format("old/libnccl.so.2.18.3"))


# -- calls and estimates -------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", [0, 1, 2])
def test_in_place_the_roots_own_block_is_not_sent(root: int) -> None:
    nccl = Bench(3, OLD).nccl
    gather = Call("gather", 64 + 8 * root, 64, 2, "int32", root=root)
    assert [(step[1][1], step[1][3]) for step in nccl_calls(nccl, root, 3, gather, 0)] == [
        (2, peer) for peer in range(3) if peer != root
    ]
    scatter = Call("scatter", 64, 64 + 8 * root, 2, "int32", root=root)
    assert {step[0] for step in nccl_calls(nccl, root, 3, scatter, 0)} == {"ncclSend"}
    apart = Call("scatter", 64, 1000, 2, "int32", root=root)
    assert len(nccl_calls(nccl, root, 3, apart, 0)) == 4


# -- hangs and failures --------------------------------------------------------------------------------------


def test_a_rank_that_fails_is_seen_by_asking() -> None:
    bench = Bench(2)
    comm = bench.comms[0]
    assert comm.failure() == ""
    bench.process.members_of(0)[0].error = 6
    assert "ncclRemoteError: remote process exited" in comm.failure()
    comm.abort()
    assert comm.failure() == ""
    comm.abort()


# -- finding NCCL ----------------------------------------------------------------------------------------


def pretend_cupy(monkeypatch: pytest.MonkeyPatch, nccl: object, runtime: object) -> None:
    cuda = ModuleType("cupy.cuda")
    vars(cuda).update(nccl=nccl, runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)


def test_nccl_is_opened_as_cupy_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process = Process(World(version=22809))
    pretend_cupy(monkeypatch, process.module, process.runtime)
    maps = tmp_path / "proc/self/maps"
    maps.parent.mkdir(parents=True)
    maps.write_text("7f00-7f10 r-xp 00000000 08:01 123   /opt/nccl/libnccl.so.2\n")
    loaded: list[str] = []

    def load(path: str) -> object:
        loaded.append(path)
        return process.native

    nccl = open_by_cupy(NCCL, load, Files(tmp_path))
    assert (nccl.version_text, nccl.path, loaded) == (
        "2.28.9",
        "/opt/nccl/libnccl.so.2",
        [nccl.path],
    )
    maps.write_text("")
    assert open_by_cupy(NCCL, load, Files(tmp_path)).path == ""
    assert loaded[-1] == "libnccl.so.2"


def test_without_cupy_or_nccl_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingDependency, match=r"CuPy's NCCL cannot be imported.*pip install"):
        open_by_cupy()
    pretend_cupy(monkeypatch, SimpleNamespace(available=False), None)
    with pytest.raises(MissingDependency, match=r"CuPy finds no NCCL library; pip install"):
        open_by_cupy()


@pytest.mark.parametrize("code", [1, 4, 5, 6, 7])
def test_errors_of_cupy_become_nccls_words_even_where_cupy_has_no_name(code: int) -> None:
    bench = Bench(1)
    bench.process.refuse["ncclAllReduce"] = (code, "what NCCL wrote down")
    with pytest.raises(
        LibraryFailed, match=rf"ncclAllReduce: {NCCL.results[code]}: .*\(what NCCL wrote down\)"
    ) as caught:
        all_reduce(bench, [bench.place(np.ones(2, np.int64), 0)])
    assert caught.value.refused == (code in (4, 5))


def test_what_is_no_error_of_nccl_stays_what_it_is() -> None:
    nccl = Bench(1).nccl
    for error in (KeyError("stream"), TypeError("an integer is required"), CudaError(2)):
        assert nccl.failure(error, "ncclAllReduce") is error
