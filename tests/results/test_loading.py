from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccbench.cases.axes import SETTINGS
from ccbench.cases.measurement import Measurement, Status
from ccbench.cli import main
from ccbench.columns import Column
from ccbench.errors import RunFolderError
from ccbench.results import SCHEMA, RunFolder, load_run
from ccbench.results.files import as_line
from ccbench.results.loading import named_run, runs_of
from ccbench.results.schema import measurement_of, row_of

from .samples import PREDICTION, failed, left_by_a_kill, measured, measurements

DEFAULTS = {axis.name: axis.default for axis in SETTINGS}


def _written(path: Path, *all_measured: Measurement) -> Path:
    with RunFolder.create(path, {"suite": "smoke"}) as folder:
        for measurement in all_measured:
            folder.write(measurement, PREDICTION)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(measurement=measurements)
def test_any_measurement_comes_back_as_it_was(
    measurement: Measurement, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with RunFolder.create(tmp_path_factory.mktemp("any") / "run", {}) as folder:
        folder.write(measurement, PREDICTION)
        logged = load_run(folder.path)
    closed = load_run(folder.path)
    assert logged.problems == closed.problems == ()
    (row,) = closed.table.to_pylist()
    assert json.dumps(logged.table.to_pylist()) == json.dumps([row])
    assert measurement_of(row) == measurement
    assert row["case_id"] == measurement.case.case_id
    assert row["bottleneck"] == PREDICTION.bottleneck
    assert row["predicted_latency_seconds"] == PREDICTION.latency_seconds
    if measurement.status != Status.OK:
        assert row["median_seconds"] is None


@given(lost=st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3))
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_that_utf8_cannot_hold_costs_its_odd_characters_only(
    lost: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = load_run(
        _written(tmp_path_factory.mktemp("odd") / "run", failed(64, detail="died" + lost))
    )
    assert run.table["detail"][0].as_py() == "died" + "?" * len(lost)


@pytest.fixture(params=["cases.log", "cases.parquet"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What cases of 1024 and 2048 bytes are in: of a run that was killed, and of one that was closed."""
    path = left_by_a_kill(tmp_path / "run", measured(1024), failed(2048))
    if request.param == "cases.parquet":
        RunFolder.resume(path).close()
    return Path(path / request.param)


@pytest.mark.exhaustive
def test_a_file_cut_anywhere_is_named_and_whole_lines_load(file: Path) -> None:
    content = file.read_bytes()
    for end in range(0, len(content), 41):
        file.write_bytes(content[:end])
        run = load_run(file.parent)
        lines = content[:end].count(b"\n") if file.suffix == ".log" else 0
        assert len(run.points) == lines
        assert [problem.startswith(f"{file}: ") for problem in run.problems] == [True] * bool(
            end or (not lines and file.suffix != ".log")
        )


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_anywhere_changes_no_figure_unnamed(
    file: Path, data: st.DataObject
) -> None:
    before, content = load_run(file.parent), file.read_bytes()
    # Half of the places in the end: the footer and what precedes it, where no page's checksum reaches.
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little") % len(content)
    last = len(content) - 1
    place = data.draw(st.integers(0, last) | st.integers(max(0, footer - 100), last))
    changed = bytearray(content)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(changed)
    run = load_run(file.parent)
    file.write_bytes(content)
    if run.problems:
        assert run.problems[0].startswith(f"{file}: ")
    else:
        assert run.table.equals(before.table)


def test_other_tools_read_a_table_with_its_digest_and_what_they_write_is_read(
    tmp_path: Path,
) -> None:
    path = _written(tmp_path / "run", measured(1024))
    file = path / "cases.parquet"
    assert pd.read_parquet(file)["size_bytes"].tolist() == [1024]
    before = load_run(path)
    pq.write_table(pq.read_table(file), file)
    after = load_run(path)
    assert after.problems == ()
    assert after.table.equals(before.table)


def test_a_manifest_that_was_edited_is_named_and_shown(tmp_path: Path) -> None:
    path = _written(tmp_path / "run", measured(1024))
    file = path / "run.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest))  # laid out in another way
    assert load_run(path).problems == ()
    file.write_text(json.dumps({**manifest, "suite": "other"}))
    run = load_run(path)
    assert run.manifest.suite == "other"
    assert run.problems == (
        f"{file}: was changed after it was written; what it says now is shown",
    )
    with pytest.raises(
        RunFolderError, match=r"run\.json: was changed .* take the key 'digest' out of it"
    ):
        RunFolder.resume(path)
    del manifest["digest"]
    file.write_text(json.dumps({**manifest, "suite": "other"}))
    assert load_run(path).problems == ()
    RunFolder.resume(path).close()
    assert load_run(path).problems == ()


NONSENSE: list[tuple[dict[str, object], str]] = [
    ({"status": "perhaps"}, "'perhaps' is not a valid Status"),
    ({"pair": "0=>1"}, "'0=>1' is no pair of ranks"),
    ({"pair": "0>9"}, "pair 0>9 is of more than 4 ranks"),
    ({"ranks": 0}, "ranks is 0"),
    ({"ranks": 2**40, "groups": "rank // 4"}, "ranks is 1099511627776"),
    ({"groups": "rank ** 3"}, "'rank ** 3' does no"),
    ({"groups": "[[0, 1], [2, 9]]"}, "9 is no rank of 4"),
    ({"groups": "rank // 2", "active_group": 7}, "active_group 7 is none of 2 groups"),
    ({"concurrent": "all gather on x"}, "concurrent"),
    ({"concurrent": "all_gather on rank ** 2"}, "'rank ** 2' does no"),
    ({"collective": "all_to_all_v", "traffic": "zipf"}, "traffic"),
    ({"median_seconds": None}, "status is ok and median_seconds or samples_seconds"),
    ({"samples_seconds": None}, "status is ok and median_seconds or samples_seconds"),
    ({"samples_seconds": []}, "status is ok and median_seconds or samples_seconds"),
    ({"median_seconds": -1.0}, "median_seconds is -1.0"),
    ({"median_seconds": float("inf")}, "median_seconds is inf"),
    ({"samples_seconds": [1e-4, float("nan")]}, "a sample is negative or no number"),
    ({"samples_seconds": [1e-4, -1e-4]}, "a sample is negative or no number"),
    ({"predicted_seconds": -1.0}, "predicted_seconds is -1.0"),
    ({"bound_seconds": float("nan")}, "bound_seconds is nan"),
    ({"busbw_GB_s": float("inf")}, "busbw_GB_s is inf"),
    ({"size_bytes": -5}, "size_bytes is -5"),
    ({"wrong_elements": 7}, "status is ok and wrong_elements is 7"),
]


@pytest.mark.parametrize(("changes", "words"), NONSENSE)
def test_a_row_that_makes_no_sense_is_named_and_the_rest_is_shown_and_resumed(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = _written(tmp_path / "run", measured(1024), measured(2048))
    row = {**row_of(measured(4096), PREDICTION, 0.95), **changes}
    (path / "cases.log").write_bytes(as_line(row))
    run = load_run(path)
    assert [point.size_bytes for point in run.points] == [1024, 2048]
    (problem,) = run.problems
    assert problem.startswith(f"{path}: case {row['case_id']}: ")
    assert words in problem
    assert problem.endswith("; use the ccbench that wrote it, or measure that case again")
    with RunFolder.resume(path) as folder:
        assert row["case_id"] not in folder.finished()
        assert folder.unfinished() == {}


def test_a_report_names_the_case_of_a_pair_that_is_none_and_shows_the_rest(
    tmp_path: Path,
) -> None:
    path = _written(tmp_path / "run", measured(1024), measured(2048))
    row = {**row_of(measured(4096), PREDICTION, 0.95), "pair": "0=>1"}
    (path / "cases.log").write_bytes(as_line(row))
    with pytest.raises(SystemExit):
        main(["report", str(path), "--format", "md", "-o", str(tmp_path / "out")])
    report = (tmp_path / "out" / "report.md").read_text()
    assert "2 of 2 cases" in report
    assert f"case {row['case_id']}: '0=&gt;1' is no pair of ranks" in report


def _foreign(path: Path, **metadata: str) -> None:
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(metadata), path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_foreign, "schema version is none, expected 1;"),
        (
            lambda path: _foreign(path, ccbench_schema_version="0"),
            "schema version is 0, expected 1;",
        ),
        (lambda path: _foreign(path, ccbench_schema_version="1"), "column suite is missing"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: path.write_text("size,time\n1,2\n"), "cannot be read"),
        (os.mkfifo, "a pipe or a device and no file"),
        (Path.mkdir, "Is a directory"),
    ],
)
def test_a_file_that_is_no_table_is_named_and_the_rest_loads(
    tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    path = left_by_a_kill(tmp_path / "run", measured(1024))
    spoil(path / "cases.parquet")
    run = load_run(path)
    assert len(run.points) == 1
    assert len(run.problems) == 1
    assert str(path) in run.problems[0]
    assert words in run.problems[0]


@pytest.mark.parametrize("column", SCHEMA, ids=lambda column: column.name)
def test_a_file_that_is_older_than_a_column_has_a_settings_default_or_null(
    tmp_path: Path, column: Column
) -> None:
    # An older file lacks nothing that a case must have that is ok.
    path = _written(tmp_path / "run", measured(1024, status=Status.WRONG))
    file = path / "cases.parquet"
    before = load_run(path)
    table = pq.read_table(file)
    pq.write_table(table.drop_columns([column.name]), file)
    run = load_run(path)
    if column.name in DEFAULTS or column.null_when:
        assert run.table[column.name].to_pylist() == [DEFAULTS.get(column.name)]
        assert run.points[0].case_id == before.points[0].case_id
    else:
        (problem,) = run.problems
        assert f": column {column.name} is missing; " in problem


def test_files_of_one_case_each_are_read_and_gone_on_with(tmp_path: Path) -> None:
    path = _written(tmp_path / "run", measured(1024))
    (path / "cases").mkdir()
    (path / "cases.parquet").rename(path / "cases" / "a.parquet")
    (path / "cases" / "b.parquet").write_bytes(b"PAR1 cut")
    run = load_run(path)
    assert len(run.points) == len(run.problems) == 1
    with RunFolder.resume(path) as folder:
        assert folder.problems == run.problems
        folder.write(measured(1024, seconds=0.5), PREDICTION)
        folder.write(measured(2048), PREDICTION)
    again = load_run(path)
    assert again.problems == ()
    assert [point.size_bytes for point in again.points] == [1024, 2048]
    assert (again.points[0].median_seconds or 0) > 0.4
    (kept,) = path.glob("b.parquet.*.damaged")
    assert kept.read_bytes() == b"PAR1 cut"


def test_a_line_in_the_writing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left_by_a_kill(tmp_path / "run", measured(1024), measured(2048))
    whole = (path / "cases.log").read_bytes()
    (path / "cases.log").write_bytes(whole[:-9])
    monkeypatch.setattr("time.sleep", lambda _: (path / "cases.log").write_bytes(whole))
    assert not load_run(path).problems


@pytest.mark.parametrize("text", ["", '{"suite"', "[1]", "[" * 100_000, "\udcff"])
def test_a_broken_manifest_is_named_and_the_cases_load(tmp_path: Path, text: str) -> None:
    path = _written(tmp_path / "run", measured(1024))
    (path / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    run = load_run(path)
    assert len(run.points) == 1
    assert run.manifest.document == {}
    assert "run.json" in run.problems[0]


def test_a_manifest_of_another_schema_version_is_named_and_shown(tmp_path: Path) -> None:
    path = _written(tmp_path / "run", measured(1024))
    manifest = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**manifest, "schema_version": 99}))
    run = load_run(path)
    assert run.manifest.suite == "smoke"
    assert len(run.points) == 1
    (problem,) = run.problems
    assert "run.json: schema version is 99, expected 1;" in problem


def test_runs_have_names_that_people_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match=r"results: holds no run.*ccbench run quick"):
        load_run("latest")
    created = {"0007-quick": "02-01", "0041-x": "03-01", "0041-y": "03-02", "9-old": "04-01"}
    for name, when in created.items():
        _written(tmp_path / "results" / name)
        (tmp_path / "results" / name / "run.json").write_text(
            json.dumps({"created_at": f"2026-{when}", "schema_version": 1})
        )
    # Such as an import that was killed, and the project's own runs.
    shutil.copytree("results/9-old", "results/.z-half.import-1")
    shutil.copytree("results/9-old", "results/reference/9-older")
    expected = {"0007-quick": "0007-quick", "0007": "0007-quick", "7": "0007-quick"}
    expected |= {"latest": "9-old", "9-old": "9-old", "0041-x": "0041-x"}
    assert {name: load_run(name).path.name for name in expected} == expected
    assert [path.name for path in runs_of()] == list(created)
    with pytest.raises(RunFolderError, match="0041-x or 0041-y"):
        load_run("41")
    with pytest.raises(RunFolderError, match=r"8: not a run folder.*ccbench list runs"):
        load_run("8")
    _written(tmp_path / "7")  # a path comes before a name
    assert named_run("7") == Path("7")


def test_whole_numbers_of_the_frame_stay_whole_when_some_are_missing(tmp_path: Path) -> None:
    run = load_run(_written(tmp_path / "run", measured(1024), failed(2048)))
    assert str(run.cases["slowest_rank"].dtype) == str(run.cases["size_bytes"].dtype) == "Int64"
    assert run.cases["slowest_rank"].isna().tolist() == [False, True]
    assert run.cases["size_bytes"].tolist() == [point.size_bytes for point in run.points]
    assert run.cases["median_seconds"].isna().tolist() == [False, True]
    assert list(run.cases.columns)[: run.table.num_columns] == run.table.column_names
