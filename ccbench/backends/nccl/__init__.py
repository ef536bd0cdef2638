"""``nccl``: NVIDIA's collective library, its settings, and what is refused beforehand.

This module is what the runner sees: it asks files and package metadata, and imports neither CuPy nor NCCL.

NCCL reads algorithm, protocol, channels and transports from its environment once in a process ("Environment
Variables" in NCCL's user guide). Which algorithm exists for which collective is in NCCL's
src/graph/tuning.cc and in the guide under NCCL_ALGO. What depends on the machine, on types, ops, protocols or
NCCL's version is refused by NCCL itself when it runs, in its own words; beforehand only what it would ignore
without a word, so that the case would be measured under a wrong name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ccbench.backends import CUPY, CUPY_ROCM, NCCL, RCCL
from ccbench.backends.base import Backend, CannotRun, Environment, TeamLaunch, TeamRequest
from ccbench.backends.prerequisites import cupy_missing, driver_missing
from ccbench.cases.axes import OVERLAP, PER_GPU, Case
from ccbench.cases.capabilities import capabilities_of
from ccbench.collectives import SETUPS, collective
from ccbench.dtypes import EXACT_LIMIT, item_bytes
from ccbench.machine.accelerators import cuda_install
from ccbench.machine.software import install_line, installed_version

DEFAULT = "default"

PER_CALL_VERSION = (2, 31, 2)
"""NCCL's first with ncclAllReduceConfig and its like, which take algorithm and CTA policy of one call."""

TUNED = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
"""Collectives for which NCCL chooses an algorithm and a protocol, by its names; the rest are transfers."""

IN_SWITCH_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class NcclAlgorithm:
    """An algorithm of NCCL's. variable: its value of NCCL_ALGO. selection: algSelection of one call, the
    beginning of tags such as ``RING_LL128`` (ncclAlgParse, 2.31 and later). collectives: that have it.
    """

    variable: str
    selection: str
    collectives: tuple[str, ...]


ALGORITHMS = {
    "ring": NcclAlgorithm("Ring", "RING", tuple(TUNED)),
    "tree": NcclAlgorithm("Tree", "TREE", ("all_reduce",)),
    "collnet": NcclAlgorithm("CollnetDirect,CollnetChain", "COLLNET", IN_SWITCH_COLLECTIVES),
    "collnetdirect": NcclAlgorithm("CollnetDirect", "COLLNET_DIRECT", IN_SWITCH_COLLECTIVES),
    "collnetchain": NcclAlgorithm("CollnetChain", "COLLNET_CHAIN", ("all_reduce",)),
    # NVLS alone is the beginning of NVLSTREE_SIMPLE, too.
    "nvls": NcclAlgorithm("NVLS", "NVLS_SIMPLE", IN_SWITCH_COLLECTIVES),
    "nvlstree": NcclAlgorithm("NVLSTree", "NVLSTREE", ("all_reduce",)),
    "pat": NcclAlgorithm("PAT", "PAT", ("all_gather", "reduce_scatter")),
}
"""By name in a suite; ``collnet`` leaves NCCL the choice of two forms."""

CALLED = ("collnetdirect", "collnetchain")
"""Algorithms that ``algorithm: all`` leaves out: ``collnet`` stands for both."""

PROTOCOL_VALUES = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}

PROTOCOLS_BY_CALL = ("ll128", "simple")
"""Those that algSelection can name: ``RING_LL`` is the beginning of ``RING_LL128``, too (ncclAlgParse)."""

TRANSPORTS = {
    DEFAULT: (),
    "host": (("NCCL_NVLS_ENABLE", "0"), ("NCCL_P2P_DISABLE", "1")),
    "network": (
        ("NCCL_NVLS_ENABLE", "0"),
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_SHM_DISABLE", "1"),
    ),
}
"""NCCL moves data by peer access where it can, else through host memory, else over the network. NVLink
switches reduce whether peers may reach each other or not (ncclNvlsInit of src/transport/nvls.cc)."""


