"""The columns of a case's parquet file, as data, and a measurement with its prediction as a row of them.

The writer, the loader and docs/columns.md read the columns. What a row derives is derived here.

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
from dataclasses import dataclass, field, fields
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from ccbench.cases import AXES, OVERLAP, Case, Conditions, Measurement, Status, case_of
from ccbench.collectives import COLLECTIVES, SETUPS
from ccbench.errors import UsageError
from ccbench.model import Prediction
from ccbench.stats import rounds_interval, tukey_outliers

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types


SCHEMA_VERSION = 1
"""Changes when a column of a release is dropped or means another thing; other versions are refused."""

VERSION_KEY = b"ccbench_schema_version"
"""Key of the file metadata under which every case file states its schema version."""


@dataclass(frozen=True)
class Column:
    """One column. ``null_when`` is empty for a column that always has a value.

    kind: string, int64, double, bool, or list<...> of those, as parquet and Arrow call them.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    null_when: str = ""


_NOT_MEASURED = "no sample was taken"
_NO_SPEED = "status is not ok"
_NO_INTERVAL = "status is not ok, or an imported row has no samples"
_NO_BANDWIDTH = f"status is not ok, no data is moved (barrier, {', '.join(SETUPS)}, 0 bytes), or mode is overlap"
_NO_PREDICTION = "no prediction was made"
_NO_RANGE = "no interval is known: no prediction, or none of a GPU library"
_UNKNOWN = "not known on this machine"
_NOT_IMPORTED = "ccbench measured the case"
_AS_PRINTED = "as the source prints it, whatever the status"
_NO_GROUPS = "one collective ran alone, or what ran at the same time was not timed apart"
_NO_OVERLAP = "mode is not overlap, or status is not ok"
_NO_LIBRARY = "nothing was measured, or the backend has no library of its own"
_ONE_HOST = "all ranks ran on the host of the run"
_NOT_PRINTED = "ccbench measured the case, or the output does not print it"

