from __future__ import annotations

import json
from typing import Any

from benchmarks.score.document import document
from benchmarks.score.scores import scored
from benchmarks.score.text import lines
from benchmarks.score.validation import Validation, shipped_by_system
from tests.score.corpora import mixed_logs, twice_as_slow


def made() -> dict[str, Any]:
    scores = scored(mixed_logs(), twice_as_slow, {"nccl_constants": twice_as_slow})
    return document(scores, shipped_by_system(mixed_logs()), held_out())


def held_out() -> Validation:
    return Validation.of(mixed_logs(), lambda _: None)


def test_the_document_is_json_without_nan() -> None:
    assert json.loads(json.dumps(made(), allow_nan=False)) == made()


def test_the_table_has_a_line_for_each_log_and_the_total_only_of_those_that_count() -> None:
    scores = scored(mixed_logs(), twice_as_slow, {"nccl_constants": twice_as_slow})
    text = list(lines(scores, shipped_by_system(mixed_logs()), held_out()))
    total = next(line for line in text if line.startswith("total of 1 logs"))
    assert total.split()[4:8] == ["4", "100.0", "100.0", "+100.0"]
    apart = text.index("Not in the total, known not to be healthy:")
    assert text[apart + 1].startswith("sick.txt")
    assert "  lost.txt: the network is not known" in text
    for title in (
        "as shipped",
        "learned without the generation",
    ):
        assert any(line.startswith(title) for line in text), title
    assert all(len(line) <= 160 for line in text)