@dataclass(frozen=True)
class CtaPolicy:
    """A CTA policy of NCCL's. flag: of nccl.h. since: first version. collectives, registration: elsewhere
    NCCL ignores it without a word.
    """

    flag: int
    since: tuple[int, int]
    collectives: tuple[str, ...]
    registration: str


CTA_POLICIES = {
    "efficiency": CtaPolicy(1, (2, 27), ("all_gather", "reduce_scatter"), "local"),
    "zero": CtaPolicy(
        2, (2, 28), ("all_gather", "all_to_all", "gather", "scatter"), "symmetric"
    ),
}
"""Efficiency: ncclGetAlgoInfo of src/enqueue.cc (2.27 to 2.30: NVLS on registered buffers, where neither
NCCL_ALGO nor NCCL_PROTO is set); zero: "Zero-CTA Optimization" of NCCL's user guide."""


class NcclBackend(Backend):
    """Implements ``ccbench.backends.base.Backend``. name: of the dialect."""

    def __init__(self, name: str = "nccl") -> None:
        self.name = name

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Needs a driver, a device and CuPy; that NCCL is there shows in the workers."""
        if elsewhere:
            return None
        if self.name == "rccl":
            return amd_missing()
        if driver_missing() is None:
            return cupy_missing()
        # The other backends' sentence ends with what to run instead of own kernels.
        missing = str(driver_missing()).partition(";")[0]
        needed = "NCCL needs an NVIDIA GPU with its driver, CuPy and the NCCL library"
        return f"{missing}; {needed}: {cuda_install()}"

    def version(self) -> str:
        """Return the version of the NCCL wheel, else of a library that only workers see, and of CuPy."""
        library, cupy = (RCCL, CUPY_ROCM) if self.name == "rccl" else (NCCL, CUPY)
        versions = {
            name: installed_version(name)
            for name in (*library.distributions, *cupy.distributions)
        }
        of_library = next(
            (versions[name] for name in library.distributions if versions[name]),
            "of the system",
        )
        of_cupy = next(
            (versions[name] for name in cupy.distributions if versions[name]), "unknown"
        )
        return f"{library.name} {of_library}, CuPy {of_cupy}"

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """Values of NCCL_ALGO that exist for the collective; nothing where NCCL has no choice."""
        return algorithms_for(collective)

    def refused(self, case: Case) -> str | None:
        """Return why ``case`` would hang or not be what it says; the rest NCCL refuses when it runs."""
        size, row = item_bytes(case.dtype), collective(case.collective)
        sums = row.reduces and case.op in ("sum", "avg", "premulsum")
        if case.misalignment_bytes % size:
            return f"{case.misalignment_bytes} bytes off: NCCL's buffers start at elements of {size} bytes"
        plain = (
            case.algorithm,
            case.protocol,
            case.channels,
            case.aggregation,
            case.concurrent,
        )
        if case.collective in SETUPS and plain != (DEFAULT, DEFAULT, 0, 1, ""):
            return f"{case.collective} takes no algorithm, protocol, channels, aggregation or concurrent"
        if case.pair and case.collective != "send_recv":
            return "pairs exist for send_recv only"
        if case.pair and case.registration == "symmetric":
            return "memory is registered as symmetric by all ranks together, and a pair's others have none"
        if case.mode == OVERLAP and (case.pair or case.aggregation > 1):
            return "mode overlap computes during one plain collective; leave pair and aggregation out"
        if sums and case.group_ranks > EXACT_LIMIT[case.dtype]:
            exact = f"{case.dtype} is not exact so far"
            return f"{case.op} over {case.group_ranks} ranks cannot be checked: {exact}"
        return refused_beforehand(case) or policy_refused(case, self._version(case))

    def library_settings(self, library: str) -> Environment:
        """CuPy takes the libnccl that is loaded already, whatever wheel is installed."""
        return (("LD_PRELOAD", library),)

    def library_version(self, library: str) -> str:
        """Return the version that it says, for which no GPU is needed."""
        return f"{capabilities_of(self.name).library} {'.'.join(map(str, version_of(library)))}"

    def team_settings(self, case: Case) -> Environment:
        """NCCL reads algorithm, protocol, channels and transport from the environment that it starts in."""
        with suppress(CannotRun):
            return environment_of(case, self._version(case) if self.name == "nccl" else ())
        return ()  # the case is refused

    def _version(self, case: Case) -> tuple[int, ...]:
        library = case.started_with.library
        return version_of(library) if library else wheel_version()

    def launch(self, request: TeamRequest) -> TeamLaunch | None:
        """Return the user's own launcher where there is one, else how ranks of this host are started."""
        # Ranks wait for GPUs and need no processor of their own.
        return request.launch or (
            TeamLaunch(pinned=False) if request.processes == PER_GPU else None
        )


