"""The page's table: every case as text to read and, where there is one, a number to sort by and to copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ccbench.report.tables import COLUMNS
from ccbench.results import Point

FLAGS = "flags"


@dataclass(frozen=True)
class Measure:
    """What a column of the table is sorted by and copied as; ``name`` says the unit."""

    name: str
    number: Callable[[Point], float | None]


MEASURES: dict[str, Measure] = {
    "ranks": Measure("ranks", lambda point: point.ranks),
    "nodes": Measure("nodes", lambda point: point.nodes),
    "size": Measure("size_bytes", lambda point: point.size_bytes),
    "time [interval]": Measure("median_seconds", lambda point: point.median_seconds),
    "algbw": Measure("algbw_GB_s", lambda point: point.algbw),
    "busbw": Measure("busbw_GB_s", lambda point: point.busbw if point.group_ranks > 1 else None),
    "predicted": Measure("predicted_seconds", lambda point: point.predicted_seconds),
    "library says": Measure("library_estimate_seconds", lambda point: point.library_estimate_seconds),
    "of bound": Measure("bound_share", lambda point: point.bound_share),
    "wrong": Measure("wrong_elements", lambda point: point.wrong_elements),
}

HIDDEN_WHERE_ALIKE = ("run", "nodes", "dtype", "op", "setting", "slowest part", "library says")


def table_data(points: Sequence[Point]) -> dict[str, Any]:
    """Columns of texts and numbers for the page's script; equal texts are stored once."""
    columns = []
    for column in COLUMNS:
        texts = [_whole_flags(point) if column.header == FLAGS else column.text(point) for point in points]
        if column.header in HIDDEN_WHERE_ALIKE and len(set(texts)) < 2:
            continue
        measure = MEASURES.get(column.header)
        entry: dict[str, Any] = {"header": column.header, "right": column.right, **_stored(texts)}
        entry["csv"] = measure.name if measure else column.header
        if measure is not None:
            entry["numbers"] = [_digits(measure.number(point)) for point in points]
        columns.append(entry)
    statuses = _stored([point.status.value for point in points])
    baselines = [place for place, point in enumerate(points) if point.baseline]
    return {"columns": columns, "rows": len(points), "status": statuses, "baseline": baselines}


def _whole_flags(point: Point) -> str:
    """Every flag, or the reason why there is no result, uncut."""
    return "; ".join(point.flags) if point.status.value == "ok" else point.detail or point.status.value


def _stored(texts: Sequence[str]) -> dict[str, Any]:
    places: dict[str, int] = {}
    index = [places.setdefault(text, len(places)) for text in texts]
    if 2 * len(places) > len(texts):
        return {"texts": list(texts)}
    return {"words": list(places), "index": index}


def _digits(number: float | None) -> float | int | None:
    if number is None or isinstance(number, int):
        return number
    return float(f"{number:.7g}")
