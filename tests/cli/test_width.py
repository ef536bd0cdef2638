"""Lines of commands keep to a screen whose width is set."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command

WIDTH = 70


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (("list",), ()),
        (("list", "machines"), ()),
        (("list", "suites"), ()),
        (("doctor",), ()),
        (("tune", "r"), ()),
        (
            ("predict", "--machine", "hgx-h100", "--collective", "all_reduce", "--ranks", "8"),
            ("algorithm", "size", "predicted"),
        ),
        (("plan", "gpt3"), ("axis", "collective", "total")),
    ],
)
def test_no_line_is_longer_than_the_screen(
    ccbench: Command,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    kept: tuple[str, ...],
) -> None:
    if "r" in arguments:
        sweep = (
            "-b",
            "1K",
            "-e",
            "4K",
            "-g",
            "4",
            "--oversubscribe",
            "--rounds",
            "1",
            "-n",
            "3",
        )
        ccbench("run", "all_reduce", *sweep, "--backend", "cpu", "-o", "r", "--no-report")
    whole = ccbench(*arguments).out
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    narrow = ccbench(*arguments).out
    # What is one word, as a path, stays whole behind its indentation.
    longer = [line for line in narrow.splitlines() if len(line) > WIDTH and " " in line.strip()]
    assert longer == []
    for column in kept:
        assert column in narrow.split()
    assert max(map(len, whole.splitlines())) > WIDTH
