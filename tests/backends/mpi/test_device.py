"""``memory: device``: a real MPI on memory that only it and CUDA's copies may touch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.base import CannotRun, TeamLaunch, TeamRequest
from ccbench.backends.device_memory import named
from ccbench.backends.mpi import BACKEND, device
from ccbench.backends.mpi.device import (
    MEMORY_VARIABLE,
    device_settings,
    gpu_support,
    why_not_cuda_aware,
)
from ccbench.backends.mpi.library import MpiLibrary, installed, local_launch
from ccbench.backends.prerequisites import driver_missing
from ccbench.cases.measurement import Status
from ccbench.collectives import COLLECTIVES
from ccbench.errors import BackendUnavailable
from ccbench.flags import Flag
from ccbench.machine.host import usable_cores
from ccbench.model.context import PredictionContext, named_context
from ccbench.runner.workers.team import WorkerTeam
from tests.backends.mpi.test_teams import SHORT, case_of, lent

NO_MPI = BACKEND.unavailable()
needs_mpi = pytest.mark.skipif(NO_MPI is not None, reason=f"no MPI here: {NO_MPI}")
ON_DEVICES = ((MEMORY_VARIABLE, "device"),)
PROGRAM = Path(__file__).with_name("on_host_memory.py")


def team(*options: str, ranks: int = 2, pinned: bool = True) -> WorkerTeam:
    library = installed()
    assert isinstance(library, MpiLibrary)
    local = local_launch(library, ranks)
    command = (*local.command, sys.executable, str(PROGRAM), *options)
    return WorkerTeam(
        TeamRequest("mpi", ranks, replace(local, command=command, pinned=pinned), ON_DEVICES)
    )


device_case = partial(case_of, memory="device")


@pytest.fixture(scope="module")
def pair() -> Iterator[WorkerTeam]:
    yield from lent(team())


@pytest.mark.thinned(4)
@needs_mpi
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_every_collective_is_right_on_device_memory(
    pair: WorkerTeam, name: str, in_place: bool
) -> None:
    case = device_case(name, in_place=in_place, root=1 if COLLECTIVES[name].rooted else -1)
    if BACKEND.unsupported(case):
        assert name in ("send_recv", "all_to_all", "all_to_all_v")
        return
    measurement = pair.run(case, SHORT)
    assert (measurement.status, measurement.detail) == (Status.OK, "")
    assert measurement.wrong_elements == 0
    assert Flag.LOOPBACK not in measurement.conditions.flags


@pytest.mark.thinned(2)
@needs_mpi
@pytest.mark.parametrize("size_bytes", [4, 100_000, 3 << 20])
@pytest.mark.parametrize("name", ["all_reduce", "broadcast"])
def test_memory_grows_with_the_cases(pair: WorkerTeam, name: str, size_bytes: int) -> None:
    case = device_case(name, count=size_bytes // 4)
    measurement = pair.run(case, SHORT)
    assert (measurement.status, measurement.wrong_elements) == (Status.OK, 0)


@needs_mpi
def test_pairs_and_bytes_that_mpi_cannot_add_travel_too(pair: WorkerTeam) -> None:
    for ends in ("0>1", "0<>1"):
        assert pair.run(device_case("send_recv", pair=ends), SHORT).status is Status.OK
    assert pair.run(device_case("all_gather", dtype="bfloat16"), SHORT).status is Status.OK


@needs_mpi
def test_what_does_not_fit_a_device_is_out_of_memory_on_all_ranks_and_the_team_goes_on(
    pair: WorkerTeam,
) -> None:
    count = 40 << 20
    measurement = pair.run(device_case("all_reduce", count=count), SHORT)
    assert measurement.status is Status.OUT_OF_MEMORY
    assert " of GPU 0000:00:00.0 of " in measurement.detail
    assert pair.run(device_case("all_reduce"), SHORT).status is Status.OK


@needs_mpi
def test_ranks_that_share_a_gpu_are_flagged() -> None:
    opened = team("devices=1")
    measurement = opened.run(device_case("all_reduce"), SHORT)
    opened.close()
    assert measurement.status is Status.OK, measurement.detail
    assert Flag.LOOPBACK in measurement.conditions.flags


@needs_mpi
def test_a_wrong_element_on_a_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", "element:rank=1")
    opened = team()
    measurement = opened.run(device_case("all_gather"), SHORT)
    opened.close()
    assert measurement.status is Status.WRONG
    assert "rank 1: " in measurement.detail


# -- refusals ---------------------------------------------------------------------------------------------

AWARE = """
import sys
from ccbench.backends.mpi import device
from ccbench.backends.cuda.runtime import Cuda
from tests.backends.mpi.on_host_memory import HostMemoryRuntime
from ccbench.runner.workers.agent import serve_one_team
device.open_cuda = lambda: Cuda(HostMemoryRuntime(), None)
serve_one_team()
"""


@needs_mpi
def test_a_library_that_is_not_cuda_aware_is_refused_with_the_cure() -> None:
    """The library that is installed is asked; one that is CUDA-aware would start."""
    library = installed()
    assert isinstance(library, MpiLibrary)
    if library.vendor != "Open MPI" or "4.1" not in library.name:
        pytest.skip(f"of {library.name} it is not known here what it says")
    local = local_launch(library, 2)
    launch = replace(local, command=(*local.command, sys.executable, "-c", AWARE))
    with pytest.raises(CannotRun, match=r"is not CUDA-aware; install one .* --with-cuda"):
        WorkerTeam(TeamRequest("mpi", 2, launch, ON_DEVICES))


@needs_mpi
def test_without_cupy_or_a_driver_a_rank_says_so() -> None:
    if driver_missing() is None:
        pytest.skip("here CUDA may start")
    with pytest.raises(CannotRun, match=r"CuPy|CUDA does not start"):
        WorkerTeam(TeamRequest("mpi", 2, TeamLaunch(), ON_DEVICES))


def support_functions(general: int | None, of_cuda: int | None) -> SimpleNamespace:
    """A library's functions: general writes whether it supports CUDA."""
    place = SimpleNamespace()
    if general is not None:

        def query(kind: object, supported: object) -> int:
            assert kind.value == device.CUDA_NUMBER  # type: ignore[attr-defined]  # a c_int
            supported._obj.value = general  # type: ignore[attr-defined]  # as ctypes.byref has it
            return 0

        place.MPIX_GPU_query_support = query
    if of_cuda is not None:
        place.MPIX_Query_cuda_support = lambda: of_cuda
    return place


