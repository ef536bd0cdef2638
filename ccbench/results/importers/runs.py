"""What another tool's output says -> cases as a run stores them: every row kept, every reason told.

Nothing is dropped without a word: a table on an unknown number of ranks is refused with a note, and a row
that ends in nothing becomes a case with the status that fits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from ccbench.capabilities import Device, capabilities_of
from ccbench.cases import NO_OP, NO_ROOT, Case, Conditions, Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.machine.flags import Flag
from ccbench.machine.redaction import LONGEST_VALUE, kept_variables, line_shown
from ccbench.results.imported import Origin, imported_speed
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.ranks import Given, Team, checked, team_of, with_whole_sizes

UNKNOWN_COUNT = -1
"""Count of a case whose source prints none and whose element type it does not say."""

LARGEST = 2**63 - 1
"""A parquet column of whole numbers holds no more; a larger figure in a log is damage."""

TIME_STATISTIC = {
    "nccl-tests": "mean",  # src/common.cu: time of all iterations over their number, then over ranks (-a)
    "rccl-tests": "mean",  # as nccl-tests, which it was made from
    "hccl_test": "mean",
    "osu": "mean",  # osu_util_mpi.c: sums over iterations and ranks, divided
    "imb": "mean",  # t_avg[usec]
    "torch-all-reduce-bench": "mean",
    "mscclpp": "mean",
}
"""What a printed time is, where the tool's sources say."""

LIBRARY_OF_TOOL = {
    "nccl-tests": "nccl",
    "rccl-tests": "rccl",
    "torch-all-reduce-bench": "nccl",
    "osu": "mpi",
    "imb": "mpi",
    "hccl_test": "hccl",
    "nccom-test": "nccom",
    "mscclpp": "mscclpp",
    "gloo-benchmark": "gloo",
}
"""What a tool measures when its output does not name a library."""

UNKNOWN_COLLECTIVE = "unknown"
"""What a table that names no collective is taken to be: its figures are kept and never a baseline."""

_NO_COLLECTIVE = (
    f"the output does not say which collective, so it is {UNKNOWN_COLLECTIVE!r}; put a line above it that "
    "names the program, such as '# all_reduce_perf'"
)

_WRONG_REMARK = re.compile(r"([0-9]{1,18}) wrong elements?(?:: )?(.*)")
"""How ccbench's own tables remark on wrong results."""

STATUS_OF_OUTCOME = {Outcome.CRASHED: Status.FAILED, Outcome.HUNG: Status.TIMED_OUT}


@dataclass(frozen=True)
class ImportedCase:
    """One row of a run to be: the case with its status, and where it is from."""

    measurement: Measurement
    origin: Origin


@dataclass(frozen=True)
class Imported:
    """What one file gave.

    log: as read, ranks filled in and rows checked. cases: in the order of the file.
    refused: one line for every table, and every row, that could not be taken. notes: what else to know.
    """

    log: ImportedLog
    cases: tuple[ImportedCase, ...]
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def imported(log: ImportedLog, given: Given = Given()) -> Imported:  # noqa: B008  # frozen, so shared safely
    """Cases of every table of ``log``. given: what the user says where the output says nothing."""
    teams = [team_of(table, log.devices, given) for table in log.tables]
    counted = tuple(
        replace(table, ranks=team.ranks or None, nodes=team.nodes or None)
        for table, team in zip(log.tables, teams, strict=True)
    )
    whole = checked(replace(log, tables=tuple(map(with_whole_sizes, counted))))
    cases: list[ImportedCase] = []
    refused: list[str] = []
    notes: list[str] = []
    nameless: list[int] = []
    for number, (table, team) in enumerate(zip(whole.tables, teams, strict=True), start=1):
        where = f"{log.source}:{table.line}: table {number}"
        if not team.ranks:
            refused.append(f"{where} ({len(table.rows)} rows) left out: {team.reason}")
            continue
        if not table.collective:
            nameless.append(number)
        if team.reason not in ("stated", "given"):
            notes.append(f"{where}: {team.ranks} ranks {team.reason}")
        cases += _cases_of(whole, table, number, team, refused)
        notes += [*_ending(whole, table, where), *_empty(whole, table, where)]
    if nameless:
        which = ", ".join(map(str, nameless[:3])) + (f" and {len(nameless) - 3} more" if nameless[3:] else "")
        notes.append(f"{log.source}: table {which}: {_NO_COLLECTIVE}")
    return Imported(whole, tuple(cases), tuple(refused), tuple(notes))


