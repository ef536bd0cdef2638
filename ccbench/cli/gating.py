"""``--gate``: a verdict as exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ccbench.analysis.gate import Gate, GateOutcome
    from ccbench.analysis.speed_verdict import SpeedVerdict
    from ccbench.results import Run

Command = TypeVar("Command", bound=Callable[..., Any])


def gates(command: Command) -> Command:
    """Give ``command`` the option ``--gate``."""
    return click.option(
        "--gate",
        is_flag=False,
        flag_value="not-slow",
        metavar="[normal|not-slow|FILE]",
        help="A last line with the outcome, and why; normal: exit code 3 for LOW and FAST too; FILE: by "
        "'ccbench predict --gate-file'.",
    )(command)


def opened(name: str | None) -> Gate | None:
    """Gate of what was typed; called first, so that a mistake in a file shows before hours are measured."""
    if name is None:
        return None
    from ccbench.analysis.gate import open_gate

    return open_gate(name)


@dataclass(frozen=True)
class Gated:
    """Additions of a command for its gate: none without one. own_code: what it ends with then."""

    outcome: GateOutcome | None = None
    own_code: int = 0

    @property
    def lines(self) -> list[str]:
        """The last line of a command's text."""
        return [self.outcome.sentence] if self.outcome else []

    @property
    def keys(self) -> dict[str, Any]:
        """Keys of a command's JSON."""
        return {"gate": self.outcome.document} if self.outcome else {}

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return self.outcome.code if self.outcome else self.own_code


def gated(
    gate: Gate | None,
    own_code: int,
    runs: Sequence[Run],
    further: Sequence[SpeedVerdict] = (),
    answer: str = "",
) -> Gated:
    """Hold ``runs`` and ``further`` verdicts against ``gate``; without one their words are the exit code.

    own_code: exit code of the command but for verdicts. answer: the sentence of that code, where it has one.
    """
    from ccbench.analysis.gate import ended, gate_outcome, verdict_code

    if gate is None:
        return Gated(None, ended(own_code, verdict_code(runs, further)))
    return Gated(gate_outcome(gate, runs, further, own_code, answer), own_code)
