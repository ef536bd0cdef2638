from __future__ import annotations

from benchmarks.score.holdout import on_other_sizes
from benchmarks.score.scores import scored
from benchmarks.score.text import lines
from tests.score.observations import log_points, mixed_logs, twice_as_slow


def test_the_table_has_a_line_for_each_log_and_the_total_only_of_those_that_count() -> None:
    sizes = on_other_sizes(mixed_logs(), lambda _: twice_as_slow, lambda _: None)
    text = list(lines(scored(mixed_logs(), twice_as_slow, {"alpha_beta": twice_as_slow}), sizes))
    total = next(line for line in text if line.startswith("total of 1 logs"))
    assert total.split()[4:8] == ["4", "100.0", "100.0", "+100.0"]
    apart = text.index("Not in the total, known not to be healthy:")
    assert text[apart + 1].startswith("sick.txt")
    assert "  lost.txt: the network is not known" in text
    assert any(line.startswith("Calibrated on every other size") for line in text)
    assert all(len(line) <= 160 for line in text)


def test_a_log_without_points_in_a_band_shows_a_dash() -> None:
    text = list(lines(scored([log_points("a.txt", (64,))], twice_as_slow, {})))
    assert next(line for line in text if line.startswith("a.txt")).split()[-2:] == ["-", "-"]
