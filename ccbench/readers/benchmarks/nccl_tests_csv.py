"""Tables of nccl-tests as wrappers write them: its column names, separated by commas, semicolons or tabs.

Columns may stand in any order. Those of a placement may begin with ``oop_``, ``out_of_place_``, ``ip_`` or
``in_place_`` or come twice; a unit may follow a name, ``time(us)`` or ``algbw_GB/s``, and must be nccl-tests'
own. Columns for the collective, ranks, nodes and the placement make tables of their own. Other lines are read
as in a log of nccl-tests, so that versions and devices above the table count.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ccbench.readers.benchmarks import nccl_tests
from ccbench.readers.benchmarks.log import ImportedLog, ImportedTable, LogOutcome
from ccbench.readers.benchmarks.nccl_tests_columns import COLUMN_OF_WORD
from ccbench.readers.benchmarks.words import collective_name, whole

_SEPARATORS = ",;\t"
_HEAD = ("size", "count", "type", "redop", "root")
_MEASURED = ("time", "algbw", "busbw", "wrong", "error")
_KEYS = {
    "collective": "collective test name",
    "ranks": "ranks nranks gpus ngpus",
    "nodes": "nodes nnodes",
    "in_place": "in_place inplace",
}
_KEY_OF_WORD = {word: key for key, words in _KEYS.items() for word in words.split()}
_PLACEMENT = re.compile(r"(?:(oop|out[ _-]?of[ _-]?place)|ip|in[ _-]?place)[ _.-](?=\w)|")
_UNIT = re.compile(
    r"[ _]?[(\[](us|gb/s|b|bytes|elements)[)\]]$|[ _](us|usec|gb/?p?s|bytes|gbps)$"
)
_OTHER_UNIT = re.compile(r"(?:time|algbw|busbw)[ _(\[]")
_FIRST_LINES = 4000
_TRUE = frozenset({"1", "true", "yes"})


@dataclass(frozen=True)
class _Header:
    """Columns by what they hold: of a row's head, of each placement, and those that tell tables apart."""

    separator: str
    width: int
    head: dict[str, int]
    placements: dict[bool, dict[str, int]]
    keys: dict[str, int]

    def table_line(self, cells: Sequence[str]) -> str:
        """The row as nccl-tests prints it; N/A for figures of a placement that the row leaves out."""
        words = [cells[column] for column in self.head.values()]
        for columns in self.placements.values():
            words += [cells[column] or "N/A" for column in columns.values()]
        return " ".join(words)

    def title_line(self, line: str) -> str:
        """Return the names of those columns as nccl-tests heads them, of a header that is ``line``."""
        names = (*self.head, *(name for part in self.placements.values() for name in part))
        title = " ".join(names)
        return title.replace("time", "cputime") if "cputime" in line.lower() else title


def _cells(line: str, separator: str) -> list[str]:
    try:
        cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return []
    # Spreadsheets that separate by semicolons write decimal commas.
    return [cell.strip().replace(",", "." if separator == ";" else ",") for cell in cells]


def _header(line: str) -> _Header | None:
    """The columns that ``line`` names; None where size or a rate lacks, or a unit is another."""
    if "bw" not in line.lower():
        return None
    separator = max(_SEPARATORS, key=line.count)
    words = _cells(line.lower().lstrip("# "), separator)
    head: dict[str, int] = {}
    keys: dict[str, int] = {}
    placements: dict[bool, dict[str, int]] = {}
    for column, word in enumerate(words):
        placement = _PLACEMENT.match(word)
        prefix = placement[0] if placement and word not in _KEY_OF_WORD else ""
        bare = _UNIT.sub("", word.removeprefix(prefix)).strip("#*: ")
        name = COLUMN_OF_WORD.get(bare, bare)
        if name in _MEASURED:
            in_place = bool(prefix and placement and not placement[1])
            # Names that come twice without a word for it are out of place, then in place.
            in_place = in_place or name in placements.get(False, {})
            placements.setdefault(in_place, {}).setdefault(name, column)
        elif name in _HEAD:
            head.setdefault(name, column)
        elif bare in _KEY_OF_WORD:
            keys.setdefault(_KEY_OF_WORD[bare], column)
        elif _OTHER_UNIT.match(name):
            return None
    head = {name: head[name] for name in _HEAD if name in head}
    placements = {
        place: {name: columns[name] for name in _MEASURED if name in columns}
        for place, columns in sorted(placements.items())
    }
    is_table = "size" in head and all(
        {"algbw", "busbw"} <= part.keys() for part in placements.values()
    )
    if len(words) < 4 or not placements or not is_table:
        return None
    return _Header(separator, len(words), head, placements, keys)


def _rows(text: str) -> Iterator[tuple[int, _Header, list[str]]]:
    """(line, header, cells) of every row, and of every header with no cells."""
    header: _Header | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if (begun := _header(line)) is not None:
            header = begun
            yield number, header, []
        elif header is not None:
            cells = _cells(line, header.separator)
            if len(cells) == header.width and whole(cells[header.head["size"]]) is not None:
                yield number, header, cells


def recognises(text: str) -> bool:
    """Return whether the first lines of ``text`` have such a header and a row of as many cells."""
    beginning = "\n".join(text.split("\n", _FIRST_LINES)[:_FIRST_LINES])
    return any(cells for _, _, cells in _rows(beginning))


def read(text: str) -> ImportedLog:
    """The log that ``text`` is, read as nccl-tests' own table. Raises nothing."""
    lines = text.split("\n")
    groups: dict[tuple[tuple[str, str], ...], dict[int, str]] = {}
    title: tuple[int, str] = (0, "")
    for number, header, cells in _rows(text):
        line, lines[number - 1] = lines[number - 1], ""
        if not cells:
            title = (number, header.title_line(line))
            continue
        facts = {name: cells[column] for name, column in header.keys.items()}
        if False not in header.placements:
            facts["in_place"] = "1"
        group = groups.setdefault(tuple(facts.items()), {})
        group[title[0]] = title[1]
        group[number] = header.table_line(cells)
    logs = []
    for key, group in groups.items():
        facts = dict(key)
        of_group = [group.get(number, line) for number, line in enumerate(lines, start=1)]
        log = nccl_tests.read("\n".join(of_group))
        logs.append(replace(log, tables=tuple(_stated(table, facts) for table in log.tables)))
    first = logs[0] if logs else nccl_tests.read(text)
    # The form has no closing lines that could be missing.
    unknown = first.outcome is LogOutcome.CUT and not first.warnings
    return replace(
        first,
        tables=tuple(table for log in logs for table in log.tables),
        outcome=LogOutcome.UNKNOWN if unknown else first.outcome,
        detail="" if unknown else first.detail,
    )


def _stated(table: ImportedTable, facts: dict[str, str]) -> ImportedTable:
    """``table`` with what columns of their own say of it."""
    rows = table.rows
    if facts.get("in_place", "").lower() in _TRUE:
        rows = tuple(replace(row, in_place=True) for row in rows)
    return replace(
        table,
        rows=rows,
        collective=collective_name(facts["collective"])
        if facts.get("collective")
        else table.collective,
        ranks=whole(facts.get("ranks", "")) or table.ranks,
        nodes=whole(facts.get("nodes", "")) or table.nodes,
    )
