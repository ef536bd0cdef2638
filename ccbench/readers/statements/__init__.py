"""Statements of libraries, drivers and tools, a line each: one module a format, all asked of every text.

A module of FORMATS has ``FORM``, its name for people; ``OWNED``, a pattern of the lines that are its own; and
``read(text) -> Iterator[Statement]``, which never raises. Statements are facts with their line; what follows
from them is judged in ``ccbench.analysis``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

FORMATS: tuple[str, ...] = (
    "nccl_lines",
    "nccl_tests",
    "ports",
    "peer_tests",
    "kernel_log",
    "pci_isolation",
    "ras",
    "py_spy",
    "watchdog",
)
"""Modules, in the order in which they are asked."""

LONGEST_QUOTE = 200
"""Characters of a quoted line; the rest says nothing that a rule looks at."""


@dataclass(frozen=True, eq=False, slots=True)
class Statement:
    """One thing that a tool said; equal to itself alone.

    kind: a word of its module. values: by name, as printed; None is left out. line: 1-based. quote: the line,
    without what stands in front of it, of which LONGEST_QUOTE characters are kept. speaker: process or device
    that says it, empty where the line does not say.
    """

    kind: str
    line: int
    quote: str
    values: Mapping[str, str] = field(default_factory=dict)
    speaker: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "quote", self.quote.strip()[:LONGEST_QUOTE])
        values = {
            name: sys.intern(value.strip())
            for name, value in self.values.items()
            if value is not None
        }
        object.__setattr__(self, "values", values)

    @property
    def place(self) -> str:
        """``log.txt:12``; the file alone where no line is known."""
        line = f"line {self.line}" if self.line else ""
        return f"{self.file}:{self.line}" if self.file and line else self.file or line


def formats() -> tuple[ModuleType, ...]:
    """Return the modules of FORMATS."""
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in FORMATS)
