"""Imported files become one run: every row kept, every reason told.

Nothing is dropped without a word: a table on an unknown number of ranks is refused with a note, and a row
that ends in nothing becomes a case with the status that fits.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ccbench.cases.axes import NO_OP, Case
from ccbench.cases.capabilities import Device, PricedBy, capabilities_of
from ccbench.cases.measurement import EXIT_CODES, Conditions, Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import RunFolderError, UsageError
from ccbench.flags import Flag
from ccbench.machine.files import LONGEST_VALUE, kept_variables, line_shown
from ccbench.model.cluster import MOST_OF_A_HOST
from ccbench.readers.benchmarks.log import (
    ImportedLog,
    ImportedRow,
    ImportedTable,
    LoggedTeam,
    LogOutcome,
    StatedSystem,
    checked,
    team_of,
    with_shared_devices,
    with_whole_sizes,
)
from ccbench.results import RunFolder, load_run
from ccbench.results.folder import cured
from ccbench.results.schema import Origin, imported_case_id, imported_speed
from ccbench.results.systems import Pricer, recognised
from ccbench.units import plural

UNKNOWN_COUNT = -1
"""Count of a case whose source prints none and whose element type it does not say."""

LARGEST = 2**63 - 1
"""A parquet column of whole numbers holds no more; a larger figure in a log is damage."""

_TOOLS = {
    "nccl-tests": (
        "nccl",
        "mean",
    ),  # src/common.cu: time of all iterations over their number (-a: of ranks)
    "rccl-tests": ("rccl", "mean"),  # as nccl-tests, which it was made from
    "hccl_test": ("hccl", "mean"),
    "osu": ("mpi", "mean"),  # osu_util_mpi.c: sums over iterations and ranks, divided
    "imb": ("mpi", "mean"),  # t_avg[usec]
    "torch-all-reduce-bench": ("nccl", "mean"),
    "mscclpp": ("mscclpp", "mean"),
    "nccom-test": ("nccom", "printed"),
    "gloo-benchmark": ("gloo", "printed"),
}
"""Library of a tool whose output names none, and the statistic that a printed time is by its sources."""

UNKNOWN_COLLECTIVE = "unknown"
"""Collective of a table that names none: its figures are kept and never a baseline."""

_NO_COLLECTIVE = (
    f"the output does not say which collective, so it is {UNKNOWN_COLLECTIVE!r}; put a line above it that "
    "names the program, such as '# all_reduce_perf'"
)

_WRONG_REMARK = re.compile(r"([0-9]{1,18}) wrong elements?(?:: )?(.*)")
"""Remark of ccbench's own tables on wrong results."""

NO_ROW_SHOWS_THEM = "no row shows them"
"""End of the detail of cases that are wrong by their table's closing line alone."""

_STATUS_OF_OUTCOME = {LogOutcome.CRASHED: Status.FAILED, LogOutcome.HUNG: Status.TIMED_OUT}


@dataclass(frozen=True)
class ImportedCase:
    """One row of a run to be: the case with its status, and where it is from."""

    measurement: Measurement
    origin: Origin


