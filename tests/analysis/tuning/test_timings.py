"""From run folders and published logs to advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.analysis.tuning import advise, forced_from, timings_of
from ccbench.errors import UsageError
from ccbench.readers.benchmarks import read_log
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.results import load_run
from ccbench.results.imported_runs import import_logs, write_import

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


@pytest.mark.parametrize("text", ["ring", "=ring", "log=", "log=/ll"])
def test_a_forced_choice_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"write for example run2.log=ring/ll128"):
        forced_from([text])
