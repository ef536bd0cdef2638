"""Backends: what each can do, and where its code is. The code is imported on use.

Adding a backend is a row here and the module of its ``entry_point``. Nothing else knows a backend's name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ccbench.cases.axes import DEVICE_MEMORY, ONE_PROCESS, OPS, PER_GPU
from ccbench.cases.capabilities import (
    DECLARED,
    EVERY,
    Capabilities,
    Device,
    PricedBy,
    Requirement,
    backend_names,
    declare,
)
from ccbench.collectives import COLLECTIVES, SETUPS
from ccbench.dtypes import CPU_DTYPES, ITEM_BYTES
from ccbench.errors import CcbenchError, UsageError

if TYPE_CHECKING:
    from ccbench.backends.base import Backend

GPU = Requirement("GPU", cure="a machine with an NVIDIA GPU (see the check GPU)")
COMPILER = Requirement("C++ compiler", cure="apt-get install g++, or name a compiler with CXX")
CUPY = Requirement("CuPy", "cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy"))
NVRTC = Requirement("NVRTC", distributions=("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"))
NCCL = Requirement(
    "NCCL", distributions=("nvidia-nccl-cu13", "nvidia-nccl-cu12"), library="libnccl"
)
MPI4PY = Requirement("mpi4py", "mpi4py", ("mpi4py",), "mpi")
AMD_GPU = Requirement("AMD GPU", cure="a machine with an AMD GPU and ROCm", device="/dev/kfd")
CUPY_ROCM = Requirement("CuPy for ROCm", "cupy", ("cupy-rocm-7-0", "cupy-rocm-5-0"), "rocm7")
RCCL = Requirement("RCCL", cure="ROCm brings it")
ONECCL = Requirement("oneCCL", distributions=("oneccl",), extra="oneccl", library="libccl")
TORCH = Requirement("torch", "torch", ("torch",), "gloo")

ONE_BY_ONE = ("streaming", "isolated")
ON_DEVICES = (*ONE_BY_ONE, "graph", "cold")
COMPUTED = {"mode": (*ONE_BY_ONE, "overlap"), "overlap_with": ("matmul", "memory")}
"""Something is computed while a collective runs."""

OUT_OF_PLACE = ("all_to_all", "all_to_all_v", "send_recv")
"""Libraries would send on what they have received."""

ONE_CALL = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "barrier",
)
"""Collectives that every library of NCCL's shape has as one function; a barrier is an all_reduce."""

GROUPS = {"groups": EVERY, "active_group": EVERY}
SHARED = {**GROUPS, "traffic": EVERY}
"""Blocks may differ in size."""
BESIDE = {"concurrent": EVERY}
"""A rank can be in several groups at a time."""

ON_HOSTS: dict[str, Any] = {
    "collective": tuple(COLLECTIVES),
    "dtype": CPU_DTYPES,
    "op": OPS,
    "mode": ONE_BY_ONE,
    "in_place": (True,),
}
BETWEEN_TWO_BUFFERS = ("all_gather", "reduce_scatter", "all_to_all")
BY_FUNCTIONS = {
    **ON_HOSTS,
    "collective": ("all_reduce", *BETWEEN_TWO_BUFFERS),
    "op": ("sum",),
}
WITH_COMMUNICATORS = (*COLLECTIVES, *SETUPS)
BY_KERNELS: dict[str, Any] = {
    **ON_HOSTS,
    "dtype": tuple(ITEM_BYTES),
    "mode": ON_DEVICES,
}
BY_NCCL: dict[str, Any] = {
    **BY_KERNELS,
    "op": (*OPS, "premulsum"),
    "protocol": ("ll", "ll128", "simple"),
    "channels": range(1, 65),  # MAXCHANNELS of NCCL's src/include/device.h (32 before 2.23)
    "transport": ("host", "network"),
    "registration": ("local", "symmetric"),
    "aggregation": EVERY,
    "misalignment_bytes": EVERY,
    "pair": EVERY,
    **SHARED,
    **BESIDE,
    "variant": EVERY,
}