@dataclass(frozen=True)
class Imported:
    """Cases and notes of one file.

    log: as read, ranks filled in and rows checked. cases: in the order of the file.
    refused: one line for every table, and every row, that could not be taken. notes: what else to know.
    system: the machine and network of its predictions, as the user named them or the log shows them.
    guessed: of those notes, what tells of the latter.
    """

    log: ImportedLog
    cases: tuple[ImportedCase, ...]
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    system: StatedSystem = StatedSystem()  # noqa: RUF009  # frozen, so shared safely
    guessed: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The gravest of how the cases and the output ended; partial where something is cut or left out."""
        statuses = {case.measurement.status for case in self.cases}
        statuses.add(_STATUS_OF_OUTCOME.get(self.log.outcome, Status.OK))
        if any(table.facts.get("out_of_bounds") for table in self.log.tables):
            statuses.add(Status.WRONG)
        if self.refused or self.log.outcome is LogOutcome.CUT:
            statuses.add(Status.FAILED)
        # A row that is skipped was there and had no time, as one of no bytes.
        codes = (EXIT_CODES.get(status, 0) for status in statuses - {Status.SKIPPED})
        return min(filter(None, codes), default=0)


def _place(source: str, line: int) -> str:
    """Return the place of a line, from 1; of the file where no line is known (0)."""
    return f"{source}:{line}" if line else source


def imported(log: ImportedLog, system: StatedSystem = StatedSystem()) -> Imported:  # noqa: B008  # frozen, so shared safely
    """Cases of every table of ``log``. system: what the user says where the output says nothing."""
    log = _with_stated(log, system)
    teams = [team_of(table, system) for table in log.tables]
    counted = (
        with_whole_sizes(
            replace(_with_doubts(table), ranks=team.ranks or None, nodes=team.nodes or None)
        )
        for table, team in zip(log.tables, teams, strict=True)
    )
    whole = with_shared_devices(checked(replace(log, tables=tuple(counted))))
    cases, refused = list[ImportedCase](), list[str]()
    notes = [f"{log.source}: {w.text}" for w in log.warnings if w.kind == "assumed"]
    nameless = list[str]()
    for number, (table, team) in enumerate(zip(whole.tables, teams, strict=True), start=1):
        where = f"{_place(log.source, table.line)}: table {number}"
        if not team.ranks:
            refused.append(f"{where} (rows: {len(table.rows)}) left out: {team.reason}")
            continue
        if not table.collective:
            nameless.append(str(number))
        if team.reason not in ("stated", "given"):
            notes.append(f"{where}: {team.ranks} ranks {team.reason}")
        # The last table ends as the log does where it does not tell itself.
        is_open = table is whole.tables[-1] and table.outcome in (
            LogOutcome.UNKNOWN,
            LogOutcome.CUT,
        )
        outcome = (
            log.outcome if is_open and log.outcome != LogOutcome.UNKNOWN else table.outcome
        )
        if outcome not in (LogOutcome.COMPLETE, LogOutcome.UNKNOWN):
            why = f" ({log.detail})" if log.detail else ""
            name = table.collective or UNKNOWN_COLLECTIVE
            rowless = "" if table.rows else f", of {name}, has no rows"
            notes.append(f"{where}{rowless}: {outcome.value}{why}")
        # The row that was being measured when the output ended.
        last = table.rows[-2:] if outcome in _STATUS_OF_OUTCOME else ()
        begun = next(filter(_has_no_figure, last), None)
        empty = 0
        for row in table.rows:
            figures = (row.seconds, row.algbw, row.busbw, *row.samples_seconds)
            numbers = (row.size_bytes, row.count or 0, row.root, row.wrong_elements or 0)
            says_more = row.wrong_elements or row.samples_seconds or row.extra or row.flags
            fault = ""
            if row.size_bytes < 0 or max(map(abs, numbers)) > LARGEST:
                fault = "a whole number is out of range"
            elif not all(math.isfinite(figure or 0.0) for figure in figures):
                fault = "a figure is not finite"
            if row is not begun and _has_no_figure(row) and not says_more:
                empty += 1  # a placement that was not asked for is printed as N/A
            elif fault:
                refused.append(f"{_place(log.source, row.line)}: row left out: {fault}")
            else:
                ended = outcome if row is begun else LogOutcome.UNKNOWN
                status = _status(row, ended, log.detail)
                cases.append(_case(whole, table, row, team, status, number, outcome))
        if empty:
            notes.append(f"{where}: {plural(empty, 'placement')} without a figure")
    if nameless:
        more = f" and {len(nameless) - 3} more" if nameless[3:] else ""
        notes.append(f"{log.source}: table {', '.join(nameless[:3])}{more}: {_NO_COLLECTIVE}")
    return Imported(whole, tuple(cases), tuple(refused), tuple(notes), system)


def _case(
    log: ImportedLog,
    table: ImportedTable,
    row: ImportedRow,
    team: LoggedTeam,
    ended: tuple[Status, str],
    number: int,
    outcome: LogOutcome,
) -> ImportedCase:
    """The case of a row; skipped where it would be ok and yet no time follows from what is printed."""
    status, detail = ended
    wrong = row.wrong_elements
    # ccbench's own tables say of a wrong result how many elements were wrong.
    if status == Status.WRONG and wrong is None and (remark := _WRONG_REMARK.fullmatch(detail)):
        wrong, detail = int(remark[1]), remark[2]
    origin = Origin(
        source=log.source,
        table=number,
        line=row.line,
        tool=log.tool,
        tool_version=_version(log, "tool", log.tool),
        device_model=", ".join(
            dict.fromkeys(device.model for device in log.devices if device.model)
        ),
        outcome=outcome.value,
        time_statistic=_TOOLS.get(log.tool, ("", "printed"))[1],
        seconds=row.seconds,
        algbw=row.algbw,
        busbw=row.busbw,
        comparable=not {Flag.ALGBW_PER_RANK, Flag.SIZE_PER_RANK} & set(row.flags),
        extra={
            name: value for name, value in row.extra.items() if name not in ("status", "detail")
        },
    )
    # In one of ccbench's own tables a model's times stay a model's, an emulation's an emulation's; tables of
    # older versions do not say that an emulation is one.
    case = _asked(log, table, row, team)
    device = capabilities_of(case.backend).device
    has_run = status in (Status.OK, Status.WRONG)
    emulated = has_run and device is Device.EMULATED_GPU and Flag.EMULATION not in row.flags
    measurement = Measurement(
        case=case,
        status=status,
        detail=detail,
        backend_version=str(table.facts.get("backend_version") or library_version(log)),
        samples_seconds=row.samples_seconds if has_run else (),
        wrong_elements=wrong,
        stop_reason="imported",
        simulated=device in (Device.MODEL, Device.EMULATED_GPU),
        conditions=Conditions(flags=(Flag.EMULATION,) * emulated + row.flags),
    )
    if status == Status.OK:
        samples = measurement.samples_seconds
        if samples:
            has_time = min(samples) >= 0 and median(samples) > 0
        else:
            has_time = imported_speed(measurement, origin).get("median_seconds") is not None
        if not has_time:
            detail = "no time follows from what is printed"
            measurement = replace(
                measurement, status=Status.SKIPPED, detail=detail, samples_seconds=()
            )
    return ImportedCase(measurement, origin)


def _asked(log: ImportedLog, table: ImportedTable, row: ImportedRow, team: LoggedTeam) -> Case:
    collective, count = COLLECTIVES.get(table.collective), row.count
    if count is None and collective and row.dtype in ITEM_BYTES:
        count = collective.count_for(row.size_bytes, team.ranks, ITEM_BYTES[row.dtype])
    return Case(
        suite=log.tool,
        backend=library_word(log, table),
        collective=table.collective or UNKNOWN_COLLECTIVE,
        algorithm=table.algorithm,
        dtype=row.dtype,
        # Some versions print an op for collectives that have none, and others print none at all.
        op=NO_OP if collective is not None and not collective.reduces else row.op or NO_OP,
        size_bytes=row.size_bytes,
        count=UNKNOWN_COUNT if count is None else count,
        ranks=team.ranks,
        root=row.root,
        in_place=row.in_place,
        mode=table.mode,
        protocol=table.protocol,
        nodes=team.nodes,
    )


def _status(row: ImportedRow, ended: LogOutcome, detail: str) -> tuple[Status, str]:
    """Return how the row ended and why. ended: how the output did, where this row was the last begun."""
    stated = row.extra.get("status")
    if stated in {status.value for status in Status}:
        return Status(stated), str(row.extra.get("detail", ""))
    if row.wrong_elements:
        return Status.WRONG, f"{row.wrong_elements} wrong elements"
    if row.seconds or row.algbw or row.busbw or row.samples_seconds:
        return Status.OK, ""
    if ended in _STATUS_OF_OUTCOME:
        return _STATUS_OF_OUTCOME[ended], detail or "the output ends here"
    return Status.SKIPPED, "no time, algbw or busbw above 0 is printed"


_LIBRARY = re.compile(r"(?s)^(.*?)(?:\s+v?([0-9]+\.[0-9]\S*))?$")
"""Name and version; the latter, or both, may be empty."""


def _with_stated(log: ImportedLog, system: StatedSystem) -> ImportedLog:
    """``log`` with the library and element type that the user states; UsageError where it names others.

    The library may have its version behind it, as in "nccl 2.18.3"; one that the log names counts more.
    """
    library, version = _LIBRARY.findall(system.library.strip())[0]
    named = library_word(log) if log.library else ""
    dtypes = {row.dtype for table in log.tables for row in table.rows if row.dtype}
    for option, stated, shown_names in (
        ("library", library, {named} - {""}),
        ("dtype", system.dtype, dtypes),
    ):
        if stated and shown_names - {stated.lower()}:
            names = ", ".join(sorted(shown_names))
            raise UsageError(
                f"{log.source}: names {names}, not --{option} {stated}; leave the option out"
            )
    tables = (
        replace(
            table,
            rows=tuple(replace(row, dtype=row.dtype or system.dtype) for row in table.rows),
        )
        for table in log.tables
    )
    return replace(
        log,
        library=log.library or library.upper(),
        versions={library.upper(): version, **log.versions} if version else log.versions,
        tables=tuple(tables) if system.dtype else log.tables,
    )


def _with_doubts(table: ImportedTable) -> ImportedTable:
    """``table`` with each measured row wrong where its closing line counts wrong values that none shows."""
    counted = table.facts.get("out_of_bounds")
    if not counted or any(
        row.wrong_elements or row.extra.get("status") == "wrong" for row in table.rows
    ):
        return table
    detail = f"the closing line counts {plural(counted, 'wrong value')}, {NO_ROW_SHOWS_THEM}"
    doubt = {"status": Status.WRONG.value, "detail": detail}
    rows = (
        row
        if _has_no_figure(row)
        else replace(row, wrong_elements=None, extra={**row.extra, **doubt})
        for row in table.rows
    )
    return replace(table, rows=tuple(rows))


def _has_no_figure(row: ImportedRow) -> bool:
    return row.seconds is None and row.algbw is None and row.busbw is None


def library_word(log: ImportedLog, table: ImportedTable | None = None) -> str:
    """The library measured, as ``backend`` names it: nccl, rccl, mpi, gloo, ..., else the tool's name."""
    stated = (
        str((table.facts.get("backend") if table is not None else None) or log.library)
        .strip()
        .lower()
    )
    if not stated:
        return _TOOLS.get(log.tool, (log.tool, ""))[0]
    if (
        "mpi" in stated.split()
        or stated.endswith("mpi")
        or stated.startswith(("mpich", "mvapich"))
    ):
        return "mpi"
    return "-".join(stated.split())


