"""The columns of a run's table, gathered from the values that declare them, and a case as a row of them.

What a row derives is derived here.

A case that another tool measured has an ``Origin``: where it is written, and what is printed there. What such
tools print is an average over launches, not a sample: nobody can tell from it how much launches differ. So an
imported row has no samples and no interval unless the output lists samples, and ``time_statistic`` says what
its ``median_seconds`` really is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from ccbench.cases.axes import AXES, OVERLAP, Case, asked_of, case_of
from ccbench.cases.measurement import Conditions, Measurement, Rounding, Status
from ccbench.collectives import COLLECTIVES, SETUPS
from ccbench.columns import Column, column, columns_of, described
from ccbench.errors import UsageError
from ccbench.model import Prediction, PredictionInterval
from ccbench.stats import rounds_interval, tukey_outliers

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types


SCHEMA_VERSION = 1
"""Changes when a column of a release is dropped or means another thing; other versions are refused."""

VERSION_KEY = b"ccbench_schema_version"
"""Key of the file metadata under which every case file states its schema version."""


_NO_SPEED = "status is not ok"
_NO_INTERVAL = "status is not ok, or an imported row has no samples"
_NO_BANDWIDTH = f"status is not ok, no data is moved (barrier, {', '.join(SETUPS)}, 0 bytes), or mode is overlap"
_NOT_IMPORTED = "ccbench measured the case"
_AS_PRINTED = "as the source prints it, whatever the status"
_NO_PART = "one collective ran alone, what ran at the same time was not timed apart, or status is not ok"
_NO_OVERLAP = "mode is not overlap, or status is not ok"
_NOT_PRINTED = "ccbench measured the case, or the output does not print it"
_LAUNCH, _RATE = "seconds per launch", "1e9 bytes/second"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Figures of speed that follow from the samples of a case that is OK."""

    median_seconds: float | None = column(
        None,
        "median of the rounds' medians, else as time_statistic says",
        _LAUNCH,
        _NO_SPEED,
    )
    low_seconds: float | None = column(None, "lower end of the interval", _LAUNCH, _NO_INTERVAL)
    high_seconds: float | None = column(
        None, "upper end of the interval", _LAUNCH, _NO_INTERVAL
    )
    interval_confidence: float | None = column(
        None,
        "confidence of the interval, by order statistics",
        null_when=_NO_INTERVAL,
    )
    outliers: int | None = column(
        None, "samples outside Tukey's fences; kept", "samples", _NO_INTERVAL
    )
    algbw: float | None = column(
        None,
        "size_bytes / median_seconds",
        _RATE,
        _NO_BANDWIDTH,
        name="algbw_GB_s",
    )
    busbw: float | None = column(
        None,
        "algbw_GB_s times the bus factor of nccl-tests",
        _RATE,
        _NO_BANDWIDTH,
        name="busbw_GB_s",
    )
    rank_median_seconds: tuple[float, ...] = column(
        (),
        "median of each rank",
        _LAUNCH,
        _NO_SPEED + ", or ranks were not timed apart",
    )
    slowest_rank: int | None = column(
        None,
        "rank that waits least for the others",
        null_when=_NO_SPEED + ", or no rank differs from the others",
    )
    group_median_seconds: tuple[float, ...] = column(
        (), "median of each of group_names", _LAUNCH, _NO_PART
    )
    slowest_group_place: int | None = column(
        None, "place of the largest, from 0", null_when=_NO_PART, name="slowest_group"
    )
    overlap_efficiency: float | None = column(
        None,
        "share of the shorter part that is hidden: 1 all, 0 none",
        null_when=_NO_OVERLAP,
    )
    overlap_low: float | None = column(None, "lower end of its interval", null_when=_NO_OVERLAP)
    overlap_high: float | None = column(
        None, "upper end of its interval", null_when=_NO_OVERLAP
    )


