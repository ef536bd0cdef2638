"""Every published log: each row of each table is found, with the figures of its line."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from ccbench.collectives import COLLECTIVES
from ccbench.flags import Flag
from ccbench.readers.benchmarks import nccl_tests
from ccbench.readers.benchmarks.log import ImportedLog, checked
from tests.readers.benchmarks.logs import entries, name_of, needs_logs, text_of

pytestmark = needs_logs

TYPE = r"(?:u?int(?:8|32|64)|half|float|double|bfloat16|f8e[45]m[23])"
FORMS = (
    re.compile(rf"(?<![\w.])\d+ +\d+ +{TYPE} (?:.*? )?[\d.]+ +[\d.]+ +[\d.]+"),
    re.compile(r" *\d[\d_]+ +[\d.]+ +\d+\.\d\d +\d+\.\d\d *"),
)
"""Rows of the two forms there are: with a type, and with four columns only. Lines are searched whole."""

WORDS = {"alltoall": "all_to_all", "sendrecv": "send_recv"}


def counted(text: str) -> list[int]:
    """Numbers of the lines that hold a row, found without any knowledge of headers, tables or prefixes."""
    lines = enumerate(text.split("\n"), start=1)
    return [n for n, line in lines if FORMS[0].search(line) or FORMS[1].fullmatch(line)]


def is_ours(entry: dict[str, Any]) -> bool:
    """Whether a log is of nccl-tests' form, by words that only its headers and rows put into one line."""
    text = text_of(entry)
    named = re.search(r"size +.*time +algbw +busbw|nThread .*minBytes", text) is not None
    return named or bool(re.search(rf"\d +\d+ +{TYPE} ", text))


OURS = [entry for entry in entries() if is_ours(entry)]


@functools.cache
def _log_of(name: str) -> ImportedLog:
    return checked(nccl_tests.read(text_of({"file": name})))


def log_of(entry: dict[str, Any]) -> ImportedLog:
    return _log_of(name_of(entry))


@pytest.mark.parametrize("entry", entries(), ids=name_of)
def test_logs_of_this_form_are_recognised_and_no_others(entry: dict[str, Any]) -> None:
    assert nccl_tests.recognises(text_of(entry)) is is_ours(entry)


@pytest.mark.parametrize("entry", OURS, ids=name_of)
def test_every_row_of_a_log_is_found_and_no_other(entry: dict[str, Any]) -> None:
    row_lines = sorted({row.line for table in log_of(entry).tables for row in table.rows})
    expected = counted(text_of(entry))
    print(f"{entry['file']}: {len(row_lines)} rows found, {len(expected)} counted")
    assert row_lines == expected


@pytest.mark.parametrize("entry", OURS, ids=name_of)
def test_figures_stand_in_their_line_in_order(entry: dict[str, Any]) -> None:
    lines = text_of(entry).split("\n")
    for table in log_of(entry).tables:
        for row in table.rows:
            line = lines[row.line - 1]
            seconds, algbw, busbw = row.seconds, row.algbw, row.busbw
            assert seconds is not None
            assert algbw is not None
            assert busbw is not None
            words = [
                float(word)
                for word in re.findall(
                    r"(?<!\S)[\d.]+(?:e[-+]\d+)?(?!\S)", line.replace("_", "")
                )
            ]
            windows = [words[i : i + 3] for i in range(len(words) - 2)]
            assert [pytest.approx(seconds * 1e6), algbw, busbw] in windows
            assert words.index(row.extra.get("printed_size_bytes", row.size_bytes)) == 0


@pytest.mark.parametrize("entry", OURS, ids=name_of)
def test_every_row_has_both_placements_unless_its_line_is_short(entry: dict[str, Any]) -> None:
    for table in log_of(entry).tables:
        by_line: dict[int, list[bool]] = {}
        for row in table.rows:
            by_line.setdefault(row.line, []).append(row.in_place)
        assert len({tuple(places) for places in by_line.values()}) <= 1
        assert all(places in ([False], [False, True]) for places in by_line.values())


@pytest.mark.parametrize("entry", OURS, ids=name_of)
def test_the_collective_is_named_rightly_or_not_at_all(entry: dict[str, Any]) -> None:
    word = entry["collective"].split()[0]
    expected = WORDS.get(word, word)
    for table in log_of(entry).tables:
        assert table.collective in ("", expected)


SHAPED = [
    our
    for our in OURS
    if isinstance(our["nodes"], int) and isinstance(our["gpus_per_node"], int)
]


@pytest.mark.parametrize("entry", SHAPED, ids=name_of)
def test_ranks_are_those_of_the_manifest_or_those_of_the_figures(entry: dict[str, Any]) -> None:
    nodes, each = entry["nodes"], entry["gpus_per_node"]
    for table in log_of(entry).tables:
        if table.ranks in (None, nodes * each):
            assert table.nodes in (None, nodes)
            continue
        factor = COLLECTIVES[table.collective].bus_factor(nodes * each)
        largest = max(table.rows, key=lambda row: row.algbw or 0.0)
        assert largest.busbw != pytest.approx((largest.algbw or 0.0) * factor, rel=1e-3)
        assert Flag.BUSBW_CONTRADICTS_ALGBW not in largest.flags


def test_most_rows_of_the_corpus_agree_with_themselves() -> None:
    rows = [row for entry in OURS for table in log_of(entry).tables for row in table.rows]
    strange = [row for row in rows if row.flags and set(row.flags) != {"algbw_per_rank"}]
    print(f"{len(rows)} placements, {len(strange)} flagged")
    assert len(strange) < 0.01 * len(rows)
