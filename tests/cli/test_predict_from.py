"""``ccbench predict --from RUN``, and predictions with the file it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ccbench.model.calibrated import load_calibrated
from ccbench.model.library import LibraryRequest, PciePath
from ccbench.model.library.constants import scaled, shipped
from ccbench.model.library.predictor import seconds_of
from tests.cli.conftest import Command
from tests.model.planted import SCALES, base
from tests.readers.benchmarks.logs import LOGS, needs_logs
from tests.readers.benchmarks.nccl_tests_outputs import output
from tests.score.library_runs import SIZES, measurement, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run on the model's H100 board with planted scales."""
    table = scaled(shipped().table, SCALES)
    seconds = seconds_of(
        base("hgx-h100", 1).cluster.system, LibraryRequest("all_reduce", SIZES), table
    )
    cases = [measurement(size, float(time)) for size, time in zip(SIZES, seconds, strict=True)]
    return write_run(tmp_path / "run", cases)


@pytest.fixture
def mine(ccbench: Command, run: Path) -> tuple[str, ...]:
    """Words that ask for predictions with the file that the run is calibrated to."""
    assert (
        ccbench("predict", "--from", "run", "--machine", "hgx-h100", "-o", "mine.yaml").code
        == 0
    )
    return ("predict", "--machine", "mine.yaml", "--collective", "all_reduce")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run",), "does not say which machine"),
        (("run", "--machine", "gh200x4"), "which gh200x4 does not fit"),
        (("run", "--machine", "dgx-1000"), "does not fit"),
        (("run", "--machine", "cpu-shared-memory"), "has no GPU"),
        (("run", "--machine", "hgx-h100", "--ranks", "16"), "holds points on 8 ranks"),
        (("run", "--machine", "hgx-h100", "--nodes", "2"), "on 1 nodes"),
        (
            ("run", "--machine", "hgx-h100", "--network", "ib-ndr-400x8"),
            "--network ib-ndr-400x8: run holds points of 8 ranks on one node; leave it out",
        ),
        (("absent", "--machine", "hgx-h100"), "not a run folder"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_in_one_line_and_writes_nothing(
    ccbench: Command, run: Path, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    ended = ccbench("predict", "--from", *arguments, "-o", "mine.yaml").refused
    (line,) = ended.err.splitlines()
    assert sentence in line
    assert not (tmp_path / "mine.yaml").exists()


def test_a_run_that_is_faster_than_its_machine_is_remarked_on(
    ccbench: Command, run: Path
) -> None:
    ended = ccbench(
        "predict", "--from", "run", "--machine", "pcie3-x16", "-o", "mine.yaml"
    ).done
    assert "points are faster than anything can be on pcie3-x16" in ended.err


@pytest.mark.thinned(1)
@needs_logs
@pytest.mark.parametrize(
    ("log", "more"),
    [
        ("a100_16g_2n_all_reduce_dgxa100", ("--nodes", "2", "--network", "ib-hdr-200x8")),
        ("a100sxm_8g_1n_alltoall_sb", ()),
    ],
)
def test_a_published_log_is_imported_calibrated_and_predicted(
    ccbench: Command, tmp_path: Path, log: str, more: tuple[str, ...]
) -> None:
    assert LOGS is not None
    assert ccbench(
        "check", str(LOGS / f"{log}.txt"), "--machine", "dgx-a100", *more, "-o", "run"
    ).done
    assert ccbench("predict", "--from", "run", "-o", "mine.yaml").done
    calibrated = load_calibrated(tmp_path / "mine.yaml")
    (collective,) = calibrated.measured
    points = ccbench(
        "predict",
        "--machine",
        "mine.yaml",
        "--collective",
        collective,
        "--sizes",
        "1MiB:1GiB:4",
        "--json",
    ).json
    assert all(point["calibrated_seconds"] >= point["bound_seconds"] for point in points)


@pytest.mark.parametrize(
    ("way", "path"), [("SHM/direct", PciePath.HOST), ("P2P/IPC", PciePath.ACROSS)]
)
def test_the_path_that_a_log_shows_is_the_machines(
    ccbench: Command, tmp_path: Path, way: str, path: PciePath
) -> None:
    log = (Path(__file__).parent / "goldens/inputs/rtx_pro_shm.txt").read_text(encoding="utf-8")
    (tmp_path / "log.txt").write_text(log.replace("SHM/direct/direct", way))
    ccbench("check", "log.txt", "--machine", "pcie5-x16", "-o", "run")
    assert ccbench("predict", "--from", "run", "-o", "mine.yaml").done
    assert load_calibrated(tmp_path / "mine.yaml").cluster.system.path is path


def test_points_of_other_gpus_are_not_fitted_to_the_machine_that_is_named(
    ccbench: Command, tmp_path: Path
) -> None:
    (tmp_path / "log.txt").write_text(output().replace("H100 80GB HBM3", "GeForce RTX 4090"))
    assert ccbench("check", "log.txt", "-o", "run").code == 3
    ended = ccbench(
        "predict", "--from", "run", "--machine", "hgx-h100", "-o", "mine.yaml"
    ).refused
    assert (
        "hgx-h100 has NVIDIA H100 80GB HBM3, and the devices listed are NVIDIA GeForce RTX 4090"
        in ended.err
    )
    assert not (tmp_path / "mine.yaml").exists()


def test_a_calibration_that_has_grown_old_is_told(
    ccbench: Command, mine: tuple[str, ...], tmp_path: Path
) -> None:
    assert "days ago" not in ccbench(*mine, "--sizes", "8").done.err
    text = re.sub(
        r"calibrated_at: .*",
        "calibrated_at: '2020-01-01T00:00:00+00:00'",
        (tmp_path / "mine.yaml").read_text(),
    )
    (tmp_path / "mine.yaml").write_text(text)
    assert re.search(
        r"note: mine.yaml: .* was measured on 2020-01-01, .* days ago",
        ccbench(*mine, "--sizes", "8").done.err,
    )


@pytest.mark.parametrize(
    ("here", "noted"), [("570.86", True), ("550.54", False), (None, False)]
)
def test_a_calibration_of_another_driver_is_told(
    ccbench: Command, run: Path, monkeypatch: pytest.MonkeyPatch, here: str | None, noted: bool
) -> None:
    manifest = json.loads((run / "run.json").read_text())
    manifest.setdefault("environment", {})["accelerators"] = {"driver": "550.54"}
    (run / "run.json").write_text(json.dumps(manifest))
    assert (
        ccbench("predict", "--from", "run", "--machine", "hgx-h100", "-o", "mine.yaml").code
        == 0
    )
    assert load_calibrated("mine.yaml").driver == "550.54"
    monkeypatch.setattr("ccbench.machine.accelerators.driver_version", lambda files: here)
    ended = ccbench(
        "predict", "--machine", "mine.yaml", "--collective", "all_reduce", "--sizes", "8"
    ).done
    note = "was measured with driver 550.54, and this host has 570.86; drivers and libraries may have changed"
    assert (note in ended.err) is noted


def test_the_constants_beside_a_prediction_for_ascend_are_said_to_be_nccls(
    ccbench: Command,
) -> None:
    asked = "predict --machine ascend-910b --collective all_reduce --sizes 1KiB"
    assert "\nNCCL's own: by the constants" in ccbench(*asked.split()).out
