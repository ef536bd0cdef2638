from __future__ import annotations

from typing import Any

from benchmarks.score.teams import Team, team_of
from ccbench.results.importers.log import ImportedRow, ImportedTable
from tests.score.corpora import entry, row


def table(rows: list[ImportedRow], **changes: Any) -> ImportedTable:
    return ImportedTable("all_reduce", tuple(rows), **changes)


def rated(ranks: int, flags: tuple[str, ...] = ()) -> list[ImportedRow]:
    """Rows whose rates fit an all-reduce on so many ranks only."""
    factor = 2 * (ranks - 1) / ranks
    return [
        row(1 << 30, 1.0, algbw=rate, busbw=rate * factor, half_units=(None, 5e-6, 5e-6), flags=flags)
        for rate in (181.23456, 192.87654)
    ]


def team(found: Team | str) -> tuple[int, int]:
    assert isinstance(found, Team), found
    return found.gpus_per_node, found.nodes


def test_the_manifest_counts_where_the_log_says_nothing() -> None:
    assert team(team_of(entry(nodes=(4,)), table([row(8, 1e-5)]))) == (8, 4)


def test_rates_that_exclude_the_manifest_count_more() -> None:
    found = team_of(entry(nodes=(8,), network="ib-ndr-400x8"), table(rated(96)))
    assert team(found) == (8, 12)
    assert isinstance(found, Team)
    assert "busbw" in found.origin


def test_rows_that_were_flagged_for_their_ranks_still_tell_them() -> None:
    found = team_of(entry(gpus_per_node=(4,), nodes=(36,)), table(rated(128, ("busbw_contradicts_algbw",))))
    assert team(found) == (4, 32)


def test_of_several_numbers_the_one_that_the_table_was_measured_on_is_taken() -> None:
    several = entry(gpus_per_node=(4, 5, 6), nodes=(1,))
    assert team(team_of(several, table([], ranks=5))) == (5, 1)
    assert team(team_of(entry(nodes=(1, 4)), table([row(8, 1e-5)], nodes=4))) == (8, 4)


def test_unknown_nodes_come_from_the_ranks_of_the_log() -> None:
    assert team(team_of(entry(nodes=()), table([], ranks=128))) == (8, 16)


def test_a_range_of_nodes_is_its_middle_and_said_to_be_assumed() -> None:
    rows = [row(1 << 30, 1.0, algbw=50.0, busbw=99.92, half_units=(None, 0.004, 0.004))]
    found = team_of(entry(gpus_per_node=(16,), nodes=()), table(rows))
    assert isinstance(found, Team)
    assert found.origin.startswith("assumed")
    assert 1000 < found.nodes * 16 < 1600  # 2 (p - 1) / p = 1.9984


def test_what_stays_open_is_a_reason() -> None:
    for one, shown in (
        (entry(nodes=()), table([row(8, 1e-5)])),
        (entry(gpus_per_node=()), table([], ranks=8)),
        (entry(nodes=(1, 4)), table([row(8, 1e-5)])),
        (entry(gpus_per_node=(8,), nodes=()), table([], ranks=12)),
    ):
        assert isinstance(team_of(one, shown), str)
