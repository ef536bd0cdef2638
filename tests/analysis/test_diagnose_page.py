"""docs/check.md shows what ccbench prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ccbench.analysis.diagnose import answer_of
from ccbench.cli.stating import stated_system
from ccbench.readers.evidence import read_evidence
from ccbench.report.diagnosis_text import diagnosis_lines

PAGE = Path(__file__).resolve().parents[2] / "docs" / "check.md"
EXAMPLE = re.compile(
    r"### \d+\. (?P<title>.+?)\n.*?```text paste\n(?P<paste>.*?)\n```\n\n`ccbench check (?P<name>\S+?)"
    r"(?: --machine (?P<machine>\S+))?` \(exit (?P<code>\d)\):\n\n```text answer\n(?P<answer>.*?)\n```",
    re.DOTALL,
)
EXAMPLES = [match.groupdict() for match in EXAMPLE.finditer(PAGE.read_text(encoding="utf-8"))]


def test_the_page_has_seven_questions() -> None:
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize("example", EXAMPLES, ids=[example["title"] for example in EXAMPLES])
def test_a_question_is_answered_as_the_page_says(
    example: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / example["name"]
    file.write_text(example["paste"] + "\n", encoding="utf-8")
    names = ("machine", "nodes", "ranks", "library", "dtype", "network", "gpu", "pcie")
    system = stated_system(**{name: example.get(name) for name in names})  # type: ignore[arg-type]  # numbers are left out
    answer = answer_of(read_evidence([file]), system)
    assert answer.outcome == int(example["code"])
    printed = "\n".join(diagnosis_lines(answer, 100))
    # Places are printed as they were given.
    assert printed.replace(f"{tmp_path}/", "") == example["answer"]
