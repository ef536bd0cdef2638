"""Lines of PyTorch's ProcessGroupNCCL: what they say of calls is read as a recorded job, by the traces' reader."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import plain_lines
from ccbench.readers.statements import Statement

FORM = "ProcessGroupNCCL log"

OWNED = re.compile(r"ProcessGroupNCCL|WorkNCCL\(|NCCL error in: ")

_WATCHDOG = re.compile(r"ProcessGroupNCCL\.\w+:\d+\]|(?=Watchdog caught collective)")


def read(text: str) -> Iterator[Statement]:
    """Yield a ``watchdog`` of every line of the watchdog."""
    for number, line in enumerate(plain_lines(text), start=1):
        if OWNED.search(line) and (match := _WATCHDOG.search(line)):
            yield Statement("watchdog", number, line[match.end() :])
