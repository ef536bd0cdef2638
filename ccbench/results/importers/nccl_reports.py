"""Report files of nccl-tests and rccl-tests: the JSON of one, the JSON and CSV of the other.

nccl-tests' ``-J FILE`` (github.com/NVIDIA/nccl-tests src/util.cu): booleans are strings, numbers that are
none are "nan", a placement that was not run is null, and a run that does not exit in order leaves the
document open. Only variables of collective libraries are taken from the environment, which the file holds
whole.

rccl-tests' ``-Z json|csv -x FILE`` (github.com/ROCm/rccl-tests#93, #140): one record for each placement of
each size: a JSON document a line, or a list of them, or CSV with a header. Builds with MPI give nodes, ranks,
ranksPerNode and gpusPerRank, others the number of GPUs. There is no root and no count of elements.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ccbench.results.importers.columns import Column, Columns, cells_of, json_record, row_of
from ccbench.results.importers.lines import capped, whole
from ccbench.results.importers.log import DeviceLine, ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.nccl_tests_columns import likely_collective, nodes_of_devices, ranks_of_devices
from ccbench.results.importers.ranks import bus_factor
from ccbench.results.importers.words import (
    collective_name,
    decoded,
    dtype_name,
    program_collective,
    variables_in,
)
from ccbench.topology.graph import Notice
from ccbench.topology.text import figure

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],"]', re.DOTALL)
_CLOSERS = {"{": "}", "[": "]"}
_DEEPEST = 64
"""Levels of nesting that are followed; the tools' documents have six."""

_START = re.compile(
    r'\s{0,1000}\{\s{0,100}"version"\s{0,9}:\s{0,9}\d{1,4}\s{0,9},\s{0,99}"start_time"\s{0,9}:'
)
_HEAD = ("size", "count", "type", "redop", "root")
_STATISTICS = {f"{word}_us" for word in ("min", "max", "avg", "p50", "p95", "p99", "stdev")}
_STATISTICS |= {"cv_pct", "skipped_iterations"}

_COLUMNS = Columns(
    Column("size", "size_bytes"),
    Column("time", "seconds", 1e6),
    Column("algbw", "algbw"),
    Column("busbw", "busbw"),
    Column("type", "dtype"),
    Column("[a-z#]+", ""),
)
_NAMES = {"collective": "name", "#wrong": "wrong", "errors": "wrong"}
_NEEDED = {"name", "size", "inplace", "time", "algbw", "busbw"}
_LONGEST_RECORD = 4096
_FIRST_LINES = 20
"""Lines before the first record that may hold something else."""


def recognises(text: str) -> bool:
    """Return whether ``text`` starts as nccl-tests' JSON does, or one of its first lines is a record's."""
    if _START.match(text) is not None:
        return True
    lines = (line.strip() for line in text[: _FIRST_LINES * _LONGEST_RECORD].split("\n")[:_FIRST_LINES])
    return any(_csv_header(line) or _record(line) for line in lines)


def read(text: str) -> ImportedLog:
    """The log of a report; one that is cut or broken gives what is whole. Raises nothing."""
    return _read_document(text) if _START.match(text) else _read_records(text)


def loaded(text: str) -> tuple[Any, bool]:
    """(value, whole): the JSON value in ``text``; where it is cut or broken, what stands before the break.

    Numbers are their digits, as text. Returns (None, False) where nothing can be taken; raises nothing.
    """
    try:
        return _parsed(text), True
    except json.JSONDecodeError as error:
        sound = text[: error.pos]
    except (ValueError, RecursionError):
        return None, False
    with contextlib.suppress(ValueError, RecursionError):
        if found := _parsed(_closed(text)):
            return found, False
    with contextlib.suppress(ValueError, RecursionError):
        return _parsed(_closed(sound)), False
    return None, False


def _parsed(text: str) -> Any:
    return json.loads(text, parse_float=str, parse_int=str)


def _closed(text: str) -> str:
    """``text`` up to its last whole element, with everything open closed."""
    stack: list[str] = []
    end, open_then = 0, ""
    for piece in _PIECE.finditer(text):
        mark = piece[0]
        if mark == '"' or len(stack) > _DEEPEST:
            break
        if mark in _CLOSERS:
            stack.append(_CLOSERS[mark])
        elif mark in "}]":
            if not stack or stack.pop() != mark:
                break
            end, open_then = piece.end(), "".join(stack)
        elif mark == ",":
            end, open_then = piece.start(), "".join(stack)
    return text[:end] + open_then[::-1]


