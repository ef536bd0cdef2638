"""What the lines around nccl-tests' tables say: devices, versions, variables, hints, failures.

Forms: github.com/NVIDIA/nccl-tests src/common.cu, src/util.cu; github.com/ROCm/rccl-tests src/common.cu;
NCCL_DEBUG output as in NVIDIA/nccl src/debug.cc, src/init.cc, src/graph/tuning.cc.
"""

from __future__ import annotations

import re
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.log import DeviceLine
from ccbench.results.importers.readers.words import collective_name

_DEVICE = re.compile(
    r"Rank\s{1,9}(\d{1,9})\s{1,9}(?:Group\s{1,9}(\d{1,9})\s{1,9})?Pid\s{1,12}(\d{1,12})\s{1,9}on\s{1,64}(\S{1,255})"
    r"\s{1,9}device\s{1,9}(\d{1,6})\s{1,9}\[([0-9A-Fa-fx:.]{1,32})\]\s{0,9}(.{0,120})"
)
_CONFIG = re.compile(
    r"(nThread|nGpus(?:\(perProc\))?|minBytes|maxBytes|step|warmup iters|agg iters|iters|validation"
    r"|graph|unalign)"
    r":?\s{1,4}(\d{1,20})(?:\((factor|bytes)\))?"
)
CONFIG_NAMES = {
    "nThread": "threads",
    "nGpus": "gpus_per_thread",
    "nGpus(perProc)": "gpus_per_thread",
    "minBytes": "minimum_bytes",
    "maxBytes": "maximum_bytes",
    "step": "step",
    "warmup iters": "warmup_iterations",
    "iters": "iterations",
    "agg iters": "aggregated_iterations",
    "validation": "validation",
    "graph": "graph_launches",
    "unalign": "misaligned_elements",
}
"""Words of the line of settings, and the facts they become."""

_PROGRAM = re.compile(r"\b([a-z][a-z_]{2,24}?)_perf(?:_mpi)?\b")
_STARTING = re.compile(r"Collective test (starting|concluded): (\S{1,80})")

_VERSIONS = (
    ("nccl-tests", re.compile(r"nccl-tests version v?(\d[\w.+-]{0,40})")),
    ("rccl-tests", re.compile(r"rccl-tests: Version (\S{1,60})")),
    ("NCCL", re.compile(r"\bNCCL version (\d[\w.]{0,24})")),
    ("RCCL", re.compile(r"\bRCCL version\s{0,4}:?\s{1,4}(\d\S{0,40})")),
    ("CUDA", re.compile(r"\bNCCL version [\d.]{1,24}\+cuda(\d[\d.]{0,12})")),
    ("HIP", re.compile(r"\bHIP version\s{0,4}:\s{0,4}(\d\S{0,40})")),
    ("ROCm", re.compile(r"\bROCm version\s{0,4}:\s{0,4}(\d\S{0,40})")),
    ("aws-ofi-nccl", re.compile(r"NET/OFI (?:Using|Initializing) aws-ofi-nccl (\S{1,40})")),
)
_CODES = re.compile(r"nccl-headers=(\d{4,6})\s{1,4}nccl-library=(\d{4,6})")
_DRIVER = re.compile(r"\bcudaDriverVersion (\d{4,6})\b")

_SET_BY_ENVIRONMENT = re.compile(r"\b((?:NCCL|RCCL|MCCL)_[A-Z0-9_]{1,60}) set by environment to (\S{1,200})")
_SET_BY_PLUGIN = re.compile(
    r'Setting ((?:NCCL|RCCL|FI)_[A-Z0-9_]{1,60}) (?:environment variable )?to "?([^"\s]{1,80})'
)
_ASSIGNED = re.compile(
    r"\b((?:NCCL|RCCL|MCCL|MSCCL|MSCCLPP|OFI_NCCL|FI|UCX|SHARP|HSA)_[A-Z0-9_]{1,60})=(?:\"([^\"\s]{0,200})\"|([^\s\"'`;]{1,200}))"
)

_HINT = re.compile(
    r"NVLS|SHARP|COLLNET|CollNet|\bAlgo\b|\bproto\b|NCCL_ALGO|NCCL_PROTO|\bPAT\b"
    r"|Connected all (?:rings|trees)|coll channels|threadThresholds|Trees disabled|Channel \d{1,3}/\d{1,3} :"
    r"|Trees \[0\]|Using network|Launch mode|Pattern \d{1,2}, crossNic|Latency/AlgBw|\bMSCCL\b",
)
MOST_HINTS = 400

