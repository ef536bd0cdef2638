"""What the commands share: where text goes, and how their options are read."""

from __future__ import annotations

import json
import shutil
import sys

import click

from ccbench.units import parse_duration

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, for machines.")


def say(text: str) -> None:
    """One line for a person on stderr; lost without complaint when nobody can read it."""
    try:
        click.echo(text, err=True)
    except (OSError, ValueError):
        return


def print_json(value: object) -> None:
    """``value`` as one JSON text on stdout."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def screen_width() -> int:
    """Columns of the terminal, 100 where stdout is none."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100


def duration(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Callback of an option such as ``10m``: seconds, or a usage error that says what to write."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
