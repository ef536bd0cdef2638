"""Report files of nccl-tests, rccl-tests and mscclpp-test: the JSON of one, the JSON and CSV of the others.

nccl-tests' ``-J FILE`` (github.com/NVIDIA/nccl-tests src/util.cu): booleans are strings, numbers that are
none are "nan", a placement that was not run is null, and a run that does not exit in order leaves the
document open. Only variables of collective libraries are taken from the environment, which the file holds
whole.

rccl-tests' ``-Z json|csv -x FILE`` (github.com/ROCm/rccl-tests#93, #140): one record for each placement of
each size: a JSON document a line, or a list of them, or CSV with a header. Builds with MPI give nodes, ranks,
ranksPerNode and gpusPerRank, others the number of GPUs. There is no root and no count of elements. CSV under
nccl-tests' own column names, in any order, is read as these are; columns of a placement that come twice are out of
place, then in place.

mscclpp-test: records without a placement, and with a kernel (github.com/microsoft/mscclpp,
test/deploy/perf_ndmv4.jsonl; test/mscclpp-test/common.cc).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import from_json

from ccbench.findings import SourceWarning
from ccbench.flags import Flag
from ccbench.readers.benchmarks.log import (
    DeviceLine,
    ImportedLog,
    ImportedRow,
    ImportedTable,
    LogOutcome,
    checked_row,
    log_of,
)
from ccbench.readers.benchmarks.nccl_tests import placements
from ccbench.readers.benchmarks.nccl_tests_columns import (
    Cells,
    likely_collective,
    nodes_of_devices,
    ranks_of_devices,
    ranks_of_figures,
)
from ccbench.readers.benchmarks.words import (
    LibraryLines,
    collective_name,
    decoded,
    library_in,
    op_of,
    program_collective,
    root_of,
    source_lines,
    variables_in,
    whole,
)
from ccbench.readers.lines import decimal, figure
from ccbench.readers.traces.words import count, listed, members

_START = re.compile(
    r'\s{0,1000}\{\s{0,100}"version"\s{0,9}:\s{0,9}\d{1,4}\s{0,9},\s{0,99}"start_time"\s{0,9}:'
)
_HEAD = ("size", "count", "type", "redop", "root")
_FIGURES = ("time", "algbw", "busbw", "wrong")
_NAMES = {
    "collective": "name",
    "#wrong": "wrong",
    "errors": "wrong",
    "error": "wrong",
    "nranks": "ranks",
    "backend": "library",
    "lib": "library",
}
_NEEDED = (
    {"name", "size", "inplace", "time", "algbw", "busbw"},
    {"name", "size", "kernel", "time"},
)
"""Of a record of rccl-tests, and of mscclpp-test."""
_NEEDED_OF_CSV = {"size", "algbw", "busbw"}
_SECOND = " in place"
"""Ends the names of columns that come a second time."""

_LONGEST_RECORD = 4096
_FIRST_LINES = 20
"""Lines before the first record that may hold something else."""


def recognises(text: str) -> bool:
    """Return whether ``text`` starts as nccl-tests' JSON does, or one of its first lines is a record's."""
    if _START.match(text) is not None:
        return True
    lines = (
        line.strip()
        for line in text[: _FIRST_LINES * _LONGEST_RECORD].split("\n")[:_FIRST_LINES]
    )
    return any(_csv_header(line) or _record(line) for line in lines)


def read(text: str) -> ImportedLog:
    """The log of a report; one that is cut or broken gives what is whole. Raises nothing."""
    return read_document(text) if _START.match(text) else read_records(text)


# -- the document of nccl-tests -----------------------------------------------------------------------------


def loaded(text: str) -> tuple[Any, bool]:
    """(value, whole): the JSON value in ``text``; where it is cut or broken, what stands before the break.

    Returns (None, False) where nothing can be taken; raises nothing.
    """
    try:
        return json.loads(text, parse_float=str, parse_int=str), True
    except json.JSONDecodeError as error:
        sound = text[: error.pos]
    except (ValueError, RecursionError):
        return None, False
    # A number at the break may have lost digits.
    end = max(map(sound.rfind, ",]}"))
    try:
        return from_json(sound[: end + 1], allow_partial=True), False
    except ValueError:
        return None, False


def read_document(text: str) -> ImportedLog:
    """The one table of an nccl-tests document, with what it says of devices and variables."""
    value, is_whole = loaded(text)
    document = members(value)
    config = members(document.get("config"))
    devices = []
    for device in filter(None, map(members, listed(config.get("devices")))):
        rank, group, process, number = (
            count(device.get(name)) for name in ("rank", "group", "pid", "device")
        )
        host, bus, model = (
            str(device.get(name, "")) for name in ("hostname", "device_hex", "device_info")
        )
        devices.append(DeviceLine(rank or 0, group, process, host, number, bus, model))
    environment: dict[str, str] = {}
    for variable in listed(document.get("env")):
        environment |= variables_in(variable) if isinstance(variable, str) else {}
    errors = [
        error for error in listed(document.get("errors")) if isinstance(error, str) and error
    ]
    finished = is_whole and "end_time" in document and "average_bus_bandwidth" in document
    outcome = (
        LogOutcome.COMPLETE if finished else LogOutcome.CRASHED if errors else LogOutcome.CUT
    )
    code = count(document.get("nccl_version"))
    cut = SourceWarning("truncated", "the JSON document ends before its end or is broken")
    return ImportedLog(
        tool="nccl-tests",
        library="NCCL",
        tables=_document_tables(document, config, devices, outcome),
        devices=tuple(devices),
        versions={"NCCL": decoded(code)} if code else {},
        environment=environment,
        warnings=() if is_whole else (cut,),
        outcome=outcome,
        detail=errors[0][:200] if errors else "",
    )


def _document_tables(
    document: Mapping[str, Any],
    config: Mapping[str, Any],
    devices: list[DeviceLine],
    outcome: LogOutcome,
) -> tuple[ImportedTable, ...]:
    results = [result for result in listed(document.get("results")) if isinstance(result, dict)]
    if not results and not config:
        return ()
    rows = [row for result in results for row in _result_rows(result)]
    # Without the program's name, that of the first experiment (AllReduce ...).
    programs = [str(argument) for argument in listed(document.get("args"))[:1]]
    programs += [f"{result.get('experiment_name', '')}_perf".lower() for result in results[:1]]
    # The file lists only the first device of each process, so the last one stands for all of its process.
    ranks = None
    if devices:
        each = (count(config.get("nthreads")) or 1) * (count(config.get("ngpus")) or 1)
        last = max(device.rank for device in devices)
        ranks = last + (each if all(device.rank % each == 0 for device in devices) else 1)
        if len({device.group for device in devices}) > 1:
            ranks = (ranks_of_devices(devices) or 0) * each or None
    facts: dict[str, Any] = {
        name: value if (number := count(value)) is None else number
        for name, value in config.items()
        if name != "devices"
    }
    if (bounds := count(members(document.get("out_of_bounds")).get("count"))) is not None:
        facts["out_of_bounds"] = bounds
    blocking = str(config.get("blocking_collectives", "false")).lower() not in ("false", "0")
    table = ImportedTable(
        program_collective(" ".join(programs)) or likely_collective(rows, _HEAD, ranks),
        tuple(rows),
        ranks,
        nodes_of_devices(devices, ranks) or (len({device.host for device in devices}) or None),
        mode="graph" if count(config.get("graph")) else "isolated" if blocking else "streaming",
        outcome=outcome,
        facts=facts,
    )
    return (table,)


def _result_rows(result: Mapping[str, Any]) -> Iterator[ImportedRow]:
    head = {name: str(result[name]).strip() for name in _HEAD if name in result}
    for name, in_place in (("out_of_place", False), ("in_place", True)):
        body = members(result.get(name))
        if whole(head.get("size", "")) is None or "bus_bw" not in body:
            continue
        of_device = "time" in body
        names = ("time" if of_device else "cpu_time", "alg_bw", "bus_bw", "nwrong")
        printed = dict(zip(_FIGURES, (str(body.get(word)) for word in names), strict=True))
        (row,) = placements(Cells(head, (printed,)), 0, (in_place,))
        times = listed(members(result.get(f"{name}_per_iter")).get("times_us"))
        samples = filter(None, (decimal(str(time)) for time in times))
        yield replace(
            row,
            samples_seconds=tuple(sample / 1e6 for sample in samples),
            flags=() if of_device else (Flag.CPU_TIME,),
        )


# -- the records of the others ------------------------------------------------------------------------------


def read_records(text: str) -> ImportedLog:
    """Tables of records. The form has no closing line, so that an end between two records cannot be seen."""
    warnings: list[SourceWarning] = []
    groups: dict[tuple[ImportedTable, int], list[ImportedRow]] = {}
    columns: tuple[str, ...] = ()
    for number, record in _records(text):
        rows = _record_rows(number, record)
        if not rows:
            reason = "no whole record, or one without a size"
            warnings.append(SourceWarning("damaged_line", reason, number))
            continue
        columns = tuple(record)
        ranks, devices, nodes, each, gpus = (
            whole(record.get(name, ""))
            for name in ("ranks", "gpus", "nodes", "rankspernode", "gpusperrank")
        )
        if nodes is None and ranks and each:
            nodes = None if ranks % each else ranks // each
        library, kernel = library_in(record.get("library", "")), record.get("kernel")
        table = ImportedTable(
            record.get("name", ""),
            (),
            ranks or devices,
            nodes,
            f"kernel:{kernel}" if kernel else "default",
            facts={"backend": library} if library else {},
        )
        groups.setdefault((table, gpus or 1), []).extend(rows)
    tables = [
        _with_rows(table, rows, gpus, columns, text) for (table, gpus), rows in groups.items()
    ]
    lines, library_lines = list(source_lines(text)), LibraryLines()
    for line in lines:
        library_lines.take(line)
    is_cut = bool(warnings) or (text.lstrip()[:1] == "[" and text.rstrip()[-1:] != "]")
    tool, library = "nccl-tests", "NCCL"
    if "kernel" in columns:
        tool, library = "mscclpp", ""
    elif {"name", "inplace"} <= {*columns}:
        tool, library = "rccl-tests", "RCCL"
    return log_of(
        tool,
        lines,
        tables,
        warnings,
        (LogOutcome.CUT, "records are missing or broken") if is_cut else None,
        library=library,
        **library_lines.shown,
    )


def _with_rows(
    table: ImportedTable,
    rows: list[ImportedRow],
    gpus: int,
    columns: tuple[str, ...],
    text: str,
) -> ImportedTable:
    """``table`` with its rows, and what they say of its collective and its ranks. gpus: of one process."""
    ranks = table.ranks
    collective = collective_name(table.collective) or program_collective(text)
    collective = collective or likely_collective(rows, columns, ranks)
    # With MPI the form counts processes, of perhaps several GPUs: their rates tell.
    fastest = checked_row(max(rows, key=lambda row: row.algbw or 0.0), collective, ranks)
    if ranks and Flag.BUSBW_CONTRADICTS_ALGBW in fastest.flags:
        ranks *= gpus
    if "kernel" in columns:
        op, root = op_of(collective, "sum"), root_of(collective)
        rows = [replace(row, op=op, root=root) for row in rows]
    return replace(
        table,
        collective=collective,
        rows=tuple(rows),
        ranks=ranks or ranks_of_figures(rows, collective),
        line=rows[0].line,
    )


def _records(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, words by column) of every record; no words where it is not whole."""
    header: tuple[str, ...] = ()
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if titles := _csv_header(line):
            header = titles
        elif line.startswith("{"):
            yield number, _record(line)
        elif header and line.strip("[]"):
            words, named = _csv_cells(line), header
            # Builds with MPI until May 2026 leave nodes out of the header and have it in each row
            # (github.com/ROCm/rocm-systems/pull/6004).
            if "rankspernode" in header and len(words) == len(header) + 1:
                named = (*header[:2], "nodes", *header[2:])
            whole_line = len(words) == len(named)
            yield number, dict(zip(named, words, strict=True)) if whole_line else {}


