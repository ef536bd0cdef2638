"""Whatever happened to a text on its way: a log comes of it, with figures that the whole text has."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccbench.machine.flags import Flag
from ccbench.results.importers import nccl_reports, nccl_tests
from ccbench.results.importers.log import ImportedLog
from ccbench.results.importers.nccl_tests_columns import header_layout
from ccbench.results.importers.ranks import checked
from tests.results.importers.logs import entries, name_of, text_of
from tests.results.importers.nccl_tests_outputs import output
from tests.results.importers.test_nccl_reports import REPORTS
from tests.results.importers.test_nccl_tests_corpus import OURS
from tests.results.importers.test_nccl_tests_json import document_text

STEP = 64
MADE_UP = (output(), output().replace("\n", "\n[1,0]<stdout>:"), document_text(), *REPORTS)


def figures_of(log: ImportedLog) -> set[tuple[int, bool, int, float, float | None, float | None]]:
    return {
        (row.line, row.in_place, row.size_bytes, row.seconds, row.algbw, row.busbw)
        for table in log.tables
        for row in table.rows
        if row.seconds is not None
    }


def read(text: str) -> ImportedLog:
    """The log by the reader of the form, whichever it is."""
    return nccl_reports.read(text) if nccl_reports.recognises(text) else nccl_tests.read(text)


def read_soundly(text: str) -> ImportedLog:
    """The log, checked to be one that later stages can take."""
    nccl_tests.recognises(text)
    log = checked(read(text))
    for row in (row for table in log.tables for row in table.rows):
        assert 0 <= row.size_bytes < 1 << 90
        assert set(row.flags) <= {*Flag}
        assert row.seconds is None or 0 <= row.seconds < float("inf")
    return log


@pytest.mark.thinned(8)
@pytest.mark.parametrize("entry", OURS, ids=name_of)
def test_a_log_cut_anywhere_has_only_figures_of_the_whole_log(entry: dict[str, Any]) -> None:
    text = text_of(entry)
    whole = figures_of(read(text))
    for end in range(0, len(text), STEP):
        assert figures_of(read_soundly(text[:end])) <= whole


@pytest.mark.parametrize("text", MADE_UP)
def test_an_output_cut_at_any_column_has_only_figures_of_the_whole(text: str) -> None:
    whole = figures_of(read(text))
    for end in range(0, len(text), 3):
        assert figures_of(read_soundly(text[:end])) <= whole


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.sampled_from(MADE_UP),
    st.lists(st.tuples(st.integers(0, 1 << 14), st.characters()), min_size=1, max_size=20),
)
def test_characters_in_other_characters_places_break_nothing(
    text: str, changes: list[tuple[int, str]]
) -> None:
    characters = list(text)
    for position, character in changes:
        characters[position % len(characters)] = character
    read_soundly("".join(characters))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400))
def test_any_text_can_be_read(text: str) -> None:
    read_soundly(text)


WORDS = ["size", "count", "time", "algbw", "busbw", "#wrong", "#", "8", "-1", "1e99", "sum", "float", "..."]
WORDS += [
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


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=80))
def test_words_of_the_form_in_any_order_can_be_read(words: list[str]) -> None:
    read_soundly(" ".join(words))


@pytest.mark.parametrize("entry", entries(), ids=name_of)
def test_bytes_that_flipped_break_nothing(entry: dict[str, Any]) -> None:
    chance = random.Random(entry["file"])
    data = bytearray(text_of(entry).encode())
    for _ in range(2):
        for _ in range(max(1, len(data) // 500)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        read_soundly(data.decode(errors="replace"))


@pytest.mark.parametrize(
    "piece", ["x", "1\n", "8 2 float sum -1\n", "[,", "\x00\xff", "0: ", '{"version":1,"start_time":[']
)
def test_a_million_characters_of_nothing_give_no_table(piece: str) -> None:
    assert read_soundly(piece * (1_000_000 // len(piece))).tables == ()


@pytest.mark.parametrize(
    "words", ["size size algbw busbw", "size size time algbw busbw", "size algbw size busbw"]
)
def test_a_header_that_begins_a_second_table_before_its_figures_is_none(words: str) -> None:
    assert header_layout(words.split()) is None