def amd_missing(root: Path = Path("/")) -> str | None:
    """Return what keeps RCCL from running on the machine whose files are below ``root``, or None."""
    if not (root / "dev/kfd").exists():
        return "this machine has no AMD GPU with its driver (no /dev/kfd); RCCL needs one, ROCm and CuPy for it"
    if not any(installed_version(name) for name in CUPY_ROCM.distributions):
        return f"CuPy for ROCm is not installed; {install_line('rocm7')}"
    return None


def wheel_version() -> tuple[int, ...]:
    """Version of the installed NCCL wheel, () where NCCL is the system's."""
    for name in NCCL.distributions:
        parts = (installed_version(name) or "").split(".")
        if parts[0].isdigit():
            return tuple(int(part) for part in parts if part.isdigit())
    return ()


_ASK_VERSION = """
import ctypes, sys
found = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(found))
print(found.value)
"""


@lru_cache(maxsize=64)
def version_of(library: str) -> tuple[int, ...]:
    """Version of the NCCL in a file, as a process of its own finds it; CannotRun where it finds none."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK_VERSION, library],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CannotRun(
            f"{library} is no NCCL that can be loaded ({reason[:200]}); name another file"
        )
    number = int(done.stdout)  # 22809 is 2.28.9
    return number // 10000, number // 100 % 100, number % 100


def environment_of(case: Case, version: tuple[int, ...] = ()) -> Environment:
    """Return the variables that a team for ``case`` is started with; () where NCCL chooses everything.

    version: of NCCL, () where it is not known. From 2.31 on algorithm, most protocols and CTA policy are said
    with each call, so that cases of several share a team; NCCL_ALGO, NCCL_PROTO and NCCL_CTA_POLICY would
    override it ("ncclCollConfig_t" in the guide). Channels are not: a call has at most its communicator's.
    """
    variables = dict(TRANSPORTS[case.transport])
    set_by = {*os.environ, *dict(case.started_with.environment)}
    set_already = not {"NCCL_ALGO", "NCCL_PROTO"}.isdisjoint(set_by)
    per_call = version >= PER_CALL_VERSION and selection_of(case) and not set_already
    if case.algorithm != DEFAULT and not per_call:
        variables["NCCL_ALGO"] = algorithm_of(case).variable
    if case.protocol != DEFAULT and not per_call:
        variables["NCCL_PROTO"] = PROTOCOL_VALUES[case.protocol]
    if case.cta_policy != DEFAULT and (
        version < PER_CALL_VERSION or "NCCL_CTA_POLICY" in set_by
    ):
        # Names are known since 2.29, numbers since 2.27.
        variables["NCCL_CTA_POLICY"] = str(CTA_POLICIES[case.cta_policy].flag)
    if case.channels:
        # CTAs are the channels' name since 2.17; older versions know the other two, newer ones all four.
        point_to_point = tuned(case.collective) not in TUNED
        names = ("P2P_NCHANNELS",) if point_to_point else ("NCHANNELS", "CTAS")
        for name in names:
            variables[f"NCCL_MIN_{name}"] = variables[f"NCCL_MAX_{name}"] = str(case.channels)
    return tuple(sorted(variables.items()))


def algorithm_of(case: Case) -> NcclAlgorithm:
    """Return what ``case`` asks for, by NCCL's names; its chain of collnet is for all_reduce alone."""
    of_both = case.algorithm == "collnet" and tuned(case.collective) != "all_reduce"
    return ALGORITHMS["collnetdirect" if of_both else case.algorithm]


