"""One thing that evidence shows: a sentence, what it means, what to do, what would prove it, where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.findings import Finding
from ccbench.readers.statements import Statement

GRAVITY = {"problem": 0, "doubt": 1, "note": 2}


@dataclass(frozen=True)
class Diagnosis:
    """A finding with its evidence.

    severity: problem: something is wrong; doubt: it may be; note: worth knowing. subject: the sentence.
    meaning: what follows from it. advice: what to do. command: what would prove it. quotes: the lines that
    show it, of which the first few that differ are kept; count: how many there are, where not 0.
    """

    severity: str
    kind: str
    subject: str
    meaning: str = ""
    advice: str = ""
    command: str = ""
    quotes: Sequence[Statement] = ()
    count: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", self.count or len(self.quotes))
        distinct = {quote.quote or quote.place: quote for quote in reversed(self.quotes)}
        first = dict.fromkeys(distinct[quote.quote or quote.place] for quote in self.quotes)
        object.__setattr__(self, "quotes", tuple(first)[:MOST_QUOTES])

    @property
    def finding(self) -> Finding:
        """Finding for the page and other lists."""
        places = "; ".join(f"{quote.place}: {quote.quote}" for quote in self.quotes)
        advice = "; ".join(filter(None, (self.advice, self.command and f"try: {self.command}")))
        evidence = ". ".join(filter(None, (self.meaning, places)))
        return Finding(self.severity, self.kind, (), evidence, advice, self.subject)


MOST_QUOTES = 3
"""Lines that are quoted of one finding: one shows the form, three that it is no accident."""
