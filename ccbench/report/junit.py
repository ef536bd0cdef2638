"""JUnit XML, which CI systems and schedulers' dashboards read: verdicts as test cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ccbench.analysis.fleet import FleetVerdict
from ccbench.analysis.gate import judged_verdicts, verdict_parts
from ccbench.analysis.machine_verdict import machine_verdict
from ccbench.analysis.speed_verdict import SpeedWord
from ccbench.findings import Finding
from ccbench.results import Run
from ccbench.units import plain

LONGEST_TEXT = 200

NOTE = "system-out"
"""Kind of a case that passed and has something to say."""

KINDS = {
    SpeedWord.WRONG: "failure",
    SpeedWord.PROBLEM: "failure",
    SpeedWord.SLOW: "failure",
    SpeedWord.FAST: NOTE,
    SpeedWord.LOW: NOTE,
    SpeedWord.CANNOT_SAY: "error",
    SpeedWord.NORMAL: "",
}
"""Of verdicts on speed."""


class JUnitCase(NamedTuple):
    """One test case. kind: ``failure``, ``error`` (of a type, ``what``), ``skipped``, NOTE or '' where it passed."""

    class_name: str
    name: str
    kind: str = ""
    what: str = ""
    message: str = ""


def junit_text(name: str, cases: Iterable[JUnitCase], said: str) -> str:
    """The XML of one suite. said: goes to its output."""
    from xml.etree import ElementTree

    suite, counts = ElementTree.Element("testsuite", name=name), Counter[str]()
    for one in cases:
        case = ElementTree.SubElement(
            suite, "testcase", classname=one.class_name, name=one.name
        )
        counts[one.kind] += 1
        if one.kind == NOTE:
            ElementTree.SubElement(case, NOTE).text = one.message
        elif one.kind:
            attributes = {"type": one.what} if one.kind != "skipped" else {}
            ElementTree.SubElement(case, one.kind, {**attributes, "message": one.message})
    suite.set("tests", str(counts.total()))
    for kind, attribute in (
        ("failure", "failures"),
        ("error", "errors"),
        ("skipped", "skipped"),
    ):
        suite.set(attribute, str(counts[kind]))
    ElementTree.SubElement(suite, "system-out").text = plain(said, 20 * LONGEST_TEXT)
    ElementTree.indent(suite)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        + ElementTree.tostring(suite, encoding="unicode")
        + "\n"
    )


def verdict_junit(run: Run) -> str:
    """The verdicts on ``run``: of a health or fleet check, else of each collective and regime.

    Findings fail, nodes without one pass, doubt is an error. SLOW and WRONG fail, CANNOT SAY is an error.
    """
    verdict = machine_verdict(run)
    suite = f"ccbench {run.suite}"
    if verdict is None:
        speed = judged_verdicts(run)
        parts = (
            JUnitCase(
                part.subject,
                part.regime or "verdict",
                KINDS[part.word],
                part.word.value,
                plain(part, 2 * LONGEST_TEXT),
            )
            for part in verdict_parts(speed)
        )
        return junit_text(suite, parts, "; ".join(each.sentence for each in speed))
    cases, told = list[JUnitCase](), list[Finding]()
    if isinstance(verdict, FleetVerdict):
        for node, name in enumerate(verdict.names):
            own = verdict.of_node(node)
            told += own
            said = "; ".join(plain(one, 2 * LONGEST_TEXT) for one in own)
            unseen = (
                "" if own or node in verdict.cleared else "in no group that was seen to be fast"
            )
            kind = "failure" if own else "error" if unseen else ""
            cases.append(
                JUnitCase(suite, name, kind, own[0].kind if own else "unseen", said or unseen)
            )
    cases += [
        JUnitCase(
            suite,
            ", ".join(finding.devices) or finding.kind,
            "failure" if finding.severity == "problem" else "error",
            finding.kind,
            plain(finding, 2 * LONGEST_TEXT),
        )
        for finding in verdict.findings
        if finding not in told
    ]
    cases.append(
        JUnitCase(suite, "verdict", "error" if verdict.doubt else "", "doubt", verdict.doubt)
    )
    return junit_text(suite, cases, "; ".join(verdict.lines()))