@pytest.mark.parametrize(
    ("general", "of_cuda", "answer"),
    [
        (1, None, True),
        (0, 1, True),
        (0, 0, False),
        (0, None, False),
        (None, 1, True),
        (None, 0, False),
        (None, None, None),
    ],
)
def test_a_library_is_asked_in_both_ways(
    general: int | None, of_cuda: int | None, answer: bool | None
) -> None:
    assert gpu_support(SimpleNamespace(), support_functions(general, of_cuda)) is answer


@pytest.mark.parametrize(
    ("text", "variables", "reason"),
    [
        ("Open MPI v4.1.4, package", {}, "--with-cuda"),
        ("MPICH Version: 5.0.2", {}, "MPICH: configure --with-cuda"),
        ("CRAY MPICH version 8.1.28", {}, "MPICH_GPU_SUPPORT_ENABLED=1,"),
        ("CRAY MPICH version 8.1.28", {"MPICH_GPU_SUPPORT_ENABLED": "1"}, None),
        ("Intel(R) MPI Library 2021.18.1 for Linux", {"I_MPI_OFFLOAD": "0"}, "I_MPI_OFFLOAD=1"),
        ("Intel(R) MPI Library 2021.18.1 for Linux", {"I_MPI_OFFLOAD": "1"}, None),
        (
            "Intel(R) MPI Library 2021.9 for Linux",
            {"I_MPI_OFFLOAD": "1"},
            "from version 2021.13 on",
        ),
    ],
)
def test_a_library_without_a_word_for_it_is_taken_by_its_setting_alone(
    monkeypatch: pytest.MonkeyPatch, text: str, variables: dict[str, str], reason: str | None
) -> None:
    monkeypatch.setattr(device, "gpu_support", lambda *places: None)
    monkeypatch.setattr(
        "ccbench.backends.mpi.device.ctypes.CDLL", lambda name: SimpleNamespace()
    )
    mpi = SimpleNamespace(Get_library_version=lambda: text, __file__="MPI.so")
    reason_found = why_not_cuda_aware(mpi, variables)
    assert reason_found is None if reason is None else reason in (reason_found or "")


