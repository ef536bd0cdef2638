"""Reads the output of AMD's rccl-tests: its text, which is nccl-tests', and its JSON and CSV reports.

Reports are what ``-Z json|csv -x FILE`` writes (github.com/ROCm/rccl-tests#93, #140): one record for each
placement of each size: a JSON document a line, or a list of them, or CSV with a header. Builds with MPI give
nodes, ranks, ranksPerNode and gpusPerRank, others the number of GPUs. There is no root and no count of
elements.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ccbench.results.importers.checks import bus_factor
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers import nccl_tests
from ccbench.results.importers.readers.nccl_tests_columns import figure, half_unit, whole
from ccbench.results.importers.readers.words import collective_name, dtype_name
from ccbench.topology.graph import Notice

_NAMES = {"collective": "name", "#wrong": "wrong", "errors": "wrong"}
_NEEDED = {"name", "size", "inplace", "time", "algbw", "busbw"}
_LONGEST_RECORD = 4096
_FIRST_LINES = 20
"""Lines before the first record that may hold something else."""


@dataclass(frozen=True)
class _Record:
    """One record, as text by lower-case name; numbers keep the digits that were printed."""

    line: int
    cells: Mapping[str, str]


def _is_report(text: str) -> bool:
    """Whether one of the first lines is a JSON record or a CSV header of this form."""
    lines = (line.strip() for line in text[: _FIRST_LINES * _LONGEST_RECORD].split("\n")[:_FIRST_LINES])
    return any(_is_csv_header(line) or _json_cells(line) is not None for line in lines)


def _read_report(text: str) -> ImportedLog:
    """The log of a report; records that are cut or broken become notices. Raises nothing.

    The form has no closing line, so that an end between two records cannot be seen.
    """
    notices: list[Notice] = []
    groups: dict[tuple[str, int | None, int | None], list[tuple[_Record, ImportedRow]]] = {}
    for record in _records(text, notices):
        row = _row(record)
        if row is None:
            notices.append(Notice("damaged_line", "a record without a size, or broken", record.line))
            continue
        name = record.cells["name"]
        key = (name, _whole(record, "ranks") or _whole(record, "gpus"), _whole(record, "nodes"))
        groups.setdefault(key, []).append((record, row))
    tables = tuple(_table(*key, found) for key, found in groups.items())
    cut = bool(notices) or (text.lstrip()[:1] == "[" and text.rstrip()[-1:] != "]")
    return ImportedLog(
        tool="rccl-tests",
        library="RCCL",
        tables=tables,
        notices=tuple(notices),
        outcome=Outcome.CUT if cut else Outcome.UNKNOWN,
        detail="records are missing or broken" if cut else "",
    )


def _records(text: str, notices: list[Notice]) -> Iterator[_Record]:
    header: list[str] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line in "[]":
            continue
        if _is_csv_header(line):
            header = [_name(word) for word in _csv_cells(line)]
        elif line.startswith("{"):
            cells = _json_cells(line)
            if cells is not None:
                yield _Record(number, cells)
            else:
                notices.append(Notice("damaged_line", "no whole record", number))
        elif header:
            words = _csv_cells(line)
            if len(words) == len(header):
                yield _Record(number, dict(zip(header, words, strict=True)))
            else:
                notices.append(Notice("damaged_line", f"{len(words)} cells, not {len(header)}", number))


def _row(record: _Record) -> ImportedRow | None:
    cells = record.cells
    size = whole(cells["size"])
    values = {name: figure(cells[name]) for name in ("time", "algbw", "busbw")}
    halves = {name: half_unit(cells[name]) for name in values}
    if size is None or cells["inplace"] not in ("0", "1", "true", "false") or None in values.values():
        return None
    wrong = figure(cells.get("wrong", ""))
    kind, cycle = cells.get("type", ""), _whole(record, "numcycle")
    return ImportedRow(
        size,
        None,
        dtype_name(kind),
        cells.get("redop", "").lower(),
        -1,
        cells["inplace"] in ("1", "true"),
        (values["time"] or 0.0) / 1e6,
        values["algbw"],
        values["busbw"],
        None if wrong is None or wrong < 0 else int(wrong),
        half_units=((halves["time"] or 0.0) / 1e6, halves["algbw"], halves["busbw"]),
        line=record.line,
        extra={} if cycle is None else {"cycle": cycle},
    )


def _table(
    name: str, ranks: int | None, nodes: int | None, found: list[tuple[_Record, ImportedRow]]
) -> ImportedTable:
    """One collective on one set of ranks; with MPI the form counts processes, of perhaps several GPUs."""
    collective = collective_name(name)
    each = _whole(found[0][0], "gpusperrank") or 1
    rows = [row for _, row in found]
    if ranks is not None and each > 1 and not _fits(rows, collective, ranks):
        ranks *= each
    return ImportedTable(collective, tuple(rows), ranks, nodes, line=rows[0].line)


def _fits(rows: list[ImportedRow], collective: str, ranks: int) -> bool:
    factor = bus_factor(collective, ranks)
    row = max(rows, key=lambda one: one.algbw or 0.0)
    return factor is not None and abs((row.busbw or 0.0) - (row.algbw or 0.0) * factor) <= 0.001 * (
        row.busbw or 0
    )


def _json_cells(line: str) -> dict[str, str] | None:
    """The record of a line, or None; numbers stay text, so that their digits are known."""
    if not line.startswith("{") or "usBw" not in line or len(line) > _LONGEST_RECORD:
        return None
    unquoted = line.rstrip(",").replace(":N/A", ':"N/A"').replace(": N/A", ':"N/A"')
    try:
        value = json.loads(unquoted, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    cells = {_name(key): one for key, one in value.items() if isinstance(one, str)}
    return cells if _NEEDED.issubset(cells) else None


def _is_csv_header(line: str) -> bool:
    lowered = line[:_LONGEST_RECORD].lower()
    return "busbw," in lowered and _NEEDED.issubset(map(_name, _csv_cells(line)))


def _csv_cells(line: str) -> list[str]:
    try:
        return [
            cell.strip() for cell in next(csv.reader([line[:_LONGEST_RECORD]], skipinitialspace=True), [])
        ]
    except csv.Error:
        return []


def _name(word: str) -> str:
    lowered = word.strip().lower()
    return _NAMES.get(lowered, lowered)


def _whole(record: _Record, name: str) -> int | None:
    return whole(record.cells.get(name, ""))


_MARKS = ("rccl-tests", "RCCL version", "librccl")
_LOOKED_AT = 1 << 16
"""Characters of a text that are searched for the library's name."""


def recognises(text: str) -> bool:
    """Whether ``text`` is a report of rccl-tests, or text of nccl-tests' form that names RCCL."""
    if _is_report(text):
        return True
    start = text[:_LOOKED_AT]
    return any(mark in start for mark in _MARKS) and nccl_tests.recognises(text)


def read(text: str) -> ImportedLog:
    """The log that ``text`` is; raises nothing (see the modules this one chooses from)."""
    if _is_report(text):
        return _read_report(text)
    return nccl_tests.read(text)
