"""A computation and a collective at the same time, on the double: each on a stream of its own."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cuda.blocking_kernel import MOST_ITEMS_BLOCKED
from ccbench.backends.cuda.context import COMPUTE_STREAM, MAIN_STREAM
from ccbench.backends.kernels.sources import beside
from ccbench.backends.nccl import overlap
from ccbench.backends.nccl.endpoint import NcclRanks
from ccbench.backends.nccl.overlap import Streaming, shared_out
from ccbench.cases.axes import Case
from ccbench.errors import MissingDependency
from tests.backends.kernels.nvrtc import compiled

from .computing import FakeBlas, can_compute, with_blas
from .double import Process
from .measuring import case_of, close_clean, opened

__all__ = ["can_compute"]

pytestmark = pytest.mark.usefixtures("can_compute")

KINDS = ("matmul", "memory")
COUNT = 1 << 14


def overlapping(kind: str, collective: str = "all_reduce", **changes: object) -> Case:
    return case_of(collective, 2, COUNT, mode="overlap", overlap_with=kind, **changes)


def computing_endpoint(
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    collective: str = "all_reduce",
    **changes: object,
) -> tuple[NcclRanks, Process, FakeBlas]:
    endpoint, process = opened(2)
    blas = with_blas(monkeypatch, process.runtime)
    endpoint.prepare(overlapping(kind, collective, **changes))
    endpoint.prepare_computing(kind)
    endpoint.refill(1)
    return endpoint, process, blas


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all_v", "reduce_scatter"])
def test_data_are_right_after_a_launch_that_something_was_computed_beside(
    kind: str, collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = "hot:0.6" if collective == "all_to_all_v" else ""
    endpoint, process, _ = computing_endpoint(kind, monkeypatch, collective, traffic=traffic)
    for seed in (2, 3):
        endpoint.poison()
        endpoint.refill(seed)
        assert endpoint.check(seed, 1) is not None
        endpoint.launch_while_computing(1, 5)
        assert endpoint.check(seed, 1) is None
    endpoint.poison()
    endpoint.refill(4)
    endpoint.compute(5)
    assert endpoint.check(4, 1) is not None  # nothing was communicated
    endpoint.finish()
    assert not process.world.deadlocks


def test_the_memory_kernel_reads_one_buffer_and_writes_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, process, _ = computing_endpoint("memory", monkeypatch)
    endpoint.compute(1)
    for rank, computation in endpoint._overlap._computations.items():
        assert isinstance(computation, Streaming)
        size = int(computation._arguments["count"][0]) * overlap.ELEMENT_BYTES
        source = process.world.view(computation._address, size, rank).view(np.float32)
        target = process.world.view(computation._address + size, size, rank).view(np.float32)
        assert np.all(source == 0)
        assert np.all(target == 1)
        assert size >= endpoint._contexts[rank].facts.l2_bytes


def test_another_kind_takes_the_place_of_the_one_before_and_everything_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, process, blas = computing_endpoint("matmul", monkeypatch)
    handles = dict(blas.handles)
    endpoint.prepare_computing("matmul")
    assert blas.handles == handles  # a second round makes nothing anew
    endpoint.prepare_computing("memory")
    assert blas.handles == {}
    endpoint.finish()
    close_clean(endpoint, process)
    assert not process.world.streams


def test_without_cublas_the_case_is_refused_with_what_to_install() -> None:
    endpoint, _ = opened(2)
    endpoint.prepare(overlapping("matmul"))
    with pytest.raises(CannotRun, match=r"matmul needs cuBLAS.*pip install nvidia-cublas"):
        endpoint.prepare_computing("matmul")
    endpoint.prepare_computing("memory")


def test_what_keeps_cublas_or_the_compiler_from_starting_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, process = opened(2)
    blas = with_blas(monkeypatch, process.runtime)
    before = set(process.runtime.allocated)

    def no_handle() -> int:
        raise RuntimeError("CUBLAS_STATUS_NOT_INITIALIZED")

    monkeypatch.setattr(blas, "create", no_handle)
    endpoint.prepare(overlapping("matmul"))
    buffers = set(process.runtime.allocated)
    with pytest.raises(CannotRun, match="cuBLAS does not start: CUBLAS_STATUS_NOT_INITIALIZED"):
        endpoint.prepare_computing("matmul")
    assert set(process.runtime.allocated) == buffers > before

    def no_compiler(*_: object, **__: object) -> None:
        raise MissingDependency(
            "NVRTC, which compiles kernels, is not installed; pip install it"
        )

    monkeypatch.setattr("ccbench.backends.cuda.runtime.compile_program", no_compiler)
    with pytest.raises(CannotRun, match="NVRTC, which compiles kernels, is not installed"):
        endpoint.prepare_computing("memory")
    assert set(process.runtime.allocated) == buffers


def test_cublas_is_found_in_wheels_that_cupy_does_not_look_into(tmp_path: Path) -> None:
    for name in ("libcublas.so.12", "libcublasLt.so.12"):
        (tmp_path / "nvidia/cublas/lib").mkdir(parents=True, exist_ok=True)
        (tmp_path / "nvidia/cublas/lib" / name).write_bytes(b"")
    names: list[str] = []

    def load(path: str, mode: int) -> None:
        names.append(Path(path).name)
        if "Lt" not in path:
            raise OSError("not a library")

    loaded = overlap.load_wheels(["", str(tmp_path / "elsewhere"), str(tmp_path)], load)
    assert names == ["libcublasLt.so.12", "libcublas.so.12"]  # the second needs the first
    assert [path.name for path in loaded] == ["libcublasLt.so.12"]


@pytest.mark.parametrize("kind", KINDS)
def test_too_little_memory_for_the_computation_is_said_and_leaves_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, process = opened(2, memory_bytes=7 << 20)
    with_blas(monkeypatch, process.runtime)
    endpoint.prepare(overlapping(kind))
    before = set(process.runtime.allocated)
    monkeypatch.setattr(overlap, "STREAM_BYTES", 8 << 20)
    monkeypatch.setattr(overlap, "MATRIX_EDGE", 2048)
    with pytest.raises(OutOfMemory):
        endpoint.prepare_computing(kind)
    assert set(process.runtime.allocated) == before


def test_a_rank_hears_that_anothers_device_cannot_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, _ = opened(2)
    endpoint.prepare(overlapping("memory"))
    monkeypatch.setattr(
        endpoint, "least", lambda value: 0
    )  # what the other rank's process gives
    with pytest.raises(CannotRun, match="another rank's device"):
        endpoint.prepare_computing("memory")


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("launches", "repetitions"), [(1, 3000), (40, 40), (100, 1000), (0, 3000)]
)
def test_no_more_is_enqueued_behind_a_blocking_kernel_than_a_queue_takes(
    launches: int, repetitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, process, _ = computing_endpoint("memory", monkeypatch)
    blocking = endpoint._launches._blocking = MagicMock(shared=False)
    queued: list[int] = []
    blocking.release.side_effect = lambda: queued.append(_longest(process, endpoint))
    endpoint._overlap.run(launches, repetitions, 5.0)
    assert 0 < queued[0] <= MOST_ITEMS_BLOCKED + 1
    assert queued[-1] > MOST_ITEMS_BLOCKED or launches + repetitions <= MOST_ITEMS_BLOCKED


def _longest(process: Process, endpoint: NcclRanks) -> int:
    """Launches and repetitions on one device that have not run."""
    context = endpoint._contexts[0]
    streams = [
        process.world.streams[context.on(lane).handle] for lane in (MAIN_STREAM, COMPUTE_STREAM)
    ]
    return sum(len(stream.queue) for stream in streams) - 2  # the event, and the wait for it


@given(st.integers(0, 5000), st.integers(1, 300))
def test_repetitions_are_shared_out_evenly(total: int, parts: int) -> None:
    shares = shared_out(total, parts)
    assert len(shares) == parts
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_the_memory_kernel_compiles_and_moves_sixteen_bytes_at_a_time(
    architecture: int,
) -> None:
    resources = compiled(beside("streaming.cu"), architecture)
    assert resources.spill_bytes == 0
    assert resources.registers <= 32  # 2048 lanes fit on a multiprocessor's 65,536
    assert "ld.global.v4.f32" in resources.ptx
    assert "st.global.v4.f32" in resources.ptx
