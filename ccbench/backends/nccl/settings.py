"""What a case asks of NCCL before it starts: environment variables of a fresh team, and what cannot exist.

NCCL reads algorithm, protocol, channels and transports from its environment once in a process ("Environment
Variables" in NCCL's user guide). Which algorithm exists for which collective and protocol is in NCCL's
src/graph/tuning.cc and in the guide under NCCL_ALGO; the versions are those of the release notes.
What depends on the machine (NVSwitch for NVLS, a SHARP network for CollNet, one rank a node for PAT) only
NCCL can tell: that is refused when it runs, in NCCL's words.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ccbench.backends.nccl.tuning_log import Choice
from ccbench.cases import Case
from ccbench.groups import parse_concurrent
from ccbench.machine.software import install_line

ALL_PROTOCOLS = ("ll", "ll128", "simple")

DEFAULT = "default"

NO_FALLBACK_VERSION = 22_403
"""From 2.24 on NCCL fails where it has not what NCCL_ALGO names; before, it ran ring without a word."""

PER_CALL_VERSION = (2, 31, 2)
"""NCCL's first with ncclAllReduceConfig and its like, which take the algorithm of one call."""

RING_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
IN_SWITCH_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class NcclAlgorithm:
    """One value of NCCL_ALGO. since: (major, minor) of the first NCCL that has it."""

    value: str
    collectives: tuple[str, ...]
    protocols: tuple[str, ...]
    since: tuple[int, int]


ALGORITHMS = {
    "ring": NcclAlgorithm("Ring", RING_COLLECTIVES, ALL_PROTOCOLS, (2, 0)),
    "tree": NcclAlgorithm("Tree", ("all_reduce",), ALL_PROTOCOLS, (2, 4)),
    "collnet": NcclAlgorithm("CollnetDirect,CollnetChain", IN_SWITCH_COLLECTIVES, ("simple",), (2, 14)),
    "collnetdirect": NcclAlgorithm("CollnetDirect", IN_SWITCH_COLLECTIVES, ("simple",), (2, 14)),
    "collnetchain": NcclAlgorithm("CollnetChain", ("all_reduce",), ("simple",), (2, 14)),
    "nvls": NcclAlgorithm("NVLS", IN_SWITCH_COLLECTIVES, ("simple",), (2, 17)),
    "nvlstree": NcclAlgorithm("NVLSTree", ("all_reduce",), ("simple",), (2, 18)),
    "pat": NcclAlgorithm("PAT", ("all_gather", "reduce_scatter"), ("simple",), (2, 23)),
}
"""By the names of a suite; ``collnet`` leaves NCCL the choice between its two forms."""

CALLED = ("collnetdirect", "collnetchain")
"""What ``algorithm: all`` leaves out: ``collnet`` stands for both."""

PROTOCOL_VALUES = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}

TRANSPORTS = {
    DEFAULT: (),
    "host": (("NCCL_NVLS_ENABLE", "0"), ("NCCL_P2P_DISABLE", "1")),
    "network": (("NCCL_NVLS_ENABLE", "0"), ("NCCL_P2P_DISABLE", "1"), ("NCCL_SHM_DISABLE", "1")),
}
"""NCCL moves data by peer access where it can, else through host memory, else over the network. NVLink
switches reduce whether peers may reach each other or not (ncclNvlsInit of src/transport/nvls.cc)."""

FIRST_VERSION = {
    "float8_e4m3": (2, 24),
    "float8_e5m2": (2, 24),
    "bfloat16": (2, 10),
    "avg": (2, 10),
    "premulsum": (2, 11),
    "local": (2, 19),
    "symmetric": (2, 27),
}
"""NCCL's first version with a dtype, an op or a kind of registration (release notes)."""

_NVLS_MIN_MAX = ("int32", "uint32", "int64", "uint64", "float16", "bfloat16")
_NVLS_SUM = (*_NVLS_MIN_MAX, "float32", "float64")

Version = tuple[int, ...]


def environment_of(case: Case, version: Version = ()) -> tuple[tuple[str, str], ...]:
    """Variables that a team for ``case`` must be started with, by name; () where NCCL chooses everything.

    version: of NCCL, () where it is not known. From 2.31 on the algorithm is said with each call, so that
    cases of several algorithms share a team; NCCL_ALGO and NCCL_PROTO would override it ("ncclCollConfig_t"
    in the guide). Channels are not: a call has at most those that its communicator was made with.
    """
    wanted = dict(TRANSPORTS[case.transport])
    set_already = not {"NCCL_ALGO", "NCCL_PROTO"}.isdisjoint(os.environ)
    per_call = version >= PER_CALL_VERSION and case.protocol == DEFAULT and not set_already
    if case.algorithm != DEFAULT and not per_call:
        wanted["NCCL_ALGO"] = nccl_algorithms(case)
    if case.protocol != DEFAULT:
        wanted["NCCL_PROTO"] = PROTOCOL_VALUES[case.protocol]
    if case.channels:
        # CTAs are the channels' name since 2.17; older versions know the other two, newer ones all four.
        point_to_point = _tuned(case.collective) not in RING_COLLECTIVES
        names = ("P2P_NCHANNELS",) if point_to_point else ("NCHANNELS", "CTAS")
        for name in names:
            wanted[f"NCCL_MIN_{name}"] = wanted[f"NCCL_MAX_{name}"] = str(case.channels)
    return tuple(sorted(wanted.items()))