SCHEMA: tuple[Column, ...] = (
    Column("suite", "string", "", "name of the suite the case belongs to"),
    Column(
        "case_id", "string", "", "sixteen hex digits that depend on everything asked of the case"
    ),
    *(Column(axis.name, axis.kind, axis.unit, axis.meaning) for axis in AXES),
    Column("backend_version", "string", "", "library and version that ran; may be empty"),
    Column(
        "algorithm_used",
        "string",
        "",
        "algorithm that ran; empty when the backend does not report it",
    ),
    Column("simulated", "bool", "", "times were computed, not measured"),
    Column(
        "status", "string", "", "ok, wrong, unsupported, failed, timed_out, out_of_memory, skipped"
    ),
    Column("detail", "string", "", "why the status is not ok; may be empty"),
    Column(
        "launches_per_sample", "int64", "", "launches timed together as one sample", _NOT_MEASURED
    ),
    Column(
        "blocked_launches",
        "int64",
        "",
        "of a sample, launches enqueued before the devices were released: of streaming the first, of "
        "graph all; 0 where nothing holds devices back",
        _NOT_MEASURED + ", or times are the host's",
    ),
    Column(
        "samples_seconds",
        "list<double>",
        "seconds per launch",
        "every sample: from the first rank's start to the last rank's end; by GPUs' clocks the longest "
        "rank's; on several hosts the shortest of single launches that no rank can end before all have begun",
        _NOT_MEASURED,
    ),
    Column(
        "warmup_seconds", "list<double>", "seconds per launch", "warm-up samples", _NOT_MEASURED
    ),
    Column(
        "skew_seconds",
        "list<double>",
        "seconds",
        "per sample: start of the last rank minus start of the first",
        _NOT_MEASURED + ", or ranks have no clock in common",
    ),
    Column(
        "rank_samples_seconds",
        "list<list<double>>",
        "seconds per launch",
        "the same samples as each rank saw them, [rank][sample]",
        _NOT_MEASURED,
    ),
    Column(
        "round_samples",
        "list<int64>",
        "samples",
        "how many of the samples each round gave; other cases run between the rounds",
        _NOT_MEASURED,
    ),
    Column(
        "launching_seconds",
        "double",
        "seconds",
        "time spent in warm-up and measured launches; the rest of the case is the harness",
        _NOT_MEASURED,
    ),
    Column(
        "rank_median_seconds",
        "list<double>",
        "seconds per launch",
        "each rank's median, taken as median_seconds is, in rank order",
        _NO_SPEED + ", or ranks were not timed apart",
    ),
    Column(
        "rank_waiting_seconds",
        "list<list<double>>",
        "seconds per launch",
        "what each rank waited for others in each round, by the last turns of its warm-up, [rank][round]",
        _NOT_MEASURED + ", or the backend does not report it",
    ),
    Column(
        "rank_cpu_share",
        "list<double>",
        "share of one processor",
        "each rank's processor time over the time from warm-up to check (mean of rounds), in rank order; "
        "a rank that polls while it waits has all that it is given",
        _NOT_MEASURED + ", or ranks are not processes of their own",
    ),
    Column(
        "rank_queued_share",
        "list<double>",
        "share of the time",
        "how long each rank could have run while something else had its processor, over the same time "
        "(mean of rounds), in rank order",
        _NOT_MEASURED
        + ", or ranks are not processes of their own, or the system does not report it",
    ),
    Column(
        "slowest_rank",
        "int64",
        "",
        "rank that waits for others less than every other rank by a tenth of a launch or more; "
        "the one with the largest median where waiting is not known, and of a pair",
        _NO_SPEED + ", or no rank differs from the others",
    ),
    Column(
        "wrong_elements",
        "int64",
        "elements",
        "elements of the timed result that were wrong",
        "nothing was checked",
    ),
    Column(
        "median_seconds",
        "double",
        "seconds per launch",
        "median of the rounds' medians; of the samples where rounds are too few for the confidence; "
        "of an imported row what time_statistic says",
        _NO_SPEED,
    ),
    Column(
        "low_seconds", "double", "seconds per launch", "lower end of the interval", _NO_INTERVAL
    ),
    Column(
        "high_seconds", "double", "seconds per launch", "upper end of the interval", _NO_INTERVAL
    ),
    Column(
        "interval_confidence",
        "double",
        "",
        "confidence of the interval, by order statistics of what the median is taken of",
        _NO_INTERVAL,
    ),
    Column(
        "outliers",
        "int64",
        "samples",
        "samples outside Tukey's fences; they are kept",
        _NO_INTERVAL,
    ),
    Column("stop_reason", "string", "", "why sampling ended; may be empty"),
    Column(
        "algbw_GB_s",
        "double",
        "1e9 bytes/second",
        "size_bytes / median_seconds; of an imported row as printed, from 1 GB/s on",
        _NO_BANDWIDTH,
    ),
    Column(
        "busbw_GB_s",
        "double",
        "1e9 bytes/second",
        "algbw times the collective's bus factor (nccl-tests doc/PERFORMANCE.md); imported as algbw_GB_s is",
        _NO_BANDWIDTH,
    ),
    Column("bound_seconds", "double", "seconds", "no schedule can be faster here", _NO_PREDICTION),
    Column(
        "predicted_seconds", "double", "seconds", "price of the schedule that ran", _NO_PREDICTION
    ),
    Column(
        "predicted_latency_seconds",
        "double",
        "seconds",
        "part of predicted_seconds that does not grow with the size",
        _NO_PREDICTION,
    ),
    Column(
        "predicted_bandwidth_seconds",
        "double",
        "seconds",
        "part of predicted_seconds that grows with the size",
        _NO_PREDICTION,
    ),
    *(
        Column(
            f"predicted_{edge}_{share}_seconds",
            "double",
            "seconds",
            f"{edge} edge of the interval that holds {share} % of such measurements",
            _NO_RANGE,
        )
        for share in (80, 95)
        for edge in ("low", "high")
    ),
    Column(
        "predicted_origin",
        "string",
        "",
        "the systems whose errors the intervals are from",
        _NO_RANGE,
    ),
    Column("bottleneck", "string", "", "the link or term that costs most", _NO_PREDICTION),
    Column(
        "core_latency_before_seconds",
        "double",
        "seconds",
        "time of a flag from one core to another, before the case",
        _UNKNOWN,
    ),
    Column(
        "core_latency_after_seconds",
        "double",
        "seconds",
        "time of a flag from one core to another, after the case",
        _UNKNOWN,
    ),
    Column(
        "other_cpu_share",
        "double",
        "fraction",
        "processor time other programs took meanwhile; of several hosts the largest",
        _UNKNOWN,
    ),
    Column(
        "steal_share",
        "double",
        "fraction",
        "processor time the hypervisor took meanwhile; of several hosts the largest",
        _UNKNOWN,
    ),
    Column(
        "watched_cpu_seconds",
        "double",
        "seconds",
        "processor time, all processors together, that the two shares are of; they are rough below 0.1 s",
        _UNKNOWN,
    ),
    Column(
        "binding",
        "list<int64>",
        "",
        "logical processor each rank was bound to",
        "ranks were not bound",
    ),
    Column("oversubscribed", "bool", "", "ranks shared processors or devices"),
    Column(
        "flags",
        "list<string>",
        "",
        "what makes the figures doubtful; an empty list when nothing does",
    ),
    Column("started_at", "string", "", "when the case began, ISO 8601 in UTC; may be empty"),
    Column(
        "source", "string", "", "file, or repository and path, a row was imported from; else empty"
    ),
    Column("source_table", "int64", "", "number of the table in its source, from 1", _NOT_IMPORTED),
    Column("source_line", "int64", "", "line of the source, from 1", _NOT_IMPORTED),
    Column("tool", "string", "", "program whose output was imported; else empty"),
    Column("tool_version", "string", "", "its version; may be empty"),
    Column("device_model", "string", "", "devices as an output names them; may be empty"),
    Column(
        "outcome",
        "string",
        "",
        "how an imported output ends: complete, cut, crashed, hung, unknown; else empty",
    ),
    Column(
        "time_statistic",
        "string",
        "",
        "what median_seconds is: median (of samples), mean (over launches, as printed), printed (not said "
        "of what), from bandwidth (no time was printed)",
    ),
    Column("printed_seconds", "double", "seconds per launch", _AS_PRINTED, _NOT_PRINTED),
    Column("printed_algbw_GB_s", "double", "1e9 bytes/second", _AS_PRINTED, _NOT_PRINTED),
    Column("printed_busbw_GB_s", "double", "1e9 bytes/second", _AS_PRINTED, _NOT_PRINTED),
    Column("extra", "string", "", "JSON of columns that only this tool prints; else empty"),
    Column(
        "protocol_used",
        "string",
        "",
        "protocol the library says it chose, empty: not reported; own kernels: `host` without peer access",
    ),
    Column("channels_used", "int64", "", "channels the library says it used", "not reported"),
    Column(
        "library_estimate_seconds",
        "double",
        "seconds",
        "what the library itself expected of the case",
        "the library gives none",
    ),
    Column(
        "group_names",
        "list<string>",
        "",
        "what ran at the same time: groups, collectives, or (mode overlap) computation and collective",
        _NO_GROUPS,
    ),
    Column(
        "group_samples_seconds",
        "list<list<double>>",
        "seconds per launch",
        "the samples of each of group_names, [name][sample]",
        _NO_GROUPS,
    ),
    Column(
        "group_median_seconds",
        "list<double>",
        "seconds per launch",
        "median of each of group_names, in that order",
        _NO_GROUPS + ", or status is not ok",
    ),
    Column(
        "slowest_group",
        "int64",
        "",
        "place in group_names of the largest median, from 0",
        _NO_GROUPS + ", or status is not ok",
    ),
    Column("hosts", "list<string>", "", "host of each rank", _ONE_HOST),
    Column("node_of_rank", "list<int64>", "", "machine of each rank, from 0", _ONE_HOST),
    Column(
        "device_readings",
        "string",
        "",
        "JSON: clocks, throttle reasons, power, temperature and error counters of each device, before and "
        "after the case; else empty",
    ),
    Column(
        "library_path",
        "string",
        "",
        "file of the backend's library that the ranks had loaded",
        _NO_LIBRARY,
    ),
    Column("library_sha256", "string", "", "its SHA-256, in hex digits", _NO_LIBRARY),
    Column(
        "overlap_efficiency",
        "double",
        "",
        "(computation alone + collective alone - both together) / the shorter of the two alone: 1 hides it "
        "wholly, 0 not at all; median over samples",
        _NO_OVERLAP,
    ),
    Column("overlap_low", "double", "", "lower end of its interval", _NO_OVERLAP),
    Column("overlap_high", "double", "", "upper end of its interval", _NO_OVERLAP),
    Column(
        "library_settings",
        "string",
        "",
        "JSON of environment variables that are set and that the library tells of, with the values in effect",
        "the library tells of none that is set (NCCL tells of some from 2.30 on)",
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
        pa.field(one.name, arrow_type(one.kind), nullable=bool(one.null_when)) for one in SCHEMA
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


@dataclass(frozen=True)
class Origin:
    """Source of an imported case and the figures that it prints.

    source: a file's name, or repository and path. table, line: from 1.
    time_statistic: what a printed time is, such as ``mean``.
    seconds per launch, algbw and busbw in 1e9 bytes per second: as printed, None where not printed.
    comparable: algbw and busbw mean what they mean here; where not, they are computed from the time.
    extra: columns only this tool has, plain JSON values.
    """

    source: str
    table: int
    line: int
    tool: str
    tool_version: str = ""
    device_model: str = ""
    outcome: str = ""
    time_statistic: str = "printed"
    seconds: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    comparable: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


_COLUMN_OF = {
    "table": "source_table",
    "line": "source_line",
    "seconds": "printed_seconds",
    "algbw": "printed_algbw_GB_s",
    "busbw": "printed_busbw_GB_s",
}
"""Columns of an origin's fields that have another name."""


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
        **_stored(case),
        **_stored(measurement),
        **_stored(measurement.conditions),
        "status": Status(measurement.status).value,
    }
    if prediction is not None:
        row |= {
            **_stored(prediction),
            "predicted_latency_seconds": prediction.latency_seconds,
            "predicted_bandwidth_seconds": prediction.bandwidth_seconds,
        }
        if prediction.interval is not None:
            row |= {f"predicted_{name}": value for name, value in vars(prediction.interval).items()}
    if measurement.status == Status.OK:
        row |= _speed_columns(measurement, confidence)
        row |= _overlap_columns(measurement, confidence)
    if origin is not None:
        row |= {_COLUMN_OF.get(name, name): value for name, value in vars(origin).items()}
        del row["comparable"]
        row["case_id"] = imported_case_id(case, origin)
        row["extra"] = (
            json.dumps(dict(origin.extra), sort_keys=True, default=str) if origin.extra else ""
        )
        if measurement.samples_seconds:
            row["time_statistic"] = OF_SAMPLES
        else:
            row |= imported_speed(measurement, origin)
    return {name: _storable(value) for name, value in row.items()}


def _stored(part: Case | Measurement | Conditions | Prediction) -> Row:
    """The fields of ``part`` that are columns; a default is null where its column may be, as in ``_kept``."""
    return {
        one.name: None if _EMPTY[one.name] is None and value == one.default else value
        for one, value in (
            (one, getattr(part, one.name)) for one in fields(part) if one.name in _EMPTY
        )
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
        seconds = None if known is None else _positive(case.size_bytes / known / BYTES_PER_GIGABYTE)
        row["time_statistic"] = origin.time_statistic if seconds is None else FROM_BANDWIDTH
    row["median_seconds"] = seconds
    if _has_bandwidth(case):
        computed = (
            None if seconds is None else _positive(case.size_bytes / seconds / BYTES_PER_GIGABYTE)
        )
        of_bus = _positive(computed * factor) if computed and factor else None
        for name, printed, own in (("algbw_GB_s", algbw, computed), ("busbw_GB_s", busbw, of_bus)):
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
    return algbw, None if collective is None else algbw * collective.bus_factor(case.group_ranks)


def _medians(
    measurement: Measurement, every: Sequence[Sequence[float]], confidence: float
) -> list[float]:
    """Medians of ranks or groups, taken as the case's own is; [] where one of them has none."""
    if not all(one and all(map(_is_time, one)) for one in every):
        return []
    medians = [rounds_interval(one, measurement.round_samples, confidence).median for one in every]
    return medians if all(map(math.isfinite, medians)) else []


def _speed_columns(measurement: Measurement, confidence: float) -> Row:
    """Median, interval and bandwidths of the case; medians of ranks and of groups, and their slowest."""
    samples, row = measurement.samples_seconds, Row()
    if samples and all(map(_is_time, samples)):
        interval = rounds_interval(samples, measurement.round_samples, confidence)
        if math.isfinite(interval.median):
            algbw, busbw = bandwidths(measurement.case, interval.median)
            row = {
                "median_seconds": interval.median,
                "low_seconds": interval.low,
                "high_seconds": interval.high,
                "interval_confidence": interval.confidence,
                "outliers": sum(map(len, tukey_outliers(samples))),
                "algbw_GB_s": algbw,
                "busbw_GB_s": busbw,
            }
    if medians := _medians(measurement, measurement.rank_samples_seconds, confidence):
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
        if slowest is not None and len(having) == len(medians):
            slowest = having[slowest]
        row |= {"rank_median_seconds": medians, "slowest_rank": slowest}
    if medians := _medians(measurement, measurement.group_samples_seconds, confidence):
        row |= {"group_median_seconds": medians, "slowest_group": _largest(medians)}
    return row


def _overlap_columns(measurement: Measurement, confidence: float) -> Row:
    """Share of the shorter of computation and collective that ran beside the longer, sample by sample."""
    parts = measurement.group_samples_seconds
    together = measurement.samples_seconds
    if measurement.case.mode != OVERLAP or len(parts) < 2:
        return {}
    columns = (parts[0], parts[1], together)
    alike = len({len(column) for column in columns}) == 1 and bool(together)
    if not alike or not all(_is_time(one) for column in columns for one in column):
        return {}
    shares = [
        (computing + communicating - both) / min(computing, communicating)
        for computing, communicating, both in zip(*columns, strict=True)
        if min(computing, communicating) > 0
    ]
    if len(shares) < len(together):
        return {}
    interval = rounds_interval(shares, measurement.round_samples, confidence)
    names = ("overlap_efficiency", "overlap_low", "overlap_high")
    return dict(zip(names, (interval.median, interval.low, interval.high), strict=True))


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
    """``value`` with lists for tuples and text that UTF-8 can hold: last words may hold stray surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return list(map(_storable, value)) if isinstance(value, (tuple, list)) else value


def measurement_of(row: Mapping[str, Any]) -> Measurement:
    """The measurement that a row of a case's file, as plain Python values, was written from."""
    stored = {**_kept(Measurement, row), "status": Status(row["status"])}
    return Measurement(case=case_of(row), conditions=Conditions(**_kept(Conditions, row)), **stored)


def _kept(kind: type[Conditions | Measurement], row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``kind`` that are columns; what is null has the field's default."""
    columns = [one for one in fields(kind) if one.name in row]
    return {
        one.name: one.default if row[one.name] is None else _frozen(row[one.name])
        for one in columns
    }


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