def library_version(log: ImportedLog) -> str:
    """Library and version, such as ``NCCL 2.21.5``; empty where the output does not tell."""
    version = _version(log, "library", log.library, library_word(log))
    return f"{log.library or library_word(log).upper()} {version}" if version else ""


def _version(log: ImportedLog, *names: str) -> str:
    by_name = {name.lower(): value for name, value in log.versions.items()}
    return next(
        (str(by_name[name.lower()]) for name in names if name and name.lower() in by_name), ""
    )


# -- the files of one import --------------------------------------------------------------------------------


def import_logs(
    logs: Sequence[tuple[Path, ImportedLog]], system: StatedSystem
) -> tuple[Imported, ...]:
    """Return what each file gives, under a short source name that no two of them share."""
    files = []
    for name, (_, log) in zip(unique_names([path for path, _ in logs]), logs, strict=True):
        file = imported(replace(log, source=name), system)
        # What an output shows counts before what the user says, who is told of it.
        # A machine of several hosts is one of --nodes, and the output counts hosts.
        hosts = system.devices is None or system.devices <= MOST_OF_A_HOST
        options = {"node": system.nodes if hosts else None, "rank": system.ranks}
        notes = [
            note for noun, count in options.items() for note in _unused(file.log, noun, count)
        ]
        libraries = (
            capabilities_of(case.measurement.case.backend).priced_by for case in file.cases
        )
        if PricedBy.GPU_LIBRARY in libraries or file.log.devices:
            own, guesses = recognised(file.log, system)
            file = replace(file, system=own, guessed=guesses)
            notes += guesses
        files.append(replace(file, notes=(*file.notes, *notes)))
    return tuple(files)


