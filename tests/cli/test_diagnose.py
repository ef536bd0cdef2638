"""``ccbench check`` as people type it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.analysis.nccl_logs import log
from tests.analysis.test_machine_rules import DOWN, UP, ibstat
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


def test_stdin_is_a_file_like_others(ccbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SOCKETS.encode())))
    ended = ccbench("check", "-", "-v")
    assert ended.code == 1
    assert "  stdin:7: NET/IB : No device found." in ended.out


def test_json_has_what_the_screen_has(ccbench: Command, paste: str) -> None:
    document = json.loads(ccbench("check", paste, "--json").out)
    assert document["outcome"] == "problem"
    assert document["sentence"].startswith("PROBLEM: ")
    (finding,) = document["findings"]
    assert finding["kind"] == "sockets_between_nodes"
    assert finding["evidence"][0] == {
        "file": "nccl.log",
        "line": 7,
        "quote": "NET/IB : No device found.",
    }
    assert document["read"][0]["form"] == "NCCL log"
    assert document["not_read"] == []


def test_files_of_one_incident_are_one_answer(ccbench: Command, paste: str) -> None:
    Path("ports.txt").write_text(ibstat(DOWN, UP), encoding="utf-8")
    ended = ccbench("check", paste, "ports.txt", "-v")
    assert ended.code == 1
    assert "(and 1 more problem)" in " ".join(ended.out.splitlines()[:2])
    assert "ports.txt:5: mlx5_0 port 1" in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.log",), "nothing.log: cannot be read (No such file or directory)"),
        (("nccl.log", "--network", "fast"), "fast"),
        (("nccl.log", "--gpu", "A100"), "complete a file that was named"),
    ],
)
def test_mistakes_are_one_line(
    ccbench: Command, paste: str, arguments: tuple[str, ...], message: str
) -> None:
    assert paste
    assert message in ccbench("check", *arguments).refused.err


def test_an_empty_file_is_not_recognised(ccbench: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    ended = ccbench("check", "empty.txt")
    assert ended.code == 3
    assert ended.out.startswith("CANNOT SAY: no line is of a form that ccbench knows")
