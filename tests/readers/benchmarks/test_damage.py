"""Damaged outputs: whatever was lost or flipped, a reader gives what is left or an error of ours."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccbench.errors import CcbenchError
from ccbench.flags import Flag
from ccbench.readers.benchmarks import log_of_text, readers
from ccbench.readers.benchmarks.log import ImportedLog, checked
from tests.readers.benchmarks import outputs
from tests.readers.benchmarks.logs import entries, name_of, needs_logs, text_of
from tests.readers.benchmarks.nccl_tests_outputs import output
from tests.readers.benchmarks.test_nccl_reports import REPORTS, document_text

NCCL_FORMS = {
    "nccl-tests": output(),
    "nccl-tests, tagged": output().replace("\n", "\n[1,0]<stdout>:"),
    "nccl-tests, JSON": document_text(),
    **{f"rccl-tests, report {number}": text for number, text in enumerate(REPORTS)},
}
FORMS = outputs.EVERY_OUTPUT | NCCL_FORMS


def read(text: str) -> ImportedLog | None:
    """The log, None where ccbench says that it is none; any other error is the test's failure.

    Sizes and figures of every row are checked to be such as a run can hold.
    """
    try:
        log = checked(log_of_text(text, "here"))
    except CcbenchError:
        return None
    assert_sound(log)
    return log


def assert_sound(log: ImportedLog) -> None:
    for table in log.tables:
        assert table.ranks is None or table.ranks >= 1
        for row in table.rows:
            figures = (row.seconds, row.algbw, row.busbw, *row.samples_seconds, *row.half_units)
            assert 0 <= row.size_bytes < 1 << 90
            assert set(row.flags) <= {*Flag}
            assert all(
                value is None or (math.isfinite(value) and value >= 0) for value in figures
            )


def figures_of(log: ImportedLog | None) -> set[tuple[Any, ...]]:
    return {
        (row.line, row.in_place, row.size_bytes, row.seconds, row.algbw, row.busbw)
        for table in (log.tables if log else ())
        for row in table.rows
        if row.seconds is not None
    }


def assert_cut_soundly(text: str, step: int) -> None:
    """An output that is cut anywhere has no more rows than the whole, and of nccl-tests' forms no others."""
    whole = log_of_text(text, "here")
    rows = sum(len(table.rows) for table in whole.tables)
    for end in range(0, len(text), step):
        log = read(text[:end])
        if log and log.tool == whole.tool in ("nccl-tests", "rccl-tests"):
            assert figures_of(log) <= figures_of(whole)
        elif log and log.tool == whole.tool:
            assert sum(len(table.rows) for table in log.tables) <= rows


@pytest.mark.thinned(6)
@pytest.mark.parametrize("form", FORMS)
def test_an_output_cut_anywhere_has_nothing_that_the_whole_has_not(form: str) -> None:
    assert_cut_soundly(FORMS[form], 7)


@needs_logs
@pytest.mark.thinned(2)
@pytest.mark.parametrize("entry", entries(), ids=name_of)
def test_a_published_output_cut_anywhere_is_read_or_refused(entry: dict[str, Any]) -> None:
    text = text_of(entry)
    assert_cut_soundly(text, max(64, len(text) // 60))


@pytest.mark.thinned(14)
@needs_logs
@pytest.mark.parametrize("entry", entries(), ids=name_of)
def test_a_published_output_with_flipped_bits_is_read_or_refused(entry: dict[str, Any]) -> None:
    chance = random.Random(entry["file"])
    data = bytearray(text_of(entry).encode())
    for _ in range(max(1, len(data) // 250)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    read(data.decode(errors="replace"))


@given(form=st.sampled_from(sorted(FORMS)), data=st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_flipped_bytes_are_read_or_refused(form: str, data: st.DataObject) -> None:
    damaged = bytearray(FORMS[form].encode())
    for _ in range(data.draw(st.integers(1, 8), label="flips")):
        place = data.draw(st.integers(0, len(damaged) - 1), label="place")
        damaged[place] = data.draw(st.integers(0, 255), label="byte")
    read(damaged.decode("utf-8", "backslashreplace"))


@given(form=st.sampled_from(sorted(FORMS)), data=st.data())
def test_lines_that_are_lost_doubled_or_swapped_are_read_or_refused(
    form: str, data: st.DataObject
) -> None:
    lines = FORMS[form].split("\n")
    places = st.lists(st.integers(0, len(lines) - 1), max_size=2 * len(lines))
    read("\n".join(lines[place] for place in data.draw(places, label="lines")))


WORDS = [
    "size",
    "count",
    "time",
    "algbw",
    "busbw",
    "#wrong",
    "#",
    "8",
    "-1",
    "1e99",
    "sum",
    "float",
    "...",
    "|",
    "\n",
    "9" * 25,
    "1.5",
    "N/A",
    "nan",
    "{",
    '"',
    "Rank 1",
    "minBytes 0 maxBytes 0 step: 0(factor)",
]


@given(st.text(max_size=400) | st.lists(st.sampled_from(WORDS), max_size=80).map(" ".join))
def test_any_text_is_read_or_refused_by_every_reader(text: str) -> None:
    for reader in readers().values():
        assert reader.recognises(text) in (True, False)
        assert_sound(checked(reader.read(text)))


def megabyte(kind: str) -> str:
    """1 MB of something that looks like the beginning of an output and goes on as garbage."""
    chance = random.Random(kind)
    words = {
        "bytes": lambda: bytes(chance.randrange(256) for _ in range(10**6)).decode("latin-1"),
        "digits": lambda: "".join(chance.choice("0123456789 .\n") for _ in range(10**6)),
    }
    return words[kind]() if kind in words else kind * (10**6 // len(kind))


PIECES = [
    "\n",
    "1 ",
    "| ",
    "|---|---|\n",
    '{"algBw":',
    "x",
    "1\n",
    "8 2 float sum -1\n",
    "[,",
    "\x00\xff",
    "0: ",
]


@pytest.mark.thinned(3)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", [*PIECES, "bytes", "digits"])
@pytest.mark.parametrize("form", ["", "OSU all-reduce"])
def test_a_megabyte_of_garbage_ends(kind: str, form: str) -> None:
    log = read(FORMS.get(form, "") + megabyte(kind))
    assert (
        form
        or kind in ("bytes", "digits")
        or log is None
        or not any(table.rows for table in log.tables)
    )