def _read_document(text: str) -> ImportedLog:
    value, is_whole = loaded(text)
    document = _mapping(value)
    config = _mapping(document.get("config"))
    devices = tuple(_device(one) for one in _list(config.get("devices")) if isinstance(one, dict))
    environment: dict[str, str] = {}
    for one in _list(document.get("env")):
        environment |= variables_in(one) if isinstance(one, str) else {}
    errors = [one for one in _list(document.get("errors")) if isinstance(one, str) and one]
    finished = is_whole and "end_time" in document and "average_bus_bandwidth" in document
    outcome = Outcome.COMPLETE if finished else Outcome.CRASHED if errors else Outcome.CUT
    code = _number(document.get("nccl_version"))
    start = document.get("start_time")
    cut = Notice("truncated", "the JSON document ends before its end or is broken")
    return ImportedLog(
        tool="nccl-tests",
        library="NCCL",
        tables=_document_tables(document, config, devices, outcome),
        devices=devices,
        versions={"NCCL": decoded(code)} if code else {},
        environment=environment,
        notices=() if is_whole else (cut,),
        outcome=outcome,
        detail=errors[0][:200] if errors else "",
        facts={"started_at": start} if isinstance(start, str) else {},
    )


def _document_tables(
    document: Mapping[str, Any], config: Mapping[str, Any], devices: tuple[DeviceLine, ...], outcome: Outcome
) -> tuple[ImportedTable, ...]:
    results = [one for one in _list(document.get("results")) if isinstance(one, dict)]
    if not results and not config:
        return ()
    rows = tuple(row for result in results for row in _result_rows(result))
    programs = [str(one) for one in _list(document.get("args"))[:1]]
    # Without the program's name, that of the first experiment (AllReduce ...).
    programs += [f"{one.get('experiment_name', '')}_perf".lower() for one in results[:1]]
    named = next(filter(None, map(program_collective, programs)), "")
    ranks = _document_ranks(config, devices)
    average = figure(str(_mapping(document.get("average_bus_bandwidth")).get("bandwidth")))
    told: dict[str, Any] = {
        key: one if (number := _number(one)) is None else number
        for key, one in config.items()
        if key != "devices"
    }
    bounds = _number(_mapping(document.get("out_of_bounds")).get("count"))
    if bounds is not None:
        told["out_of_bounds"] = bounds
    blocking = str(config.get("blocking_collectives", "false")).lower() not in ("false", "0")
    table = ImportedTable(
        named or likely_collective(rows, _HEAD, ranks),
        rows,
        ranks,
        nodes_of_devices(devices, ranks) or (len({d.host for d in devices}) or None),
        mode="graph" if _number(config.get("graph")) else "isolated" if blocking else "streaming",
        average_busbw=average.value if average else None,
        outcome=outcome,
        facts=told,
    )
    return (table,)


def _result_rows(result: Mapping[str, Any]) -> Iterator[ImportedRow]:
    size = _number(result.get("size"))
    root = str(result.get("root", "-1")).strip()
    for name, in_place in (("out_of_place", False), ("in_place", True)):
        body = _mapping(result.get(name))
        if size is None or "bus_bw" not in body:
            continue
        timing = _mapping(result.get(f"{name}_per_iter"))
        extra: dict[str, Any] = {key: figure(str(timing.get(key))) for key in _STATISTICS}
        if (iterations := _number(result.get("actual_iterations"))) is not None:
            extra["iterations"] = iterations
        if "cpu_time" in body:
            extra["clock"] = "cpu"
        time, algbw, busbw, wrong = (
            figure(str(one))
            for one in (
                body.get("time", body.get("cpu_time")),
                *map(body.get, ("alg_bw", "bus_bw", "nwrong")),
            )
        )
        samples = [figure(str(one)) for one in _list(timing.get("times_us"))]
        yield row_of(
            0,
            {**extra, "seconds": time.over(1e6) if time else None, "algbw": algbw, "busbw": busbw},
            size_bytes=size,
            count=_number(result.get("count")),
            dtype=dtype_name(str(result.get("type", ""))),
            op=str(result.get("redop", "")),
            root=int(root) if re.fullmatch(r"-?\d{1,9}", root) else -1,
            in_place=in_place,
            wrong_elements=None if wrong is None else int(wrong.value),
            samples_seconds=tuple(one.value / 1e6 for one in samples if one is not None),
        )