@dataclass(frozen=True)
class Origin:
    """Source of an imported case and the figures that it prints."""

    source: str = field(metadata=described("file, or repository and path, of an imported row"))
    table: int = field(
        metadata=described(
            "number of the table, from 1", "", _NOT_IMPORTED, name="source_table"
        )
    )
    line: int = field(metadata=described("line, from 1", "", _NOT_IMPORTED, name="source_line"))
    tool: str = field(metadata=described("program whose output was imported"))
    tool_version: str = column("", "its version")
    device_model: str = column("", "devices as the output names them")
    outcome: str = column("", "how the output ends: complete, cut, crashed, hung, unknown")
    time_statistic: str = column(
        "printed",
        "of median_seconds: median, mean, printed, from bandwidth",
    )
    seconds: float | None = column(
        None, _AS_PRINTED, _LAUNCH, _NOT_PRINTED, name="printed_seconds"
    )
    algbw: float | None = column(
        None, _AS_PRINTED, _RATE, _NOT_PRINTED, name="printed_algbw_GB_s"
    )
    busbw: float | None = column(
        None, _AS_PRINTED, _RATE, _NOT_PRINTED, name="printed_busbw_GB_s"
    )
    comparable: bool = True
    """algbw and busbw mean what they mean here; where not, they are computed from the time."""
    extra: Mapping[str, Any] = field(
        default_factory=dict,
        hash=False,
        metadata=described("JSON of columns that only this tool prints"),
    )


SCHEMA: tuple[Column, ...] = (
    Column("suite", "string", "", "name of the suite"),
    Column(
        "case_id",
        "string",
        "",
        "sixteen hex digits of everything asked of the case",
    ),
    *(Column(axis.name, axis.kind, axis.unit, axis.meaning) for axis in AXES),
    *(
        column
        for kind in (
            Measurement,
            Speed,
            Prediction,
            PredictionInterval,
            Conditions,
            Origin,
            Rounding,
        )
        for column in columns_of(kind)
    ),
)
"""Every column in file order."""


@cache
def arrow_schema() -> pa.Schema:
    """SCHEMA as a pyarrow schema with its version in the metadata."""
    import pyarrow as pa

    scalar = {
        "string": pa.string(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
    }

    def arrow_type(kind: str) -> pa.DataType:
        if kind.startswith("list<"):
            return pa.list_(arrow_type(kind[len("list<") : -1]))
        return scalar[kind]

    fields = [
        pa.field(column.name, arrow_type(column.kind), nullable=bool(column.null_when))
        for column in SCHEMA
    ]
    return pa.schema(fields, metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()})


Row = dict[str, Any]

BYTES_PER_GIGABYTE = 1e9

WAITING_SHARE = 0.1
"""Of a launch; ranks whose waiting differs by less are equally fast."""

FINE_ENOUGH = 1.0
"""GB/s; tools print two decimals, so a smaller rate has lost digits that the printed time still has."""

OF_SAMPLES = "median"
FROM_BANDWIDTH = "from bandwidth"

_EMPTY: Row = {column.name: None if column.null_when else "" for column in SCHEMA}
"""Every column of a case of which nothing is known."""


def row_of(
    measurement: Measurement,
    prediction: Prediction | None,
    confidence: float,
    origin: Origin | None = None,
) -> Row:
    """Every column of the schema for one case; only a case that is OK gets figures of speed.

    origin: of a case that another tool measured.
    """
    case = measurement.case
    row: Row = {
        **_EMPTY,
        "case_id": case.case_id,
        "time_statistic": OF_SAMPLES,
        "suite": case.suite,
        **asked_of(case),
        **_stored(measurement),
        **_stored(measurement.conditions),
        **_stored(measurement.rounding),
    }
    if prediction is not None:
        row |= {**_stored(prediction), "bound_seconds": prediction.bound_seconds or None}
        row |= {} if prediction.interval is None else _stored(prediction.interval)
    if measurement.status == Status.OK:
        row |= _stored(speed_of(measurement, confidence))
    if origin is not None:
        row |= _stored(origin)
        row["case_id"] = imported_case_id(case, origin)
        if measurement.samples_seconds:
            row["time_statistic"] = OF_SAMPLES
        else:
            row |= imported_speed(measurement, origin)
    return {name: _storable(value) for name, value in row.items()}


