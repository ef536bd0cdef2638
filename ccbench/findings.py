"""Statements about a machine, a run or a source that a person should read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class SourceWarning:
    """Part of a source (dump, log, sysfs, NVML) that could not be taken as it stands; no guess is silent.

    kind: a fixed word: unknown_spelling, self_link, missing_peer, repeated_bus_id, truncated, damaged_line,
        several_hosts, not_visible, contradiction, unsupported; assumed, for what was filled in instead.
    line: 1-based line of the source, None where it has none.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid"}

    kind: str
    text: str
    line: int | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that a person should look at, on a machine or in a run.

    severity: problem: something is wrong; doubt: a figure may not mean what it seems to; note: worth knowing.
    kind: one word for machines. devices: whom it names, ranks and cases too. evidence: what was seen, with
    numbers. advice: what to do. subject: the sentence a reader sees first, where kind and devices are not
    enough. cases: how many cases of a run it is about.
    """

    severity: str
    kind: str
    devices: tuple[str, ...]
    evidence: str
    advice: str
    subject: str = ""
    cases: int = 0

    def __str__(self) -> str:
        evidence = f"; {self.evidence}" if self.evidence else ""
        advice = f". Do: {self.advice}" if self.advice else ""
        return f"{self.severity.capitalize()}: {self.subject}{evidence}{advice}"
