from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.analysis.history import (
    changed,
    facts_of,
    history_document,
    history_lines,
    history_of,
    machine_of,
    run_folders,
)
from ccbench.errors import RunFolderError
from ccbench.results import Manifest
from tests.analysis.history.made import manifest, write_history
from tests.report.synthetic import case, write_run

STEPPED = [1.0] * 7 + [1.25] * 4


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("history") / "results"
    write_history(root, STEPPED, {3: {"nccl": "2.27"}, 7: {"kernel": "6.8"}})
    return root


def test_a_step_is_told_with_its_size_its_run_and_what_changed_with_it(stepped: Path) -> None:
    changes = history_of(run_folders([stepped])).changes
    assert len(changes) == 2  # two sizes
    for change in changes:
        assert change.change == pytest.approx(0.25, abs=0.03)
        assert change.run == "run-node7-008"
        assert change.runs_after == 4
        assert change.environment == ("kernel 6.1 -> 6.8",)


def test_changes_of_the_environment_are_kept_where_nothing_stepped_too(stepped: Path) -> None:
    for series in history_of(run_folders([stepped])).series:
        assert series.moved == {3: ("nccl not recorded -> 2.27",), 7: ("kernel 6.1 -> 6.8",)}


def test_machines_are_kept_apart_unless_they_are_alike_and_it_is_asked_for(
    tmp_path: Path,
) -> None:
    write_history(tmp_path, [1.0] * 4, host="node7", last=10)
    write_history(tmp_path, [1.4] * 4, first=4, host="node8", last=10)
    folders = run_folders([tmp_path])
    apart = history_of(folders)
    assert [len(series.seen) for series in apart.series] == [4, 4]
    assert apart.changes == ()
    (change,) = history_of(folders, group_by_hardware=True).changes
    assert change.change == pytest.approx(0.4, abs=0.05)


def test_runs_are_ordered_by_when_they_began_not_by_name(tmp_path: Path) -> None:
    write_history(tmp_path, [1.0] * 6, first=6, host="a", last=10)
    write_history(tmp_path, [2.0] * 6, first=0, host="b", last=10)
    (series,) = history_of(run_folders([tmp_path]), group_by_hardware=True).series
    assert [entry.created_at for entry in series.seen] == sorted(
        entry.created_at for entry in series.seen
    )
    (change,) = series.changes
    assert change.change < 0


def test_a_case_that_a_run_holds_several_times_is_one_value_of_the_series(
    tmp_path: Path,
) -> None:
    first = case("all_reduce", "ring", 4096)
    write_run(
        tmp_path / "run", [first, replace(first, count=first.count + 1)], manifest=manifest()
    )
    (series,) = history_of(run_folders([tmp_path])).series
    assert len(series.seen) == 1


def test_only_chooses_series_by_their_name(stepped: Path) -> None:
    runs_history = history_of(run_folders([stepped]), only="4 KiB")
    assert [series.label for series in runs_history.series] == [
        "cpu all_reduce ring float32 sum 4 ranks 4 KiB"
    ]


def test_a_folder_is_found_once_and_what_is_no_folder_is_refused(stepped: Path) -> None:
    folders = run_folders([stepped, stepped / "run-node7-001", stepped.parent])
    assert len(folders) == len(STEPPED)
    with pytest.raises(RunFolderError, match="name one that holds run folders"):
        run_folders([stepped / "absent"])


def test_a_run_that_cannot_be_read_is_a_problem_and_the_rest_is_told(tmp_path: Path) -> None:
    write_history(tmp_path, [1.0] * 3, last=10)
    next((tmp_path / "run-node7-002" / "cases").glob("*.parquet")).write_bytes(b"PAR1")
    runs_history = history_of(run_folders([tmp_path]))
    assert len(runs_history.problems) == 1
    assert [len(series.seen) for series in runs_history.series] == [2]


def test_the_screen_shows_the_newest_steps_and_says_when_runs_are_too_few(
    stepped: Path, tmp_path: Path
) -> None:
    lines = history_lines(history_of(run_folders([stepped])))
    assert lines[0].startswith("2026-01-09 05:00  +2")
    assert lines[2] == "    kernel 6.1 -> 6.8"
    assert lines[-1] == "11 runs, 2 series, 2 steps"
    write_history(tmp_path, [1.0] * 2, last=10)
    assert (
        "CANNOT SAY: 2 runs, 6 needed" in history_lines(history_of(run_folders([tmp_path])))[-1]
    )


def test_the_document_has_every_run_level_and_step(stepped: Path) -> None:
    document = history_document(history_of(run_folders([stepped])))
    assert (document["version"], document["runs"]) == (1, 11)
    assert len(document["steps"]) == 2
    for series in document["series"]:
        assert len(series["runs"]) == 11
        assert [(level["first_run"], level["last_run"]) for level in series["levels"]] == [
            (0, 6),
            (7, 10),
        ]


def test_facts_have_names_people_use_and_nothing_unknown() -> None:
    facts = facts_of(Manifest(manifest(nccl="2.27.5")))
    assert facts["kernel"] == "6.1"
    assert facts["driver"] == "570.86"
    assert facts["nccl"] == "2.27.5"
    assert facts["numpy"] == "2.1"
    assert "iommu" not in facts
    assert facts_of(Manifest({})) == {}
    assert facts_of(Manifest({"environment": ["not", "a", "mapping"], "versions": 3})) == {}


def test_a_machine_is_its_host_processor_and_gpus() -> None:
    document = manifest()
    document["environment"]["accelerators"]["gpus"] = [{"name": "H100"}, {"name": "H100"}]
    assert machine_of(Manifest(document)) == "node7, AMD EPYC 7763, 128 cores, 2 x H100"
    assert (
        machine_of(Manifest(document), group_by_hardware=True)
        == "AMD EPYC 7763, 128 cores, 2 x H100"
    )
    assert machine_of(Manifest({"machine": {"name": "hgx-h100"}})) == "hgx-h100"


def test_what_appears_and_what_disappears_is_a_change() -> None:
    assert changed({"a": "1", "b": "2"}, {"b": "2", "C": "3"}) == (
        "a 1 -> not recorded",
        "C not recorded -> 3",
    )
