"""Statements of NCCL and RCCL with ``NCCL_DEBUG=INFO``: transports, GPUDirect RDMA, plug-ins, errors.

Forms are those of NCCL 2.4 to 2.30, RCCL and aws-ofi-nccl, by their sources and by published logs; each row
names a literal that every form has, so that a long log is passed in one look for literals.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from ccbench.readers.machines.nccl_log import entries
from ccbench.readers.statements import LONGEST_QUOTE, Statement

FORM = "NCCL log"

OWNED = re.compile(
    r"\b(?:NCCL|RCCL) (?:INFO|WARN|TRACE|ABORT|version)\b|^R?CCL |NCCL version|RCCL version"
)

_RANKS = r"(?P<sender>\d{1,7})(?:\[[^\]]{1,20}\])? -> (?P<receiver>\d{1,7})(?:\[[^\]]{1,20}\])?"

_FORMS: tuple[tuple[str, str, str], ...] = (
    # transport.cc and net.cc; "Ring 00 :" before NCCL 2.5
    (
        "channel",
        " via ",
        rf"(?:Channel|Ring) {{1,4}}(?P<channel>\d{{1,4}})(?:/\d{{1,4}})? ?: ?{_RANKS}(?: \[(?:send|receive)\])?"
        r" via (?P<transport>\S.{0,80})",
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
        "init_time",
        "Init timings",
        r"Init timings - \w+: rank (?P<rank>\d+) nranks (?P<ranks>\d+) total "
        r"(?P<seconds>\d{1,9}(?:\.\d{1,9})?(?![\d.])) \((?P<parts>[^)]{1,300})",
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
        r"P2P is disabled between (?P<nvlink>NVLINK )?connected GPUs (?P<first>\d+) and (?P<second>\d+)",
    ),
    ("iommu", "iommu=pt", r"Missing .{0,3}iommu=pt"),
    ("numa_balancing", "NUMA auto balancing", r"NUMA auto balancing enabled"),
)

_COMPILED = tuple((kind, literal, re.compile(form)) for kind, literal, form in _FORMS)

_COMMUNICATOR = re.compile(r"(?:ncclCommInitRank\w*|ncclCommSplit\w*)? ?comm 0x")

_COMMUNICATOR_WORDS = {
    "rank": "rank",
    "nranks": "ranks",
    "nRanks": "ranks",
    "nNodes": "nodes",
}

_WARNING = re.compile(
    r"(?:(?P<source>[\w/]{1,60}\.(?:cc|h|cu)):\d{1,5} (?:\[\d{1,5}\] )?)?[NR]CCL WARN ?"
)

_LAST_ERROR = re.compile(r"Last error:\s*$")
"""PyTorch's own message of an error of NCCL, whose next line is the library's warning."""


def read(text: str) -> Iterator[Statement]:
    """Yield the statements of every line; a warning of which no form is known is one of kind ``warning``."""
    warned = {
        number: match["source"] or ""
        for number, line in enumerate(text.split("\n"), start=1)
        if "CCL WARN" in line and (match := _WARNING.search(line))
    }
    forms = [form for form in _COMPILED if form[1] in text]
    last_error = False
    for entry in entries(text):
        body = entry.body.strip()
        recognised = False
        for kind, literal, form in forms:
            if literal in body and (match := form.search(body[:2400])):
                values = {name: value for name, value in match.groupdict().items() if value}
                recognised = True
                yield Statement(kind, entry.number, body[:LONGEST_QUOTE], values, entry.speaker)
        if "comm 0x" in body[:60] and _COMMUNICATOR.match(body):
            words = body[:600].split()
            values = {
                meaning: following
                for word, following in itertools.pairwise(words)
                if (meaning := _COMMUNICATOR_WORDS.get(word)) and following.isdecimal()
            }
            if values.keys() >= {"rank", "ranks"}:
                recognised = True
                yield Statement(
                    "communicator", entry.number, body[:LONGEST_QUOTE], values, entry.speaker
                )
        if entry.number in warned and not recognised:
            # The source file that warns stands before the marker: misc/shmutils.cc:103
            values = {"text": body[:400], "source": warned[entry.number]}
            yield Statement(
                "warning", entry.number, body[:LONGEST_QUOTE], values, entry.speaker
            )
        elif last_error and body and not recognised:
            yield Statement("warning", entry.number, body[:LONGEST_QUOTE], {"text": body[:400]})
        last_error = bool(_LAST_ERROR.search(body))
