"""One measurement and its prediction <-> one row of the schema. What is derived is derived here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from statistics import median
from typing import Any

from ccbench.cases import OVERLAP, Case, Conditions, Measurement, Status, case_of
from ccbench.collectives import COLLECTIVES
from ccbench.errors import UsageError
from ccbench.model.prediction import Prediction
from ccbench.results.imported import OF_SAMPLES, Origin, imported_case_id, imported_speed, origin_columns
from ccbench.stats import rounds_interval, tukey_outliers

Row = dict[str, Any]

BYTES_PER_GIGABYTE = 1e9

WAITING_SHARE = 0.1
"""Of a launch; ranks whose waiting differs by less are equally fast."""


def row_of(
    measurement: Measurement, prediction: Prediction | None, confidence: float, origin: Origin | None = None
) -> Row:
    """Every column of the schema for one case; only a case that is OK gets figures of speed.

    origin: of a case that another tool measured.
    """
    case = measurement.case
    row: Row = {
        **asdict(case),
        "case_id": case.case_id,
        "backend_version": measurement.backend_version,
        "algorithm_used": measurement.algorithm_used,
        "simulated": measurement.simulated,
        "status": Status(measurement.status).value,
        "detail": measurement.detail,
        "launches_per_sample": measurement.launches_per_sample or None,
        "gated_launches": measurement.gated_launches,
        "samples_seconds": list(measurement.samples_seconds) or None,
        "warmup_seconds": list(measurement.warmup_seconds) or None,
        "skew_seconds": list(measurement.skew_seconds) or None,
        "rank_samples_seconds": [list(one) for one in measurement.rank_samples_seconds] or None,
        "rank_waiting_seconds": [list(one) for one in measurement.rank_waiting_seconds] or None,
        "rank_cpu_share": list(measurement.rank_cpu_share) or None,
        "rank_queued_share": list(measurement.rank_queued_share) or None,
        "round_samples": list(measurement.round_samples) or None,
        "launching_seconds": measurement.launching_seconds or None,
        "wrong_elements": measurement.wrong_elements,
        "stop_reason": measurement.stop_reason,
        "started_at": measurement.started_at,
        "protocol_used": measurement.protocol_used,
        "channels_used": measurement.channels_used or None,
        "library_estimate_seconds": measurement.library_estimate_seconds,
        "hosts": list(measurement.hosts) or None,
        "node_of_rank": list(measurement.node_of_rank) or None,
        "device_readings": measurement.device_readings,
        **_part_columns(measurement, confidence),
        **_overlap_columns(measurement, confidence),
        **_condition_columns(measurement.conditions),
        **_prediction_columns(prediction),
        **_speed_columns(measurement, confidence),
        **_rank_columns(measurement, confidence),
        **origin_columns(origin),
    }
    if origin is not None:
        row["case_id"] = imported_case_id(case, origin)
        if measurement.samples_seconds:
            row["time_statistic"] = OF_SAMPLES
        else:
            row.update(imported_speed(measurement, origin))
    return {name: _storable(value) for name, value in row.items()}


def _condition_columns(conditions: Conditions) -> Row:
    return {
        "core_latency_before_seconds": conditions.core_latency_before_seconds,
        "core_latency_after_seconds": conditions.core_latency_after_seconds,
        "other_cpu_share": conditions.other_cpu_share,
        "steal_share": conditions.steal_share,
        "watched_cpu_seconds": conditions.watched_cpu_seconds or None,
        "binding": list(conditions.binding) or None,
        "oversubscribed": conditions.oversubscribed,
        "flags": list(conditions.flags),
    }


def _prediction_columns(prediction: Prediction | None) -> Row:
    if prediction is None:
        names = ("bound_seconds", "predicted_seconds", "predicted_latency_seconds")
        return dict.fromkeys((*names, "predicted_bandwidth_seconds", "bottleneck"))
    return {
        "bound_seconds": prediction.bound_seconds,
        "predicted_seconds": prediction.predicted_seconds,
        "predicted_latency_seconds": prediction.latency_seconds,
        "predicted_bandwidth_seconds": prediction.bandwidth_seconds,
        "bottleneck": prediction.bottleneck,
    }


def _speed_columns(measurement: Measurement, confidence: float) -> Row:
    """Median, interval and bandwidths; null unless the case is OK and its samples are times."""
    names = ("median_seconds", "low_seconds", "high_seconds", "interval_confidence", "outliers")
    nothing: Row = dict.fromkeys((*names, "algbw_GB_s", "busbw_GB_s"))
    samples = measurement.samples_seconds
    if measurement.status != Status.OK or not samples or not all(map(_is_time, samples)):
        return nothing
    interval = rounds_interval(samples, measurement.round_samples, confidence)
    if not math.isfinite(interval.median):
        return nothing
    mild, severe = tukey_outliers(samples)
    algbw, busbw = bandwidths(measurement.case, interval.median)
    return {
        "median_seconds": interval.median,
        "low_seconds": interval.low,
        "high_seconds": interval.high,
        "interval_confidence": interval.confidence,
        "outliers": len(mild) + len(severe),
        "algbw_GB_s": algbw,
        "busbw_GB_s": busbw,
    }


def bandwidths(case: Case, seconds: float) -> tuple[float | None, float | None]:
    """algbw and busbw in GB/s (1e9 bytes/s) of one launch; None where no data moves or no time passed.

    busbw = algbw x the collective's bus factor (nccl-tests doc/PERFORMANCE.md); None for a collective
    that is not in the table, whose factor nobody knows.
    """
    collective = COLLECTIVES.get(case.collective)
    moves_data = case.size_bytes > 0 and (collective is None or collective.moves_data)
    if not moves_data or seconds <= 0 or case.mode == OVERLAP:
        return None, None
    algbw = case.size_bytes / seconds / BYTES_PER_GIGABYTE
    if not math.isfinite(algbw):
        return None, None
    return algbw, None if collective is None else algbw * collective.bus_factor(case.group_ranks)


def _rank_columns(measurement: Measurement, confidence: float) -> Row:
    """Medians of the ranks, taken as the case's own is, and the slowest one when there is one."""
    ranks = measurement.rank_samples_seconds
    complete = bool(ranks) and all(one and all(map(_is_time, one)) for one in ranks)
    if measurement.status != Status.OK or not complete:
        return {"rank_median_seconds": None, "slowest_rank": None}
    rounds = measurement.round_samples
    medians = [rounds_interval(one, rounds, confidence).median for one in ranks]
    if not all(map(math.isfinite, medians)):
        return {"rank_median_seconds": None, "slowest_rank": None}
    waiting = usual_waits(measurement.rank_waiting_seconds)
    if (measurement.case.pair and len(medians) == 2) or not waiting:
        slowest = _largest(medians)
    else:
        slowest = _waits_least(waiting, max(medians))
    # Whoever stands by neither works nor waits, and has no row.
    having: Sequence[int] = ()
    with suppress(UsageError):  # of a row that no version of ccbench wrote
        having = measurement.case.communicating_ranks
    if slowest is not None and len(having) == len(medians):
        slowest = having[slowest]
    return {"rank_median_seconds": medians, "slowest_rank": slowest}


