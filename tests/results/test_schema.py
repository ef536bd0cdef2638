from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ccbench.results import SCHEMA, SCHEMA_VERSION, arrow_schema
from ccbench.results.rows import row_of
from ccbench.results.schema import schema_table

from .samples import failed, measured

DOCUMENT = Path(__file__).parents[2] / "docs" / "columns.md"


def test_the_documented_columns_are_the_schema() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert schema_table() in text
    assert f"(schema version {SCHEMA_VERSION})" in text


def test_a_row_has_exactly_the_columns_of_the_schema() -> None:
    names = {column.name for column in SCHEMA}
    assert set(row_of(measured(), None, 0.95)) == names
    assert len(names) == len(SCHEMA)


def test_columns_that_are_never_null_have_a_value_even_in_a_failed_case() -> None:
    row = row_of(failed(64), None, 0.95)
    missing = {name for name, value in row.items() if value is None}
    assert missing == {column.name for column in SCHEMA if column.null_when}


def test_the_arrow_schema_carries_its_version_and_which_columns_may_be_null() -> None:
    schema = arrow_schema()
    assert schema.metadata == {b"ccbench_schema_version": str(SCHEMA_VERSION).encode()}
    assert not schema.field("status").nullable
    assert schema.field("median_seconds").nullable
    assert str(schema.field("rank_samples_seconds").type).startswith("list<")


def test_a_case_of_an_unknown_collective_has_no_bus_bandwidth() -> None:
    one = measured()
    row = row_of(replace(one, case=replace(one.case, collective="hypercube")), None, 0.95)
    assert row["algbw_GB_s"] > 0
    assert row["busbw_GB_s"] is None


def test_samples_that_are_no_times_give_no_speed() -> None:
    for bad in (float("nan"), float("inf"), -1.0):
        row = row_of(measured(samples_seconds=(1e-4, bad)), None, 0.95)
        assert row["median_seconds"] is None
        assert row["algbw_GB_s"] is None


def test_ranks_and_case_are_summed_up_alike_when_rounds_differ() -> None:
    rounds = [1.0] * 5 + [1.0] * 5 + [1.0] * 5 + [3.0] + [3.0] + [3.0] + [3.0]
    one = measured(
        samples_seconds=tuple(rounds),
        rank_samples_seconds=(tuple(rounds), tuple(2 * sample for sample in rounds)),
        round_samples=(5, 5, 5, 1, 1, 1, 1),
    )
    row = row_of(one, None, 0.95)
    # Seven rounds, four of them slow; pooled, fifteen of nineteen samples would be fast.
    assert row["median_seconds"] == 3.0
    assert row["rank_median_seconds"] == [3.0, 6.0]
    assert row["slowest_rank"] == 1
