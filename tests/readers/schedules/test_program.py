"""Python files of the user: their rows, and what is said of their mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ccbench.errors import ScheduleError
from ccbench.readers.schedules import (
    ScheduleFile,
    open_schedule_files,
    schedule_files,
    use_schedule_files,
)
from ccbench.schedules import added_algorithms, algorithm_row, schedule_for

STAR = """
from ccbench.schedules import Algorithm
from ccbench.schedules.schedule import phase, schedule

def star(ranks, parameter):
    leaves = range(1, ranks)
    up = phase(leaves, 0, 0, reduces=True, fan_in=True)
    return schedule("all_reduce", "star", ranks, 1, [up, phase(0, leaves, 0)])

ALGORITHMS = [Algorithm("all_reduce", "star", star)]
"""


@pytest.fixture(autouse=True)
def _the_table_alone_afterwards() -> Iterator[None]:
    yield
    use_schedule_files(())


def use(text: str) -> None:
    use_schedule_files((ScheduleFile("my.py", text),))


def test_files_take_the_place_of_those_before() -> None:
    use(STAR)
    use(STAR.replace('"star"', '"sun"'))
    assert [row.name for row in added_algorithms()] == ["sun"]
    use_schedule_files(())
    assert (added_algorithms(), schedule_files()) == ((), ())


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("phase(0, leaves, 0)]", "phase(0, leves, 0)]", "my.py: line 8: NameError: .*leves"),
        ("return schedule", "schedule", "my.py: .*returned NoneType, expected a Schedule"),
        (
            '"all_reduce", "star", ranks',
            '"reduce", "star", ranks',
            "the schedule is reduce star 3",
        ),
        (
            "leaves = range(1, ranks)",
            "leaves = [7]",
            "phase 0: flow 0: source is 7, expected 0 to 2",
        ),
    ],
)
def test_a_function_that_fails_is_named_with_its_line(
    before: str, after: str, sentence: str
) -> None:
    use(STAR.replace(before, after, 1))
    with pytest.raises(ScheduleError, match=sentence):
        schedule_for("all_reduce", "star", 3)
    assert algorithm_row("all_reduce", "star").unsupported(3, 0) is not None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def star(:\n", "my.py: line 1: SyntaxError"),
        ("x = 1\n1 / 0\n", "my.py: line 2: ZeroDivisionError"),
        ("raise SystemExit(3)\n", "my.py: line 1: SystemExit: 3"),
        ("x = 1\n", r"my.py: no ALGORITHMS, expected a list of rows; write ALGORITHMS = \["),
        ("ALGORITHMS = []\n", r"ALGORITHMS = \[\], expected a list of rows"),
        ("ALGORITHMS = [print]\n", r"ALGORITHMS\[0\] is <built-in.*expected an Algorithm"),
        (STAR.replace('Algorithm("all_reduce"', 'Algorithm("allreduce"'), "did you mean"),
        (STAR.replace('"all_reduce", "star", star', '"all_reduce", "Star", star'), "'Star'"),
        (
            STAR.replace('"all_reduce", "star", star', '"all_reduce", "ring", star'),
            "of ccbench itself",
        ),
        (STAR + "ALGORITHMS *= 2\n", "all_reduce star is an algorithm of my.py already"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_what_to_write(
    text: str, sentence: str
) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        use(text)
    assert added_algorithms() == ()


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xff")
    for name, sentence in (("b.py", "No such file"), ("a.py", "byte 0"), ("c.txt", r"'\.txt'")):
        with pytest.raises(ScheduleError, match=sentence):
            open_schedule_files([tmp_path / name])