def _unused(log: ImportedLog, noun: str, option: int | None) -> Iterator[str]:
    """A note for every number that tables of ``log`` show, in order, in the place of the one given."""
    tables: dict[int, list[str]] = {}
    for number, table in enumerate(log.tables, 1):
        tables.setdefault(getattr(table, f"{noun}s") or 0, []).append(str(number))
    for count, numbers in tables.items():
        if option and count not in (0, option):
            yield (
                f"{log.source}: table {', '.join(numbers)} {'is' if len(numbers) == 1 else 'are'} of "
                f"{plural(count, noun)}, as the output shows; --{noun}s {option} is not used"
            )


def each_once(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The files in order, and those that are the same file as an earlier one."""
    first: dict[str, Path] = {}
    again = []
    for path in paths:
        place = os.path.realpath(path)
        if place in first:
            again.append(path)
        first.setdefault(place, path)
    return tuple(first.values()), tuple(again)


def unique_names(paths: Sequence[Path]) -> list[str]:
    """The file names; where two are the same, as much of their paths as tells them apart."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    names = []
    for path_parts in parts:
        length = 1
        while (
            length < len(path_parts) - 1
            and sum(peer_parts[-length:] == path_parts[-length:] for peer_parts in parts) > 1
        ):
            length += 1
        names.append("/".join(path_parts[-length:]))
    # The very same file may be given again.
    counts = [names[:place].count(name) for place, name in enumerate(names, 1)]
    return [
        f"{name} ({count})" if count > 1 else name
        for name, count in zip(names, counts, strict=True)
    ]


def _refuse_other(folder: Path, place: Path, sources: Sequence[str], force: bool) -> None:
    """Refuse whatever an import of ``sources`` may not take the place of; ``folder`` is its name."""
    used, earlier = any(place.iterdir()) if place.is_dir() else place.exists(), []
    with suppress(RunFolderError):
        earlier = [
            entry.get("source")
            for entry in load_run(place, details=False).manifest.mappings("imported")
        ]
    if used and not (earlier and (force or earlier == [*sources])):
        raise RunFolderError(
            f"{folder}: no empty folder; give another name with -o, or, where an import is in it, "
            "--force to replace that"
        )
    if place == Path.cwd():
        raise RunFolderError(f"{folder}: you are in this folder; name one in it with -o")


@contextmanager
def replacing_import(folder: Path, sources: Sequence[str], force: bool) -> Iterator[Path]:
    """Give a folder to write an import to, which becomes ``folder`` where nothing failed.

    An import of the same ``sources`` is replaced, with ``force`` one of any. A measured run never is. Raises
    RunFolderError where something else is there, before and after.
    """
    with cured(folder):
        place = Path(os.path.realpath(folder))  # of a link, where it leads to
        _refuse_other(folder, place, sources, force)
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent)
    with beside:
        new, old = (Path(beside.name, name) for name in ("new", "old"))
        try:
            yield new
            _refuse_other(folder, place, sources, force)
            with cured(folder):
                # The earlier one goes when the new one has its place: until then both are there.
                if place.exists():
                    place.rename(old)
                new.rename(place)
        except BaseException:
            with suppress(OSError):
                place.rmdir()  # made as it was named, and still empty
            with suppress(OSError):
                old.rename(place)
            raise


