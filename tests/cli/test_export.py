from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ccbench.results import Run
from tests.cli.conftest import Command
from tests.report.synthetic import sweep, write_run


@pytest.fixture(autouse=True)
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", sweep(last=12))


def test_the_text_format_goes_to_stdout(ccbench: Command) -> None:
    ended = ccbench("report", "run", "--format", "prometheus").done
    assert {"ccbench_median_seconds", "ccbench_run_info"} <= {
        family.name for family in text_string_to_metric_families(ended.out)
    }


def test_json_is_one_document(ccbench: Command) -> None:
    assert ccbench("report", "run", "--format", "json").json["format"] == "ccbench-summary"


def test_an_export_is_of_one_run_and_alone(ccbench: Command) -> None:
    for more in (("--format", "json,html"), ("run", "--format", "json")):
        assert "ask for it alone" in ccbench("report", "run", *more).refused.err


def test_a_report_of_which_no_case_can_be_read_is_no_verdict(
    ccbench: Command, run: Run
) -> None:
    for file in run.path.glob("cases/*.parquet"):
        file.write_bytes(b"cut")
    assert ccbench("report", "run", "--format", "md").code == 3


def test_a_file_is_replaced_as_a_whole_and_nothing_else_is_left(
    ccbench: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "textfile"
    folder.mkdir()
    (folder / "ccbench.prom").write_text("old")
    assert ccbench("report", "run", "--format", "prometheus", "-o", "textfile").code == 0
    assert [file.name for file in folder.iterdir()] == ["ccbench.prom"]
    assert (folder / "ccbench.prom").read_text().startswith("# HELP")


def test_a_dash_is_stdout_for_one_file_and_refused_for_a_folder(
    ccbench: Command, tmp_path: Path
) -> None:
    ended = ccbench("report", "run", "--format", "json", "-o", "-")
    assert ended.json == ccbench("report", "run", "--format", "json").json
    assert "-o -: stdout takes --format json" in ccbench("report", "run", "-o", "-").refused.err
    assert not (tmp_path / "-").exists()


def test_a_name_the_collector_would_not_read_is_remarked_on(ccbench: Command) -> None:
    assert ccbench("report", "run", "-o", "summary.json").code == 0
    assert Path("summary.json").is_file()
    assert (
        "end in .prom"
        in ccbench("report", "run", "--format", "prometheus", "-o", "metrics.txt").err
    )


def test_a_folder_that_is_no_run_is_a_mistake(ccbench: Command) -> None:
    assert "not a run folder" in ccbench("report", ".", "--format", "json").refused.err
