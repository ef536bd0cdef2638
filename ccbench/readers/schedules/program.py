"""Python files of the user with functions that build schedules, and the rows that name them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TypeVar

from ccbench.collectives import COLLECTIVES
from ccbench.errors import ScheduleError
from ccbench.schedules import Algorithm
from ccbench.schedules.schedule import Schedule
from ccbench.units import suggestion

T = TypeVar("T")
Build = Callable[[int, int], Schedule]

ROW = "Algorithm('all_reduce', 'star', star)"


def read_program(name: str, text: str) -> list[Algorithm]:
    """Run ``text`` and return its ALGORITHMS, whose functions name file and line where they fail.

    Raises ScheduleError for what fails while it runs, and for rows that are none.
    """
    module = ModuleType("ccbench_user_schedules")
    # Dataclasses look their module up.
    sys.modules[module.__name__] = module
    located(name, lambda: exec(compile(text, name, "exec"), module.__dict__))
    rows = getattr(module, "ALGORITHMS", None)
    if not isinstance(rows, list | tuple) or not rows:
        kind = "no ALGORITHMS" if rows is None else f"ALGORITHMS = {rows!r:.60}"
        raise ScheduleError(
            f"{name}: {kind}, expected a list of rows; write ALGORITHMS = [{ROW}]"
        )
    for place, row in enumerate(rows):
        if not isinstance(row, Algorithm) or not callable(row.build):
            raise ScheduleError(
                f"{name}: ALGORITHMS[{place}] is {row!r:.60}, expected an Algorithm with a function; "
                f"write {ROW}"
            )
        if row.collective not in COLLECTIVES:
            raise ScheduleError(
                f"{name}: ALGORITHMS[{place}]: collective {row.collective!r} is not known; "
                f"{suggestion(str(row.collective), COLLECTIVES)}"
            )

    def within_file(build: Build) -> Build:
        return lambda ranks, parameter: located(name, lambda: build(ranks, parameter))

    return [replace(row, build=within_file(row.build)) for row in rows]


def located(name: str, work: Callable[[], T]) -> T:
    """Return what ``work`` does; whatever it raises becomes a ScheduleError with the line of ``name``."""
    try:
        return work()
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == name
        ]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        where = name if line is None else f"{name}: line {line}"
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        # A refusal in ccbench's own words says by itself what was expected.
        if not isinstance(error, ScheduleError):
            what = f"{type(error).__name__}: {what}; expected a Schedule; correct that line"
        raise ScheduleError(f"{where}: {what}") from None
