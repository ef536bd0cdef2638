"""NCCL's settings: the environment that a case needs, what is refused beforehand, and what NCCL chose.

NCCL reads algorithm, protocol, channels and transports from its environment once in a process ("Environment
Variables" in NCCL's user guide). Which algorithm exists for which collective is in NCCL's
src/graph/tuning.cc and in the guide under NCCL_ALGO. What depends on the machine, on types, ops, protocols or
NCCL's version is refused by NCCL itself when it runs, in its own words; beforehand only what it would ignore
without a word, so that the case would be measured under a wrong name.

What it chose stands in its tuning log, which rank 0 of a communicator writes with ``NCCL_DEBUG=INFO`` and
``NCCL_DEBUG_SUBSYS=TUNING``. Three forms are known, from NCCL's ``src/enqueue.cc`` and ``src/sym_kernels.cc``
and from published logs:

- from 2.24: ``AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}`` (names in any case);
- 2.6 to 2.23: ``AllGather: 37756928 Bytes -> Algo 1 proto 2 time 2860.208008``, earlier without the name;
- from 2.27, kernels on symmetric memory: ``AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R
  nchannels 8 nthreads 512``.

Point-to-point calls, and what is made of them, write no such line.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ccbench.cases import Case

DEFAULT = "default"

NO_FALLBACK_VERSION = 22_403
"""From 2.24 on NCCL fails where it has not what NCCL_ALGO names; before, it ran ring without a word."""

PER_CALL_VERSION = (2, 31, 2)
"""NCCL's first with ncclAllReduceConfig and its like, which take the algorithm of one call."""

TUNED = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}
"""Collectives for which NCCL chooses an algorithm and a protocol, by its names; the rest are transfers."""

IN_SWITCH_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")

ALGORITHMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ring": ("Ring", tuple(TUNED)),
    "tree": ("Tree", ("all_reduce",)),
    "collnet": ("CollnetDirect,CollnetChain", IN_SWITCH_COLLECTIVES),
    "collnetdirect": ("CollnetDirect", IN_SWITCH_COLLECTIVES),
    "collnetchain": ("CollnetChain", ("all_reduce",)),
    "nvls": ("NVLS", IN_SWITCH_COLLECTIVES),
    "nvlstree": ("NVLSTree", ("all_reduce",)),
    "pat": ("PAT", ("all_gather", "reduce_scatter")),
}
"""Name in a suite -> (value of NCCL_ALGO, collectives); ``collnet`` leaves NCCL the choice of two forms."""

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

ALGORITHM_NUMBERS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
"""NCCL_ALGO_* of src/include/nccl_common.h; 2 was plain CollNet before 2.14."""

PROTOCOL_NUMBERS = ("ll", "ll128", "simple")
"""NCCL_PROTO_*."""

LOG_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")

RESET = "ncclResetDebugInit"
"""Has NCCL read LOG_VARIABLES again; in its header from 2.24 on."""

_NAMED = re.compile(
    r"(?:(?P<function>\w+):\s+)?(?P<bytes>\d+) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
)
_SYMMETRIC = re.compile(
    r"(?P<function>\w+) \[Symmetric\]: (?P<bytes>\d+) Bytes -> Kernel (?P<kernel>\w+)"
    r"(?:.*?nchannels (?P<channels>\d+))?"
)

Version = tuple[int, ...]


