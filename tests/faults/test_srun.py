"""``srun -n N ccbench run ...`` is one run: one folder, one voice, one exit code. Slurm is a script here."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Bench
from tests.faults.test_launched_runs import FAKE_SRUN

SRUN = (FAKE_SRUN, "-n", "2")


def test_srun_makes_one_run_of_its_tasks(bench: Bench) -> None:
    ended = bench.run(bench.suite({"collective": "all_reduce"}), launcher=SRUN)
    assert ended.code == 0, ended.err
    assert ended.out.count("busbw in GB/s") == 1, ended.out
    assert ended.err.count("run folder: ") == 1, ended.err
    row = ended.row("all_reduce")
    assert (row["status"], row["ranks"], row["nodes"]) == ("ok", 2, 1)


@pytest.mark.parametrize(
    ("lie", "arguments", "words"),
    [
        ("sizes", (), "processes are numbered 0, 1 of 2 and 3"),
        pytest.param(
            "",
            ("--ranks", "3"),
            "--ranks 3: srun started 2 processes",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "",
            ("--launch", "mpirun -n 2"),
            "leave one of them out",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_tasks_that_are_no_run_of_their_own_are_refused_once(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.setenv("LYING_SRUN", lie)
    ended = bench.run(bench.suite({"collective": "all_reduce"}), *arguments, launcher=SRUN)
    assert ended.code == 2
    assert ended.err.count(words) == 1, ended.err
    assert not ended.folder.exists()