def write_import(
    folder: Path,
    files: Sequence[Imported],
    system: StatedSystem,
    name: str,
    pricer: Pricer | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Write ``files`` as one run and return its folder.

    system: what the user named. name: of the run, in titles. pricer: gives every case its bound and
    prediction, and learns which it cannot. progress: is given a line before every case. Raises
    RunFolderError as RunFolder does.
    """
    from ccbench.machine.detection import load_topology
    from ccbench.topology.files import catalog_names, to_plain
    from ccbench.version import __version__

    pricer = pricer or Pricer()

    # What all files are of is the run's; what differs is told of each file alone.
    def common(name: str) -> str:
        values = {getattr(file.system, name) for file in files}
        return str(values.pop() if len(values) == 1 else getattr(system, name))

    manifest: dict[str, Any] = {
        "suite": {"name": name},
        "machine": {"name": common("machine")},
        "network": common("network"),
        "nodes": system.nodes,
        "notes": [line for file in files for line in file.guessed],
        "imported": [described(file) for file in files],
        "versions": {"ccbench": __version__},
    }
    if system.source and system.machine not in catalog_names():
        # Of a machine that a file describes nobody else could tell later what it was.
        manifest["topology"] = to_plain(load_topology(system.source))
    with RunFolder.create(folder, manifest) as run:
        written: set[str] = set()
        total = plural(sum(len(file.cases) for file in files), "case")
        for file in files:
            for case in file.cases:
                if progress is not None:
                    progress(f"check: {len(written)} of {total} written")
                origin = case.origin
                # Two rows of one line that say the same: both are kept, as tables of their own.
                while imported_case_id(case.measurement.case, origin) in written:
                    origin = replace(origin, table=origin.table + len(file.log.tables))
                written.add(imported_case_id(case.measurement.case, origin))
                priced = pricer.price(
                    case.measurement, file.log, file.system, case.origin.table
                )
                run.write(case.measurement, priced, origin=origin)
        run.describe(unpriced=list(pricer.problems), priced_with=list(pricer.remarks))
    return folder


def described(file: Imported) -> Mapping[str, Any]:
    """Return what run.json keeps of one file: everything the rows do not say, secrets blanked."""
    log = file.log
    return {
        **_plain(asdict(replace(log, tables=()))),
        "source": log.source,
        "machine": file.system.machine,
        "network": file.system.network,
        "path": dict(file.system.path),
        "environment": kept_variables(
            {str(name): str(text) for name, text in log.environment.items()}
        ),
        "tables": [
            {**_plain(asdict(replace(table, rows=()))), "rows": len(table.rows)}
            for table in log.tables
        ],
        "left_out": list(file.refused),
        "notes": list(file.notes),
    }


def _plain(value: Any) -> Any:
    """``value`` as JSON holds it: text for whatever JSON has no word for, and for NaN and infinity.

    Text is kept as the house keeps the value of a variable: printable, short, blank where it looks secret.
    """
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(member) for member in value]
    if isinstance(value, LogOutcome):
        return value.value
    if isinstance(value, str):
        return line_shown(value)[:LONGEST_VALUE]
    if (
        value is None
        or isinstance(value, (bool, int))
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    return str(value)