def _cases_of(
    log: ImportedLog, table: ImportedTable, number: int, team: Team, refused: list[str]
) -> Iterator[ImportedCase]:
    for row in (*table.rows, *_row_in_flight(log, table)):
        if _is_empty(log, table, row):
            continue
        damage = _damage(row)
        if damage:
            refused.append(f"{log.source}:{row.line}: row left out: {damage}")
            continue
        yield _timed(_measurement(log, table, row, team), _origin(log, table, row, number))


def _timed(measurement: Measurement, origin: Origin) -> ImportedCase:
    """The case; skipped where it would be ok and yet no time follows from what is printed."""
    if measurement.status == Status.OK:
        samples = measurement.samples_seconds
        if samples:
            known = min(samples) >= 0 and median(samples) > 0
        else:
            known = imported_speed(measurement, origin)["median_seconds"] is not None
        if not known:
            detail = "no time follows from what is printed"
            measurement = replace(measurement, status=Status.SKIPPED, detail=detail, samples_seconds=())
    return ImportedCase(measurement, origin)


def _damage(row: ImportedRow) -> str:
    """Why a row cannot be stored; empty where it can."""
    whole = (row.size_bytes, row.count or 0, row.root, row.wrong_elements or 0)
    if any(abs(one) > LARGEST for one in whole) or row.size_bytes < 0:
        return "a whole number is out of range"
    figures = (row.seconds, row.algbw, row.busbw, *row.samples_seconds)
    if any(one is not None and not math.isfinite(one) for one in figures):
        return "a figure is not finite"
    return ""


def _measurement(log: ImportedLog, table: ImportedTable, row: ImportedRow, team: Team) -> Measurement:
    status, detail = _status(log, table, row)
    remark = (
        _WRONG_REMARK.fullmatch(detail) if status == Status.WRONG and row.wrong_elements is None else None
    )
    library = library_word(log, table)
    case = Case(
        suite=log.tool,
        backend=library,
        collective=table.collective or UNKNOWN_COLLECTIVE,
        algorithm=table.algorithm,
        dtype=row.dtype,
        op=_op(table, row),
        size_bytes=row.size_bytes,
        count=_count(table, row, team.ranks),
        ranks=team.ranks,
        root=row.root,
        in_place=row.in_place,
        mode=table.mode,
        protocol=table.protocol,
        nodes=team.nodes,
    )
    keeps_samples = status in (Status.OK, Status.WRONG)
    return Measurement(
        case=case,
        status=status,
        detail=detail if remark is None else remark[2],
        backend_version=str(table.facts.get("backend_version") or library_version(log)),
        samples_seconds=row.samples_seconds if keeps_samples else (),
        wrong_elements=row.wrong_elements if remark is None else int(remark[1]),
        stop_reason="imported",
        # In one of ccbench's own tables: a model's times stay a model's, an emulation's an emulation's.
        simulated=capabilities_of(library).device in (Device.MODEL, Device.EMULATED_GPU),
        conditions=Conditions(flags=_flags(row, library, keeps_samples)),
    )


def _flags(row: ImportedRow, library: str, has_run: bool) -> tuple[str, ...]:
    """The row's own flags; tables of older versions do not say that an emulation is one."""
    emulated = has_run and capabilities_of(library).device is Device.EMULATED_GPU
    return (Flag.EMULATION,) * (emulated and Flag.EMULATION not in row.flags) + row.flags


