"""Cases of every shipped suite, and of plans, on each backend: one line a case."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ccbench.errors import CcbenchError
from ccbench.suite.expansion import expand, left_out
from ccbench.suite.model import load_suite, shipped_suites
from tests.goldens import check

from .offers import context

GOLDENS = Path(__file__).parent / "goldens"
PLACES: tuple[dict[str, Any], ...] = (
    {},
    {"ranks": 7},
    {"backends": ("nccl",), "nodes": 2, "ranks": 8},
)


def lines_of(name: str) -> Iterator[str]:
    suite = load_suite(name)
    for place in PLACES:
        yield f"-- {place}"
        where = context(**place)
        try:
            cases = [f"{case.case_id} {case.label}" for case in expand(suite, where)]
        except CcbenchError as problem:
            yield str(problem)
            continue
        # A digest stands for the cases between: a review reads the ends.
        yield from cases[:20]
        yield hashlib.sha256("\n".join(cases).encode()).hexdigest() + f" of {len(cases)}"
        yield from (f"left out {count}: {why}" for why, count in left_out(suite, where).items())


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_cases_of_a_shipped_suite(name: str) -> None:
    check(GOLDENS / f"{name}.txt", "\n".join(lines_of(name)) + "\n")