def nccl_algorithms(case: Case) -> str:
    """What ``case`` asks for as NCCL_ALGO lists it; '' where NCCL chooses."""
    if case.algorithm == DEFAULT:
        return ""
    of_both = case.algorithm == "collnet" and _tuned(case.collective) != "all_reduce"
    return ALGORITHMS["collnetdirect" if of_both else case.algorithm].value


def _tuned(collective: str) -> str:
    """The collective whose algorithms count: a barrier is an all_reduce of one element."""
    return "all_reduce" if collective == "barrier" else collective


def algorithms_for(collective: str) -> tuple[str, ...]:
    """What ``algorithm: all`` stands for; nothing where NCCL has no choice."""
    tuned = _tuned(collective)
    return tuple(name for name, row in ALGORITHMS.items() if tuned in row.collectives and name not in CALLED)


def impossible(case: Case, version: Version = ()) -> str | None:
    """Why no NCCL (or none of ``version``) can run ``case``, from what is published; None where one may."""
    collectives = [
        case.collective,
        *([parse_concurrent(case.concurrent).collective] if case.concurrent else []),
    ]
    for collective in collectives:
        reason = _no_algorithm(case, collective) or _no_protocol(case, collective)
        if reason:
            return reason
    for one in filter(None, (case, case.concurrent_case)):
        multiplies = one.dtype.startswith("float8") and one.op in ("avg", "premulsum")
        if multiplies and one.group_ranks == 1 <= one.count:
            # A switch of host code behind __CUDA_ARCH__: ncclLaunchOneRank of src/device/onerank.cu.
            return f"NCCL multiplies no {one.dtype} where a communicator has one rank ({one.op})"
    return _no_switch_reduction(case) or _no_such_value(case) or _too_old(case, version)


def _no_algorithm(case: Case, collective: str) -> str | None:
    if case.algorithm == DEFAULT:
        return None
    if case.algorithm not in ALGORITHMS:
        return f"algorithm {case.algorithm!r}: NCCL has {', '.join(ALGORITHMS)}"
    tuned = _tuned(collective)
    if tuned in ALGORITHMS[case.algorithm].collectives:
        return None
    fitting = algorithms_for(collective)
    if not fitting:
        return (
            f"NCCL makes {collective} of point-to-point transfers, which have no algorithm; ask for 'default'"
        )
    return f"NCCL has no {case.algorithm} {collective}; it has {', '.join(fitting)}"


def _no_protocol(case: Case, collective: str) -> str | None:
    if case.protocol == DEFAULT:
        return None
    if _tuned(collective) not in RING_COLLECTIVES:
        return (
            f"NCCL makes {collective} of point-to-point transfers, which take no protocol; ask for 'default'"
        )
    if case.algorithm == DEFAULT or case.protocol in ALGORITHMS[case.algorithm].protocols:
        return None
    return f"NCCL's {case.algorithm} exists only as {', '.join(ALGORITHMS[case.algorithm].protocols)}"


def _no_switch_reduction(case: Case) -> str | None:
    """ncclNvlsSupported of src/include/device.h; averages multiply, which switches cannot."""
    reduces = case.collective in ("all_reduce", "reduce_scatter")
    if case.algorithm not in ("nvls", "nvlstree") or not reduces:
        return None
    fitting = {"sum": _NVLS_SUM, "min": _NVLS_MIN_MAX, "max": _NVLS_MIN_MAX}.get(case.op, ())
    if case.dtype in fitting:
        return None
    return f"NVLink switches do not reduce {case.dtype} with {case.op}; sum, min and max of some they do"


def _no_such_value(case: Case) -> str | None:
    # Ranks that talk over the network may be hosts of their own to NCCL (crew.told_apart).
    if case.algorithm == "nvlstree" and case.nodes == 1 and case.transport != "network":
        return "NCCL's NVLSTree joins the NVSwitches of several nodes, and here is one"
    return None


def _too_old(case: Case, version: Version) -> str | None:
    if not version:
        return None
    asked = [
        (word, FIRST_VERSION[word])
        for word in (case.dtype, case.op, case.registration)
        if word in FIRST_VERSION
    ]
    if case.algorithm in ALGORITHMS:
        asked.append((case.algorithm, ALGORITHMS[case.algorithm].since))
    for word, since in asked:
        if version[:2] < since:
            here = ".".join(map(str, version))
            return f"{word} needs NCCL {since[0]}.{since[1]}, here is {here}; {install_line('cuda13')}"
    return None


def other_than_asked(case: Case, ran: Choice) -> str:
    """What NCCL ran instead of what ``case`` asks for, where it told; '' where that is the same.

    Before 2.24 NCCL fell back to ring and Simple without a word where it had not what NCCL_ALGO named.
    """
    as_asked = case.algorithm in (DEFAULT, ran.algorithm) or (
        case.algorithm == "collnet" and ran.algorithm in CALLED
    )
    if ran.algorithm and not as_asked:
        return f"asked for {case.algorithm}, NCCL ran {ran.algorithm} {ran.protocol}"
    if ran.protocol and case.protocol not in (DEFAULT, ran.protocol):
        return f"asked for protocol {case.protocol}, NCCL ran {ran.algorithm} {ran.protocol}"
    return ""
