"""What people posted, whole, as it was kept beside the checkout, and the right answer.

The texts are in ``../shared/cases``; instances of the same kinds that need no folder are in the tests of each
module.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="no cases beside the checkout")

ANSWERS = (
    # command, files, options, exit code, what stdout says, what it does not
    (
        "check",
        "logs/01_wrong*.txt",
        "--network slingshot-200x4",
        1,
        "^WRONG: .*2 of 16 cases",
        "NORMAL",
    ),
    ("check", "logs/05_osu*.txt", "--machine dgx-a100", 0, "1 table, 3 rows", ""),
    (
        "check",
        "logs/08_nics*.txt",
        "--machine hgx-h100 --nodes 16 --network slingshot-200x2",
        5,
        "^NORMAL: ",
        "FAST",
    ),
    ("check", "logs/09_h20*.txt", "", 0, "^NORMAL: ", ""),
    ("check", "logs/12_logger*.txt", "", 0, "1 table, 4 rows", ""),
    ("check", "logs/13_journal*.txt", "", 0, "1 table, 4 rows", ""),
    (
        "check",
        "logs/16_cputime*.txt",
        "--network ib-ndr-400x8",
        3,
        "^CANNOT SAY: .*flagged cpu_time",
        "NORMAL",
    ),
    ("check", "logs/21_mi300x*.txt", "", 0, "^NORMAL: .*middle sizes", "FAST"),
    ("check", "logs/17_csv*.txt", "--ranks 8", 0, "1 table, 2 rows", ""),
    (
        "check",
        "logs/18_cause*.txt",
        "--machine pcie5-x16 --nodes 2 --network roce-400x8",
        1,
        "slower from 32 MiB to .*drops or reorders packets",
        "sockets",
    ),
    ("check", "logs/19b*.txt", "", 0, "^NORMAL: .*647 GB/s", ""),
    (
        "check",
        "reports/r17*/log.txt",
        "--machine rtx-pcie",
        0,
        "NCCL_SHM_USE_CUDA_MEMCPY=1",
        "clocks",
    ),
    ("check", "reports/r18*/log.txt", "", 1, "^SLOW: .*2.8[23] GB/s", ""),
    (
        "check",
        "reports/r02*/no_gdr.txt",
        "",
        1,
        "^PROBLEM: GPUDirect RDMA is off for mlx5_0",
        "",
    ),
    (
        "check",
        "reports/r02*/plugin_failed.txt",
        "",
        1,
        "^PROBLEM: The network plug-in found no provider",
        "",
    ),
    ("check", "reports/r02*/shm.txt", "", 3, r"host memory \(SHM\)", ""),
    (
        "check",
        "reports/r02*/socket.txt",
        "",
        1,
        "^PROBLEM: Data between nodes goes over TCP sockets",
        "",
    ),
    (
        "topo",
        "reports/r03*/topo.txt",
        "",
        0,
        "path 'MX' is not known; kept as printed in 6 cells",
        "truncated",
    ),
    ("topo", "reports/r06*/topo.txt", "", 0, "2 GPUs, .*2 processors", ""),
    ("topo", "reports/r07*/p2p.txt", "", 0, "OK for all pairs", ""),
    (
        "topo",
        "reports/r08*/log.txt",
        "--json",
        0,
        "1 line torn into each other",
        '"97h',
    ),
    ("topo", "reports/r16*/topo.xml", "", 0, "a virtual machine that hides the PCIe tree", ""),
    ("replay", "reports/r10*", "", 0, "rank 1 stopped before call 501", ""),
    (
        "replay",
        "reports/r12*",
        "",
        0,
        "rank 3 stopped before call 501 of process group '2'",
        "links",
    ),
    ("replay", "reports/r14*/log.txt", "", 0, "rank 2 stopped in call 3", ""),
    ("check", "reports/r20*/p2pbw.txt", "", 1, "6.11 GB/s in both directions together", ""),
    (
        "check",
        "reports/r20*/ibstat.txt",
        "",
        1,
        r"mlx5_0 \(Polling\); up: mlx5_1 400 Gb/s",
        "",
    ),
    ("check", "reports/r20*/ibdev.txt", "", 3, "2 of 4 ports of NICs are down", ""),
)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("command", "files", "options", "code", "says", "never"),
    ANSWERS,
    ids=[f"{answer[0]} {answer[1].split('/')[-1] or answer[1]}" for answer in ANSWERS],
)
def test_what_somebody_posted_is_answered(
    command: str, files: str, options: str, code: int, says: str, never: str, ccbench: Command
) -> None:
    (path,) = CASES.glob(files)
    ended = ccbench(command, str(path), *options.split())
    text = " ".join(ended.out.split())
    assert ended.code == code, ended.out + ended.err
    assert re.search(says, text), ended.out
    assert not never or never not in text, ended.out
