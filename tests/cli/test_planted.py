"""Slow-downs planted into healthy tables: one word and one exit code in every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.analysis.planted import (
    CODES,
    LARGE,
    MIB,
    PLANTED,
    Rows,
    Seconds,
    beside,
    scaled,
    table,
)
from tests.cli.conftest import Command


@pytest.fixture
def rows(ccbench: Command, machine: str) -> Rows:
    asked = "predict --collective all_reduce --sizes 8:8GiB:2 --json --machine"
    priced = ccbench(*asked.split(), machine)
    return {row["size_bytes"]: row for row in priced.json}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted[0])
@pytest.mark.parametrize("machine", ["hgx-h200", "dgx-a100"])
def test_a_planted_slow_down_has_one_word_and_one_exit_code_everywhere(
    ccbench: Command, machine: str, rows: Rows, planted: tuple[str, Seconds, str, str]
) -> None:
    for title, seconds, word, where in (planted,):
        Path("log.txt").write_text(table(machine, rows, seconds))
        code = CODES[word]
        imported = ccbench("check", "log.txt", "-o", "run", "--force")
        sentence = imported.out.splitlines()[0]
        assert (sentence.partition(":")[0], imported.code) == (word, code), (title, sentence)
        assert where in sentence, title
        assert (
            ccbench("report", "run", "--format", "csv").ends(code).out.startswith(f"{word}: ")
        )
        compared = ccbench("compare", f"published:{machine}", "run").ends(code)
        assert sentence in " ".join(compared.out.split()), title
        strict = ccbench("check", "log.txt", "-o", "gated", "--force", "--gate", "normal")
        strict.ends(3 if word in ("LOW", "FAST") else code)
        outcome = {0: "PASS", 1: "FAIL", 3: "CANNOT SAY"}[strict.code]
        assert f"\ngate: {outcome} (exit code {strict.code}): " in strict.out, title
        assert ccbench("check", "log.txt").code == code, title


on_h200 = pytest.mark.parametrize("machine", ["hgx-h200"])


@on_h200
def test_half_a_log_that_is_slow_fails_whichever_half_it_is(
    ccbench: Command, machine: str, rows: Rows
) -> None:
    good = table(machine, rows, scaled("predicted_seconds"))
    slow = table(machine, rows, scaled("predicted_seconds", 8.8, **LARGE))
    for text, halves in (
        (slow + good, 4),
        (beside(good, slow), 2),
    ):
        Path("log.txt").write_text(text)
        ended = ccbench("check", "log.txt", "-o", "run", "--force", "--gate")
        assert (ended.code, ended.out.startswith("SLOW: ")) == (1, True)
        assert f", the worst of {halves}" in ended.out.splitlines()[0]


@on_h200
def test_a_size_that_costs_100_times_needs_no_name_of_a_machine(
    ccbench: Command, machine: str, rows: Rows
) -> None:
    text = table(machine, rows, scaled("predicted_seconds", 100, 256 * MIB, 256 * MIB))
    Path("log.txt").write_text("".join(re.findall("(?!.*Rank).*\n", text)))
    ended = ccbench("check", "log.txt", "--ranks", "8", "--gate").ends(1)
    assert "at 256 MiB" in ended.out.splitlines()[0]
