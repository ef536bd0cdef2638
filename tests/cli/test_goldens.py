"""Whole command lines and what they print: commands.yaml, and a file for each of its names."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from ccbench import __version__
from tests.cli.conftest import Command
from tests.goldens import check

GOLDENS = Path(__file__).parent / "goldens"
REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "nvidia-h100-80gb-hbm3"
COMMANDS: dict[str, list[str]] = yaml.safe_load(
    (GOLDENS / "commands.yaml").read_text(encoding="utf-8")
)
VOLATILE = {
    re.escape(__version__): "VERSION",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d| UTC)?": "DATE",
    r"\S+/\.run\.\w{8}/new": "IMPORT",
    r"(\.\d{10})\d+": r"\1",
    # Releases of click differ here.
    r"Try 'ccbench.*' for help\.": "HELP",
    r"\[OPTIONS\] \[?COMMAND\]?": "[OPTIONS] COMMAND",
}
"""Patterns of what differs between days, libraries and processes, and what stands for it."""

PROGRESS = re.compile(r"check: \d+ of \d+ cases? written")


def steady(text: str, folder: Path) -> str:
    text = text.replace(f"{folder}/", "").replace(str(folder), "FOLDER")
    for pattern, word in VOLATILE.items():
        text = re.sub(pattern, word, text)
    return text


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_print_what_they_did(
    name: str, ccbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    shutil.copytree(GOLDENS / "inputs", tmp_path, dirs_exist_ok=True)
    (tmp_path / "reference").symlink_to(REFERENCE)
    printed = []
    for line in COMMANDS[name]:
        command, *arguments = shlex.split(line)
        if command == "show":
            files = sorted(Path().glob(*arguments))
            printed += [
                f"$ show {file}\n{file.read_text(encoding='utf-8')}\n" for file in files
            ]
            assert files, line
            continue
        monkeypatch.setattr("sys.argv", ["ccbench", command, *arguments])
        ended = ccbench(command, *arguments)
        printed.append(f"$ ccbench {line}\n{ended.out}")
        # Progress is shown where a machine is slow.
        errors = (error for error in ended.err.splitlines() if not PROGRESS.fullmatch(error))
        printed += [f"stderr: {error}\n" for error in errors]
        printed.append(f"exit {ended.code}\n\n")
    check(GOLDENS / f"{name.replace(' ', '_')}.txt", steady("".join(printed), tmp_path))


def test_every_golden_has_its_commands() -> None:
    kept = {path.stem for path in GOLDENS.glob("*.txt")}
    assert kept == {name.replace(" ", "_") for name in COMMANDS}
