"""The text of the ncclras client: which communicators do not run, and how far their ranks came.

Forms are those of NCCL's RAS client (2.24 on) and of its user guide; its JSON is a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import plain_lines
from ccbench.readers.statements import Statement

FORM = "ncclras"

OWNED = re.compile(
    r"^(?:Job summary|Communicators\.\.\.|Errors|Warnings|NCCL version .* compiled|CUDA runtime version|=+|-+$"
    r"|#\d+-\d+ |\s*(?:Nodes|\(total\)|Group|#)\s{2}|\s+\d+ ranks? ha|\s+Ranks? \d|\s+Process \d|\s+Missing "
    r"|\s+Communicator ranks)"
)

_PROBLEM = re.compile(
    r"^\s*#(?P<communicator>\d+-\d+) \((?P<hash>\w{1,20})\) (?P<status>[A-Z]{3,20}(?:,[A-Z]{3,20})*)"
)
_COUNT = re.compile(
    r"(?P<ranks>\d+) ranks? ha(?:ve|s) launched (?:up to operation (?P<operation>\d+)|no operations?)"
)
_OWN_COUNT = re.compile(
    r"Rank (?P<rank>\d+) has launched (?:up to operation (?P<operation>\d+)|no operations?)"
)
_RANK = re.compile(
    r"Rank (?P<rank>\d+) .{0,60}?GPU (?P<gpu>\d+) managed by process (?P<process>\d+) on node (?P<node>\S{1,60})"
)
_ROW = re.compile(
    r"^\s*(?P<group>\d+)(?:\s+[\d-]+){5}\s+(?P<state>[A-Z,]{3,40})\s+(?P<errors>[A-Z,]{2,40})\s*$"
)
_OF_COLLECTIVE = re.compile(r"ranks have different (?P<collective>\w{1,30}) operation counts")
_LACKING = re.compile(r"Missing communicator data from")
_MISSING_RANKS = re.compile(r"The missing ranks?: (?P<rank>[\d, -]{1,200})")
_MISSING = re.compile(
    r"Process (?P<process>\d+) on node (?P<node>\S{1,60}) managing GPUs? (?P<gpu>[\d,\- ]{1,40})"
)


def read(text: str) -> Iterator[Statement]:
    """Yield ``ras_ok`` or ``ras_group`` of a group in the summary, ``ras_problem`` of a communicator, then its parts.

    Parts: ``ras_count``, ``ras_rank`` and ``ras_missing``. The first two have the ``operation`` that was launched
    last, '0' for none, '' where none is told, and the ``collective`` that is counted.
    """
    communicator, operation, collective, lacking = "", "", "", False
    for number, line in enumerate(plain_lines(text), start=1):
        if match := _PROBLEM.match(line):
            communicator, operation, collective, lacking = match["communicator"], "", "", False
            yield Statement("ras_problem", number, line, match.groupdict(), communicator)
        elif match := _ROW.match(line):
            kind = "ras_ok" if match["errors"] == "OK" else "ras_group"
            yield Statement(kind, number, line, match.groupdict(), match["group"])
        elif not communicator:
            continue
        elif match := _OF_COLLECTIVE.search(line):
            operation, collective, lacking = "", match["collective"], False
        elif _LACKING.search(line):
            lacking = True
        elif match := _MISSING_RANKS.search(line):
            yield Statement("ras_missing", number, line, match.groupdict(), communicator)
        elif match := _COUNT.search(line):
            operation, lacking = match["operation"] or "0", False
            values = {
                "ranks": match["ranks"],
                "operation": operation,
                "collective": collective,
            }
            yield Statement("ras_count", number, line, values, communicator)
        elif match := _RANK.search(line) or _OWN_COUNT.search(line):
            launched = _OWN_COUNT.search(line)
            own = (launched["operation"] or "0") if launched else operation
            values = match.groupdict() | {"operation": own, "collective": collective}
            kind = "ras_missing" if lacking and not own else "ras_rank"
            yield Statement(kind, number, line, values, communicator)
        elif match := _MISSING.search(line):
            yield Statement("ras_missing", number, line, match.groupdict(), communicator)
