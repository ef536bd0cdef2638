"""``man ccbench`` is made of the commands that there are."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from benchmarks.man_page import PAGE, escaped, page
from ccbench.cli import commands

WRITTEN = PAGE.read_text(encoding="utf-8")


def test_the_page_that_ships_is_of_today() -> None:
    assert page() == WRITTEN, "write it anew: python -m benchmarks.man_page"


@pytest.mark.parametrize("name", commands.commands)
def test_every_command_stands_in_the_page_with_every_option(name: str) -> None:
    (section,) = re.findall(
        rf"^\.SS ccbench {name} .*?(?=^\.S[SH])", WRITTEN, flags=re.MULTILINE | re.DOTALL
    )
    for parameter in commands.commands[name].params:
        if isinstance(parameter, click.Option):
            for option in parameter.opts:
                assert re.search(
                    rf"(?:fB|, ){re.escape(escaped(option))}(?:,|\\fR)", section
                ), option


def test_every_exit_code_stands_in_the_page() -> None:
    status = WRITTEN.partition(".SH EXIT STATUS\n")[2]
    codes_page = (PAGE.parent / "compare.md").read_text(encoding="utf-8")
    codes = re.findall(r"^\| (\d[\d, ]*) \|", codes_page, flags=re.MULTILINE)
    assert len(codes) >= 9
    assert [
        code
        for row in codes
        for code in row.split(", ")
        if code not in status.replace(",", "").split()
    ] == []


@pytest.mark.skipif(
    not shutil.which("groff"), reason="no groff: its warnings are not looked at"
)
def test_groff_sets_the_page_without_a_warning() -> None:
    ended = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-z", str(PAGE)], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
