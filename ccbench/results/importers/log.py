"""Values of another tool's output, before it becomes a run: every figure as printed, nothing derived.

Readers give these values; ``checks`` marks rows whose figures contradict each other, and ``runs`` turns
them into the parquet schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ccbench.topology.graph import Notice


class Outcome(str, Enum):
    """End of the tool's run, as far as its output tells."""

    COMPLETE = "complete"  # the closing lines are there
    CUT = "cut"  # the text ends, or has a hole, where more should be
    CRASHED = "crashed"  # an error or a signal is reported
    HUNG = "hung"  # a time-out or a watchdog is reported, or the table stops under one
    UNKNOWN = "unknown"  # this form has no closing lines


@dataclass(frozen=True)
class DeviceLine:
    """One rank as a header lists it; None or "" where it does not say."""

    rank: int
    group: int | None = None
    process_id: int | None = None
    host: str = ""
    device: int | None = None
    bus_id: str = ""
    model: str = ""


@dataclass(frozen=True)
class ImportedRow:
    """One placement (out of place or in place) of one row of a table.

    size_bytes: nccl-tests' size, the largest buffer of one rank. count: None where the form has none.
    dtype: ccbench's name where it has one, else the tool's own word; "" where the form says nothing.
    op: likewise; ``none`` where nothing is reduced. root: -1 where there is none.
    seconds: per launch; None where the row prints no figure. samples_seconds: where the form has them.
    algbw, busbw: as printed, in 1e9 bytes per second; None where not printed.
    half_units: half a unit of the last printed digit of (seconds, algbw, busbw), in the same units as those,
        so that checks know the rounding; None where not printed.
    wrong_elements: None where nothing was checked. flags: see ``checks``. line: 1-based, of the source.
    extra: columns that only this form has (minimum, maximum, message rate, standard deviation ...).
    """

    size_bytes: int
    count: int | None = None
    dtype: str = ""
    op: str = ""
    root: int = -1
    in_place: bool = False
    seconds: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    wrong_elements: int | None = None
    samples_seconds: tuple[float, ...] = ()
    half_units: tuple[float | None, float | None, float | None] = (None, None, None)
    flags: tuple[str, ...] = ()
    line: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ImportedTable:
    """Rows of one collective on one set of ranks.

    collective: ccbench's name where it has one, else the tool's own word, "" where the output does not say.
    ranks, nodes: None where the output does not say. algorithm, protocol: ``default`` unless stated or
        forced by an environment variable that the output shows. mode: as in Case.
    average_busbw: the closing average as printed. facts: what else the table's own header says.
    """

    collective: str
    rows: tuple[ImportedRow, ...]
    ranks: int | None = None
    nodes: int | None = None
    algorithm: str = "default"
    protocol: str = "default"
    mode: str = "streaming"
    average_busbw: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    line: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ImportedLog:
    """One file.

    tool: nccl-tests, rccl-tests, osu, imb, torch-all-reduce-bench, param, mscclpp, nccom-test, hccl_test,
        gloo-benchmark. library: what was measured (NCCL, RCCL, Open MPI, ...), "" where not said.
    versions: of tool, library, driver, CUDA, ROCm, plug-ins, by those names.
    environment: variables that the output shows (NCCL_*, ...). hints: lines from which the choice of the
        library shows (algorithm, protocol, channels), as printed.
    """

    tool: str
    source: str = ""
    library: str = ""
    tables: tuple[ImportedTable, ...] = ()
    devices: tuple[DeviceLine, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    hints: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    outcome: Outcome = Outcome.UNKNOWN
    detail: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
