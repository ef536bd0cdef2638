"""Statements of NCCL and RCCL with ``NCCL_DEBUG=INFO``: transports, GPUDirect RDMA, plug-ins, errors.

Forms are those of NCCL 2.4 to 2.30, RCCL and aws-ofi-nccl, by their sources and by published logs; each row
names a literal that every form has, so that a long log is passed in one look for literals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.machines.nccl_log import entries
from ccbench.readers.statements import Statement

FORM = "NCCL log"

OWNED = re.compile(
    r"\b(?:NCCL|RCCL) (?:INFO|WARN|TRACE|ABORT|DIAG|version)\b|^R?CCL |NCCL version|RCCL version"
    r"|\bTest (?:\w+ )?failure |Last error:|\bnccl[A-Z]\w+: |DistBackendError"
)

_RANKS = r"(?P<sender>\d{1,7})(?:\[[^\]]{1,20}\])? -> (?P<receiver>\d{1,7})(?:\[[^\]]{1,20}\])?"

_FORMS: tuple[tuple[str, str, str], ...] = (
    # transport.cc and net.cc; "Ring 00 :" before NCCL 2.5. A word with half of another line in it names no transport.
    (
        "channel",
        " via ",
        rf"(?:Channel|Ring) {{1,4}}(?P<channel>\d{{1,4}})(?:/\d{{1,4}})? ?: ?{_RANKS}(?: \[(?:send|receive)\])?"
        r" via (?P<transport>direct shared memory|(?:P2P|SHM)(?:/(?:IPC|CUMEM|MNNVL|read|direct(?: pointer)?|CE"
        r"|indirect/\S{1,20}))*|COLLNET\S{0,40}|NET/[\w .\-]{1,40}/\d{1,4}(?:\(\d{1,4}\))?"
        r"(?:/[A-Za-z]\w{1,12}(?:\(PCI\))?)*)"
        r"(?: comm .{0,60})?$",
    ),
    (
        "communicator",
        "comm 0x",
        r"^(?:\w+ )?comm 0x\w+ rank (?P<rank>\d+) n[rR]anks (?P<ranks>\d+)"
        r"(?: nNodes (?P<nodes>\d+) localRanks (?P<local_ranks>\d+))?",
    ),
    ("nics", ": Using [", r"NET/IB : Using (?P<names>\[.{1,2000}?)(?: \[RO\])?;"),
    # Printed as two numbers, the first byte last.
    (
        "link_local_gid",
        "GID",
        r"^NET/IB.* GID (?P<index>\d+) \((?P<gid>80FE/\w+|0/\w*FEA9FFFF0000)\)",
    ),
    ("network", "Using network", r"Using network (?P<name>\S.{0,40})"),
    ("network", "Assigned NET plugin", r"Assigned NET plugin (?P<name>\S.{0,40}) to comm"),
    ("no_ib_device", "No device found", r"NET/IB ?: No device found"),
    (
        "gdr",
        "Direct RDMA",
        r"NET/(?P<network>[\w.]{1,20}) ?: GPU Direct RDMA (?P<state>Enabled|Disabled) for HCA "
        r"(?P<index>\d{1,4}) ?:? ?'?(?P<name>[\w.\-]{1,60})'?(?: \((?P<why>[^)]{1,60})\))?",
    ),
    (
        "gdr_path",
        "Direct RDMA",
        r"GPU Direct RDMA (?P<state>Enabled|Disabled) for GPU (?P<gpu>[\w\[\]]{1,30}) / HCA "
        r"(?P<index>\d{1,4})(?: \(distance (?P<distance>\d+) [<>=]{1,2} (?P<limit>\d+)\))?",
    ),
    # aws-ofi-nccl: no provider of libfabric that serves
    (
        "no_provider",
        "NET/OFI",
        r"NET/OFI .{0,60}?(?P<why>(?:Unable to find a protocol|[Nn]o (?:active|eligible|usable|suitable) "
        r"(?:provider|protocol)|Couldn't find any|Could not find any|Failing initialization|"
        r"initialization failed|[Ff]ailed to initialize).{0,80})",
    ),
    (
        "plugin_failed",
        "plugin",
        r"(?P<why>Failed to initialize (?:any )?NET plugin.{0,60})",
    ),
    ("gdr_off_in_plugin", "NET/OFI", r"NET/OFI .{0,80}?(?:disabling GDR|GDR not supported)"),
    (
        "version",
        "CCL version",
        r"\b(?P<library>N|R)CCL version ?:? ?(?P<version>\d[\w.+:\-]{1,60})",
    ),
    (
        "warning",
        "retrying",
        r"(?P<text>connect(?: to \S{1,80})? returned [\w ]{1,60}, retrying)",
    ),
    (
        "setting",
        " set ",
        r"\b(?P<name>[NR]CCL_\w{1,60}) set (?:by environment )?to (?P<value>\S{1,200}?)\.?$",
    ),
    (
        "peer_access_off",
        "P2P is disabled",
        r"P2P is disabled between connected GPUs (?P<first>\d+) and (?P<second>\d+)",
    ),
    # Two bits a condition, of which 1 is that it holds (nvml.h); states before 3 are on the way.
    (
        "warning",
        "MNNVL busId",
        r"(?P<text>MNNVL busId .{1,120} (?:state [12] .{0,40}|.{0,20}healthMask 0x[0-9a-f]*[145679d][0-9a-f]?)$)",
    ),
    ("check_ok", "DIAG [OK]", r"(?P<text>DIAG \[OK\] .+)"),
    ("iommu", "iommu=pt", r"Missing .{0,3}iommu=pt"),
    ("numa_balancing", "NUMA auto balancing", r"NUMA auto balancing enabled"),
)

_COMPILED = tuple((kind, literal, re.compile(form)) for kind, literal, form in _FORMS)

_WARNING = re.compile(
    r"(?:(?P<source>[\w/]{1,60}\.(?:cc|h|cu)):\d{1,5} (?:\[\d{1,5}\] )?)?[NR]CCL WARN ?"
)

_LAST_ERROR = re.compile(r"Last error:\s*$")
"""PyTorch's own message of an error of NCCL, whose next line is the library's warning; that before it in a traceback
that was pasted from its end."""

_CRASH = re.compile(
    r"(?:Test [A-Z]+ failure \S+ '.|\bEI\d{4}\b|DIAG \[INFO\] .*(?:only \d+/|failed)|Duplicate GPU detected"
    r"|Some NCCL operations have failed|(?:NCCL|CUDA|HIP) error(?:: | in: )(?!\{)|\bNCCL error \d).*"
)
"""What programs print of an error: nccl-tests, HCCL, NCCL's diagnostics (2.31), PyTorch."""

