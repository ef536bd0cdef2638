"""This host: processes and signals, system, processors, memory, limits; and the environment of a run.

That is all of it with libraries, variables and GPUs.

Nothing is executed, and no library is imported but pynvml, through which GPUs tell their modes. A fact that
the machine does not tell is None.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ccbench.machine.accelerators import Accelerators, Nvml, opened, read_accelerators
from ccbench.machine.files import Files, expanded, kept_variables, printable, without_names
from ccbench.machine.software import CHECKOUT, Software, read_software

_PR_SET_PDEATHSIG = 1
"""prctl(2), linux/prctl.h."""

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Kept out of the threads of a process that others are started by but one, which hands them on."""


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``module`` in a fresh interpreter with this one's import path alone.

    ``python -m`` would look in the current folder first, and a folder full of results may hold a numpy.py.
    """
    paths = [path for path in sys.path if path and os.path.isabs(path)]
    root = str(Path(__file__).resolve().parents[2])
    if root not in paths:
        paths.insert(0, root)
    start = (
        f"import sys; sys.path[:] = {paths!r}; import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", start, *arguments]


def single_threaded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` with numeric libraries held to one thread: who forks must have only one."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {**environment, **dict.fromkeys(names, "1")}


def die_with_parent(parent: int, by: int = signal.SIGKILL) -> None:
    """Get signal ``by`` when ``parent`` (this process's parent) ends, however that is. Linux alone does."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it ended before the request was in place


def state(pid: int, files: Files | None = None) -> str:
    """Return the kernel's one-letter state of a process (R, S, D, T, Z), '' where it cannot be told."""
    # Its name, in brackets, may hold anything.
    return ((files or Files()).text(f"/proc/{pid}/stat") or "").rpartition(")")[2].strip()[:1]


def address_space_limit() -> int | None:
    """Return the bytes of addresses that ``ulimit -v`` leaves a process, None where it leaves all."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def out_of_memory(error: BaseException) -> bool:
    """Return True for what Python, NumPy and system calls raise where there is no memory to be had."""
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    )


def no_memory(error: BaseException) -> str:
    """Return a sentence for such an error, with the limit that may be its cause."""
    limit = address_space_limit()
    cause = (
        f"; ulimit -v leaves a process {limit >> 20} MiB: raise it" if limit is not None else ""
    )
    return f"no memory is to be had ({error or type(error).__name__}){cause}"


def forward_signals_to(runner: subprocess.Popen[bytes]) -> None:
    """Hand on what the launcher tells the first process: it is meant for the run, which ends in order."""

    def forward() -> None:
        while runner.poll() is None:
            number = signal.sigwait(FORWARDED)
            with suppress(ProcessLookupError):
                runner.send_signal(number)

    threading.Thread(target=forward, name="signals", daemon=True).start()


@contextmanager
def signals_let_in() -> Iterator[None]:
    """Let signals in to start a process, which inherits what this thread keeps out."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextmanager
def terminated_by_signals(once: bool = False) -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception that unwinds like Ctrl-C.

    once: unwinding is not disturbed by another. A launcher tells a run to end, then ends the process that
    started it, which the run hears as one more signal.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if once:
            for sign in heard:
                signal.signal(sign, signal.SIG_IGN)
        raise Terminated(number)

    # nohup has SIGHUP ignored, and means it.
    heard = [
        n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN
    ]
    try:
        before = {number: signal.signal(number, stop) for number in heard}
    except ValueError:  # not the main thread: the embedding program handles its signals itself
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: set by a library before Python began, and not to be had back.
            signal.signal(number, handler or signal.SIG_DFL)


CPU = "/sys/devices/system/cpu"

KERNEL_OPTIONS = frozenset(
    {
        "iommu",
        "intel_iommu",
        "amd_iommu",
        "iommu.passthrough",
        "iommu.strict",
        "pcie_aspm",
        "pci",
        "pcie_acs_override",
        "pci_acs_override",
        "isolcpus",
        "nohz_full",
        "rcu_nocbs",
        "mitigations",
        "nosmt",
        "idle",
        "processor.max_cstate",
        "intel_idle.max_cstate",
        "intel_pstate",
        "amd_pstate",
        "cpufreq.default_governor",
        "transparent_hugepage",
        "hugepages",
        "hugepagesz",
        "default_hugepagesz",
        "numa_balancing",
        "numa",
        "clocksource",
        "tsc",
        "nokaslr",
        "cgroup_disable",
        "systemd.unified_cgroup_hierarchy",
    }
)
"""Options that change how fast devices and processors are. The rest of a command line may hold names."""

_CONTAINER_GROUP = re.compile(r"docker|kubepods|containerd|libpod|lxc|garden|crio")


@dataclass(frozen=True)
class Host:
    """The system around the processor.

    container and hypervisor name the hint that was seen. kernel_options: those of KERNEL_OPTIONS that the
    kernel was booted with.
    """

    name: str
    system: str
    kernel: str
    hypervisor: str | None
    container: str | None
    load_1_minute: float | None
    product: str | None
    kernel_options: Mapping[str, str] = field(default_factory=dict)


def read_host(files: Files) -> Host:
    """Return the facts that the system tells of itself."""
    release = files.fields("/etc/os-release", "=")
    load = (files.text("/proc/loadavg") or "").split()
    vendor = files.text("/sys/class/dmi/id/sys_vendor")
    product = files.text("/sys/class/dmi/id/product_name")
    features = files.fields("/proc/cpuinfo").get("flags", "").split()
    # Engines leave a marker; where they do not, the first process's control group may name them.
    markers = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
    container = next((marker for marker in markers if files.exists(marker)), None)
    group = _CONTAINER_GROUP.search(files.text("/proc/1/cgroup") or "")
    if container is None and group:
        container = f"control group names {group.group()}"
    return Host(
        name=files.text("/proc/sys/kernel/hostname") or printable(platform.node()),
        system=release.get("PRETTY_NAME") or platform.system(),
        kernel=files.text("/proc/sys/kernel/osrelease") or platform.release(),
        hypervisor=files.text("/sys/hypervisor/type")
        or ("hypervisor flag of the processor" if "hypervisor" in features else None),
        container=container,
        load_1_minute=float(load[0]) if load and re.fullmatch(r"[0-9.]+", load[0]) else None,
        product=" ".join(word for word in (vendor, product) if word) or None,
        kernel_options=kernel_options(files),
    )


def kernel_options(files: Files) -> dict[str, str]:
    """Return option -> value ("" where it has none), in the order booted with; of a repeated one the last."""
    words = (files.text("/proc/cmdline") or "").split()
    pairs = [word.partition("=") for word in words]
    return {name: without_names(value) for name, _, value in pairs if name in KERNEL_OPTIONS}


def _switch(files: Files, path: str) -> bool | None:
    number = files.number(path)
    return None if number is None else number != 0


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
    clock_source: str | None


def read_processor(files: Files) -> Processor:
    """Return the facts that the kernel tells of the processors."""
    described = files.fields("/proc/cpuinfo")
    sockets = {
        files.text(path)
        for path in files.matching(CPU, "cpu[0-9]*/topology/physical_package_id")
    }
    governors = (
        files.text(path) for path in files.matching(CPU, "cpu[0-9]*/cpufreq/scaling_governor")
    )
    # Two drivers tell the same, one of them the other way round.
    boost = _switch(files, f"{CPU}/cpufreq/boost")
    if (
        boost is None
        and (no_turbo := _switch(files, f"{CPU}/intel_pstate/no_turbo")) is not None
    ):
        boost = not no_turbo
    return Processor(
        model=described.get("model name") or described.get("Model"),
        architecture=platform.machine(),
        cores=len(files.cpus(f"{CPU}/online")) or os.cpu_count(),
        cores_allowed=len(expanded(files.fields("/proc/self/status").get("Cpus_allowed_list")))
        or None,
        sockets=len(sockets) or None,
        numa_nodes=len(files.cpus("/sys/devices/system/node/online")) or None,
        threads_per_core=len(siblings(files, 0)) or None,
        smt_active=_switch(files, f"{CPU}/smt/active"),
        governors=dict(Counter(name for name in governors if name)),
        boost=boost,
        clock_source=files.text(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
    )


def siblings(files: Files, cpu: int) -> list[int]:
    """Return hardware threads of the core that ``cpu`` is one of; empty where the system does not tell."""
    return files.cpus(f"{CPU}/cpu{cpu}/topology/thread_siblings_list")


def allowed_cpus() -> list[int]:
    """Return the logical processors that this process may run on; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def usable_cores(files: Files | None = None) -> int:
    """Return how many processes can run at once: allowed processors, or the control group's quota."""
    # A container with a quota of 1.5 runs one process at a time for long.
    allowed = len(allowed_cpus()) or os.cpu_count() or 1
    quota = control_group_limits(files or Files()).cores
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def spread_over_cores(cpus: Sequence[int], files: Files | None = None) -> list[int]:
    """Return ``cpus`` with one hardware thread of every core first, so that few ranks never share a core."""
    files = files or Files()

    def place(cpu: int) -> tuple[int, int]:
        threads = [sibling for sibling in siblings(files, cpu) if sibling in cpus]
        return (threads.index(cpu) if cpu in threads else 0, cpu)

    return sorted(cpus, key=place)


_V1_UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of a page, about 9.2e18."""


@dataclass(frozen=True)
class Limits:
    """Limits of the control group: ``cores`` may be a fraction; None means no limit is set.

    memory_free_bytes: what is left of the tightest memory limit.
    """

    cores: float | None
    memory_bytes: int | None
    memory_free_bytes: int | None = None


def control_group_limits(files: Files) -> Limits:
    """Return the tightest CPU and memory limit on the way from this process's control group to the root.

    Reads cgroup v2 (``cpu.max``, ``memory.max``) and v1 (``cpu.cfs_quota_us``,
    ``memory.limit_in_bytes``); see the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
    """
    cores: list[float] = []
    memory_bytes: list[int] = []
    free_bytes: list[int] = []
    for line in (files.text("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        unified = number == "0" and not names  # cgroup v2, whose one line has no names
        parts = [part for part in group.split("/") if part not in ("", "..")]
        # Up to the mount itself: inside a container the group's path may be the host's, which is not
        # visible, and the mount then is the container's own group.
        for below in ("/".join(["", *parts[:depth]]) for depth in range(len(parts), -1, -1)):
            if unified or "cpu" in names.split(","):
                folder = f"/sys/fs/cgroup{'' if unified else '/cpu'}{below}"
                limits = ["cpu.max"] if unified else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
                words = " ".join(files.text(f"{folder}/{name}") or "" for name in limits)
                # "max" and -1 mean no limit.
                if quota := re.fullmatch(r"([0-9]+) 0*([1-9][0-9]*)", words):
                    cores.append(int(quota[1]) / int(quota[2]))
            if unified or "memory" in names.split(","):
                folder = f"/sys/fs/cgroup{'' if unified else '/memory'}{below}"
                most, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
                most, used = ("memory.max", "memory.current") if unified else (most, used)
                limit = files.number(f"{folder}/{most}") or _V1_UNLIMITED_BYTES
                memory_bytes.append(limit)
                free_bytes.append(limit - (files.number(f"{folder}/{used}") or 0))
    limited = min(memory_bytes, default=_V1_UNLIMITED_BYTES) < _V1_UNLIMITED_BYTES
    return Limits(
        cores=min(cores, default=None),
        memory_bytes=min(memory_bytes) if limited else None,
        memory_free_bytes=max(0, min(free_bytes)) if limited else None,
    )


@dataclass(frozen=True)
class Memory:
    """Memory of the machine in bytes, and the settings of transparent huge pages in force."""

    total_bytes: int | None
    available_bytes: int | None
    swap_used_bytes: int | None
    huge_pages: str | None
    shared_memory_huge_pages: str | None


def read_memory(files: Files) -> Memory:
    """Return the facts that the kernel tells of the memory."""
    table = files.fields("/proc/meminfo")
    settings = "/sys/kernel/mm/transparent_hugepage"
    # Some kernels tell neither; then nothing is known of what is used.
    swap, swap_free = _kibibytes(table, "SwapTotal"), _kibibytes(table, "SwapFree")
    return Memory(
        total_bytes=_kibibytes(table, "MemTotal"),
        available_bytes=_kibibytes(table, "MemAvailable"),
        swap_used_bytes=None if swap is None or swap_free is None else swap - swap_free,
        huge_pages=files.choice(f"{settings}/enabled"),
        shared_memory_huge_pages=files.choice(f"{settings}/shmem_enabled"),
    )


def _kibibytes(table: Mapping[str, str], name: str) -> int | None:
    match = re.fullmatch(r"([0-9]+) kB", table.get(name, ""))
    return int(match[1]) * 1024 if match else None


def available_memory_bytes(files: Files | None = None) -> int | None:
    """Return the memory that can still be had: the system's, or the control group's where that is less."""
    files = files or Files()
    amounts = (
        read_memory(files).available_bytes,
        control_group_limits(files).memory_free_bytes,
    )
    return min((amount for amount in amounts if amount is not None), default=None)


@dataclass(frozen=True)
class Environment:
    """Environment of a run, as ``observe`` sees it."""

    host: Host
    processor: Processor
    memory: Memory
    limits: Limits
    software: Software
    variables: Mapping[str, str]
    accelerators: Accelerators = field(default_factory=Accelerators)


def capture() -> dict[str, Any]:
    """Return what ``observe`` sees as plain JSON values, for a run's manifest; GPUs are asked."""
    return asdict(observe(driver=opened))


def observe(
    root: Path = Path("/"),
    variables: Mapping[str, str] | None = None,
    checkout: Path = CHECKOUT,
    driver: Callable[[], Nvml] | None = None,
) -> Environment:
    """Read this machine, or the one laid out below ``root``.

    variables: the process's own unless given. checkout: where a ``.git`` may lie. driver: opens the NVIDIA
    driver, whose answers no file has; None leaves them out.
    """
    files = Files(root)
    return Environment(
        host=read_host(files),
        processor=read_processor(files),
        memory=read_memory(files),
        limits=control_group_limits(files),
        software=read_software(files, checkout),
        variables=kept_variables(os.environ if variables is None else variables),
        accelerators=read_accelerators(files, driver),
    )
