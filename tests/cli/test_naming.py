"""Names that the shell completes, and what a command says where one is missing."""

from __future__ import annotations

import click
import pytest
from click.shell_completion import ShellComplete

from ccbench.cases.capabilities import backend_names
from ccbench.cli import COMPLETION_VARIABLE, commands
from ccbench.cli.naming import networks
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.plan.document import shipped_plans
from ccbench.suite.model import shipped_suites
from ccbench.topology.files import catalog_names
from ccbench.topology.node_nics import KINDS, parse_network
from tests.cli.conftest import Command


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


def test_a_begin_is_completed_and_a_file_where_no_name_begins_so() -> None:
    machines = names("predict --machine hgx-h")
    assert "hgx-h100" in machines
    assert all(name.startswith("hgx-h") for name in machines)
    assert completed("predict --machine ./mi") == [("./mi", "file")]
    assert completed("run ./mi") == [("./mi", "file")]
    assert completed("plan ./mi") == [("./mi", "file")]


def test_suites_plans_pages_and_published_results_are_completed() -> None:
    assert {*shipped_suites(), "all_reduce"} <= names("run ")
    assert set(shipped_plans()) == names("plan ")
    assert "published:hgx-h100" in names("compare published:h")
    assert "published:hgx-h100" in names("report RUN --baseline published:h")
    assert {"replay", "run"} <= names("help r")


def test_algorithms_are_those_of_the_collective_before() -> None:
    of_barrier = names("predict --collective barrier --algorithm ")
    assert "dissemination" in of_barrier
    assert "ring" not in of_barrier


def test_every_network_that_is_offered_is_understood() -> None:
    offered = list(networks(click.Context(commands)))
    assert len(offered) == len(KINDS)
    assert all(map(parse_network, offered))


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("predict", "--machine hgx-h100, or another of 'ccbench list machines'"),
        (
            "predict --machine hgx-h100",
            "--collective all_reduce, or another of 'ccbench list collectives'",
        ),
        ("schedule", "another of 'ccbench list algorithms'"),
        ("schedule all_reduce ring", "--ranks 8"),
    ],
)
def test_a_missing_name_is_said_with_what_to_type(
    ccbench: Command, words: str, cure: str
) -> None:
    assert cure in ccbench(*words.split()).refused.err
