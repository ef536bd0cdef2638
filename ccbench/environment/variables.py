"""Variables that steer a run: those of an allow-list, with secrets and user names blanked."""

from __future__ import annotations

import re
from collections.abc import Mapping

REDACTED = "<redacted>"

VARIABLE_PREFIXES = (
    "CCBENCH_", "CUDA_", "CUPY_", "FI_", "GLOO_", "GOMP_", "HIP_", "HSA_", "I_MPI_", "KMP_", "MPICH_", "MV2_",
    "NCCL_", "NVSHMEM_", "OMPI_MCA_", "OMP_", "PRTE_MCA_", "PSM2_", "PSM3_", "RCCL_", "TORCH_NCCL_", "UCC_",
    "UCX_",
)  # fmt: skip
"""Everything of these steers a library; what looks like a secret is blanked all the same."""

VARIABLE_NAMES = frozenset({
    # Geometry of the job; never its name, its user or its folders.
    "SLURM_JOB_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NTASKS",
    "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE", "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION", "SLURM_THREADS_PER_CORE", "SLURM_MEM_PER_NODE", "SLURM_MPI_TYPE",
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_SIZE", "PMI_RANK",
    "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK",
    # Devices this process may see.
    "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LD_PRELOAD", "LD_LIBRARY_PATH",
    "PYTHONMALLOC", "MALLOC_ARENA_MAX",
})  # fmt: skip

_LONGEST_VALUE = 500
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|(^|_)(KEY|AUTH|PWD)(_|$)|PRECONDITION_TRANSPORTS",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"://[^/\s@]*:[^/\s@]*@"  # user:password in an address
    r"|\b(bearer|basic)\s+\S{8}"
    r"|(password|passwd|secret|token|key)\s*[=:]"
    r"|-----BEGIN "
    r"|\b(AKIA|ASIA)[0-9A-Z]{16}\b|\b(ghp|gho|ghs|github_pat|glpat|hf|xox[abp]|sk)[-_]\w{10}"
    r"|\beyJ[\w-]{10,}\."  # a JSON web token
    # A long run of letters and digits mixed; device UUIDs have dashes and stay.
    r"|(?<![\w+=])(?=[\w+=]*[0-9])(?=[\w+=]*[A-Za-z])[A-Za-z0-9+=]{32,}",
    re.IGNORECASE,
)


_OWN_FOLDER = re.compile(r"(/(?:home|Users|users)/)[^/:;,\s]+")
"""Home folders, whose next part is somebody's name."""


def kept_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The allowed ones of ``variables``, sorted, printable, secrets and user names blanked."""
    kept = {}
    for name in sorted(variables):
        if name in VARIABLE_NAMES or name.startswith(VARIABLE_PREFIXES):
            value = printable(variables[name])
            secret = _SECRET_NAME.search(name) or _SECRET_VALUE.search(value)
            kept[printable(name)] = REDACTED if secret else without_names(value)[:_LONGEST_VALUE]
    return kept


def without_names(text: str) -> str:
    """``/home/ada/lib`` -> ``/home/<user>/lib``."""
    return _OWN_FOLDER.sub(r"\1<user>", text)


def printable(text: str) -> str:
    """``text`` as UTF-8 can carry it."""
    # os.environ carries bytes that are not UTF-8 as lone surrogates, which JSON files cannot.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