def _status(log: ImportedLog, table: ImportedTable, row: ImportedRow) -> tuple[Status, str]:
    """How the row ended, and why that is no speed."""
    stated = row.extra.get("status")
    if stated in {status.value for status in Status}:
        return Status(stated), str(row.extra.get("detail", ""))
    if row.wrong_elements:
        return Status.WRONG, f"{row.wrong_elements} wrong elements"
    if Flag.SIZE_NOT_STATED in row.flags and not row.seconds:
        return Status.SKIPPED, "a rate is printed without the size it was measured at"
    if row.seconds or row.algbw or row.busbw or row.samples_seconds:
        return Status.OK, ""
    if row is _last_without_figures(table) and _outcome(log, table) in STATUS_OF_OUTCOME:
        return STATUS_OF_OUTCOME[_outcome(log, table)], log.detail or "the output ends here"
    return Status.SKIPPED, "no time, algbw or busbw above 0 is printed"


def _is_empty(log: ImportedLog, table: ImportedTable, row: ImportedRow) -> bool:
    """Whether the row stands for nothing: a placement that was not asked for is printed as N/A."""
    said = row.wrong_elements or row.samples_seconds or row.extra or row.flags
    ended = row is _last_without_figures(table) and _outcome(log, table) in STATUS_OF_OUTCOME
    return not said and not ended and row.seconds is None and row.algbw is None and row.busbw is None


def _empty(log: ImportedLog, table: ImportedTable, where: str) -> list[str]:
    count = sum(_is_empty(log, table, row) for row in table.rows)
    return [f"{where}: {count} of {len(table.rows)} placements print no figure"] if count else []


def _outcome(log: ImportedLog, table: ImportedTable) -> Outcome:
    """The table's own end, or the log's where that is the last table and does not tell itself."""
    if table.outcome in (Outcome.UNKNOWN, Outcome.CUT) and log.tables and table is log.tables[-1]:
        return log.outcome if log.outcome != Outcome.UNKNOWN else table.outcome
    return table.outcome


def _last_without_figures(table: ImportedTable) -> ImportedRow | None:
    for row in table.rows[-2:]:
        if row.seconds is None and row.algbw is None and row.busbw is None:
            return row
    return None


def _row_in_flight(log: ImportedLog, table: ImportedTable) -> tuple[ImportedRow, ...]:
    """The row that a crash or a time-out kept from being printed, where the sweep tells which it was.

    nccl-tests measures sizes in order, out of place before in place, so the next size follows from the
    last three when they grow alike; where there is no row at all it is the first that the settings state.
    """
    outcome = _outcome(log, table)
    if outcome not in STATUS_OF_OUTCOME or _last_without_figures(table) is not None:
        return ()
    lost = {
        "status": STATUS_OF_OUTCOME[outcome].value,
        "detail": log.detail or "the output ends before this row, the next of the sweep",
    }
    if not table.rows:
        first = table.facts.get("minimum_bytes")
        if not isinstance(first, int):
            return ()
        line = table.line
        return (ImportedRow(first, None, "", "", NO_ROOT, False, None, None, None, line=line, extra=lost),)
    size = next_size([row.size_bytes for row in table.rows])
    if size is None or size > int(table.facts.get("maximum_bytes") or LARGEST):
        return ()
    last = table.rows[-1]
    grown = None if last.count is None or not last.size_bytes else last.count * size // last.size_bytes
    return (
        replace(
            last, size_bytes=size, count=grown, in_place=False, seconds=None, algbw=None, busbw=None,
            wrong_elements=None, samples_seconds=(), half_units=(None, None, None), flags=(), extra=lost,
        ),
    )  # fmt: skip


def next_size(sizes: Sequence[int]) -> int | None:
    """The size after ``sizes`` in a sweep by a factor or a step; None where the last three do not tell."""
    distinct = list(dict.fromkeys(sizes))[-3:]
    if len(distinct) < 3 or not all(0 < low < high for low, high in pairwise(distinct)):
        return None
    first, second, third = distinct
    if second * second == first * third:
        return third * third // second
    return third + (third - second) if third - second == second - first else None


def _origin(log: ImportedLog, table: ImportedTable, row: ImportedRow, number: int) -> Origin:
    return Origin(
        source=log.source,
        table=number,
        line=row.line,
        tool=log.tool,
        tool_version=_version(log, "tool", log.tool),
        device_model=device_models(log),
        outcome=_outcome(log, table).value,
        time_statistic=TIME_STATISTIC.get(log.tool, "printed"),
        seconds=row.seconds,
        algbw=row.algbw,
        busbw=row.busbw,
        comparable=not {Flag.ALGBW_PER_RANK, Flag.SIZE_PER_RANK, Flag.SIZE_NOT_STATED} & set(row.flags),
        extra={name: value for name, value in row.extra.items() if name not in ("status", "detail")},
    )


