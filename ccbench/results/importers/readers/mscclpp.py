"""mscclpp-test: one JSON object a line with name, kernel, ranks, ranksPerNode, algBw, busBw, size and time.

time is in microseconds, rates in 1e9 bytes per second, size is nccl-tests' size. Source: the lines of
https://github.com/microsoft/mscclpp, test/deploy/perf_ndmv4.jsonl, where size / time is algBw and busBw is
algBw times nccl-tests' factor; test/mscclpp-test/common.cc writes them.
"""

from __future__ import annotations

import json
from typing import Any

from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers.lines import (
    Line,
    capped,
    figure,
    microseconds,
    no_row,
    printed_row,
    source_lines,
    whole,
)
from ccbench.results.importers.readers.words import collective_name, op_of, root_of
from ccbench.topology.graph import Notice

_KEYS = frozenset({"name", "ranks", "size", "time"})
_RATES = frozenset({"algBw", "busBw"})


def recognises(text: str) -> bool:
    """Whether a line of ``text`` is such an object."""
    return '"algBw"' in text and any(_object(line) is not None for line in source_lines(text))


def read(text: str) -> ImportedLog:
    """One table for each name, kernel and number of ranks, in the order they first appear."""
    rows: dict[tuple[str, str, int | None, int | None], list[ImportedRow]] = {}
    notices: list[Notice] = []
    for line in source_lines(text):
        if not line.text.lstrip().startswith("{"):
            continue
        seen = _object(line)
        row = _row(seen, line) if seen is not None else None
        if seen is None or row is None:
            notices.append(no_row(line))
            continue
        key = (collective_name(seen["name"]), str(seen.get("kernel", "")), _ranks(seen), _nodes(seen))
        rows.setdefault(key, []).append(row)
    return ImportedLog(
        tool="mscclpp",
        tables=tuple(_table(*key, tuple(found)) for key, found in rows.items()),
        notices=capped(notices),
        outcome=Outcome.UNKNOWN,
    )


def _object(line: Line) -> dict[str, Any] | None:
    """The object of one line, every number as its digits, so that their rounding is known."""
    if not line.text.lstrip().startswith("{"):
        return None
    try:
        seen = json.loads(line.text, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    if not isinstance(seen, dict) or not seen.keys() >= _KEYS or not seen.keys() & _RATES:
        return None
    scalars = [seen.get(key) for key in _KEYS | _RATES | {"kernel", "ranksPerNode", "target"}]
    return seen if all(value is None or isinstance(value, str) for value in scalars) else None


def _ranks(seen: dict[str, Any]) -> int | None:
    return whole(seen["ranks"]) or None


def _nodes(seen: dict[str, Any]) -> int | None:
    ranks, each = _ranks(seen), whole(seen.get("ranksPerNode") or "")
    return ranks // each if ranks and each and ranks % each == 0 else None


def _row(seen: dict[str, Any], line: Line) -> ImportedRow | None:
    size_bytes, seconds = whole(seen["size"]), microseconds(seen["time"])
    if size_bytes is None or seconds is None:
        return None
    algbw, busbw = figure(seen.get("algBw") or ""), figure(seen.get("busBw") or "")
    collective = collective_name(seen["name"])
    return printed_row(
        line.number,
        size_bytes,
        seconds,
        algbw,
        busbw,
        op=op_of(collective, "sum"),
        root=root_of(collective),
        extra={"target": seen["target"]} if seen.get("target") else {},
    )


def _table(
    collective: str, kernel: str, ranks: int | None, nodes: int | None, rows: tuple[ImportedRow, ...]
) -> ImportedTable:
    return ImportedTable(
        collective=collective,
        rows=rows,
        ranks=ranks,
        nodes=nodes,
        algorithm=f"kernel:{kernel}" if kernel else "default",
        line=rows[0].line,
    )
