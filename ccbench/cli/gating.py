"""``--gate``: a verdict as exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ccbench.analysis.gate import Gate

Command = TypeVar("Command", bound=Callable[..., Any])


def gates(command: Command) -> Command:
    """Give ``command`` the option ``--gate``."""
    return click.option(
        "--gate",
        is_flag=False,
        flag_value="not-slow",
        metavar="[normal|not-slow|FILE]",
        help="Exit code 1 for SLOW and WRONG, 3 for CANNOT SAY; normal: 3 for FAST too; FILE: by "
        "'ccbench predict --gate-file'.",
    )(command)


def opened(name: str | None) -> Gate | None:
    """Gate of what was typed; called first, so that a mistake in a file shows before hours are measured."""
    if name is None:
        return None
    from ccbench.analysis.gate import open_gate

    return open_gate(name)
