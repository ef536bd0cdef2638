from __future__ import annotations

import csv
import io
import re

from hypothesis import given
from hypothesis import strategies as st

from ccbench.report.present import (
    csv_text,
    markdown,
)
from ccbench.report.writing import unique_names
from ccbench.units import plain


@given(st.text())
def test_plain_text_is_one_line_of_printable_characters(text: str) -> None:
    line = plain(text, 40)
    assert len(line) <= 40
    assert line.isprintable()
    line.encode()


@given(st.text())
def test_markdown_text_cannot_leave_its_cell_or_become_a_tag(text: str) -> None:
    safe = markdown(text)
    assert not re.search(r"[<>|]", safe)
    assert "\n" not in safe


@given(st.text())
def test_no_csv_cell_starts_like_a_formula(text: str) -> None:
    cell = csv_text(text)
    assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r")
    sink = io.StringIO()
    csv.writer(sink).writerow([cell, "next"])
    (row,) = csv.reader(io.StringIO(sink.getvalue()))
    assert row == [cell, "next"]


def test_a_formula_is_kept_readable_behind_an_apostrophe() -> None:
    assert csv_text("=cmd|' /C calc'!A0") == "'=cmd|' /C calc'!A0"
    assert csv_text("\t=1+1") == "'=1+1"
    assert csv_text("ring") == "ring"


@given(st.text(max_size=300))
def test_file_names_are_plain(text: str) -> None:
    (name,) = unique_names([text])
    assert re.fullmatch(r"[a-z0-9_-]{1,80}", name)
