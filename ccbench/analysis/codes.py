"""Codes of findings, and what a code means: ``codes.yaml`` declares every kind of finding with its code.

What the file does not say of a kind stands in the table that its rule reads: flags, errors of NCCL, lines that
state something by themselves, advice of a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from ccbench.documents import read_installed
from ccbench.errors import UsageError
from ccbench.flags import Flag

LABELS = {"looks_at": "Looks at", "range": "Usual", "why": "Why", "cure": "Do"}

FAMILIES = ("xid_", "ras_")
"""Kinds with a number or a state behind these share a code."""


@cache
def declared_kinds() -> Mapping[str, Mapping[str, str]]:
    """Return the kinds of ``codes.yaml``."""
    kinds: Mapping[str, Mapping[str, str]] = read_installed(
        Path(__file__).with_name("codes.yaml")
    )
    return kinds


def code_of(kind: str) -> str:
    """Return ``C012`` for a kind of finding; "" for one that another version wrote."""
    family = next((name[:-1] for name in FAMILIES if kind.startswith(name)), kind)
    return declared_kinds().get(family, {}).get("code", "")


def explained(code: str) -> list[str]:
    """Return what the rule of ``code`` looks at, the range it knows, why, and the cure. Raises UsageError."""
    from ccbench.analysis.causes import RULES

    kinds = {entry["code"]: kind for kind, entry in declared_kinds().items()}
    kinds |= {rule.code: rule.name for rule in RULES}
    kind = kinds.get(code.upper())
    if kind is None:
        near = get_close_matches(code.upper(), kinds, n=3, cutoff=0.5)
        raise UsageError(
            f"--explain {code}: no finding has this code; near it are {', '.join(near) or min(kinds)}"
        )
    says = {**_of_tables(kind), **declared_kinds().get(kind, {})}
    texts = [f"{label}: {says[key]}" for key, label in LABELS.items() if says.get(key)]
    return [f"{code.upper()} {kind.replace('_', ' ')}", *texts]


def _of_tables(kind: str) -> dict[str, str]:
    """Return what the tables of rules say of ``kind``."""
    from ccbench.analysis.causes import RULES
    from ccbench.analysis.fleet import ADVICE as FLEET_ADVICE
    from ccbench.analysis.health import ADVICE
    from ccbench.analysis.machine_rules import STATED
    from ccbench.analysis.nccl_errors import KNOWN_ERRORS

    for flag in Flag:
        if flag.value == kind:
            why = f"it is about {flag.about.value}"
            return {"looks_at": flag.meaning, "why": why, "cure": flag.advice}
    for error in KNOWN_ERRORS:
        if error.kind == kind:
            form = f"warnings of NCCL, RCCL or HCCL of the form {error.form}"
            return {
                "looks_at": form,
                "why": error.subject.replace("{text}", "..."),
                "cure": error.advice,
            }
    for stated, _, subject, meaning, advice, _ in STATED:
        if stated == kind:
            lines = "lines of a kernel's log, a driver or a library that state it"
            return {"looks_at": lines, "why": meaning or subject, "cure": advice}
    for rule in RULES:
        if rule.name == kind:
            why = "the model gives such a system about the times that were measured"
            return {"looks_at": "collectives that are slow", "why": why, "cure": rule.check}
    return {"cure": {**FLEET_ADVICE, **ADVICE}.get(kind, "")}
