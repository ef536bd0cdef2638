"""A job's communication as text and plain values: verdict, table of cases, what cannot be said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ccbench.cases.axes import Case
from ccbench.plan.replay import CaseTime, Replay
from ccbench.report.tables import Column, Table, fitted_lines, wrapped
from ccbench.units import format_ratio, format_seconds, format_size, percent, plain, plural

MOST_WARNINGS = 8
"""That the screen shows; --json has all."""

REMARK = "remark"

SENTENCES = 1000
"""Characters of the longest sentence of a trace that is shown."""

_OF_A_FINDING = ("severity", "kind", "devices", "subject", "evidence", "advice")

WITH_WAITING = "where one rank alone was recorded, its time in the job is with waiting for others"


def replay_lines(replay: Replay, width: int) -> Iterator[str]:
    """Give everything for a screen of ``width`` columns."""
    trace, step = replay.trace, replay.step
    job = [
        ", ".join(trace.kinds),
        f"{plural(len(trace.ranks), 'rank')} recorded" if trace.ranks else "",
    ]
    job += [f"of {trace.world_size}" if trace.world_size else "", trace.backend]
    yield f"job: {' '.join(filter(None, job))}"
    yield from wrapped(replay.verdict, width)
    for finding in replay.findings:
        yield from wrapped(plain(str(finding), SENTENCES), width)
    yield ""
    if replay.cases:
        yield from fitted_lines(case_table(replay), width)
    told = [WITH_WAITING] * (
        step is not None and any(one.transfer_seconds is None for one in replay.cases)
    )
    told += [
        f"what if: {name}: {format_seconds(seconds)} of transfer a step"
        for name, seconds in replay.what_if
    ]
    told += [f"alone: {replay.compared}"] * bool(replay.compared)
    told += [f"not a case, {count} x: {reason}" for reason, count in replay.fold.not_folded.items()]
    told += [
        f"at the same time, {len(overlap.instances)} x: {_short(overlap.case)} and "
        + ("another" if overlap.case == overlap.other else _short(overlap.other))
        + ("" if overlap.concurrent else "; a suite cannot ask for both")
        for overlap in replay.fold.overlaps
    ]
    told += [f"remark {number}: {text}" for text, number in _numbered(replay).items()]
    # What contradicts itself makes figures wrong; the rest only says what is missing.
    ordered = sorted(
        (*replay.fold.warnings, *trace.warnings), key=lambda one: one.kind != "contradiction"
    )
    warnings = [one.text for one in ordered]
    told += [f"warning: {text}" for text in warnings[:MOST_WARNINGS]]
    told += [f"warning: {len(warnings) - MOST_WARNINGS} more"] * (len(warnings) > MOST_WARNINGS)
    for line in told:
        yield from wrapped(line, width)


def remarks_of(one: CaseTime) -> tuple[str, ...]:
    """Return in what the case differs from what the job did, and why it has no time."""
    return tuple(filter(None, (*one.job.remarks, one.alone.remark)))


def _numbered(replay: Replay) -> dict[str, int]:
    """Remark -> its number, from 1 on."""
    texts = dict.fromkeys(text for one in replay.cases for text in remarks_of(one))
    return {text: number for number, text in enumerate(texts, 1)}


def case_table(replay: Replay) -> Table:
    """Every case of the job, that which takes most of its time first; columns without any value left out."""
    cases = sorted(replay.cases, key=lambda one: -(one.share or 0.0))
    numbers = _numbered(replay)
    cells = [_cells(one, numbers) for one in cases]
    # Traces differ in what they know: a column in which no case has anything is no use to anybody.
    shown = [title for title in cells[0] if any(row[title] for row in cells)] if cells else []
    told = {
        "case": Column("case", right=False, keep=9, tells=True),
        "size": Column("size", keep=9),
        "ranks": Column("ranks", right=False, keep=8),
        "bound": Column("bound", keep=5),
        "predicted": Column("predicted", keep=6),
        REMARK: Column(REMARK, right=False, keep=9),
    }
    return Table(
        tuple(told.get(title, Column(title)) for title in shown),
        [tuple(row[title] for title in shown) for row in cells],
    )


def _cells(one: CaseTime, numbers: Mapping[str, int]) -> dict[str, str]:
    """Cells of one case by the title of their column; '' for what is not known."""
    case, alone = one.job.case, one.alone
    return {
        "case": _name(case),
        "size": format_size(case.size_bytes),
        "ranks": _ranks(case),
        "count": str(one.job.count),
        "share": "" if one.share is None else percent(one.share),
        "in the job": _seconds(one.seconds),
        "transfer": _seconds(one.transfer_seconds),
        "waiting": "" if one.waiting_share is None else percent(one.waiting_share),
        "last": f"rank {one.last[0]} ({one.last[1]} of {one.decided})" if one.last else "",
        "alone": _seconds(alone.measured_seconds),
        "predicted": _seconds(alone.predicted_seconds),
        "bound": _seconds(alone.bound_seconds),
        "job/alone": format_ratio(one.ratio) if one.ratio is not None else "",
        REMARK: ", ".join(str(numbers[text]) for text in remarks_of(one)),
    }


def _name(case: Case) -> str:
    words = [case.collective, case.dtype if case.size_bytes else ""]
    words += [
        case.op if case.op not in ("none", "sum") else "",
        f"root {case.root}" * (case.root > 0),
    ]
    words += [f"pair {case.pair}" * bool(case.pair), "uneven" * bool(case.traffic)]
    return " ".join(filter(None, words))


def _ranks(case: Case) -> str:
    return (
        f"{case.group_ranks} of {case.ranks}" if case.group_ranks < case.ranks else str(case.ranks)
    )


def _short(case: Case) -> str:
    return f"{_name(case)} {format_size(case.size_bytes)} on {_ranks(case)}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)


def replay_document(replay: Replay) -> dict[str, Any]:
    """Plain values for JSON; docs/replay.md names the keys."""
    trace, step = replay.trace, replay.step
    return {
        "verdict": replay.verdict,
        "kinds": list(trace.kinds),
        "backend": plain(trace.backend),
        "world_size": trace.world_size,
        "ranks": list(trace.ranks),
        "step": None if step is None else vars(step) | {"waiting_for": dict(step.waiting_for)},
        "cases": [_case_document(one) for one in replay.cases],
        "what_if": [
            {"what": name, "transfer_seconds": seconds} for name, seconds in replay.what_if
        ],
        "compared": replay.compared,
        "one_clock": replay.one_clock,
        "findings": [
            {name: getattr(finding, name) for name in _OF_A_FINDING} for finding in replay.findings
        ],
        "at_the_same_time": [
            {
                "case_id": overlap.case.case_id,
                "other_case_id": overlap.other.case_id,
                "count": len(overlap.instances),
                "in_suite": overlap.concurrent is not None,
            }
            for overlap in replay.fold.overlaps
        ],
        "not_folded": dict(replay.fold.not_folded),
        "facts": {plain(name): plain(value) for name, value in trace.facts.items()},
        "warnings": [
            {"kind": one.kind, "text": plain(one.text, SENTENCES), "line": one.line}
            for one in (*trace.warnings, *replay.fold.warnings)
        ],
    }


def _case_document(one: CaseTime) -> dict[str, Any]:
    case = one.job.case
    times = {name: value for name, value in vars(one.alone).items() if name != "remark"}
    return {
        "case_id": case.case_id,
        "label": case.label,
        "collective": case.collective,
        "dtype": case.dtype,
        "size_bytes": case.size_bytes,
        "ranks": case.ranks,
        "group_ranks": case.group_ranks,
        "groups": case.groups,
        "count": one.job.count,
        "share": one.share,
        "job_seconds": one.seconds,
        "transfer_seconds": one.transfer_seconds,
        "waiting_share": one.waiting_share,
        "last_rank": one.last[0] if one.last else None,
        "last_count": one.last[1] if one.last else 0,
        "decided": one.decided,
        "ratio": one.ratio,
        "remarks": list(remarks_of(one)),
        **times,
    }