def _device(one: Mapping[str, Any]) -> DeviceLine:
    rank, group, process, number = (_number(one.get(name)) for name in ("rank", "group", "pid", "device"))
    host, bus, model = (str(one.get(name, "")) for name in ("hostname", "device_hex", "device_info"))
    return DeviceLine(rank or 0, group, process, host, number, bus, model)


def _document_ranks(config: Mapping[str, Any], devices: tuple[DeviceLine, ...]) -> int | None:
    """The file lists only the first device of each process, so the last one stands for all of its process."""
    if not devices:
        return None
    each = (_number(config.get("nthreads")) or 1) * (_number(config.get("ngpus")) or 1)
    if len({device.group for device in devices}) > 1:
        listed = ranks_of_devices(devices)
        return None if listed is None else listed * each
    last = max(device.rank for device in devices)
    return last + (each if all(device.rank % each == 0 for device in devices) else 1)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    return whole(value) if isinstance(value, str) else None


def _read_records(text: str) -> ImportedLog:
    """The form has no closing line, so that an end between two records cannot be seen."""
    notices: list[Notice] = []
    groups: dict[tuple[str, int | None, int | None, int], list[ImportedRow]] = {}
    for number, record in _records(text):
        row = _record_row(record, number)
        if row is None:
            notices.append(Notice("damaged_line", "no whole record, or one without a size", number))
            continue
        ranks, devices, nodes, each = (
            whole(record.get(name, "")) for name in ("ranks", "gpus", "nodes", "gpusperrank")
        )
        groups.setdefault((record["name"], ranks or devices, nodes, each or 1), []).append(row)
    cut = bool(notices) or (text.lstrip()[:1] == "[" and text.rstrip()[-1:] != "]")
    return ImportedLog(
        tool="rccl-tests",
        library="RCCL",
        tables=tuple(_record_table(*key, rows) for key, rows in groups.items()),
        notices=capped(notices),
        outcome=Outcome.CUT if cut else Outcome.UNKNOWN,
        detail="records are missing or broken" if cut else "",
    )


def _records(text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """(line, record) as text by lower-case name; an empty one for a line that holds none."""
    header: tuple[str, ...] = ()
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line in "[]":
            continue
        if named := _csv_header(line):
            header = named
        elif line.startswith("{"):
            yield number, _record(line)
        elif header:
            words = _csv_cells(line)
            yield number, dict(zip(header, words, strict=True)) if len(words) == len(header) else {}


def _record_row(record: Mapping[str, str], line: int) -> ImportedRow | None:
    cells = cells_of(_COLUMNS.each(list(record)), list(record.values()))
    if cells is None or record["inplace"] not in ("0", "1", "true", "false"):
        return None
    wrong, cycle = figure(record.get("wrong", "")), whole(record.get("numcycle", ""))
    return row_of(
        line,
        {**cells, "cycle": cycle},
        op=record.get("redop", "").lower(),
        in_place=record["inplace"] in ("1", "true"),
        wrong_elements=None if wrong is None else int(wrong.value),
    )


def _record_table(
    name: str, ranks: int | None, nodes: int | None, gpus: int, rows: list[ImportedRow]
) -> ImportedTable:
    """One collective on one set of ranks; with MPI the form counts processes, of perhaps several GPUs."""
    collective = collective_name(name)
    row = max(rows, key=lambda one: one.algbw or 0.0)
    factor, busbw = bus_factor(collective, ranks), row.busbw or 0.0
    if factor is None or abs(busbw - (row.algbw or 0.0) * factor) > 0.001 * busbw:
        ranks = ranks * gpus if ranks is not None else None
    return ImportedTable(collective, tuple(rows), ranks, nodes, line=rows[0].line)


def _record(line: str) -> dict[str, str]:
    """The record of a line, empty where it is none; numbers stay text, so that their digits are known."""
    if "usBw" not in line or len(line) > _LONGEST_RECORD:
        return {}
    found = json_record(line.rstrip(",").replace(":N/A", ':"N/A"').replace(": N/A", ':"N/A"'))
    named = {_name(key): one for key, one in found.items()}
    return named if named.keys() >= _NEEDED else {}


def _csv_header(line: str) -> tuple[str, ...]:
    named = tuple(map(_name, _csv_cells(line))) if "busbw," in line[:_LONGEST_RECORD].lower() else ()
    return named if _NEEDED.issubset(named) else ()


def _csv_cells(line: str) -> list[str]:
    try:
        cells = next(csv.reader([line[:_LONGEST_RECORD]], skipinitialspace=True), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def _name(word: str) -> str:
    lowered = word.strip().lower()
    return _NAMES.get(lowered, lowered)