def environment_of(case: Case, version: Version = ()) -> tuple[tuple[str, str], ...]:
    """Return the variables that a team for ``case`` is started with; () where NCCL chooses everything.

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
        point_to_point = _tuned(case.collective) not in TUNED
        names = ("P2P_NCHANNELS",) if point_to_point else ("NCHANNELS", "CTAS")
        for name in names:
            wanted[f"NCCL_MIN_{name}"] = wanted[f"NCCL_MAX_{name}"] = str(case.channels)
    return tuple(sorted(wanted.items()))


def nccl_algorithms(case: Case) -> str:
    """Return what ``case`` asks for as NCCL_ALGO lists it; '' where NCCL chooses."""
    if case.algorithm == DEFAULT:
        return ""
    of_both = case.algorithm == "collnet" and _tuned(case.collective) != "all_reduce"
    return ALGORITHMS["collnetdirect" if of_both else case.algorithm][0]


def _tuned(collective: str) -> str:
    """Return the collective whose algorithms count: a barrier is an all_reduce of one element."""
    return "all_reduce" if collective == "barrier" else collective


def algorithms_for(collective: str) -> tuple[str, ...]:
    """Return what ``algorithm: all`` stands for; nothing where NCCL has no choice."""
    tuned = _tuned(collective)
    return tuple(name for name, (_, has) in ALGORITHMS.items() if tuned in has and name not in CALLED)


def refused_beforehand(case: Case) -> str | None:
    """Return why ``case`` would not be what it says it is; None where NCCL may run it or refuse it."""
    algorithm, collective = case.algorithm, _tuned(case.collective)
    if algorithm not in (DEFAULT, *ALGORITHMS):
        return f"algorithm {algorithm!r}: NCCL has {', '.join(ALGORITHMS)}"
    if collective not in TUNED and (algorithm, case.protocol) != (DEFAULT, DEFAULT):
        lacks = "take no protocol" if algorithm == DEFAULT else "have no algorithm"
        made_of = f"NCCL makes {case.collective} of point-to-point transfers"
        return f"{made_of}, which {lacks}; ask for 'default'"
    if algorithm != DEFAULT and collective not in ALGORITHMS[algorithm][1]:
        # Before 2.24 ring would run in its place.
        return f"NCCL has no {algorithm} {case.collective}; it has {', '.join(algorithms_for(collective))}"
    # Ranks that talk over the network may be hosts of their own to NCCL (bootstrap.own_host_name).
    if algorithm == "nvlstree" and case.nodes == 1 and case.transport != "network":
        return "NCCL's NVLSTree joins the NVSwitches of several nodes, and here is one"
    return None


@dataclass(frozen=True)
class Choice:
    """What ran. Empty and 0: not reported. ``protocol`` of a symmetric kernel is the kernel's name."""

    algorithm: str = ""
    protocol: str = ""
    channels: int = 0


def other_than_asked(case: Case, ran: Choice) -> str:
    """Return what NCCL ran instead of what ``case`` asks for, where it told; '' where that is the same.

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


def observed_choice(native: Any, collective: str, launch: Callable[[], None]) -> Choice:
    """Do ``launch`` once with NCCL's tuning log on, and return what it says; then the log is off again.

    An empty Choice where this NCCL cannot switch its log, or the user keeps one. native: the library by
    ctypes. What ``launch`` raises passes through, with the log off again.
    """
    reset = getattr(native, RESET, None)
    # NCCL opens a user's own log anew after each switch, and what was in it would be gone.
    if reset is None or os.environ.get("NCCL_DEBUG_FILE"):
        launch()
        return Choice()
    reset.restype = None
    with tempfile.TemporaryDirectory(prefix="ccbench-nccl-") as folder:
        file = Path(folder) / "tuning.log"
        before = {name: os.environ.get(name) for name in LOG_VARIABLES}
        _set(dict(zip(LOG_VARIABLES, ("INFO", "TUNING", str(file)), strict=True)))
        reset()
        try:
            launch()
        finally:
            _set(before)
            reset()  # NCCL closes the file with the first line that it would write after this
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    return read_choice(text, collective)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def read_choice(text: str, collective: str) -> Choice:
    """Return what the log ``text`` says of ``collective``; an empty Choice where it says nothing.

    Of several lines (aggregation, groups) the first one's words count, with the most channels of all.
    """
    function = TUNED.get(_tuned(collective))
    found = [choice for name, choice in _choices(text.splitlines()) if function and name in ("", function)]
    if not found:
        return Choice()
    return replace(found[0], channels=max(one.channels for one in found))


def _choices(lines: Iterable[str]) -> Iterable[tuple[str, Choice]]:
    for line in lines:
        symmetric = _SYMMETRIC.search(line)
        if symmetric:
            channels = int(symmetric["channels"] or 0)
            yield symmetric["function"], Choice("symmetric", _kernel(symmetric["kernel"]), channels)
            continue
        named = _NAMED.search(line)
        if named:
            channels = int(named["high"]) - int(named["low"]) + 1 if named["high"] else 0
            algorithm = _word(named["algorithm"], ALGORITHM_NUMBERS)
            yield (
                named["function"] or "",
                Choice(algorithm, _word(named["protocol"], PROTOCOL_NUMBERS), channels),
            )


def _kernel(name: str) -> str:
    """``AGxLL_R`` of ``AllReduce_AGxLL_R``."""
    return name.partition("_")[2].lower() or name.lower()


def _word(text: str, numbered: tuple[str, ...]) -> str:
    if text.isdigit():
        return numbered[int(text)] if int(text) < len(numbered) else ""
    return text.replace("_", "").lower()
