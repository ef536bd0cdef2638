from __future__ import annotations

from pathlib import Path

from benchmarks.score.logs import LogPoints, points_of
from benchmarks.score.notices import learned_from, notices
from ccbench.results.loading import load_published
from tests.score.corpora import entry, log, row


def points(seconds: dict[int, float], **changes: object) -> LogPoints:
    rows = [row(size, time) for size, time in seconds.items()]
    return points_of(entry(**changes), Path(), lambda _: log(rows))


def published() -> dict[int, float]:
    cases = load_published("hgx-h100").cases
    chosen = cases[(cases["collective"] == "all_reduce") & (cases["source"] == cases["source"].iloc[0])]
    return {
        int(size): float(time)
        for size, time in zip(chosen["size_bytes"], chosen["median_seconds"], strict=True)
    }


def test_a_log_whose_figures_ship_was_learned_from() -> None:
    seen = points({size: time for size, time in published().items() if size}, file="seen.txt")
    unseen = points({size: time * 1.37 for size, time in published().items() if size}, file="unseen.txt")
    assert learned_from([seen, unseen]) == ("seen.txt",)
    (line,) = notices([seen, unseen], ("seen.txt",))
    assert "learned from at least 1 of these 2 logs" in line
    assert "--holdout" in line


def test_new_logs_need_no_notice() -> None:
    new = points({1 << 20: 33.3e-6, 1 << 24: 123.4e-6})
    assert learned_from([new]) == ()
    assert notices([new], ()) == ()


def test_pairwise_points_whose_shared_links_are_not_priced_are_counted() -> None:
    on_pcie = {"gpu": "L40S", "interconnect": "pcie4", "gpus_per_node": (4,), "collective": "all_to_all"}
    rows = [row(1 << 20, 1e-3), row(1 << 24, 9e-3)]
    apart = points_of(entry(**on_pcie), Path(), lambda _: log(rows, collective="all_to_all"))
    assert apart.observations, apart.left_out
    (line,) = notices([apart], ())
    assert line.startswith("2 points of all_to_all")
    board = points_of(entry(collective="all_to_all"), Path(), lambda _: log(rows, collective="all_to_all"))
    assert notices([board], ()) == ()
