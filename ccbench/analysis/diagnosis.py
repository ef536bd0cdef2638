"""One thing that evidence shows: a sentence, what it means, what to do, what would prove it, where it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ccbench.findings import Finding
from ccbench.readers.statements import Statement

GRAVITY = {"problem": 0, "doubt": 1, "note": 2}


@dataclass(frozen=True)
class Diagnosis:
    """A finding with its evidence.

    severity: problem: something is wrong; doubt: it may be; note: worth knowing. subject: the sentence.
    meaning: what follows from it. advice: what to do. command: what would prove it. quotes: the lines that
    show it, the first ones where there are many; count: how many there are.
    """

    severity: str
    kind: str
    subject: str
    meaning: str = ""
    advice: str = ""
    command: str = ""
    quotes: tuple[Statement, ...] = field(default=())
    count: int = 0

    @property
    def finding(self) -> Finding:
        """Finding for the page and other lists."""
        places = "; ".join(f"{quote.place}: {quote.quote}" for quote in self.quotes)
        advice = "; ".join(filter(None, (self.advice, self.command and f"try: {self.command}")))
        evidence = ". ".join(filter(None, (self.meaning, places)))
        return Finding(self.severity, self.kind, (), evidence, advice, self.subject)


MOST_QUOTES = 3
"""Lines that are quoted of one finding: one shows the form, three that it is no accident."""


def quoted(statements: Iterable[Statement]) -> tuple[Statement, ...]:
    """Return the first few of ``statements`` that say different things."""
    distinct: dict[str, Statement] = {}
    for statement in statements:
        distinct.setdefault(statement.quote, statement)
        if len(distinct) == MOST_QUOTES:
            break
    return tuple(distinct.values())
