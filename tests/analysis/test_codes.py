"""Every kind of finding has a code that is its own for ever, and the code says what the rule is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ccbench
from ccbench.analysis.causes import RULES
from ccbench.analysis.codes import FAMILIES, code_of, declared_kinds, explained
from ccbench.analysis.fleet import ADVICE as FLEET_ADVICE
from ccbench.analysis.health import ADVICE
from ccbench.analysis.machine_rules import STATED
from ccbench.analysis.nccl_errors import KNOWN_ERRORS
from ccbench.cases.measurement import FAILURES
from ccbench.flags import Flag

GOLDEN = Path(__file__).with_name("codes.txt")
"""Codes that were given: lines are added, never changed or taken away."""

CODES = {
    **{kind: entry["code"] for kind, entry in declared_kinds().items()},
    **{rule.name: rule.code for rule in RULES},
}


def kinds_in_sources() -> set[str]:
    """Kinds that calls of the sources name, and those of tables."""
    kinds = {*ADVICE, *FLEET_ADVICE, *map(str, Flag), *(status.value for status in FAILURES)}
    kinds |= {error.kind for error in KNOWN_ERRORS} | {row[0] for row in STATED}
    for file in Path(ccbench.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = getattr(getattr(call, "func", None), "id", "")
            if isinstance(call, ast.Call) and name in ("Finding", "Diagnosis", "_finding"):
                own = name == "_finding" and file.stem in ("health", "fleet")
                words = [
                    word.value if isinstance(word, ast.Constant) else None
                    for word in (call.args[0 if own else 1 : 1 if own else 2])
                ]
                kinds |= {word for word in words if isinstance(word, str)}
    return kinds


def test_every_kind_has_a_code() -> None:
    kinds = {*kinds_in_sources(), *(f"{family}1" for family in FAMILIES)}
    assert len(kinds) > 100
    assert {kind for kind in kinds if not code_of(kind)} == set()
    assert code_of("of another version") == ""


def test_codes_are_unique_and_none_changes() -> None:
    assert len({*CODES.values()}) == len(CODES)
    golden = dict(line.split(" ", 1) for line in GOLDEN.read_text().splitlines())
    assert {code: kind for kind, code in CODES.items()} == golden


@pytest.mark.parametrize("code", CODES.values())
def test_a_code_says_what_its_rule_looks_at_why_and_what_to_do(code: str) -> None:
    labels = [line.partition(":")[0] for line in explained(code.lower())[1:]]
    assert {"Looks at", "Why", "Do"} <= {*labels}
