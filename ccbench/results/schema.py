"""The columns of a case's parquet file, as data: the writer, the loader and docs/columns.md read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ccbench.cases import AXES

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
_NO_BANDWIDTH = "status is not ok, no data is moved (barrier, 0 bytes), or mode is overlap"
_NO_PREDICTION = "no prediction was made"
_NO_RANGE = "no interval is known: no prediction, or none of a GPU library"
_UNKNOWN = "not known on this machine"
_NOT_IMPORTED = "ccbench measured the case"
_AS_PRINTED = "as the source prints it, whatever the status"
_NO_GROUPS = "one collective ran alone, or what ran at the same time was not timed apart"
_NO_OVERLAP = "mode is not overlap, or status is not ok"
_ONE_HOST = "all ranks ran on the host of the run"
_NOT_PRINTED = "ccbench measured the case, or the output does not print it"

SCHEMA: tuple[Column, ...] = (
    Column("suite", "string", "", "name of the suite the case belongs to"),
    Column("case_id", "string", "", "sixteen hex digits that depend on everything asked of the case"),
    *(Column(axis.name, axis.kind, axis.unit, axis.meaning) for axis in AXES),
    Column("backend_version", "string", "", "library and version that ran; may be empty"),
    Column("algorithm_used", "string", "", "algorithm that ran; empty when the backend does not report it"),
    Column("simulated", "bool", "", "times were computed, not measured"),
    Column("status", "string", "", "ok, wrong, unsupported, failed, timed_out, out_of_memory, skipped"),
    Column("detail", "string", "", "why the status is not ok; may be empty"),
    Column("launches_per_sample", "int64", "", "launches timed together as one sample", _NOT_MEASURED),
    Column(
        "blocked_launches", "int64", "",
        "of a sample, launches enqueued before the devices were released: of streaming the first, of "
        "graph all; 0 where nothing holds devices back",
        _NOT_MEASURED + ", or times are the host's",
    ),
    Column(
        "samples_seconds", "list<double>", "seconds per launch",
        "every sample: from the first rank's start to the last rank's end; by GPUs' clocks the longest "
        "rank's; on several hosts the shortest of single launches that no rank can end before all have begun",
        _NOT_MEASURED,
    ),
    Column("warmup_seconds", "list<double>", "seconds per launch", "warm-up samples", _NOT_MEASURED),
    Column(
        "skew_seconds", "list<double>", "seconds",
        "per sample: start of the last rank minus start of the first",
        _NOT_MEASURED + ", or ranks have no clock in common",
    ),
    Column(
        "rank_samples_seconds", "list<list<double>>", "seconds per launch",
        "the same samples as each rank saw them, [rank][sample]", _NOT_MEASURED,
    ),
    Column(
        "round_samples", "list<int64>", "samples",
        "how many of the samples each round gave; other cases run between the rounds",
        _NOT_MEASURED,
    ),
    Column(
        "launching_seconds", "double", "seconds",
        "time spent in warm-up and measured launches; the rest of the case is the harness", _NOT_MEASURED,
    ),
    Column(
        "rank_median_seconds", "list<double>", "seconds per launch",
        "each rank's median, taken as median_seconds is, in rank order",
        _NO_SPEED + ", or ranks were not timed apart",
    ),
    Column(
        "rank_waiting_seconds", "list<list<double>>", "seconds per launch",
        "what each rank waited for others in each round, by the last turns of its warm-up, [rank][round]",
        _NOT_MEASURED + ", or the backend does not report it",
    ),
    Column(
        "rank_cpu_share", "list<double>", "share of one processor",
        "each rank's processor time over the time from warm-up to check (mean of rounds), in rank order; "
        "a rank that polls while it waits has all that it is given",
        _NOT_MEASURED + ", or ranks are not processes of their own",
    ),
    Column(
        "rank_queued_share", "list<double>", "share of the time",
        "how long each rank could have run while something else had its processor, over the same time "
        "(mean of rounds), in rank order",
        _NOT_MEASURED + ", or ranks are not processes of their own, or the system does not report it",
    ),
    Column(
        "slowest_rank", "int64", "",
        "rank that waits for others less than every other rank by a tenth of a launch or more; "
        "the one with the largest median where waiting is not known, and of a pair",
        _NO_SPEED + ", or no rank differs from the others",
    ),
    Column(
        "wrong_elements", "int64", "elements", "elements of the timed result that were wrong",
        "nothing was checked",
    ),
    Column(
        "median_seconds", "double", "seconds per launch",
        "median of the rounds' medians; of the samples where rounds are too few for the confidence; "
        "of an imported row what time_statistic says", _NO_SPEED,
    ),
    Column("low_seconds", "double", "seconds per launch", "lower end of the interval", _NO_INTERVAL),
    Column("high_seconds", "double", "seconds per launch", "upper end of the interval", _NO_INTERVAL),
    Column(
        "interval_confidence", "double", "",
        "confidence of the interval, by order statistics of what the median is taken of", _NO_INTERVAL,
    ),
    Column("outliers", "int64", "samples", "samples outside Tukey's fences; they are kept", _NO_INTERVAL),
    Column("stop_reason", "string", "", "why sampling ended; may be empty"),
    Column(
        "algbw_GB_s", "double", "1e9 bytes/second",
        "size_bytes / median_seconds; of an imported row as printed, from 1 GB/s on",
        _NO_BANDWIDTH,
    ),
    Column(
        "busbw_GB_s", "double", "1e9 bytes/second",
        "algbw times the collective's bus factor (nccl-tests doc/PERFORMANCE.md); imported as algbw_GB_s is",
        _NO_BANDWIDTH,
    ),
    Column("bound_seconds", "double", "seconds", "no schedule can be faster here", _NO_PREDICTION),
    Column("predicted_seconds", "double", "seconds", "price of the schedule that ran", _NO_PREDICTION),
    Column(
        "predicted_latency_seconds", "double", "seconds",
        "part of predicted_seconds that does not grow with the size", _NO_PREDICTION,
    ),
    Column(
        "predicted_bandwidth_seconds", "double", "seconds",
        "part of predicted_seconds that grows with the size", _NO_PREDICTION,
    ),
    *(
        Column(
            f"predicted_{edge}_{share}_seconds", "double", "seconds",
            f"{edge} edge of the interval that holds {share} % of such measurements", _NO_RANGE,
        )
        for share in (80, 95) for edge in ("low", "high")
    ),
    Column("predicted_origin", "string", "", "the systems whose errors the intervals are from", _NO_RANGE),
    Column("bottleneck", "string", "", "the link or term that costs most", _NO_PREDICTION),
    Column(
        "core_latency_before_seconds", "double", "seconds",
        "time of a flag from one core to another, before the case", _UNKNOWN,
    ),
    Column(
        "core_latency_after_seconds", "double", "seconds",
        "time of a flag from one core to another, after the case", _UNKNOWN,
    ),
    Column(
        "other_cpu_share", "double", "fraction",
        "processor time other programs took meanwhile; of several hosts the largest", _UNKNOWN,
    ),
    Column(
        "steal_share", "double", "fraction",
        "processor time the hypervisor took meanwhile; of several hosts the largest", _UNKNOWN,
    ),
    Column(
        "watched_cpu_seconds", "double", "seconds",
        "processor time, all processors together, that the two shares are of; they are rough below 0.1 s",
        _UNKNOWN,
    ),
    Column("binding", "list<int64>", "", "logical processor each rank was bound to", "ranks were not bound"),
    Column("oversubscribed", "bool", "", "ranks shared processors or devices"),
    Column("flags", "list<string>", "", "what makes the figures doubtful; an empty list when nothing does"),
    Column("started_at", "string", "", "when the case began, ISO 8601 in UTC; may be empty"),
    Column("source", "string", "", "file, or repository and path, a row was imported from; else empty"),
    Column("source_table", "int64", "", "number of the table in its source, from 1", _NOT_IMPORTED),
    Column("source_line", "int64", "", "line of the source, from 1", _NOT_IMPORTED),
    Column("tool", "string", "", "program whose output was imported; else empty"),
    Column("tool_version", "string", "", "its version; may be empty"),
    Column("device_model", "string", "", "devices as an output names them; may be empty"),
    Column(
        "outcome", "string", "",
        "how an imported output ends: complete, cut, crashed, hung, unknown; else empty",
    ),
    Column(
        "time_statistic", "string", "",
        "what median_seconds is: median (of samples), mean (over launches, as printed), printed (not said "
        "of what), from bandwidth (no time was printed)",
    ),
    Column("printed_seconds", "double", "seconds per launch", _AS_PRINTED, _NOT_PRINTED),
    Column("printed_algbw_GB_s", "double", "1e9 bytes/second", _AS_PRINTED, _NOT_PRINTED),
    Column("printed_busbw_GB_s", "double", "1e9 bytes/second", _AS_PRINTED, _NOT_PRINTED),
    Column("extra", "string", "", "JSON of columns that only this tool prints; else empty"),
    Column(
        "protocol_used", "string", "",
        "protocol the library says it chose, empty: not reported; own kernels: `host` without peer access",
    ),
    Column("channels_used", "int64", "", "channels the library says it used", "not reported"),
    Column(
        "library_estimate_seconds", "double", "seconds", "what the library itself expected of the case",
        "the library gives none",
    ),
    Column(
        "group_names", "list<string>", "",
        "what ran at the same time: groups, collectives, or (mode overlap) computation and collective",
        _NO_GROUPS,
    ),
    Column(
        "group_samples_seconds", "list<list<double>>", "seconds per launch",
        "the samples of each of group_names, [name][sample]", _NO_GROUPS,
    ),
    Column(
        "group_median_seconds", "list<double>", "seconds per launch",
        "median of each of group_names, in that order",
        _NO_GROUPS + ", or status is not ok",
    ),
    Column(
        "slowest_group", "int64", "", "place in group_names of the largest median, from 0",
        _NO_GROUPS + ", or status is not ok",
    ),
    Column("hosts", "list<string>", "", "host of each rank", _ONE_HOST),
    Column("node_of_rank", "list<int64>", "", "machine of each rank, from 0", _ONE_HOST),
    Column(
        "device_readings", "string", "",
        "JSON: clocks, throttle reasons, power, temperature and error counters of each device, before and "
        "after the case; else empty",
    ),
    Column(
        "overlap_efficiency", "double", "",
        "(computation alone + collective alone - both together) / the shorter of the two alone: 1 hides it "
        "wholly, 0 not at all; median over samples", _NO_OVERLAP,
    ),
    Column("overlap_low", "double", "", "lower end of its interval", _NO_OVERLAP),
    Column("overlap_high", "double", "", "upper end of its interval", _NO_OVERLAP),
)  # fmt: skip
"""Every column in file order."""


@cache
def arrow_schema() -> pa.Schema:
    """SCHEMA as a pyarrow schema with its version in the metadata."""
    import pyarrow as pa

    scalar = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}

    def arrow_type(kind: str) -> pa.DataType:
        if kind.startswith("list<"):
            return pa.list_(arrow_type(kind[len("list<") : -1]))
        return scalar[kind]

    fields = [pa.field(one.name, arrow_type(one.kind), nullable=bool(one.null_when)) for one in SCHEMA]
    return pa.schema(fields, metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()})


def schema_table() -> str:
    """SCHEMA as the Markdown table of docs/columns.md (a test keeps the two equal)."""
    lines = ["| column | type | unit | meaning | null when |", "| --- | --- | --- | --- | --- |"]
    for column in SCHEMA:
        unit = column.unit or "-"
        null_when = column.null_when or "never"
        lines.append(f"| `{column.name}` | `{column.kind}` | {unit} | {column.meaning} | {null_when} |")
    return "\n".join(lines)