def _stored(
    part: Measurement
    | Conditions
    | Rounding
    | Speed
    | Prediction
    | PredictionInterval
    | Origin,
) -> Row:
    """The columns of ``part``; a default is null where its column may be, as in ``_kept``."""
    cells = ((column, getattr(part, column.attribute)) for column in columns_of(type(part)))
    return {
        column.name: None if column.null_when and value == column.default else value
        for column, value in cells
    }


def imported_case_id(case: Case, origin: Origin) -> str:
    """Sixteen hex digits that tell the same case apart in different places of the same or other sources."""
    text = f"{case.case_id};{origin.source};{origin.table};{origin.line};{case.in_place}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def imported_speed(measurement: Measurement, origin: Origin) -> Row:
    """The columns of speed of a row without samples; nothing unless the case is OK.

    Printed bandwidths are kept from FINE_ENOUGH on, and are computed from the time below. Where no time was
    printed it is computed from a bandwidth, and ``time_statistic`` says so.
    """
    case = measurement.case
    if measurement.status != Status.OK:
        return {}
    row: Row = {}
    collective = COLLECTIVES.get(case.collective)
    # An output names the ranks of its communicator, whatever ccbench calls groups.
    factor = collective.bus_factor(case.ranks) if collective and collective.moves_data else None
    algbw, busbw = (
        _positive(rate) if origin.comparable else None for rate in (origin.algbw, origin.busbw)
    )
    seconds = _positive(origin.seconds)
    if seconds is None:
        known = algbw or (busbw / factor if busbw and factor else None)
        seconds = (
            None if known is None else _positive(case.size_bytes / known / BYTES_PER_GIGABYTE)
        )
        row["time_statistic"] = origin.time_statistic if seconds is None else FROM_BANDWIDTH
    row["median_seconds"] = seconds
    if _has_bandwidth(case):
        computed = bandwidths(case, seconds or 0.0)
        for name, printed, own in zip(
            ("algbw_GB_s", "busbw_GB_s"), (algbw, busbw), map(_positive, computed), strict=True
        ):
            fine = printed is not None and printed >= FINE_ENOUGH
            row[name] = printed if fine or own is None else own
    return row


