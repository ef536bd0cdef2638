"""Algorithms of the user's own files: Python that builds schedules, and plans of MSCCL++.

A file is read once, where the user has named it; what goes to other processes is its text. Rows of the files
stand beside the table in ``ccbench.schedules``, so whatever takes an algorithm by name takes theirs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ccbench.errors import ScheduleError
from ccbench.readers.schedules.mscclpp import read_mscclpp
from ccbench.readers.schedules.program import read_program
from ccbench.schedules import Algorithm, add_algorithms
from ccbench.schedules.proof import check_form
from ccbench.schedules.schedule import Schedule

NAME = re.compile(r"(?!default$|all$|schedule$)[a-z][a-z0-9_]{0,47}", re.ASCII)
"""Names that a suite can write; those excluded mean something else there."""

MOST_BYTES = 64 << 20
"""Of a file; the largest plans that are published have about 10 MB."""


@dataclass(frozen=True)
class ScheduleFile:
    """A file of algorithms. name: as the user wrote it, for messages."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


READERS: dict[str, Callable[[str, str], list[Algorithm]]] = {
    ".py": read_program,
    ".json": read_mscclpp,
}
"""By ending: (name, text) -> rows."""


def open_schedule_files(paths: Iterable[Path]) -> tuple[ScheduleFile, ...]:
    """Return the files at ``paths``; ScheduleError for what cannot be read or has another ending."""
    files = []
    for path in paths:
        if path.suffix not in READERS:
            raise ScheduleError(
                f"{path}: ends with {path.suffix or 'nothing'!r}, expected {', '.join(READERS)}"
            )
        try:
            content = path.read_bytes()
            if len(content) > MOST_BYTES:
                raise ScheduleError(
                    f"{path}: {len(content)} bytes, at most {MOST_BYTES} are read; is it a plan?"
                )
            files.append(ScheduleFile(str(path), content.decode()))
        except OSError as error:
            raise ScheduleError(
                f"{path}: cannot be read: {error.strerror}; check the path"
            ) from None
        except UnicodeDecodeError as error:
            raise ScheduleError(
                f"{path}: byte {error.start} is no UTF-8, expected text; save the file as UTF-8"
            ) from None
    return tuple(files)


_in_use: list[ScheduleFile] = []


def schedule_files() -> tuple[ScheduleFile, ...]:
    """Return the files whose algorithms this process has."""
    return tuple(_in_use)


def use_schedule_files(files: Sequence[ScheduleFile]) -> tuple[Algorithm, ...]:
    """Make the algorithms of ``files`` available by name, in place of those before; Python files are run.

    Raises ScheduleError naming file and line for what they get wrong.
    """
    rows = []
    for file in files:
        for row in READERS[Path(file.name).suffix](file.name, file.text):
            if not NAME.fullmatch(row.name):
                raise ScheduleError(
                    f"{file.name}: the name {row.name!r} of an algorithm, expected small letters, digits and "
                    "_ such as 'star'; rename it"
                )
            named = replace(row, file=file.name)
            rows.append(replace(named, build=_checked(named)))
    add_algorithms(rows)
    _in_use[:] = files
    return tuple(rows)


def _checked(row: Algorithm) -> Callable[[int, int], Schedule]:
    """Return the row's build, which is not trusted to return the schedule that the row announces."""
    own = row.build

    @lru_cache(maxsize=64)
    def build(ranks: int, parameter: int) -> Schedule:
        built = own(ranks, parameter)
        if not isinstance(built, Schedule):
            raise ScheduleError(
                f"{row.file}: {row.collective} {row.name} returned {type(built).__name__}, expected a "
                "Schedule; return schedule(...)"
            )
        announced = row.collective, row.name, ranks
        returned = built.collective, built.algorithm, built.ranks
        if returned != announced:
            raise ScheduleError(
                f"{row.file}: the schedule is {' '.join(map(str, returned))} ranks, expected "
                f"{' '.join(map(str, announced))} ranks; the row and its function must agree"
            )
        check_form(built)
        return built

    return build