def selection_of(case: Case) -> str:
    """Return what algSelection of a call of ``case`` is; '' where that cannot say what the case asks for."""
    if case.algorithm == DEFAULT:
        return ""
    selection = algorithm_of(case).selection
    if case.protocol == DEFAULT:
        return selection
    nameable = case.algorithm in ("ring", "tree") and case.protocol in PROTOCOLS_BY_CALL
    return f"{selection}_{case.protocol.upper()}" if nameable else ""


def tuned(collective: str) -> str:
    """Return the collective whose algorithms count: a barrier is an all_reduce of one element."""
    return "all_reduce" if collective == "barrier" else collective


def algorithms_for(collective: str) -> tuple[str, ...]:
    """Return what ``algorithm: all`` stands for; nothing where NCCL has no choice."""
    of = tuned(collective)
    return tuple(
        name for name, row in ALGORITHMS.items() if of in row.collectives and name not in CALLED
    )


def refused_beforehand(case: Case) -> str | None:
    """Return why ``case`` would not be what it says it is; None where NCCL may run it or refuse it."""
    algorithm, collective = case.algorithm, tuned(case.collective)
    if algorithm not in (DEFAULT, *ALGORITHMS):
        return f"algorithm {algorithm!r}: NCCL has {', '.join(ALGORITHMS)}"
    if collective not in TUNED and (algorithm, case.protocol) != (DEFAULT, DEFAULT):
        lacks = "take no protocol" if algorithm == DEFAULT else "have no algorithm"
        made_of = f"NCCL makes {case.collective} of point-to-point transfers"
        return f"{made_of}, which {lacks}; ask for 'default'"
    if algorithm != DEFAULT and collective not in ALGORITHMS[algorithm].collectives:
        # Before 2.24 ring would run in its place.
        return f"NCCL has no {algorithm} {case.collective}; it has {', '.join(algorithms_for(collective))}"
    # Ranks that talk over the network may be hosts of their own to NCCL (bootstrap.own_host_name).
    if algorithm == "nvlstree" and case.nodes == 1 and case.transport != "network":
        return "NCCL's NVLSTree joins the NVSwitches of several nodes, and here is one"
    return None


def policy_refused(case: Case, version: tuple[int, ...]) -> str | None:
    """Return why NCCL would pass the CTA policy of ``case`` over; version: of NCCL, () where not known."""
    policy, label = CTA_POLICIES.get(case.cta_policy), f"CTA policy {case.cta_policy}"
    if policy is None:
        return None
    if version and version < policy.since:
        here, since = (".".join(map(str, numbers)) for numbers in (version, policy.since))
        return (
            f"{label} came with NCCL {since}, and here is {here}; install a newer nvidia-nccl"
        )
    if case.collective not in policy.collectives:
        return f"NCCL has no {case.collective} with {label}; it has {', '.join(policy.collectives)}"
    if case.registration != policy.registration:
        return f"{label} needs memory that is registered: ask for registration {policy.registration}"
    if (case.algorithm, case.protocol) != (DEFAULT, DEFAULT):
        return f"{label} decides on algorithm and protocol; ask for 'default' of both"
    return None


BACKEND = NcclBackend()
RCCL_BACKEND = NcclBackend("rccl")