def _op(table: ImportedTable, row: ImportedRow) -> str:
    """The op; some versions print one for collectives that have none, and others print none at all."""
    collective = COLLECTIVES.get(table.collective)
    return NO_OP if collective is not None and not collective.reduces else row.op or NO_OP


def _count(table: ImportedTable, row: ImportedRow, ranks: int) -> int:
    if row.count is not None:
        return row.count
    collective = COLLECTIVES.get(table.collective)
    if collective is None or row.dtype not in ITEM_BYTES or Flag.SIZE_NOT_STATED in row.flags:
        return UNKNOWN_COUNT
    return collective.count_for(row.size_bytes, ranks, ITEM_BYTES[row.dtype])


def library_word(log: ImportedLog, table: ImportedTable | None = None) -> str:
    """The library measured, as ``backend`` names it: nccl, rccl, mpi, gloo, ..., else the tool's name."""
    stated = str((table.facts.get("backend") if table is not None else None) or log.library).strip().lower()
    if not stated:
        return LIBRARY_OF_TOOL.get(log.tool, log.tool)
    if "mpi" in stated.split() or stated.endswith("mpi") or stated.startswith(("mpich", "mvapich")):
        return "mpi"
    return "-".join(stated.split())


def library_version(log: ImportedLog) -> str:
    """Library and version, such as ``NCCL 2.21.5``; empty where the output does not tell."""
    version = _version(log, "library", log.library, library_word(log))
    return f"{log.library or library_word(log).upper()} {version}" if version else ""


def device_models(log: ImportedLog) -> str:
    """Every model among the devices, in order, once each."""
    return ", ".join(dict.fromkeys(device.model for device in log.devices if device.model))


def _version(log: ImportedLog, *names: str) -> str:
    by_name = {name.lower(): value for name, value in log.versions.items()}
    return next((str(by_name[name.lower()]) for name in names if name and name.lower() in by_name), "")


def _ending(log: ImportedLog, table: ImportedTable, where: str) -> list[str]:
    outcome = _outcome(log, table)
    if outcome in (Outcome.COMPLETE, Outcome.UNKNOWN):
        return []
    reason = f" ({log.detail})" if log.detail else ""
    return [f"{where}: {outcome.value}{reason}"]


def described(one: Imported) -> Mapping[str, Any]:
    """What run.json keeps of one file: everything the rows do not say, secrets blanked."""
    log = one.log
    return {
        "source": log.source,
        "tool": log.tool,
        "library": log.library,
        "outcome": log.outcome.value,
        "detail": _blanked(log.detail),
        "versions": {name: _blanked(str(text)) for name, text in log.versions.items()},
        "environment": kept_variables({str(name): str(text) for name, text in log.environment.items()}),
        "hints": [_blanked(line) for line in log.hints],
        "notices": [asdict(notice) for notice in log.notices],
        "devices": [asdict(device) for device in log.devices],
        "facts": _plain(log.facts),
        "tables": [_table_described(table) for table in log.tables],
        "left_out": list(one.refused),
        "notes": list(one.notes),
    }


def _table_described(table: ImportedTable) -> Mapping[str, Any]:
    return {
        "collective": table.collective,
        "line": table.line,
        "rows": len(table.rows),
        "ranks": table.ranks,
        "nodes": table.nodes,
        "algorithm": table.algorithm,
        "protocol": table.protocol,
        "outcome": table.outcome.value,
        "average_busbw": table.average_busbw,
        "facts": _plain(table.facts),
    }


def _blanked(text: str) -> str:
    """``text`` as the house keeps the value of a variable: printable, short, blank where it looks secret."""
    return line_shown(text)[:LONGEST_VALUE]


def _plain(value: Any) -> Any:
    """``value`` as JSON holds it: text for whatever JSON has no word for, and for NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        return _blanked(value)
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
