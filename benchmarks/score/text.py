"""Scores as a table for people: per cent, a line for each log, then what is not in the total and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from benchmarks.score.scores import Scores
from benchmarks.score.statistics import BANDS, Score
from benchmarks.score.validation import (
    ANCHORS,
    SystemErrors,
    Validation,
    coverage,
    figures,
    pooled,
    residuals_of,
)
from ccbench.model.library.intervals import Residuals, residuals

_HEADINGS = ("points", "median", "MAPE", "bias", "<=32KiB", "<=32MiB", "above")
_RIVALS = {"nccl_constants": "NCCL"}
_WIDEST_NAME = 52


def lines(
    scores: Scores,
    by_system: Sequence[SystemErrors] = (),
    held_out: Validation | None = None,
    notices: Sequence[str] = (),
) -> Iterator[str]:
    """The whole report, line by line; errors in per cent of the measured time."""
    counted = [log for log in scores.logs if log.counted]
    total = f"total of {len(counted)} logs"
    width = _width([total, *(log.entry.file for log in scores.logs)])
    names = tuple(scores.comparison)
    yield "Errors in % of the measured time: median and mean (MAPE) of their size, mean with sign (bias,"
    yield "above 0 where predictions are too slow), medians by size, and the medians of simpler predictors."
    yield "The levels were learned from results/published: errors of logs that are among these are those of a fit."
    yield _heading(width, names)
    yield from (
        _row(log.entry.file, log.score, log.comparison, names, width) for log in counted
    )
    yield _row(total, scores.total, scores.comparison, names, width)
    yield from _apart("Not in the total, not known to be healthy:", scores, None, names, width)
    yield from _apart("Not in the total, known not to be healthy:", scores, False, names, width)
    if scores.not_modelled:
        yield ""
        yield f"Not modelled: {len(scores.not_modelled)} of {len(scores.logs)} logs"
        yield from (f"  {log.entry.file}: {log.reason}" for log in scores.not_modelled)
    partly = [log for log in scores.logs if log.left_out]
    if partly:
        yield ""
        yield "Left out of logs that are modelled:"
        yield from (f"  {log.entry.file}: {'; '.join(log.left_out)}" for log in partly)
    if notices:
        yield ""
        yield "To know:"
        yield from (f"  {notice}" for notice in notices)
    if by_system:
        yield ""
        yield "Each system weighing the same; interval of the median from drawing systems again:"
        titles = ("90th pc", "bias", "in 80 %", "in 95 %", "width")
        head = f"{'':40}{'systems':>9}{'median':>9}{'interval':>16}"
        yield head + "".join(f"{title:>9}" for title in titles)
        yield from _by_system("as shipped", by_system, residuals())
        if held_out is not None:
            for title, systems in (
                ("learned without the system", held_out.other_systems),
                ("learned without the generation", held_out.other_generations),
            ):
                yield from _by_system(title, systems, residuals_of(systems))
            known = residuals_of(pooled(held_out.anchored))
            for title, systems in held_out.anchored.items():
                # Around predictions for other collectives intervals are those of predictions without anchors.
                yield from _by_system(
                    title, systems, known if ANCHORS.get(title) else None, ("bands",)
                )
            known = residuals_of(held_out.between)
            yield from _by_system("told every other size", held_out.between, known, ("bands",))


def _apart(
    title: str, scores: Scores, healthy: bool | None, names: Sequence[str], width: int
) -> Iterator[str]:
    found = [log for log in scores.logs if log.entry.healthy is healthy and not log.reason]
    if found:
        yield ""
        yield title
        yield from (
            _row(log.entry.file, log.score, log.comparison, names, width) for log in found
        )


def _by_system(
    title: str,
    systems: Sequence[SystemErrors],
    learned: Residuals | None,
    parts: Sequence[str] = ("bands", "networks"),
) -> Iterator[str]:
    """Rows of all sizes and of each part; learned: None where no intervals are tested."""
    found, held = figures(systems), {} if learned is None else coverage(systems, learned)
    rows = {"": found} | {name: one for part in parts for name, one in found[part].items()}
    for name, one in rows.items():
        if not one["systems"]:
            continue
        inside = held if not name else held.get("bands", {}).get(name, {})
        cells = [str(one["systems"]), _percent(one["median_error"])]
        edges = f"{_percent(one['low'])} to {_percent(one['high'])}"
        more = [_percent(one["percentile_90"]), _percent(one["bias"], signed=True)]
        more += [_percent(inside.get(key)) for key in ("coverage_80", "coverage_95")]
        more.append(f"{inside['median_width']:.2f}" if "median_width" in inside else "-")
        row = (
            "".join(f"{cell:>9}" for cell in cells)
            + f"{edges:>16}"
            + "".join(f"{cell:>9}" for cell in more)
        )
        yield f"{title if not name else '  ' + name:40}{row}"


def _width(names: Sequence[str]) -> int:
    return min(_WIDEST_NAME, max(map(len, names), default=0))


def _heading(width: int, names: Sequence[str]) -> str:
    titles = chain(_HEADINGS, (_RIVALS.get(name, name) for name in names))
    return " " * width + "".join(f"{title:>9}" for title in titles)


def _row(
    name: str, score: Score, comparison: Mapping[str, Score], names: Sequence[str], width: int
) -> str:
    overall = score.overall
    cells = [str(overall.points), _percent(overall.median_error), _percent(overall.mape)]
    cells.append(_percent(overall.bias, signed=True))
    cells += [_percent(score.bands[band].median_error) for band, _, _ in BANDS]
    cells += [_percent(comparison[rival].overall.median_error) for rival in names]
    shown = name if len(name) <= width else name[: width - 3] + "..."
    return f"{shown:{width}}" + "".join(f"{cell:>9}" for cell in cells)


def _percent(fraction: float | None, signed: bool = False) -> str:
    if fraction is None:
        return "-"
    return f"{fraction * 100:+.1f}" if signed else f"{fraction * 100:.1f}"
