"""A comparison for programs (JSON; docs/compare.md describes it) and for the readers of CI (JUnit XML)."""

from __future__ import annotations

import math
from typing import Any

from ccbench.analysis.comparison.screen import change_text, interval_text, printable, seconds_text
from ccbench.analysis.comparison.self_check import SelfCheck
from ccbench.analysis.comparison.values import FINE, Cause, Compared, Comparison, Settings, Verdict
from ccbench.results.points import ORDER


def document(compared: Compared) -> dict[str, Any]:
    """Everything as JSON values: times in seconds per launch, changes as ratios; null where there is none."""
    return {
        "verdict": compared.sentence,
        "exit_code": compared.exit_code,
        "base": compared.base,
        "new": compared.new,
        "settings": _settings(compared.settings),
        "counts": compared.counts,
        "causes": compared.causes,
        "notes": list(compared.notes),
        "unused_rules": list(compared.unused_rules),
        "left_out": list(compared.left_out),
        "unread": compared.unread,
        "points": [_point(one) for one in compared.points],
    }


def self_check_document(check: SelfCheck) -> dict[str, Any]:
    """What A=A showed as JSON values; shares are fractions."""
    return {
        "exit_code": check.exit_code,
        "doubt": check.doubt,
        "runs": list(check.runs),
        "settings": _settings(check.settings),
        "unused_rules": list(check.unused_rules),
        "points": check.points,
        "left_out": check.left_out,
        "splits": check.splits,
        "false_alarms": check.false_alarms,
        "alarmed": check.alarmed,
        "found": check.found,
        "direct": None if check.direct is None else document(check.direct),
    }


def _settings(settings: Settings) -> dict[str, Any]:
    return {
        "threshold": settings.thresholds.default,
        "threshold_rules": len(settings.thresholds.rules),
        "confidence": settings.confidence,
        "undecided": settings.undecided,
        "accepted_flags": sorted(settings.accepted_flags),
        "across_machines": settings.across_machines,
        "draws": settings.draws,
        "seed": settings.seed,
    }


def _point(one: Comparison) -> dict[str, Any]:
    asked = {name: getattr(one.point, name) for name in ORDER}
    found = {**asked, **{name: value for name, value in vars(one).items() if name != "point"}}
    found["verdict"] = one.verdict.value
    found["cause"] = None if one.cause is None else one.cause.value
    return {name: _finite(value) for name, value in found.items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def junit(compared: Compared) -> str:
    """JUnit XML, one test case a point: slower and wrong ones fail, those without a verdict are errors.

    An error and not a skip, since CI systems let skips pass; only points whose interval is too wide are
    skipped, and only where the settings let them pass. Nothing to compare is an error of its own, and so are
    files that could not be read.
    """
    from xml.etree import ElementTree

    tolerant = compared.exit_code == FINE
    suite = ElementTree.Element("testsuite", name="ccbench compare")
    counts = dict.fromkeys(("failure", "error", "skipped"), 0)
    for one in compared.points:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_xml(one.point.name), name=_xml(one.point.size)
        )
        kind = _outcome(one, tolerant)
        if kind:
            counts[kind] += 1
            message = _xml(_message(one))
            what = "wrong results" if one.wrong else (one.cause.value if one.cause else one.verdict.value)
            attributes = {"message": message} if kind == "skipped" else {"type": what, "message": message}
            ElementTree.SubElement(case, kind, attributes)
    absent = [("any point", "nothing")] * (not compared.points) + [("files", "unread")] * bool(
        compared.unread
    )
    for name, what in absent:
        case = ElementTree.SubElement(suite, "testcase", classname="ccbench compare", name=name)
        ElementTree.SubElement(case, "error", type=what, message=_xml(compared.sentence))
        counts["error"] += 1
    suite.set("tests", str(len(compared.points) + len(absent)))
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(counts[kind]))
    ElementTree.SubElement(suite, "system-out").text = _xml("; ".join((compared.sentence, *compared.notes)))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _outcome(one: Comparison, tolerant: bool) -> str:
    if one.wrong or one.verdict is Verdict.SLOWER:
        return "failure"
    if one.verdict is not Verdict.NONE:
        return ""
    return "skipped" if tolerant and one.cause is Cause.TOO_WIDE else "error"


def _message(one: Comparison) -> str:
    times = f"{seconds_text(one.base_seconds)} -> {seconds_text(one.new_seconds)}"
    change = " ".join(part for part in (change_text(one), interval_text(one)) if part)
    parts = [f"{one.verdict.value}: {times}", change, f"threshold {one.threshold:.3g}", one.reason]
    return ", ".join(part for part in parts if part)


def _xml(text: str) -> str:
    """``text`` without the characters that XML 1.0 cannot hold; the writer escapes the rest."""
    return "".join(letter for letter in printable(text) if not 0xFFFE <= ord(letter) & 0xFFFF <= 0xFFFF)
