"""A published log becomes observations: what was asked of which system, and how long it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.score.contradictions import contradictions, other_gpu
from benchmarks.score.descriptions import described
from benchmarks.score.manifest import ManifestEntry
from benchmarks.score.network_words import switches_add
from benchmarks.score.teams import Team, team_of
from ccbench.collectives import COLLECTIVES
from ccbench.errors import CcbenchError
from ccbench.model.library import LibrarySystem
from ccbench.model.library.calibration import Observation
from ccbench.readers.benchmarks import read_log
from ccbench.readers.benchmarks.log import ImportedLog, ImportedRow, ImportedTable, checked
from ccbench.results.observed import asked_of, sized

WORST_ROUNDING = 0.02
"""A time that follows from a printed rate is taken when the rate's rounding moves it by less than this."""


_DTYPES = {
    "float": "float32",
    "fp32": "float32",
    "half": "float16",
    "fp16": "float16",
    "double": "float64",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
}


@dataclass(frozen=True)
class LogPoints:
    """One log of a manifest.

    left_out: why tables or rows of it are not among the observations.

    contradictions: where manifest and log say different things, and which of them counts.
    """

    entry: ManifestEntry
    observations: tuple[Observation, ...]
    left_out: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()

    @property
    def systems(self) -> tuple[LibrarySystem, ...]:
        """Those of its observations, each once."""
        return tuple(dict.fromkeys(observation.system for observation in self.observations))


def points_of(
    entry: ManifestEntry, folder: Path, read: Callable[[Path], ImportedLog] = read_log
) -> LogPoints:
    """What the log of ``entry`` says; a file that cannot be read is a reason, not an error."""
    try:
        log = checked(read(folder / entry.file))
    except CcbenchError as error:
        return LogPoints(entry, (), (" ".join(str(error).split()),))
    other = other_gpu(entry, log)
    if other:
        return LogPoints(entry, (), (other,))
    observations: list[Observation] = []
    reasons: Counter[str] = Counter()
    for table in log.tables:
        found = _of_table(entry, log, table, reasons)
        observations += found
    if not log.tables:
        reasons["the log has no table"] += 1
    told = (
        f"{reason} ({count} times)" if count > 1 else reason
        for reason, count in reasons.items()
    )
    return LogPoints(entry, tuple(observations), tuple(told), contradictions(entry, log))


def _of_table(
    entry: ManifestEntry, log: ImportedLog, table: ImportedTable, reasons: Counter[str]
) -> list[Observation]:
    asked, team = asked_of(entry, log, table), team_of(entry, table)
    if isinstance(asked, str) or isinstance(team, str):
        reasons[asked if isinstance(asked, str) else str(team)] += 1
        return []
    try:
        system = system_of(entry, team)
    except CcbenchError as error:
        reasons[str(error)] += 1
        return []
    if system.ranks == 1:
        reasons["one rank: nothing is sent"] += 1
        return []
    rows = _timed_rows(
        _checked_for(log, table, asked.collective, system.ranks), system.ranks, reasons
    )
    groups: dict[tuple[str, bool], list[ImportedRow]] = {}
    for row in rows:
        groups.setdefault((dtype_of(row, entry), row.in_place), []).append(row)
    return [
        Observation(
            system,
            sized(asked, (row.size_bytes for row in group), dtype, in_place),
            tuple(row.seconds or 0.0 for row in group),
        )
        for (dtype, in_place), group in groups.items()
    ]


def dtype_of(row: ImportedRow, entry: ManifestEntry) -> str:
    """ccbench's name of the row's element type, from the manifest where the row prints none."""
    word = row.dtype or entry.datatype.partition("(")[0].strip().lower()
    return _DTYPES.get(word, word)


def _checked_for(
    log: ImportedLog, table: ImportedTable, collective: str, ranks: int
) -> ImportedTable:
    """``table`` with the flags that its figures deserve on these ranks: its device lines may be others'."""
    return checked(
        replace(log, tables=(replace(table, collective=collective, ranks=ranks),))
    ).tables[0]


def system_of(entry: ManifestEntry, team: Team) -> LibrarySystem:
    """The system that the manifest's words describe for this team. Raises MachineError."""
    system = described(
        entry.gpu,
        team.gpus_per_node,
        team.nodes,
        entry.interconnect,
        entry.network,
        name=_name(entry, team),
    )
    origins = {**system.origins, "ranks": team.origin}
    if system.network is not None and switches_add(f"{entry.forced} {entry.network}"):
        reducing = replace(system.network, in_network_reduction=True)
        return replace(system, network=reducing, origins=origins)
    return replace(system, origins=origins)


def _name(entry: ManifestEntry, team: Team) -> str:
    return f"{team.nodes} x {team.gpus_per_node} {entry.gpu}, {entry.interconnect}, {entry.network}"


def _timed_rows(table: ImportedTable, ranks: int, reasons: Counter[str]) -> list[ImportedRow]:
    """Rows with a size and a time and without contradictions; rates stand in for times not printed."""
    timed = []
    for row in table.rows:
        seconds = _seconds(row, table.collective, ranks)
        if row.flags:
            reasons[f"rows flagged {', '.join(sorted(row.flags))}"] += 1
        elif row.size_bytes <= 0:
            reasons["rows of size 0"] += 1
        elif seconds is None:
            reasons["rows without a time, or a rate that is printed precisely enough"] += 1
        else:
            timed.append(replace(row, seconds=seconds))
    if not table.rows:
        reasons["a table without rows"] += 1
    return timed


def _seconds(row: ImportedRow, collective: str, ranks: int) -> float | None:
    if row.seconds is not None:
        return row.seconds if row.seconds > 0 else None
    _, half_algbw, half_busbw = row.half_units
    factor = COLLECTIVES[collective].bus_factor(ranks)
    for rate, half, share in ((row.algbw, half_algbw, 1.0), (row.busbw, half_busbw, factor)):
        if rate and rate > 0 and (half or 0.0) <= WORST_ROUNDING * rate:
            return row.size_bytes * share / (rate * 1e9)
    return None
