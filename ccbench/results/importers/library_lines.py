"""What NCCL, RCCL and the programs around them say in any line: versions, variables, ranks, choices.

Forms: github.com/NVIDIA/nccl-tests src/common.cu; github.com/ROCm/rccl-tests src/common.cu; NCCL_DEBUG output
as in NVIDIA/nccl src/debug.cc, src/init.cc, src/graph/tuning.cc.
"""

from __future__ import annotations

import re

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.lines import Line
from ccbench.results.importers.log import DeviceLine
from ccbench.results.importers.words import collective_name

_PROGRAM = re.compile(r"\b([a-z][a-z_]{2,24}?)_perf(?:_mpi)?\b")
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
_SET = re.compile(r"\b((?:NCCL|RCCL|MCCL)_[A-Z0-9_]{1,60}) set by environment to (\S{1,200})")
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
_MOST_HINTS = 400
_RANKS = re.compile(r"\bn[rR]anks (\d{1,7})\b")
_NODES = re.compile(r"\bnNodes (\d{1,7})\b")
_COMPLETE = re.compile(
    r"(?:([\w.-]{1,200}):(\d{1,10}):\d{1,10} )?.{0,40}\brank (\d{1,7}) nranks \d{1,7} cudaDev (\d{1,4})"
    r"(?: nvmlDev \d{1,4})? busId ([0-9a-fA-F]{1,16})\b"
)


class LibraryLines:
    """Collects what lines say: versions (the first of each), variables, and lines that show a choice."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self._hints: dict[str, None] = {}

    def take(self, line: Line) -> None:
        """One line, in order."""
        self.versions = versions_in(line.text) | self.versions
        self.environment |= variables_in(line.text)
        if line.message and len(self._hints) < _MOST_HINTS and _HINT.search(line.text):
            self._hints[line.text.partition("] ")[2]] = None

    @property
    def hints(self) -> tuple[str, ...]:
        """Different messages from which the library's choice shows, without the process they come from."""
        return tuple(self._hints)


def program_collective(text: str) -> str:
    """ccbench's name of the collective of a program named in ``text`` (all_reduce_perf ...), or ""."""
    for found in _PROGRAM.finditer(text) if "_perf" in text else ():
        if (name := collective_name(found[1])) in COLLECTIVES:
            return name
        if found[1] in ("alltoallv", "hypercube", "all_reduce_bias"):
            return found[1]
    return ""


def versions_in(text: str) -> dict[str, str]:
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
    major = 10_000 if code >= 10_000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def variables_in(text: str) -> dict[str, str]:
    """Variables of collective libraries that a line shows, set by hand, by a launcher or by a plug-in."""
    found: dict[str, str] = {}
    if "set by environment" in text:
        found |= {name: value.rstrip(".,") for name, value in _SET.findall(text)}
    if "Setting " in text:
        found |= dict(_SET_BY_PLUGIN.findall(text))
    if "=" in text:
        found |= {name: quoted or bare.rstrip(".,:)") for name, quoted, bare in _ASSIGNED.findall(text)}
    return found


def communicator(text: str) -> tuple[int | None, int | None]:
    """(ranks, nodes) that a library's line about its communicator names."""
    if "anks " not in text:
        return None, None
    ranks, nodes = _RANKS.search(text), _NODES.search(text)
    return (int(ranks[1]) if ranks else None), (int(nodes[1]) if nodes else None)


def connected_rank(text: str) -> DeviceLine | None:
    """The rank that says that its communicator is complete."""
    match = _COMPLETE.search(text) if "Init COMPLETE" in text else None
    if match is None:
        return None
    process = int(match[2]) if match[2] else None
    return DeviceLine(int(match[3]), None, process, match[1] or "", int(match[4]), match[5].lower())
