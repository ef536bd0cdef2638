"""mscclpp-test: one JSON object a line with name, kernel, ranks, ranksPerNode, algBw, busBw, size and time.

time is in microseconds, rates in 1e9 bytes per second, size is nccl-tests' size. Source: the lines of
https://github.com/microsoft/mscclpp, test/deploy/perf_ndmv4.jsonl, where size / time is algBw and busBw is
algBw times nccl-tests' factor; test/mscclpp-test/common.cc writes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ccbench.results.importers.columns import Column, Columns, cells_of, json_record, log_of, row_of
from ccbench.results.importers.lines import no_row, source_lines, whole
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable
from ccbench.results.importers.words import collective_name, op_of, root_of
from ccbench.topology.graph import Notice

_NEEDED = frozenset({"name", "ranks", "size", "time"})
_RATES = frozenset({"algBw", "busBw"})
_COLUMNS = Columns(
    Column("size", "size_bytes"),
    Column("time", "seconds", 1e6),
    Column("algBw", "algbw"),
    Column("busBw", "busbw"),
    Column("target", "target"),
    Column("name|kernel|ranks|ranksPerNode", ""),
)


def recognises(text: str) -> bool:
    """Return whether a line of ``text`` is such an object."""
    return '"algBw"' in text and any(_object(line.text) for line in source_lines(text))


def read(text: str) -> ImportedLog:
    """One table for each name, kernel and number of ranks, in the order they first appear."""
    rows: dict[tuple[str, str, int | None, int | None], list[ImportedRow]] = {}
    notices: list[Notice] = []
    for line in source_lines(text):
        if not line.text.lstrip().startswith("{"):
            continue
        seen = _object(line.text)
        shown = {key: text for key, text in seen.items() if key in _NEEDED | _RATES | {"target"}}
        cells = cells_of(_COLUMNS.each(list(shown)), list(shown.values())) if shown else None
        if cells is None or "seconds" not in cells:
            notices.append(no_row(line))
            continue
        name, ranks = collective_name(seen["name"]), whole(seen["ranks"]) or None
        each = whole(seen.get("ranksPerNode", ""))
        nodes = ranks // each if ranks and each and ranks % each == 0 else None
        row = row_of(line.number, cells, op=op_of(name, "sum"), root=root_of(name))
        rows.setdefault((name, seen.get("kernel", ""), ranks, nodes), []).append(row)
    return log_of("mscclpp", (), [_table(*key, found) for key, found in rows.items()], notices)


def _object(text: str) -> Mapping[str, str]:
    seen = json_record(text)
    return seen if seen.keys() >= _NEEDED and seen.keys() & _RATES else {}


def _table(
    collective: str, kernel: str, ranks: int | None, nodes: int | None, rows: list[ImportedRow]
) -> ImportedTable:
    algorithm = f"kernel:{kernel}" if kernel else "default"
    return ImportedTable(collective, tuple(rows), ranks, nodes, algorithm, line=rows[0].line)
