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


COLUMNS = """
| size (B) | count | type | redop | latency (us) | min_lat | algbw (GB/s) | busbw (GB/s) |
|---|---|---|---|---|---|---|---|
| 1048576 | 262144 | float | sum | 40.00 | 39.00 | 26.21 | 45.87 |
| 4194304 | 1048576 | float | sum | 90.00 | 88.00 | 46.60 | 81.56 |
"""


@pytest.mark.parametrize(
    "case",
    """mype: 0 mype_node: 0 device name: NVIDIA H100 bus id: 7 => nvshmem
## NVSHMEM => nvshmem
**MSCCL++** => mscclpp
Of oneCCL: => oneccl
## RCCL all-reduce => rccl
# NIXL, 8 GPUs => nixl
## NCCL TABLE ## UCCL => nccl; uccl
NVSHMEM_HOME=/opt/nvshmem => nccl
# ls /opt/nvshmem/lib => nccl
lib,size,count,type,redop,time,algbw,busbw/UCCL,4194304,1048576,float,sum,90,46.60,81.56 => uccl""".splitlines(),
)
def test_a_table_is_of_the_library_that_is_named(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    title, _, right = case.partition(" => ")
    text = title.replace("TABLE ", COLUMNS) + COLUMNS
    if title.startswith("lib"):
        text = title.replace("/", "\n")
    cases, words = imported(tmp_path, text, capfd)
    assert cases.replace(" 8 0", "") == right
    assert ("NORMAL" in words) is (right in ("rccl", "nccl", "nccl; uccl"))


@pytest.mark.parametrize("begun", ["", "    16777216       4194304     float     sum      -1"])
@pytest.mark.parametrize(
    "crash",
    """[box0:41] *** Process received signal ***
Segmentation fault (core dumped)
box0: Test NCCL failure common.cu:1279 'unhandled cuda error'
box0: Test CUDA failure common.cu:350 'an illegal memory access was encountered'""".splitlines(),
)
def test_the_line_of_a_crash_is_read_and_no_size_after_it_is_told(
    crash: str, begun: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = WHOLE.partition("# Out of")[0].replace("maxBytes 4194304", "maxBytes 268435456")
    _, words = imported(tmp_path, whole + begun + crash + "\n", capfd)
    assert "the program crashed (line " in words
    assert "16 MiB" not in words
    assert "Not read" not in typed(capfd, "check", f"{tmp_path}/a.txt")


LINES = """box0:91:9{0} [{0}] NCCL INFO NVLS multicast support is not available on dev {0}
box0:91:9{0} [{0}] NCCL INFO comm 0x44{0}0 rank {0} nRanks 4 nNodes 1 localRanks 4 localRank {0} MNNVL 0
box0:91:9{0} [{0}] NCCL INFO Channel 00/0 : {0}[{0}] -> {1}[{1}] via P2P/direct pointer
"""


@pytest.mark.parametrize(
    "model", ["H100 80GB HBM3", "H200", "A100-SXM4-40GB", "GH200 120GB", "GB200"]
)
def test_boards_of_four_have_no_switches_whose_multicast_could_be_off(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    listed = (
        FIRST.replace("H100", model).replace("  0 ", "  {0} ").replace("10:00", "1{0}:00")
        + "\n"
    )
    text = "".join((listed + LINES).format(rank, (rank + 1) % 4) for rank in range(4))
    (tmp_path / "a.txt").write_text(HEAD + text)
    words = typed(capfd, "check", f"{tmp_path}/a.txt")
    assert "PROBLEM" not in words
    assert "NVSwitch" not in words
