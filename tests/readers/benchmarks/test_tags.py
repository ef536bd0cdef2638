"""What loggers, launchers and people write before and around the lines of a log hides no row."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.readers.benchmarks import log_of_text
from ccbench.readers.benchmarks.log import ImportedLog
from tests.readers.benchmarks import outputs
from tests.readers.benchmarks.nccl_tests_outputs import output

PLAIN = output().replace("#\n", "NCCL version 2.21.5+cuda12.4\n#\n", 1)


def tagged(text: str, tags: list[str]) -> str:
    lines = zip(text.splitlines(keepends=True), cycle(tags), strict=False)
    return "".join(tag.format(n=number) + line for number, (line, tag) in enumerate(lines))


def content_of(log: ImportedLog) -> Any:
    """Everything of a log but remarks."""
    return (log.tool, log.library, log.tables, log.devices, log.versions, log.outcome)


WORDS = (
    "INFO",
    "stdout",
    "bench",
    "mpi-launcher",
    "box{n}",
    "ash",
    "r{n}",
    "{n}",
    "main.py:88",
)
STAMPS = ("2026-04-02 09:11:04.{n:03}", "Apr 12 09:11:{n:02}", "09:11:{n:02},{n:03}", "")
FRAMES = ("{}: ", "[{}] ", "<{}> ", "({}): ", "{} | ", "{} - ")


@st.composite
def any_tag(draw: st.DrawFn) -> str:
    """A stamp, or none, and one to three words, the last of which a sign ends."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
    frame = draw(st.sampled_from(FRAMES))
    stamp = draw(st.sampled_from(STAMPS))
    return " ".join(filter(None, (stamp, *words[:-1], frame.format(words[-1]))))


@settings(max_examples=25, deadline=None)
@given(
    form=st.sampled_from(["nccl-tests", "OSU all-reduce", "HCCL"]),
    tag=any_tag(),
    indent=st.sampled_from(["", "  ", "\t"]),
    end=st.sampled_from(["\n", "\r\n", "\x1b[0m\n"]),
)
def test_any_tag_indentation_and_end_of_line_change_nothing_but_remarks(
    form: str, tag: str, indent: str, end: str
) -> None:
    text = {**outputs.EVERY_OUTPUT, "nccl-tests": PLAIN, "HCCL": outputs.HCCL}[form]
    changed = tagged("".join(indent + line for line in text.splitlines(keepends=True)), [tag])
    changed = changed.replace("\n", end)
    assert content_of(log_of_text(changed, "log")) == content_of(log_of_text(text, "log"))


@pytest.mark.exhaustive
@settings(max_examples=15, deadline=None)
@given(tag=any_tag(), data=st.data())
def test_a_tagged_log_that_is_cut_has_the_rows_before_the_cut(
    tag: str, data: st.DataObject
) -> None:
    text = tagged(PLAIN, [tag])
    end = data.draw(st.integers(text.index("float") - 30, len(text)))
    whole = log_of_text(text, "log").tables[0].rows
    last = text[:end].count("\n")
    try:
        tables = log_of_text(text[:end], "log").tables
    except UsageError:
        tables = ()
    rows = [row for table in tables for row in table.rows if row.line <= last]
    assert rows == [row for row in whole if row.line <= last]