_HUNG = re.compile(
    r"Test timeout \(\d{1,9}s\)|[Ww]atchdog caught collective operation timeout|DUE TO TIME LIMIT"
    r"|[Cc]onnection timed out, retrying|Timeout waiting for|\btimed out after \d"
)
_CRASHED = re.compile(
    r"Test (?:NCCL|CUDA|HIP) failure|Test failure \S{1,120}:\d|\.{2} \S{1,120} pid \d{1,10}: Test failure"
    r"|Segmentation fault|core dumped|exited on signal|\*\*\* Process received signal|\bSignal: \w"
    r"|MPI_ABORT was invoked|terminate called after|process(?:es)? exited with non-zero|bus error|\bBus error"
    r"|unhandled (?:cuda|system) error|exited with exit code [1-9]|Invalid number of GPUs:|out of memory"
    r"|[Ss]egfault|Cuda failure"
)
_RANKS = re.compile(r"\bnRanks (\d{1,7})\b|\bnranks (\d{1,7})\b")
_NODES = re.compile(r"\bnNodes (\d{1,7})\b")


def device_line(text: str) -> DeviceLine | None:
    """The rank that a line of "Using devices" lists, or None."""
    found = _DEVICE.search(text) if "Pid" in text else None
    if found is None:
        return None
    rank, group, process, host, device, bus, model = found.groups()
    return DeviceLine(
        int(rank), None if group is None else int(group), int(process), host, int(device), bus, model.strip()
    )


def config_facts(text: str) -> dict[str, Any]:
    """The settings of the line that starts with nThread (or what is left of it); empty for other lines."""
    if "minBytes" not in text:
        return {}
    facts: dict[str, Any] = {}
    for word, value, unit in _CONFIG.findall(text):
        facts[CONFIG_NAMES[word]] = int(value)
        if unit:
            facts["step_unit"] = unit
    return facts


def started_program(text: str) -> tuple[str, str] | None:
    """("starting" or "concluded", program) of a line that says so; None for other lines."""
    found = _STARTING.search(text) if "Collective test" in text else None
    return (found[1], found[2]) if found else None


def program_collective(text: str) -> str:
    """ccbench's name of the collective of a program named in ``text`` (all_reduce_perf ...), or ""."""
    for found in _PROGRAM.finditer(text) if "_perf" in text else ():
        if (name := collective_name(found[1])) in COLLECTIVES:
            return name
        if found[1] in ("alltoallv", "hypercube", "all_reduce_bias"):
            return found[1]
    return ""


def version_facts(text: str) -> dict[str, str]:
    """Versions that a line names, by what they are versions of."""
    lowered = text.lower()
    if "version" not in lowered and "aws-ofi" not in lowered:
        return {}
    found = {name: match[1] for name, pattern in _VERSIONS if (match := pattern.search(text))}
    if codes := _CODES.search(text):
        found |= {"NCCL headers": decoded(int(codes[1])), "NCCL": decoded(int(codes[2]))}
    if driver := _DRIVER.search(text):
        found["CUDA driver"] = f"{int(driver[1]) // 1000}.{int(driver[1]) % 1000 // 10}"
    return found


def decoded(code: int) -> str:
    """NCCL's version code as text: 22903 is 2.29.3, 2804 is 2.8.4 (nccl.h, NCCL_VERSION)."""
    if code < 10_000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"


def environment_facts(text: str) -> dict[str, str]:
    """Variables of collective libraries that a line shows, set by hand, by a launcher or by a plug-in."""
    found: dict[str, str] = {}
    if "set by environment" in text:
        found |= {name: value.rstrip(".,") for name, value in _SET_BY_ENVIRONMENT.findall(text)}
    if "Setting " in text:
        found |= dict(_SET_BY_PLUGIN.findall(text))
    if "=" in text:
        found |= {name: quoted or bare.rstrip(".,:)") for name, quoted, bare in _ASSIGNED.findall(text)}
    return found


def is_hint(text: str) -> bool:
    """Whether a line of the library shows which algorithm, protocol or channels it chose."""
    return _HINT.search(text) is not None


def failure(text: str) -> str:
    """ "hung" or "crashed" when a line reports such an end, else ""."""
    if _CRASHED.search(text):
        return "crashed"
    return "hung" if _HUNG.search(text) else ""


def communicator(text: str) -> tuple[int | None, int | None]:
    """(ranks, nodes) that a library's line about its communicator names."""
    if "anks " not in text:
        return None, None
    ranks, nodes = _RANKS.search(text), _NODES.search(text)
    return (int(ranks[1] or ranks[2]) if ranks else None), (int(nodes[1]) if nodes else None)
