"""Whole texts of people through ``ccbench``: shortened lists of devices, other libraries, crashes, boards of four."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.cli import main
from ccbench.results import load_run
from tests.readers.benchmarks.nccl_tests_outputs import output, row

WHOLE = output([row(1 << 20, time=40), row(4 << 20, time=90)])
HEAD, _, TABLE = WHOLE.partition("NCCL version 2.28.9+cuda13.0")
HEAD = HEAD.partition("#  Rank")[0]
FIRST = "#  Rank  0 Group  0 Pid 41 on box0 device  0 [0000:10:00] NVIDIA H100"


def typed(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit):
        main(list(words))
    return "".join(capfd.readouterr())


def imported(path: Path, text: str, capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """(library, ranks, nodes and model of each case, in words; what ``ccbench check`` says)."""
    (path / "a.txt").write_text(text)
    words = typed(capfd, "check", f"{path}/a.txt", "-o", f"{path}/run")
    cases = {
        f"{p.backend} {p.ranks} {p.nodes} {p.device_model}".strip()
        for p in load_run(path / "run").points
    }
    return "; ".join(sorted(cases)), words


@pytest.mark.parametrize(
    "case",
    """#  Rank  0 ... Rank  7  NVIDIA H100 => nccl 8 0 NVIDIA H100
# Rank 0..7 => nccl 8 0
# Rank 0-7 on box0 NVIDIA H100 => nccl 8 1 NVIDIA H100
#  Ranks 0 to 7 Group 0 Pid 41-48 on box0 device 0 to 7 NVIDIA H100 => nccl 8 1 NVIDIA H100
#  Rank  0 .. Rank  7 Group  0 Pid 41 on box0 device 0..7 [..] NVIDIA A100 => nccl 8 1 NVIDIA A100
# Rank 0-3 on box0 NVIDIA H100/# Rank 4-7 on box1 NVIDIA H100 => nccl 8 2 NVIDIA H100
FIRST/#  .../#  Rank  7 Group  0 Pid 48 on box0 device  7 [0000:17:00] NVIDIA H100 => nccl 8 1 NVIDIA H100
FIRST/# [...] => nccl 8 0 NVIDIA H100; the list of devices is shortened""".splitlines(),
)
def test_a_shortened_list_counts_the_ranks_that_it_says(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines, _, right = case.replace("FIRST", FIRST).partition(" => ")
    cases, words = imported(tmp_path, HEAD + lines.replace("/", "\n") + "\n" + TABLE, capfd)
    assert cases == right.partition("; ")[0]
    assert ("is shortened" in words) is ("is shortened" in right)
