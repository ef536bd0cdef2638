"""Verdict about a machine: what is to blame, in which words, with which exit code."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from ccbench.findings import Finding
from ccbench.results.keys import grouped

UNSTABLE = "unstable"
"""Kind of a finding that blames nobody."""

MOST_BLAMED = 3
"""Names of one kind in the first sentence."""


@dataclass(frozen=True)
class HealthVerdict:
    """Findings, the worst first, and the evidence that was looked at.

    doubt: why nothing can be said, empty where something can.
    """

    findings: tuple[Finding, ...]
    evidence: tuple[str, ...]
    doubt: str = ""

    @property
    def word(self) -> str:
        """``NOT HEALTHY``, ``NO VERDICT`` or ``HEALTHY``."""
        if any(finding.kind != UNSTABLE for finding in self.findings):
            return "NOT HEALTHY"
        return "NO VERDICT" if self.doubt or self.findings else "HEALTHY"

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 not healthy, 3 no verdict."""
        return {"HEALTHY": 0, "NOT HEALTHY": 1, "NO VERDICT": 3}[self.word]

    def lines(self) -> list[str]:
        """The verdict and what is to blame, a line for each finding, then the evidence."""
        # Every kind of finding with the ranks, pairs, groups, devices or cases that it names.
        texts = []
        for heading, findings in grouped(self.findings, lambda each: title(each.kind)).items():
            names = [*chain.from_iterable(finding.devices for finding in findings)]
            text = f"{heading}: {', '.join(names[:MOST_BLAMED])}" if names else heading
            texts.append(text + (" and more" if len(names) > MOST_BLAMED else ""))
        reason = f" ({self.doubt})" if self.doubt else ""
        lines = [f"{self.word}: {'; '.join(texts) or 'nothing found wrong'}{reason}"]
        lines += [f"  {finding}" for finding in self.findings]
        return lines + [f"  looked at: {text}" for text in self.evidence]


def finding_of(kind: str, heading: str, what: str, evidence: str, advice: str) -> Finding:
    """Return a finding whose device is ``what``: a rank, node, pair, group, device or case; "" of none.

    heading: words for the kind. evidence: one sentence without its full stop.
    """
    severity = "doubt" if kind == UNSTABLE else "problem"
    subject = ": ".join(filter(None, (heading.capitalize(), what)))
    return Finding(severity, kind, (what,) if what else (), evidence, advice, subject)


def title(kind: str) -> str:
    """Return the words for ``kind`` of a finding."""
    return "unstable timing" if kind == UNSTABLE else kind.replace("_", " ")
