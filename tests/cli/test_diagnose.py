"""``ccbench check`` as people type it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.nccl_logs import log
from tests.cli.conftest import Command

SOCKETS = log(between="NET/Socket/0", network="Socket", lines=["NET/IB : No device found."])


@pytest.fixture
def paste(tmp_path: Path) -> str:
    (tmp_path / "nccl.log").write_text(SOCKETS, encoding="utf-8")
    return "nccl.log"


def test_the_answer_is_the_first_line_and_the_exit_code(ccbench: Command, paste: str) -> None:
    ended = ccbench("check", paste)
    assert "Problem C043. Do: " in ended.out
    assert "nccl.log:7" not in ended.out
    ended = ccbench("check", paste, "-v")
    assert ended.code == 1
    assert ended.out.splitlines()[0].startswith(
        "PROBLEM: Data between nodes goes over TCP sockets"
    )
    assert "  nccl.log:7: NET/IB : No device found." in ended.out
    assert "Prove it: ccbench run knobs" in ended.out
    assert ended.out.splitlines()[-1].startswith(("Read: ", "note: ", "NCCL_DEBUG_SUBSYS"))