declare(
    Capabilities(
        "cpu",
        entry_point="ccbench.backends.cpu:BACKEND",
        workers={ONE_PROCESS: "ccbench.backends.cpu.endpoint:CpuWorkerGroup"},
        values={**ON_HOSTS, **COMPUTED, "pair": EVERY, **SHARED, **BESIDE},
        not_in_place=("all_to_all_v",),
        most_ranks=256,
        device=Device.PROCESS,
        own_schedules=True,
        polls=True,
        automatic=True,
    ),
    Capabilities(
        "simulated",
        entry_point="ccbench.backends.simulated:BACKEND",
        values={**ON_HOSTS, "pair": EVERY, **SHARED, **BESIDE},
        not_in_place=("all_to_all_v",),
        most_ranks=1024,
        device=Device.MODEL,
        own_schedules=True,
        spans_hosts=True,
    ),
    Capabilities(
        "nccl",
        entry_point="ccbench.backends.nccl:BACKEND",
        workers={ONE_PROCESS: "ccbench.backends.nccl.bootstrap:NcclWorkerGroup"},
        launched="ccbench.backends.nccl.bootstrap:open_launched_rank",
        library="NCCL",
        library_file="libnccl.so",
        values={
            **BY_NCCL,
            **COMPUTED,
            "mode": (*ON_DEVICES, "overlap"),
            "collective": WITH_COMMUNICATORS,
            "cta_policy": ("efficiency", "zero"),
            "processes": (PER_GPU,),
        },
        not_in_place=OUT_OF_PLACE,
        device=Device.GPU,
        priced_by=PricedBy.GPU_LIBRARY,
        one_process=True,
        spans_hosts=True,
        device_timed=True,
        adds_natively=True,
        premultiplies_averages=True,
        nccl_settings=True,
        automatic=True,
        gpu_sharing_variable="NCCL_MULTI_RANK_GPU_ENABLE",
        needs=(GPU, CUPY, NCCL),
    ),
    Capabilities(
        "cuda",
        entry_point="ccbench.backends.cuda:BACKEND",
        workers={
            ONE_PROCESS: "ccbench.backends.cuda.single_process:CudaWorkerGroup",
            PER_GPU: "ccbench.backends.cuda.ipc:IpcWorkerGroup",
        },
        lacks={("processes", PER_GPU): ("transport", *GROUPS)},
        values={**BY_KERNELS, "transport": ("host",), **GROUPS, "processes": (PER_GPU,)},
        most_ranks=64,
        device=Device.GPU,
        own_kernels=True,
        one_process=True,
        device_timed=True,
        adds_natively=True,
        automatic=True,
        needs=(GPU, CUPY, NVRTC),
    ),
    Capabilities(
        "cuda-host",
        entry_point="ccbench.backends.cuda_host:BACKEND",
        workers={ONE_PROCESS: "ccbench.backends.cuda_host:EmulatedWorkerGroup"},
        values={**BY_KERNELS, "mode": ONE_BY_ONE, **GROUPS},
        most_ranks=16,
        device=Device.EMULATED_GPU,
        own_kernels=True,
        needs=(COMPILER,),
    ),
    Capabilities(
        "mpi",
        entry_point="ccbench.backends.mpi:BACKEND",
        launched="ccbench.backends.mpi.endpoint:MpiEndpoint",
        library_file="libmpi",
        not_in_place=OUT_OF_PLACE,
        values={
            **ON_HOSTS,
            "dtype": (*CPU_DTYPES, "uint32", "uint64"),
            "op": ("sum", "prod", "min", "max"),
            "pair": EVERY,
            **SHARED,
            "memory": (DEVICE_MEMORY,),
            "variant": EVERY,
        },
        lacks={("memory", DEVICE_MEMORY): ("traffic",)},
        device=Device.PROCESS,
        priced_by=PricedBy.NO_MODEL,
        spans_hosts=True,
        in_process_ranks=True,
        polls=True,
        needs=(MPI4PY,),
    ),
    Capabilities(
        "gloo",
        entry_point="ccbench.backends.gloo:BACKEND",
        launched="ccbench.backends.gloo:GlooEndpoint",
        values={
            **ON_HOSTS,
            "pair": EVERY,
            **SHARED,
            "variant": EVERY,
        },
        not_in_place=OUT_OF_PLACE,
        most_ranks=1024,
        device=Device.PROCESS,
        priced_by=PricedBy.NO_MODEL,
        spans_hosts=True,
        needs=(TORCH,),
    ),
    Capabilities(
        "call",
        entry_point="ccbench.backends.call:BACKEND",
        launched="ccbench.backends.call:CallEndpoint",
        values=BY_FUNCTIONS,
        not_in_place=BETWEEN_TWO_BUFFERS,
        most_ranks=256,
        device=Device.PROCESS,
        callables=("numpy", "torch"),
        priced_by=PricedBy.NO_MODEL,
    ),
    Capabilities(
        "call-cuda",
        entry_point="ccbench.backends.call_cuda:BACKEND",
        launched="ccbench.backends.call_cuda:CudaCallEndpoint",
        values={**BY_FUNCTIONS, "mode": ON_DEVICES},
        not_in_place=BETWEEN_TWO_BUFFERS,
        device=Device.GPU,
        callables=("torch.cuda", "cupy"),
        priced_by=PricedBy.NO_MODEL,
        device_timed=True,
        never_run=True,
        needs=(GPU, CUPY),
    ),
    Capabilities(
        "oneccl",
        entry_point="ccbench.backends.nccl.oneccl:BACKEND",
        launched="ccbench.backends.nccl.oneccl:open_oneccl_rank",
        library="oneCCL",
        values={
            **ON_HOSTS,
            **GROUPS,
            "collective": ONE_CALL,
            "op": ("sum", "prod", "min", "max"),
            "variant": EVERY,
        },
        not_in_place=OUT_OF_PLACE,
        most_ranks=256,
        device=Device.PROCESS,
        priced_by=PricedBy.NO_MODEL,
        spans_hosts=True,
        polls=True,
        needs=(ONECCL,),
    ),
    Capabilities(
        "rccl",
        entry_point="ccbench.backends.nccl:RCCL_BACKEND",
        workers={ONE_PROCESS: "ccbench.backends.nccl.bootstrap:RcclWorkerGroup"},
        launched="ccbench.backends.nccl.bootstrap:open_launched_rccl_rank",
        library="RCCL",
        library_file="librccl.so",
        values={
            **BY_NCCL,
            # MI300X has float8 of another form (fnuz), which nothing here makes or checks.
            "dtype": tuple(name for name in ITEM_BYTES if not name.startswith("float8")),
            "processes": (PER_GPU,),
        },
        not_in_place=OUT_OF_PLACE,
        device=Device.GPU,
        priced_by=PricedBy.GPU_LIBRARY,
        one_process=True,
        spans_hosts=True,
        device_timed=True,
        adds_natively=True,
        nccl_settings=True,
        never_run=True,
        needs=(AMD_GPU, CUPY_ROCM),
    ),
    # Libraries whose results are imported.
    Capabilities("msccl", device=Device.GPU, priced_by=PricedBy.GPU_LIBRARY),
    Capabilities("hccl", library="HCCL", device=Device.GPU, priced_by=PricedBy.GPU_LIBRARY),
)


def open_backend(name: str) -> Backend:
    """Return the backend called ``name``; UsageError lists the names when there is none."""
    if name not in backend_names():
        raise UsageError(f"backend: {name!r} is not known; one of {', '.join(backend_names())}")
    backend: Backend = load_entry_point(DECLARED[name].entry_point)
    return backend


def unavailable(name: str) -> str | None:
    """Return what keeps a backend from working here, as it says itself; None where nothing does."""
    try:
        return open_backend(name).unavailable()
    except (CcbenchError, ImportError) as error:
        return str(error)


def load_entry_point(entry_point: str) -> Any:
    """Return the object at ``module:name``."""
    module, _, name = entry_point.partition(":")
    return getattr(import_module(module), name)
