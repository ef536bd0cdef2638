from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.cases.measurement import Measurement, Status
from ccbench.report.figures import GROUP_FIELDS, figures_of
from ccbench.report.wording import (
    SERIES,
    imported_from,
    points_of,
    short_source,
    table_labels,
    verdict_lines,
)
from ccbench.results import Origin, Point, Run, RunFolder, load_run
from ccbench.results.loading import load_published, published_names

from .synthetic import sweep, write_run

ORIGIN = Origin("a.txt", 1, 1, "nccl-tests", "2.13.8", "NVIDIA H100", "complete", "mean", 1e-5)


def _run(path: Path, *origins: Origin) -> Run:
    with RunFolder.create(path, {"suite": {"name": "a.txt"}}) as folder:
        for origin in origins:
            for line, one in enumerate(sweep()):
                timed = replace(origin, line=line + 1, seconds=1e-6 + one.size_bytes / 1e9)
                folder.write(Measurement(one, Status.OK), None, origin=timed)
    return load_run(path)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("owner/repository:docs/a.md", "owner/repository"),
        ("log.txt", "log"),
        ("folder/log.txt", "log"),
        (
            "Some notes; public repository, name not recorded",
            "Some notes; public repository, name not recorded",
        ),
        ("a b/c:d", "c:d"),
    ],
)
def test_a_source_is_shortened_to_what_people_know_it_by(source: str, expected: str) -> None:
    assert short_source(source) == expected


def test_tables_that_cannot_be_mixed_up_have_no_label(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", ORIGIN)
    assert {point.run for point in points_of(run)} == {""}
    measured = write_run(tmp_path / "measured", sweep())
    assert {point.run for point in points_of(measured)} == {""}


def test_like_tables_are_told_apart_by_file_and_number(tmp_path: Path) -> None:
    run = _run(
        tmp_path / "run", ORIGIN, replace(ORIGIN, table=2), replace(ORIGIN, source="b.txt")
    )
    assert {point.run for point in points_of(run, name="x")} == {"x a #1", "x a #2", "x b"}


def test_the_network_is_named_where_several_nodes_took_part() -> None:
    point = Point(
        "s",
        "nccl",
        "all_reduce",
        "ring",
        "float32",
        "sum",
        1024,
        256,
        16,
        nodes=2,
        source="o/r:a",
        source_table=1,
        network="ib-ndr-400x8 (stated)",
    )
    points = [point, replace(point, source_table=2)]
    assert table_labels(points) == ["o/r #1 ib-ndr-400x8", "o/r #2 ib-ndr-400x8"]
    assert table_labels([replace(point, nodes=1) for point in points]) == ["o/r #1", "o/r #2"]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", published_names())
def test_no_line_of_a_published_machine_mixes_two_tables(name: str) -> None:
    run = load_published(name)
    tables: dict[tuple[object, ...], set[tuple[str, int]]] = defaultdict(set)
    rows = zip(points_of(run), run.table["source_table"].to_pylist(), strict=True)
    for point, table in rows:
        line = (*SERIES(point), *(getattr(point, field) for field in GROUP_FIELDS))
        tables[line].add((point.source, int(table)))
    assert [table for table in tables.values() if len(table) > 1] == []


def test_an_imported_run_says_so_and_draws_no_interval(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", ORIGIN)
    points = points_of(run)
    assert imported_from(points) == "imported from a.txt (nccl-tests 2.13.8)"
    assert {point.machine for point in points} == {"NVIDIA H100"}
    for figure in figures_of(points):
        assert "imported from a.txt (nccl-tests 2.13.8)" in figure.subtitle
        assert all(series.low == () for series in figure.series)
        assert any(
            "times as printed (mean), without samples or interval" in note
            for note in figure.footnote
        )
    assert (
        "imported from a.txt (nccl-tests 2.13.8); all_reduce ring over 4 ranks"
        in verdict_lines(run)[0]
    )


def test_several_sources_are_counted_and_measured_points_are_not_called_imported(
    tmp_path: Path,
) -> None:
    run = _run(tmp_path / "run", ORIGIN, replace(ORIGIN, source="b.txt", tool_version="2.14"))
    assert imported_from(points_of(run)) == "imported from 2 sources (nccl-tests)"
    measured: tuple[Point, ...] = points_of(write_run(tmp_path / "measured", sweep()))
    assert imported_from(measured) == ""
    assert all(
        series.low
        for series in figures_of(measured)[0].series
        if series.kind.value == "measured"
    )
