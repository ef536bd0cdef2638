"""From run folders and published logs to advice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.analysis.tuning import advise, forced_from, timings_of
from ccbench.cases.axes import Case
from ccbench.errors import UsageError
from ccbench.readers.benchmarks import read_log
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.results import load_run
from ccbench.results.imported_runs import import_logs, write_import
from tests.report.synthetic import case, flagged, sweep, write_run

LOGS = Path(__file__).resolve().parents[4] / "shared" / "data" / "nccl_logs"


def logs(*names: str) -> list[Path]:
    files = [LOGS / name for name in names]
    if not all(file.is_file() for file in files):
        pytest.skip(f"the collected logs are not beside this checkout ({LOGS})")
    return files


def imported(tmp_path: Path, *names: str, devices: int | None = None) -> Path:
    system = StatedSystem("", devices, 1 if devices else None)
    logs_read = import_logs([(file, read_log(file)) for file in logs(*names)], system)
    return write_import(tmp_path / "run", logs_read, system, "logs")


def test_protocols_forced_on_two_ranks_of_one_gpu_are_ranked_as_published(
    tmp_path: Path,
) -> None:
    """NVIDIA RTX 5090, sockets, 128 MiB: Simple 2.55, LL128 1.02, LL 0.06 GB/s."""
    names = [
        f"awkward_rtx5090_2r1g_socket_all_reduce_{protocol}.txt"
        for protocol in ("ll", "ll128", "simple")
    ]
    run = load_run(imported(tmp_path, *names))
    forced = forced_from(
        f"all_reduce_{protocol}.txt=default/{protocol}"
        for protocol in ("ll", "ll128", "simple")
    )
    for advice in advise(timings_of([run], forced)):
        last = advice.bands[-1]
        assert last.high_bytes == 2**27
        assert last.choice is not None
        assert last.choice.protocol == "simple"
        assert last.without_interval


def test_measured_samples_and_their_rounds_are_taken_over(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sweep(algorithms=("ring", "tree")))
    timings = timings_of([run])
    assert len(timings) == len(run.points)
    assert {len(timing.samples_seconds) for timing in timings} == {30}
    assert {timing.round_samples for timing in timings} == {(5,) * 6}
    (advice,) = advise(timings)
    assert advice.situation.place == "epyc-2x64"
    assert advice.bands[-1].choice is not None
    assert advice.bands[-1].choice.algorithm == "ring"


def test_one_machine_name_with_two_processors_is_two_places(tmp_path: Path) -> None:
    runs = []
    for model in ("EPYC 7763", "Xeon 8480"):
        document = {
            "machine": {"name": "measured-2-cores"},
            "environment": {"processor": {"model": model}},
        }
        runs.append(
            write_run(tmp_path / model, sweep(algorithms=("ring", "tree")), manifest=document)
        )
    assert {timing.situation.place for timing in timings_of(runs)} == {
        "measured-2-cores, EPYC 7763",
        "measured-2-cores, Xeon 8480",
    }
    assert {timing.situation.place for timing in timings_of(runs[:1])} == {"measured-2-cores"}


def test_failed_cases_emulations_and_single_ranks_are_left_out(tmp_path: Path) -> None:
    cases: list[Case] = [case("all_reduce", "ring", 4096), case("all_reduce", "tree", 4096)]
    cases.append(replace(case("all_reduce", "ring", 8192), ranks=1))
    run = write_run(
        tmp_path / "run", cases, {0: lambda measurement: flagged(measurement, "emulation")}
    )
    assert [timing.choice.algorithm for timing in timings_of([run])] == ["tree"]


@pytest.mark.parametrize("text", ["ring", "=ring", "log=", "log=/ll"])
def test_a_forced_choice_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"write for example run2.log=ring/ll128"):
        forced_from([text])
