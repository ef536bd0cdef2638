"""One thing that a person should look at in a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["problem", "doubt", "note"]

SEVERITIES: tuple[Severity, ...] = ("problem", "doubt", "note")
"""Problem: something is wrong. Doubt: a figure may not mean what it seems to. Note: worth knowing."""


@dataclass(frozen=True)
class RunFinding:
    """One thing to look at.

    kind: one word for machines, such as ``wrong_results``. subject: the sentence a reader sees first.
    evidence: what was seen, with numbers. advice: what to do. cases: how many it is about, 0 for the machine.
    """

    severity: Severity
    kind: str
    subject: str
    evidence: str
    advice: str
    cases: int = 0

    def __str__(self) -> str:
        seen = f"; {self.evidence}" if self.evidence else ""
        return f"{self.severity.capitalize()}: {self.subject}{seen}" + f". Do: {self.advice}" * bool(
            self.advice
        )
