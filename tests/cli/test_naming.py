"""Names that the shell completes, and what a command says where one is missing."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from ccbench.cases.capabilities import backend_names
from ccbench.cli import COMPLETION_VARIABLE, commands
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.plan.document import shipped_plans
from ccbench.suite.model import shipped_suites
from ccbench.topology.files import catalog_names


def completed(line: str) -> list[tuple[str, str]]:
    """What the shell offers for the last word of a line: its text, and plain or a kind of file."""
    *words, last = line.split(" ")
    completion = ShellComplete(commands, {}, "ccbench", COMPLETION_VARIABLE)
    return [(item.value, item.type) for item in completion.get_completions(words, last)]


def names(line: str) -> set[str]:
    assert all(kind == "plain" for _, kind in completed(line))
    return {name for name, _ in completed(line)}


TAKES = {
    "--machine": {*catalog_names(), "detect"},
    "--network": {f"{kind}-{rate}x8" for kind, rate in (("ib-ndr", 400), ("roce", 100))},
    "--collective": set(COLLECTIVES),
    "--backend": set(backend_names()),
    "--dtype": set(ITEM_BYTES),
    "--algorithm": {"ring", "recursive_doubling"},
}


def options_that_name() -> list[tuple[str, str]]:
    return [
        (name, option)
        for name, command in commands.commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option in TAKES
    ]


@pytest.mark.parametrize(("command", "option"), options_that_name())
def test_an_option_that_takes_a_name_completes_it_in_every_command(
    command: str, option: str
) -> None:
    # Of a network the kinds alone are names: rates and NICs are the cluster's.
    assert TAKES[option] <= names(f"{command} {option} ")


def test_there_are_such_options_in_most_commands() -> None:
    assert len({command for command, _ in options_that_name()}) >= 7
    assert {option for _, option in options_that_name()} == set(TAKES)


def test_suites_plans_pages_and_published_results_are_completed() -> None:
    assert {*shipped_suites(), "all_reduce"} <= names("run ")
    assert set(shipped_plans()) == names("plan ")
    assert "published:hgx-h100" in names("compare published:h")
    assert "published:hgx-h100" in names("report RUN --baseline published:h")
    assert {"replay", "run"} <= names("help r")
