"""Damaged outputs: whatever was lost or flipped, a reader gives what is left or an error of ours."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.errors import CcbenchError
from ccbench.results.importers import READERS, log_of_text, reader
from ccbench.results.importers.log import ImportedLog
from tests.results.importers import outputs
from tests.results.importers.logs import entries, name_of, needs_logs, text_of

OWN = tuple(name for name in READERS if name not in ("nccl_tests", "nccl_reports"))
"""Readers of tools that do not print nccl-tests' table."""

KINDS = ("cpu_osu", "cpu_gloo", "torch", "mscclpp", "nccom", "_md.txt")

published = [entry for entry in entries() if any(kind in entry["file"] for kind in KINDS)]


def read(text: str) -> ImportedLog | None:
    """The log, None where ccbench says that it is none; any other error is the test's failure."""
    try:
        return log_of_text(text, "here")
    except CcbenchError:
        return None


def assert_sound(log: ImportedLog | None) -> None:
    """Sizes and figures of every row are such as a run can hold."""
    for table in log.tables if log else ():
        assert table.ranks is None or table.ranks >= 1
        for row in table.rows:
            figures = (row.seconds, row.algbw, row.busbw, *row.samples_seconds, *row.half_units)
            assert row.size_bytes >= 0
            assert all(value is None or (math.isfinite(value) and value >= 0) for value in figures)


@pytest.mark.parametrize("form", outputs.EVERY_OUTPUT)
def test_an_output_cut_anywhere_gives_no_more_rows_than_the_whole(form: str) -> None:
    text = outputs.EVERY_OUTPUT[form]
    whole = log_of_text(text, "here")
    rows = sum(len(table.rows) for table in whole.tables)
    for end in range(0, len(text), 7):
        log = read(text[:end])
        assert_sound(log)
        assert log is None or log.tool != whole.tool or sum(len(table.rows) for table in log.tables) <= rows


@needs_logs
@pytest.mark.parametrize("entry", published, ids=name_of)
def test_a_published_output_cut_anywhere_is_read_or_refused(entry: dict[str, Any]) -> None:
    text = text_of(entry)
    # Every 64 characters; long logs, whose blocks repeat, at 60 places all over.
    for end in range(0, len(text), max(64, len(text) // 60)):
        assert_sound(read(text[:end]))


@given(form=st.sampled_from(sorted(outputs.EVERY_OUTPUT)), data=st.data())
@settings(max_examples=300, deadline=None)
def test_flipped_bytes_are_read_or_refused(form: str, data: st.DataObject) -> None:
    damaged = bytearray(outputs.EVERY_OUTPUT[form].encode())
    for _ in range(data.draw(st.integers(1, 8), label="flips")):
        place = data.draw(st.integers(0, len(damaged) - 1), label="place")
        damaged[place] = data.draw(st.integers(0, 255), label="byte")
    assert_sound(read(damaged.decode("utf-8", "backslashreplace")))


@given(form=st.sampled_from(sorted(outputs.EVERY_OUTPUT)), data=st.data())
@settings(max_examples=150, deadline=None)
def test_lines_that_are_lost_doubled_or_swapped_are_read_or_refused(form: str, data: st.DataObject) -> None:
    lines = outputs.EVERY_OUTPUT[form].split("\n")
    places = st.lists(st.integers(0, len(lines) - 1), max_size=2 * len(lines))
    assert_sound(read("\n".join(lines[place] for place in data.draw(places, label="lines"))))


@given(st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused_by_every_reader(text: str) -> None:
    for name in OWN:
        module = reader(name)
        assert module.recognises(text) in (True, False)
        assert_sound(module.read(text))


def megabyte(kind: str) -> str:
    """1 MB of something that looks like the beginning of an output and goes on as garbage."""
    chance = random.Random(kind)
    words = {
        "blank lines": "\n" * 10**6,
        "one line": "1 " * 500_000,
        "bars": "| " * 500_000,
        "rules": "|---|---|\n" * 100_000,
        "braces": '{"algBw":' * 110_000,
        "bytes": bytes(chance.randrange(256) for _ in range(10**6)).decode("latin-1"),
        "digits": "".join(chance.choice("0123456789 .\n") for _ in range(10**6)),
    }
    return words[kind]


@pytest.mark.thinned(3)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["blank lines", "one line", "bars", "rules", "braces", "bytes", "digits"])
@pytest.mark.parametrize("form", ["", "OSU all-reduce", "torch blocks", "Markdown"])
def test_a_megabyte_of_garbage_ends(kind: str, form: str) -> None:
    assert_sound(read(outputs.EVERY_OUTPUT.get(form, "") + megabyte(kind)))