_RANK = re.compile(r"\bRank (\d{1,7})\]")


def read(text: str) -> Iterator[Statement]:
    """Yield the statements of every line; a warning of which no form is known is one of kind ``warning``."""
    warned = {
        number: match["source"] or ""
        for number, line in enumerate(text.split("\n"), start=1)
        if "CCL WARN" in line and (match := _WARNING.search(line))
    }
    forms = [form for form in _COMPILED if form[1] in text]
    last_error, before = False, (0, "")
    for entry in entries(text):
        body = entry.body.strip()
        recognised, is_version = False, False
        for kind, literal, form in forms:
            if literal in body and (match := form.search(body[:2400])):
                recognised, is_version = True, kind == "version"
                yield Statement(kind, entry.number, body, match.groupdict(), entry.speaker)
        if entry.number in warned and not recognised:
            # The source file that warns stands before the marker: misc/shmutils.cc:103
            values = {"text": body[:400], "source": warned[entry.number]}
            yield Statement("warning", entry.number, body, values, entry.speaker)
        # PyTorch's message of an error names the version, too.
        elif not (entry.marked or (recognised and not is_version)) and (
            crash := _CRASH.search(body)
        ):
            recognised, rank = True, _RANK.search(body)
            # Pasted into one line, the message ends with the library's warning.
            reason = crash[0].rpartition("Last error:")[2].strip() or crash[0]
            yield Statement(
                "warning",
                entry.number,
                reason,
                {"text": reason},
                f"rank {rank[1]}" if rank else "",
            )
        elif last_error and body and not recognised:
            body = re.sub(r"^\[rank\d{1,7}\]: ?", "", body)
            number, reason = before if re.match("nccl[A-Z]", body) else (entry.number, body)
            recognised = True
            if reason:
                yield Statement("warning", number, reason, {"text": reason[:400]})
        last_error = bool(_LAST_ERROR.search(body))
        if not last_error:
            before = (entry.number, "" if recognised else body)