def _part_columns(measurement: Measurement, confidence: float) -> Row:
    """Names and medians of what ran at the same time, and the slowest; medians only where all are OK."""
    names = list(measurement.group_names) or None
    samples = measurement.group_samples_seconds
    complete = bool(samples) and all(one and all(map(_is_time, one)) for one in samples)
    row: Row = {"group_names": names, "group_samples_seconds": [list(one) for one in samples] or None}
    if measurement.status != Status.OK or not complete:
        return {**row, "group_median_seconds": None, "slowest_group": None}
    rounds = measurement.round_samples
    medians = [rounds_interval(one, rounds, confidence).median for one in samples]
    return {**row, "group_median_seconds": medians, "slowest_group": _largest(medians)}


def _overlap_columns(measurement: Measurement, confidence: float) -> Row:
    """How much of the shorter of computation and collective ran beside the longer, sample by sample."""
    nothing: Row = dict.fromkeys(("overlap_efficiency", "overlap_low", "overlap_high"))
    parts = measurement.group_samples_seconds
    together = measurement.samples_seconds
    if measurement.status != Status.OK or measurement.case.mode != OVERLAP or len(parts) < 2:
        return nothing
    columns = (parts[0], parts[1], together)
    alike = len({len(column) for column in columns}) == 1 and bool(together)
    if not alike or not all(_is_time(one) for column in columns for one in column):
        return nothing
    shares = [
        (computing + communicating - both) / min(computing, communicating)
        for computing, communicating, both in zip(*columns, strict=True)
        if min(computing, communicating) > 0
    ]
    if len(shares) < len(together):
        return nothing
    interval = rounds_interval(shares, measurement.round_samples, confidence)
    return {
        "overlap_efficiency": interval.median,
        "overlap_low": interval.low,
        "overlap_high": interval.high,
    }


def usual_waits(waiting_seconds: Sequence[Sequence[float]]) -> list[float]:
    """What each rank waited in a launch: the median of its rounds; empty where it is not known.

    Other programs that ran in one round hold up whichever rank had its processor taken, for hundreds of
    launches, and a mean would keep that.
    """
    return [float(median(rounds)) for rounds in waiting_seconds] if all(map(len, waiting_seconds)) else []


def _largest(medians: Sequence[float]) -> int | None:
    differ = max(medians) > min(medians)
    return max(range(len(medians)), key=medians.__getitem__) if differ else None


def _waits_least(waiting: Sequence[float], launch_seconds: float) -> int | None:
    """The rank that the others wait for: ranks end together, so a late one shows by not waiting itself."""
    if len(waiting) < 2:
        return None
    first, second = sorted(range(len(waiting)), key=waiting.__getitem__)[:2]
    return first if waiting[second] - waiting[first] >= WAITING_SHARE * launch_seconds else None


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def _storable(value: Any) -> Any:
    """``value`` with text that UTF-8 can hold: a worker's last words may hold stray surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [_storable(one) for one in value]
    return value


def measurement_of(row: Mapping[str, Any]) -> Measurement:
    """The measurement that a row of a case's file, as plain Python values, was written from."""
    stored = {**_kept(Measurement, row), "status": Status(row["status"])}
    return Measurement(case=case_of(row), conditions=Conditions(**_kept(Conditions, row)), **stored)


def _kept(kind: type[Conditions | Measurement], row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``kind`` that are columns; what is null has the field's default."""
    columns = [one for one in fields(kind) if one.name in row]
    return {one.name: one.default if row[one.name] is None else _frozen(row[one.name]) for one in columns}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