def _positive(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _has_bandwidth(case: Case) -> bool:
    """Return whether data moves and the time is the collective's alone, not that of a computation as well."""
    idle = case.collective in SETUPS or case.collective == "barrier" or not case.size_bytes
    return not idle and case.mode != OVERLAP


def bandwidths(case: Case, seconds: float) -> tuple[float | None, float | None]:
    """algbw and busbw in GB/s (1e9 bytes/s) of one launch; None where no data moves or no time passed.

    busbw = algbw x the collective's bus factor (nccl-tests doc/PERFORMANCE.md); None for a collective
    that is not in the table, whose factor nobody knows.
    """
    if seconds <= 0 or not _has_bandwidth(case):
        return None, None
    algbw = case.size_bytes / seconds / BYTES_PER_GIGABYTE
    if not math.isfinite(algbw):
        return None, None
    collective = COLLECTIVES.get(case.collective)
    return algbw, None if collective is None else algbw * collective.bus_factor(
        case.group_ranks
    )


def _medians(
    measurement: Measurement, every: Sequence[Sequence[float]], confidence: float
) -> list[float]:
    """Medians of ranks or groups, taken as the case's own is; [] where one of them has none."""
    if not all(part and all(map(_is_time, part)) for part in every):
        return []
    medians = [
        rounds_interval(part, measurement.round_samples, confidence).median for part in every
    ]
    return medians if all(map(math.isfinite, medians)) else []


def speed_of(measurement: Measurement, confidence: float) -> Speed:
    """Median, interval and bandwidths of the case; medians of ranks and of groups, and their slowest."""
    samples, figures = measurement.samples_seconds, Row()
    if samples and all(map(_is_time, samples)):
        interval = rounds_interval(samples, measurement.round_samples, confidence)
        if math.isfinite(interval.median):
            algbw, busbw = bandwidths(measurement.case, interval.median)
            figures = {
                "median_seconds": interval.median,
                "low_seconds": interval.low,
                "high_seconds": interval.high,
                "interval_confidence": interval.confidence,
                "outliers": sum(map(len, tukey_outliers(samples))),
                "algbw": algbw,
                "busbw": busbw,
            }
    if medians := _medians(measurement, measurement.rank_samples_seconds, confidence):
        figures |= {
            "rank_median_seconds": tuple(medians),
            "slowest_rank": _slowest_rank(measurement, medians),
        }
    if medians := _medians(measurement, measurement.group_samples_seconds, confidence):
        figures |= {
            "group_median_seconds": tuple(medians),
            "slowest_group_place": _largest(medians),
        }
    return Speed(**figures, **_overlap(measurement, confidence))


def _slowest_rank(measurement: Measurement, medians: Sequence[float]) -> int | None:
    waiting = usual_waits(measurement.rank_waiting_seconds)
    slowest = _largest(medians)
    if waiting and not (measurement.case.pair and len(medians) == 2):
        # Ranks end together, so a late one shows by not waiting itself while the others wait for it.
        slowest = None
        if len(waiting) >= 2:
            first, second = sorted(range(len(waiting)), key=waiting.__getitem__)[:2]
            is_late = waiting[second] - waiting[first] >= WAITING_SHARE * max(medians)
            slowest = first if is_late else None
    # Whoever stands by neither works nor waits, and has no row.
    having: Sequence[int] = ()
    with suppress(UsageError):  # of a row that no version of ccbench wrote
        having = measurement.case.communicating_ranks
    return having[slowest] if slowest is not None and len(having) == len(medians) else slowest


def _overlap(measurement: Measurement, confidence: float) -> Row:
    """Share of the shorter of computation and collective that ran beside the longer, sample by sample."""
    parts = measurement.group_samples_seconds
    together = measurement.samples_seconds
    if measurement.case.mode != OVERLAP or len(parts) < 2:
        return {}
    columns = (parts[0], parts[1], together)
    alike = len({len(column) for column in columns}) == 1 and bool(together)
    if not alike or not all(_is_time(seconds) for column in columns for seconds in column):
        return {}
    shares = [
        (computing + communicating - both) / min(computing, communicating)
        for computing, communicating, both in zip(*columns, strict=True)
        if min(computing, communicating) > 0
    ]
    if len(shares) < len(together):
        return {}
    interval = rounds_interval(shares, measurement.round_samples, confidence)
    return {
        "overlap_efficiency": interval.median,
        "overlap_low": interval.low,
        "overlap_high": interval.high,
    }


def usual_waits(waiting_seconds: Sequence[Sequence[float]]) -> list[float]:
    """Time that each rank waited in a launch: the median of its rounds; empty where it is not known.

    Other programs that ran in one round hold up whichever rank had its processor taken, for hundreds of
    launches, and a mean would keep that.
    """
    return (
        [float(median(rounds)) for rounds in waiting_seconds]
        if all(map(len, waiting_seconds))
        else []
    )


def _largest(medians: Sequence[float]) -> int | None:
    differ = max(medians) > min(medians)
    return max(range(len(medians)), key=medians.__getitem__) if differ else None


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def _storable(value: Any) -> Any:
    """``value`` with lists for tuples, JSON for mappings and text that UTF-8 can hold.

    Last words of a process may hold stray surrogates.
    """
    if isinstance(value, Mapping):
        value = json.dumps(dict(value), sort_keys=True, default=str) if value else ""
    if isinstance(value, Status):
        value = value.value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return list(map(_storable, value)) if isinstance(value, (tuple, list)) else value


def measurement_of(row: Mapping[str, Any]) -> Measurement:
    """The measurement that a row of a run, as plain Python values, was written from."""
    kept = {**_kept(Measurement, row), "status": Status(row["status"])}
    return Measurement(
        case=case_of(row),
        conditions=Conditions(**_kept(Conditions, row)),
        rounding=Rounding(**_kept(Rounding, row)),
        **kept,
    )


def _kept(
    kind: type[Conditions | Measurement | Rounding], row: Mapping[str, Any]
) -> dict[str, Any]:
    """The columns of ``kind`` by field; what is null has the field's default."""
    return {
        column.attribute: column.default
        if row[column.name] is None
        else _frozen(row[column.name])
        for column in columns_of(kind)
    }


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
