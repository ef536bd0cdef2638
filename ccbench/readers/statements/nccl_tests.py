"""Ranks that nccl-tests and rccl-tests list above their table."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import plain_lines, without_tags
from ccbench.readers.statements import Statement

FORM = "nccl-tests"

OWNED = re.compile(
    r"#\s+(?:Rank\s+\d|nThread|Using devices|Out of bounds|Avg bus bandwidth|Collective test|nccl-tests|size|\(B\))"
    r"|^\s*#\s*$"
)

_RANK = re.compile(
    r"#\s+Rank\s+(?P<rank>\d{1,7})\s.{0,40}?Pid\s+(?P<process>\d{1,10}) on\s+(?P<host>\S{1,100}) device\s+"
    r"(?P<device>\d{1,4})\s+\[(?P<bus>[0-9A-Fa-fx:.]{1,20})\]\s(?P<model>.{1,60})"
)


def read(text: str) -> Iterator[Statement]:
    """Yield a ``test_rank`` of every line that lists a rank."""
    for number, line in enumerate(plain_lines(text), start=1):
        if "Rank" in line and (match := _RANK.search(without_tags(line)[:400])):
            yield Statement(
                "test_rank",
                number,
                line,
                match.groupdict(),
                match["host"],
            )
