"""``--gate``: a verdict as exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ccbench.analysis.gate import Gate

Command = TypeVar("Command", bound=Callable[..., Any])


def _open(context: click.Context, parameter: click.Parameter, name: str | None) -> Gate | None:
    """Read the file now: a mistake in it shows before hours are measured."""
    if name is None:
        return None
    from ccbench.analysis.gate import open_gate

    context.meta[f"ccbench.{parameter.name}"] = name
    return open_gate(name)


def gates(command: Command) -> Command:
    """Give ``command`` the option ``--gate``."""
    return click.option(
        "--gate",
        is_flag=False,
        flag_value="not-slow",
        metavar="[normal|not-slow|FILE]",
        callback=_open,
        help="Exit code 1 for SLOW and WRONG, 3 for CANNOT SAY; normal: 3 for FAST too; FILE: by "
        "'ccbench predict --gate-file'.",
    )(command)
