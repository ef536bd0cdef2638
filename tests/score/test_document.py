from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.score.document import document, system_plain
from benchmarks.score.scores import scored
from benchmarks.score.text import lines
from benchmarks.score.validation import Validation, shipped_by_system
from tests.score.corpora import log_points, mixed_logs, system, twice_as_slow

FIGURES = {"points", "median_error", "mape", "bias"}
BANDS = {"up_to_32KiB", "32KiB_to_32MiB", "above_32MiB"}


def made() -> dict[str, Any]:
    scores = scored(mixed_logs(), twice_as_slow, {"alpha_beta": twice_as_slow})
    return document(scores, shipped_by_system(mixed_logs()), held_out())


def held_out() -> Validation:
    return Validation.of(mixed_logs(), lambda _: None)


def assert_is_a_score(value: dict[str, Any]) -> None:
    assert value.keys() >= FIGURES | {"bands"}
    assert value["bands"].keys() == BANDS
    for band in value["bands"].values():
        assert band.keys() >= FIGURES
        assert (band["median_error"] is None) is (band["points"] == 0)


def test_the_total_and_every_log_carry_the_four_figures_and_the_three_bands() -> None:
    found = made()
    for part in (found["total"], *found["logs"]):
        assert_is_a_score(part)
        assert_is_a_score(part["comparison"]["alpha_beta"])
    total = found["total"]
    for part in (total, *total["bands"].values()):
        assert part["points"] == 0 or part.keys() >= {
            "coverage_80",
            "coverage_95",
            "median_width",
        }
    assert total["by_system"]["systems"] == 1
    for key in (
        "learned_without_the_system",
        "learned_without_the_generation",
    ):
        assert_is_a_score(found[key]["total"])
        for part in found[key]["systems"]:
            assert_is_a_score(part)


def test_errors_are_fractions() -> None:
    total = made()["total"]
    assert total["points"] == 4
    assert total["median_error"] == pytest.approx(1.0)
    assert total["bias"] == pytest.approx(1.0)
    assert total["bands"]["above_32MiB"]["points"] == 2


def test_every_log_is_listed_once_and_those_apart_are_named() -> None:
    found = made()
    assert [log["file"] for log in found["logs"]] == [
        "a.txt",
        "sick.txt",
        "dim.txt",
        "lost.txt",
    ]
    assert [log["counted"] for log in found["logs"]] == [True, False, False, False]
    assert found["unhealthy"] == ["sick.txt"]
    assert found["unknown_health"] == ["dim.txt"]
    assert found["not_modelled"] == [{"file": "lost.txt", "reason": "the network is not known"}]
    assert (found["not_modelled_count"], found["counted"]) == (1, 1)


def test_the_document_is_json_without_nan() -> None:
    assert json.loads(json.dumps(made(), allow_nan=False)) == made()


def test_fits_are_there_only_when_they_were_asked_for() -> None:
    found = document(scored(mixed_logs(), twice_as_slow, {}), ())
    assert "learned_without_the_system" not in found


def test_a_system_shows_its_figures_and_their_origins() -> None:
    plain = system_plain(system(origins={"intra": "datasheet"}))
    assert (plain["ranks"], plain["intra"], plain["origins"]) == (
        8,
        "nvswitch",
        {"intra": "datasheet"},
    )


def test_the_table_has_a_line_for_each_log_and_the_total_only_of_those_that_count() -> None:
    scores = scored(mixed_logs(), twice_as_slow, {"alpha_beta": twice_as_slow})
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


def test_a_log_without_points_in_a_band_shows_a_dash() -> None:
    text = list(lines(scored([log_points("a.txt", (64,))], twice_as_slow, {})))
    assert next(line for line in text if line.startswith("a.txt")).split()[-2:] == ["-", "-"]