def _record_rows(line: int, record: Mapping[str, str]) -> list[ImportedRow]:
    """Return the row of a record, two where it has columns of both placements; none of one that is not whole."""
    placed = record.get("inplace", "0").lower()
    head = {name: record[name] for name in _HEAD if name in record}
    figures = [
        {name: record[name + end] for name in _FIGURES if name + end in record}
        for end in ("", _SECOND)
    ]
    rated = [figure(words.get(name, "0")) for words in figures for name in _FIGURES[:3]]
    counted = whole(head.get("size", "")), whole(head.get("count", "0"))
    if None in (*rated, *counted) or placed not in ("0", "1", "true", "false"):
        return []
    places = (placed in ("1", "true"), True)
    return placements(Cells(head, tuple(filter(None, figures))), line, places)


def _record(line: str) -> dict[str, str]:
    """The record of a line, empty where it is none; numbers stay text, so that their digits are known."""
    if not line.startswith("{") or len(line) > _LONGEST_RECORD:
        return {}
    try:
        quoted = re.sub(": ?N/A", ':"N/A"', line.rstrip(","))
        record = json.loads(quoted, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        return {}
    named = {_name(key): value for key, value in record.items() if isinstance(value, str)}
    return named if any(named.keys() >= needed for needed in _NEEDED) else {}


def _csv_header(line: str) -> tuple[str, ...]:
    if "busbw" not in line[:_LONGEST_RECORD].lower():
        return ()
    names: list[str] = []
    for word in map(_name, _csv_cells(line.lstrip("# "))):
        names.append(word + _SECOND if word in names else word)
    return (
        tuple(names) if _NEEDED_OF_CSV.issubset(names) and len({*names}) == len(names) else ()
    )


def _csv_cells(line: str) -> list[str]:
    try:
        delimiter = max(",;\t", key=line.count)
        reader = csv.reader(
            [line[:_LONGEST_RECORD]], delimiter=delimiter, skipinitialspace=True
        )
        cells = next(reader, [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def _name(word: str) -> str:
    lowered = word.strip().lower()
    return _NAMES.get(lowered, lowered)
