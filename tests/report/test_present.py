from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.report.present import (
    ShownColumn,
    Table,
    columns,
    csv_of,
    csv_text,
    documents,
    filled,
    fitted_lines,
    markdown,
    named,
    table_of,
)
from ccbench.report.writing import file_name
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


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a|b", "a&#124;b"),
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ("$x$", "&#36;x&#36;"),
        ("[link](u)", r"\[link\](u)"),
        ("all_reduce", "all_reduce"),
        ("_emphasis_", r"\_emphasis\_"),
        ("two\nlines", "two lines"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, safe: str) -> None:
    assert markdown(text) == safe


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
    assert re.fullmatch(r"[a-z0-9_-]{1,80}", file_name(text))


def test_what_a_narrow_screen_leaves_out_is_named() -> None:
    asked = (
        ShownColumn("case", right=False, tells=True),
        ShownColumn("size", keep=9),
        *columns("base", "new"),
    )
    rows = [
        ("all_reduce ring", "8 B", "1.2 us", "2 us"),
        ("all_reduce ring", "16 B", "1.3 us", "3 us"),
    ]
    lines = fitted_lines(Table(asked, rows), 12)
    assert " ".join(lines).endswith("not shown for want of width: base")
    assert [line.split()[0] for line in lines if " B " in line] == ["8", "16"]
    assert "want of width" not in " ".join(fitted_lines(Table(asked, rows), 80))


ROWS = ({"case": "=ring", "seconds": 1.23456789e-3}, {"case": "tree", "seconds": None})
COLUMNS = (
    ShownColumn("case", right=False, value="case", name="case"),
    ShownColumn("time", value="seconds", form="{:.3g} s".format, name="median_seconds"),
    ShownColumn("remark", value=lambda row: ""),
    *named("seconds"),
)


def test_one_column_gives_every_form_of_its_value() -> None:
    table = table_of(COLUMNS, ROWS)
    assert table.rows == [["=ring", "0.00123 s", ""], ["tree", "-", ""]]
    assert [column.title for column in filled(table).columns] == ["case", "time"]
    first, last = documents(COLUMNS, ROWS)
    assert first == {"case": "=ring", "median_seconds": 1.23456789e-3, "seconds": 1.23456789e-3}
    assert last == {"case": "tree", "median_seconds": None, "seconds": None}
    assert csv_of(COLUMNS, ROWS).splitlines() == [
        "case,median_seconds,seconds",
        "'=ring,0.00123456789,0.00123456789",
        "tree,,",
    ]
