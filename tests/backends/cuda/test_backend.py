"""What the runner sees of the cuda backends on machines without a GPU, a driver or CuPy."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ccbench.backends import cuda, prerequisites
from ccbench.backends.cuda import BACKEND, single_process
from ccbench.backends.cuda import runtime as modules
from ccbench.backends.cuda.runtime import Cuda, open_cuda
from ccbench.backends.prerequisites import driver_missing
from ccbench.cases.axes import PER_GPU, PROCESSES, Case
from ccbench.errors import BackendUnavailable, CannotStart, MissingDependency
from ccbench.machine.files import Files

from .cases import case_of
from .emulated import CudaError, EmulatedRuntime


@pytest.mark.parametrize("file", ["dev/nvidia0", "dev/dxg"])
def test_a_device_file_of_the_driver_is_enough_to_try(tmp_path: Path, file: str) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / file).touch()
    assert driver_missing(tmp_path) is None


def test_a_container_without_devices_is_told_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    assert "docker run --gpus all" in str(driver_missing(tmp_path))


@pytest.mark.parametrize(
    ("devices", "driver", "works"),
    [
        (["0x1db6"], "580.95.05", False),
        (["0x1d01", "0x2684"], "580.95.05", True),
        (["0x2684"], "535.54.03", False),
        ([], "", True),
    ],
)
def test_cupy_of_cuda_13_where_driver_or_all_gpus_are_older_is_told_before_any_case(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: list[str],
    driver: str,
    works: bool,
) -> None:
    """V100; GT 1030 for the screen beside an RTX 4090; a driver of CUDA 12."""
    version = tmp_path / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(driver)
    monkeypatch.setattr(cuda, "driver_missing", lambda: None)
    monkeypatch.setattr(prerequisites, "find_spec", lambda name: name)
    monkeypatch.setattr(prerequisites, "Files", lambda: Files(tmp_path))
    for number, device in enumerate(devices):
        gpu = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        gpu.mkdir(parents=True)
        for name, text in (("class", "0x030200"), ("vendor", "0x10de"), ("device", device)):
            (gpu / name).write_text(text)
    monkeypatch.setattr(prerequisites, "installed_version", {"cupy-cuda13x": "14.2.0"}.get)
    assert (BACKEND.unavailable() is None) is works
    assert works or "pip uninstall cupy-cuda13x" in str(BACKEND.unavailable())
    monkeypatch.setattr(prerequisites, "installed_version", {"cupy-cuda12x": "14.2.0"}.get)
    assert BACKEND.unavailable() is None
    monkeypatch.setattr(prerequisites, "find_spec", lambda name: None)
    assert "pip install '.[cuda13]'" in str(BACKEND.unavailable())


def test_a_worker_without_cupy_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    with pytest.raises(
        MissingDependency, match=r"CuPy cannot be imported .* pip install '\.\[cuda13\]'"
    ):
        open_cuda(own_kernels=False)
    assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"
    with pytest.raises(MissingDependency):
        open_cuda()
    assert (
        os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    )  # a launch that loads may wait for who waits for it


def test_streams_of_one_device_have_queues_of_their_own_before_cuda_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    settings: list[str] = []

    def refuse() -> Cuda:
        settings.append(os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])
        raise BackendUnavailable("no device")

    monkeypatch.setattr(single_process, "open_cuda", refuse)
    with pytest.raises(BackendUnavailable):
        single_process.CudaWorkerGroup(2, 16).endpoint(0)
    assert settings == ["32"]


CUDA_MODES = ("streaming", "isolated", "graph", "cold")
RING = partial(case_of, "all_reduce", "ring", 4)
UNEVEN = partial(case_of, "all_to_all_v", "default", 4)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        *(
            (RING(mode=mode, processes=process), "")
            for mode in CUDA_MODES
            for process in PROCESSES
        ),
        *(
            (RING(mode="overlap", processes=process), f"it has {', '.join(CUDA_MODES)};")
            for process in PROCESSES
        ),
        (RING(groups="rank // 2", active_group=1), ""),
        (
            RING(groups="rank // 2", active_group=1, processes=PER_GPU),
            "cuda has no groups with processes: per_gpu; write processes: one",
        ),
        (UNEVEN(traffic=""), ""),
        (UNEVEN(traffic="zipf:1.2"), "cuda has no traffic zipf:1.2"),
        (RING(transport="host"), ""),
        (
            RING(transport="host", processes=PER_GPU),
            "cuda has no transport with processes: per_gpu",
        ),
        (RING(transport="network"), "network"),
    ],
    ids=lambda value: value.label if isinstance(value, Case) else "",
)
def test_what_cannot_run_says_why(case: Case, words: str) -> None:
    refused = BACKEND.unsupported(case)
    assert words in refused if refused and words else refused is None


def test_the_version_tells_what_the_environment_sets_about_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CCBENCH_KERNEL_CHANNELS", "3")
    assert BACKEND.version().endswith(", channels=3")


def test_the_runner_loads_no_gpu_library() -> None:
    code = (
        "import sys; from ccbench.backends import open_backend; import ccbench.runner.run\n"
        "from ccbench.cases.capabilities import backend_names\n"
        "backends = [open_backend(name) for name in backend_names()]\n"
        "usable = [backend for backend in backends if backend.unavailable() is None]\n"
        "assert [backend.algorithms('all_reduce') for backend in usable]\n"
        "print(sorted({'cupy', 'torch', 'mpi4py', 'pynvml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (46, "cudaError 46$"),
        (802, "cudaError 802; the NVLink fabric is not ready: restart the fabric manager"),
        (
            35,
            "CuPy is of CUDA 13.0, and the driver runs CUDA 12.2 at most: pip uninstall .*cuda12",
        ),
    ],
)
def test_what_keeps_cuda_from_starting_is_told_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, status: int, words: str
) -> None:
    runtime = EmulatedRuntime()
    monkeypatch.setattr(runtime, "runtimeGetVersion", lambda: 13000)
    monkeypatch.setattr(runtime, "driverGetVersion", lambda: 12020)
    runtime.failing["getDeviceCount"] = [CudaError(status)]
    with pytest.raises(CannotStart, match=f"CUDA does not start: .*{words}"):
        modules.device_count(Cuda(runtime, runtime))


def test_a_device_that_cannot_be_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = EmulatedRuntime(failing={"getDeviceCount": [CudaError(46)]})
    monkeypatch.setattr(single_process, "open_cuda", runtime.getDeviceCount)
    with pytest.raises(BackendUnavailable, match=r"CUDA does not start: CudaError: .*46$"):
        single_process.CudaWorkerGroup(2, 16).endpoint(0)