def test_settings_that_a_library_needs_come_before_those_of_an_algorithm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert device_settings("Intel MPI 2021.18") == (("I_MPI_OFFLOAD", "1"),)
    assert device_settings("Cray MPICH 8.1") == (("MPICH_GPU_SUPPORT_ENABLED", "1"),)
    assert device_settings("Open MPI 5.0.1") == ()
    intel = MpiLibrary("Intel MPI 2021.18", "4.1", "/opt/libmpi.so", "/opt/mpiexec")
    monkeypatch.setattr("ccbench.backends.mpi.installed", lambda _: intel)
    monkeypatch.setenv("I_MPI_OFFLOAD", "0")
    assert BACKEND.team_settings(device_case("all_reduce")) == (
        *ON_DEVICES,
        ("I_MPI_OFFLOAD", "1"),
    )
    monkeypatch.setenv("I_MPI_OFFLOAD", "1")
    monkeypatch.setenv(MEMORY_VARIABLE, "device")
    assert BACKEND.team_settings(device_case("all_reduce")) == ()


# -- the rest ---------------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 42), st.data())
def test_an_array_that_names_memory_keeps_address_and_size(
    address: int, size: int, data: st.DataObject
) -> None:
    """Nothing is read: no memory is there."""
    begin = data.draw(st.integers(0, size))
    whole = named(address, size)
    part = whole[begin:]
    assert (whole.ctypes.data, whole.nbytes) == (address, size)
    assert part.nbytes == size - begin
    assert begin == size or part.ctypes.data == address + begin


def test_nothing_prices_it() -> None:
    case = device_case("all_reduce")
    assert PredictionContext().predict(case) is None
    assert named_context("hgx-h100").predict(case, "ring") is None


@needs_mpi
def test_ranks_are_not_pinned_by_their_number(pair: WorkerTeam) -> None:
    """Which processors are near a GPU does not follow from the rank."""
    assert pair.run(device_case("barrier"), SHORT).conditions.binding != ()
    launches = [
        BACKEND.launch(TeamRequest("mpi", 2, environment=environment))
        for environment in (ON_DEVICES, ())
    ]
    assert [launch.pinned for launch in launches if launch] == [False, True]
    if usable_cores() < 2:
        return  # everybody keeps to the only processor
    floating = team(pinned=False)
    binding = floating.run(device_case("barrier"), SHORT).conditions.binding
    floating.close()
    assert binding == ()


def exchange_of(*memory: str) -> Any:
    """The control channel of rank 0, whose hosts have these values of the variable."""
    return SimpleNamespace(
        rank=0,
        ranks=len(memory),
        hosts=tuple(f"host{number}" for number in range(len(memory))),
        all_gather=lambda mine: [json.dumps(text).encode() for text in memory],
    )


@pytest.mark.parametrize(("first", "second"), [("device", ""), ("", "device")])
def test_a_variable_that_only_some_ranks_have_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, first)
    values = f"is '{first}' for rank 0 on host0 and '{second}' for rank 2 on host2; start all ranks with the same"
    with pytest.raises(BackendUnavailable, match=values):
        device.device_of_rank(exchange_of(first, first, second))


def test_ranks_without_the_variable_look_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
    assert device.device_of_rank(exchange_of("", "")) is None
