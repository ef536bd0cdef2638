"""Run the command line in this process and look at what it left."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ccbench.cli import main


@dataclass(frozen=True)
class Ended:
    """How one command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as JSON."""
        return json.loads(self.out)

    @property
    def done(self) -> Ended:
        """Itself, where the command did what it was asked to."""
        assert self.code == 0, self.err
        return self

    def ends(self, code: int) -> Ended:
        """Itself, where the command ended with ``code``."""
        assert self.code == code, self.err
        return self

    @property
    def refused(self) -> Ended:
        """Itself, where a mistake of the user ended it: one line and nothing on stdout."""
        assert (self.code, self.out) == (2, "")
        *notes, mistake = self.err.splitlines()
        assert mistake.startswith(("ccbench: error: ", "Error: "))
        assert all(line.startswith(("note: ", "Usage: ", "Try ")) or not line for line in notes)
        return self


Command = Callable[..., Ended]


@pytest.fixture
def ccbench(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """``ccbench("run", "quick")`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as leaving:
            main(list(arguments))
        out, err = capfd.readouterr()
        code = leaving.value.code
        assert isinstance(code, int)
        return Ended(code, out, err)

    return run
