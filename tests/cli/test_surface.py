"""Commands and options are a promise: a change shows up here and in the change log."""

from __future__ import annotations

from pathlib import Path

import click

from ccbench.cli import commands

GOLDEN = Path(__file__).parent / "surface.txt"


def surface() -> str:
    lines = []
    for name, command in sorted(commands.commands.items()):
        lines.append(name)
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                many = "..." if parameter.nargs == -1 else ""
                shown = f"{(parameter.name or '').upper()}{many}"
            else:
                shown = ", ".join(parameter.opts)
            if isinstance(parameter.type, click.Choice):
                shown += f" {'|'.join(map(str, parameter.type.choices))}"
            needed = " (required)" if parameter.required else ""
            lines.append(f"  {shown}{needed}")
    return "\n".join(lines) + "\n"


def test_commands_and_options_are_the_promised_ones() -> None:
    assert surface() == GOLDEN.read_text()


def test_every_command_and_option_explains_itself() -> None:
    for name, command in commands.commands.items():
        assert command.help, name
        assert command.short_help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, f"{name} {parameter.opts}"
