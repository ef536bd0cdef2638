"""The text of the ncclras client: which communicators do not run, and how far their ranks came.

Forms are those of NCCL's RAS client (2.24 on) and of its user guide; its JSON is a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import plain_lines
from ccbench.readers.statements import LONGEST_QUOTE, Statement

FORM = "ncclras"

OWNED = re.compile(
    r"^(?:Job summary|Communicators\.\.\.|Errors|Warnings|NCCL version .* compiled|CUDA runtime version|=+|-+$"
    r"|#\d+-\d+ |\s*(?:Nodes|\(total\)|Group|#)\s{2}|\s+\d+ ranks? ha|\s+Ranks? \d|\s+Process \d|\s+Missing "
    r"|\s+Communicator ranks)"
)

_PROBLEM = re.compile(
    r"^\s*#(?P<communicator>\d+-\d+) \((?P<hash>\w{1,20})\) (?P<status>[A-Z]{3,20})"
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
_MISSING = re.compile(
    r"Process (?P<process>\d+) on node (?P<node>\S{1,60}) managing GPUs? (?P<gpu>[\d,\- ]{1,40})"
)


def read(text: str) -> Iterator[Statement]:
    """Yield ``ras_problem`` of a communicator, then what stands below it: ``ras_count``, ``ras_rank``, ``ras_missing``.

    A ``ras_rank`` has the ``operation`` that it launched last, '0' for none.
    """
    communicator, operation = "", ""
    for number, line in enumerate(plain_lines(text), start=1):
        quote = line.strip()[:LONGEST_QUOTE]
        if match := _PROBLEM.match(line):
            communicator, operation = match["communicator"], ""
            yield Statement("ras_problem", number, quote, match.groupdict(), communicator)
        elif not communicator:
            continue
        elif match := _COUNT.search(line):
            operation = match["operation"] or "0"
            values = {"ranks": match["ranks"], "operation": operation}
            yield Statement("ras_count", number, quote, values, communicator)
        elif match := _RANK.search(line) or _OWN_COUNT.search(line):
            launched = _OWN_COUNT.search(line)
            own = (launched["operation"] or "0") if launched else operation
            values = {name: value for name, value in match.groupdict().items() if value}
            yield Statement(
                "ras_rank", number, quote, {**values, "operation": own}, communicator
            )
        elif match := _MISSING.search(line):
            yield Statement("ras_missing", number, quote, match.groupdict(), communicator)
