"""Columns that fields declare, and two rounds' values of them made one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ccbench.cases.measurement import Conditions, Measurement
from ccbench.columns import Column, column, columns_of, described, merge


@dataclass(frozen=True)
class Weather:
    """Two fields that are columns under names of their own, and one that is none."""

    place: str = field(metadata=described("where it was seen", name="weather_place"))
    began: str = column("", "when it began", rounds="first")
    degrees: tuple[float, ...] = column((), "every reading", "C", "no reading", rounds="joined")
    by_station: tuple[tuple[float, ...], ...] = column((), "of each", rounds="joined by rank")
    storms: int | None = column(None, "how many", null_when="not counted", rounds="total")
    sky: str = column("clear", "at the end")
    gusts: float = column(0.0, "strongest", rounds="strongest")
    remark: str = "no column"


MORNING = Weather("A", "06:00", (1.0,), ((1.0,), (2.0,)), 1, "grey", 7.0, "morning")
NOON = Weather("B", "12:00", (3.0, 4.0), ((3.0,), (4.0,)), 2, "blue", 5.0, "noon")


def test_a_field_says_all_that_its_column_is() -> None:
    first, *_, last = columns_of(Weather)
    assert first.name == "weather_place"
    assert (first.attribute, first.kind, first.rounds) == ("place", "string", "last")
    assert last == Column(
        "gusts", "double", "", "strongest", rounds="strongest", attribute="gusts", default=0.0
    )
    kinds = {shown.name: shown.kind for shown in columns_of(Weather)}
    assert kinds["degrees"] == "list<double>"
    assert kinds["by_station"] == "list<list<double>>"
    assert kinds["storms"] == "int64"
    assert "remark" not in kinds


def test_two_rounds_become_one_by_the_rule_of_each_column() -> None:
    assert merge(MORNING, NOON, {"strongest": max}) == Weather(
        "B",
        "06:00",
        (1.0, 3.0, 4.0),
        ((1.0, 3.0), (2.0, 4.0)),
        3,
        "blue",
        7.0,
        "noon",
    )


@pytest.mark.parametrize(
    ("before", "now", "total"), [(None, None, None), (None, 2, 2), (1, None, 1), (1, 2, 3)]
)
def test_a_total_counts_the_rounds_that_were_counted(
    before: int | None, now: int | None, total: int | None
) -> None:
    day = merge(Weather("A", storms=before), Weather("A", storms=now), {"strongest": max})
    assert day.storms == total


def test_a_rule_that_nobody_gives_is_an_error() -> None:
    with pytest.raises(KeyError, match="strongest"):
        merge(MORNING, NOON, {})


def test_no_two_fields_of_a_case_have_one_column() -> None:
    names = [shown.name for kind in (Measurement, Conditions) for shown in columns_of(kind)]
    assert len(names) == len(set(names))


@dataclass(frozen=True)
class Doubts:
    """What is worst, and what was noted first."""

    share: float | None = column(None, "share", rounds="worst")
    note: str = column("", "what and where", rounds="earliest")


@pytest.mark.parametrize(
    ("before", "now", "both"),
    [
        (Doubts(), Doubts(), Doubts()),
        (Doubts(0.0), Doubts(), Doubts(0.0)),
        (Doubts(0.25, "here"), Doubts(0.5, "there"), Doubts(0.5, "here")),
        (Doubts(0.5), Doubts(0.25, "there"), Doubts(0.5, "there")),
    ],
)
def test_the_worst_of_all_rounds_stays_and_the_first_note(
    before: Doubts, now: Doubts, both: Doubts
) -> None:
    assert merge(before, now, {}) == both
