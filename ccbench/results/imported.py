"""A case that another tool measured: where it is written, what is printed there, and the columns it gives.

What such tools print is an average over launches, not a sample: nobody can tell from it how much launches
differ. So an imported row has no samples and no interval unless the output lists samples, and
``time_statistic`` says what its ``median_seconds`` really is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ccbench.cases import OVERLAP, Case, Measurement, Status
from ccbench.collectives import COLLECTIVES

BYTES_PER_GIGABYTE = 1e9

FINE_ENOUGH = 1.0
"""GB/s; tools print two decimals, so a smaller rate has lost digits that the printed time still has."""

OF_SAMPLES = "median"
FROM_BANDWIDTH = "from bandwidth"


@dataclass(frozen=True)
class Origin:
    """Where an imported case comes from and what its source prints.

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


def origin_columns(origin: Origin | None) -> dict[str, Any]:
    """The columns from ``source`` to ``extra``; those of a measured case where there is no origin."""
    import json

    if origin is None:
        texts = dict.fromkeys(("source", "tool", "tool_version", "device_model", "outcome", "extra"), "")
        nothing = (
            "source_table",
            "source_line",
            "printed_seconds",
            "printed_algbw_GB_s",
            "printed_busbw_GB_s",
        )
        return {**texts, **dict.fromkeys(nothing), "time_statistic": OF_SAMPLES}
    extra = json.dumps(dict(origin.extra), sort_keys=True, default=str) if origin.extra else ""
    return {
        "source": origin.source,
        "source_table": origin.table,
        "source_line": origin.line,
        "tool": origin.tool,
        "tool_version": origin.tool_version,
        "device_model": origin.device_model,
        "outcome": origin.outcome,
        "time_statistic": origin.time_statistic,
        "printed_seconds": origin.seconds,
        "printed_algbw_GB_s": origin.algbw,
        "printed_busbw_GB_s": origin.busbw,
        "extra": extra,
    }


def imported_case_id(case: Case, origin: Origin) -> str:
    """Sixteen hex digits that tell the same case apart in different places of the same or other sources."""
    text = f"{case.case_id};{origin.source};{origin.table};{origin.line};{case.in_place}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def imported_speed(measurement: Measurement, origin: Origin) -> dict[str, Any]:
    """The columns of speed of a row without samples; all null unless the case is OK.

    Printed bandwidths are kept from FINE_ENOUGH on, and are computed from the time below. Where no time was
    printed it is computed from a bandwidth, and ``time_statistic`` says so.
    """
    case = measurement.case
    names = ("median_seconds", "low_seconds", "high_seconds", "interval_confidence", "outliers")
    row: dict[str, Any] = dict.fromkeys((*names, "algbw_GB_s", "busbw_GB_s"))
    if measurement.status != Status.OK:
        return row
    factor = bus_factor(case)
    algbw, busbw = (_positive(rate) if origin.comparable else None for rate in (origin.algbw, origin.busbw))
    seconds = _positive(origin.seconds)
    if seconds is None:
        known = algbw or (busbw / factor if busbw and factor else None)
        seconds = None if known is None else _positive(case.size_bytes / known / BYTES_PER_GIGABYTE)
        row["time_statistic"] = origin.time_statistic if seconds is None else FROM_BANDWIDTH
    row["median_seconds"] = seconds
    collective = COLLECTIVES.get(case.collective)
    moves_data = case.size_bytes > 0 and (collective is None or collective.moves_data)
    if moves_data and case.mode != OVERLAP:  # the time of a computation as well is no collective's
        computed = None if seconds is None else case.size_bytes / seconds / BYTES_PER_GIGABYTE
        row["algbw_GB_s"] = _finer(algbw, computed)
        row["busbw_GB_s"] = _finer(busbw, computed * factor if computed and factor else None)
    return row


def bus_factor(case: Case) -> float | None:
    """busbw / algbw of ``case``; None for a collective that ccbench does not know or that moves no data."""
    row = COLLECTIVES.get(case.collective)
    return row.bus_factor(case.ranks) if row is not None and row.moves_data else None


def _finer(printed: float | None, computed: float | None) -> float | None:
    fine = printed is not None and printed >= FINE_ENOUGH
    return printed if fine or computed is None else computed


def _positive(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value > 0 else None
