"""A job's communication as text and plain values: verdict, table of cases, what cannot be said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ccbench.cases.axes import Case
from ccbench.plan.replay import CaseTime, Replay
from ccbench.report.present import (
    ShownColumn,
    Table,
    documents,
    filled,
    first,
    fitted_lines,
    named,
    table_of,
    values_of,
    wrapped,
)
from ccbench.units import format_ratio, format_seconds, format_size, percent, plain, plural

MOST_WARNINGS = 8
"""That the screen shows; --json has all."""

REMARK = "remark"

SENTENCES = 1000
"""Characters of the longest sentence of a trace that is shown."""

WITH_WAITING = (
    "where one rank alone was recorded, its time in the job is with waiting for others"
)


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
        yield from wrapped(finding, width)
    yield ""
    if replay.cases:
        yield from fitted_lines(case_table(replay), width)
    notes = (
        [WITH_WAITING]
        if step is not None
        and any(warning.transfer_seconds is None for warning in replay.cases)
        else []
    )
    notes += answers(replay)
    notes += [
        f"not a case, {count} x: {reason}" for reason, count in replay.fold.not_folded.items()
    ]
    notes += [
        f"at the same time, {len(overlap.instances)} x: {_short(overlap.case)} and "
        + ("another" if overlap.case == overlap.other else _short(overlap.other))
        + ("" if overlap.concurrent else "; a suite cannot ask for both")
        for overlap in replay.fold.overlaps
    ]
    notes += [f"remark {number}: {text}" for text, number in _numbered(replay).items()]
    # What contradicts itself makes figures wrong; the rest only says what is missing.
    ordered = sorted(
        (*replay.fold.warnings, *trace.warnings),
        key=lambda warning: warning.kind != "contradiction",
    )
    warnings = [warning.text for warning in ordered]
    notes += [f"warning: {text}" for text in first(warnings, MOST_WARNINGS, "{} more")]
    for line in notes:
        yield from wrapped(line, width)


def answers(replay: Replay) -> list[str]:
    """Lines about times of a step under other conditions, and the source of the times alone."""
    lines = [
        f"what if: {name}: {format_seconds(seconds)} of transfer a step"
        for name, seconds in replay.what_if
    ]
    return lines + ([f"alone: {replay.compared}"] if replay.compared else [])


def remarks_of(case: CaseTime) -> tuple[str, ...]:
    """Return in what the case differs from what the job did, and why it has no time."""
    return tuple(filter(None, (*case.job.remarks, case.alone.remark)))


def ordered_cases(replay: Replay) -> list[CaseTime]:
    """Cases, that which takes most of the job's time first."""
    return sorted(replay.cases, key=lambda case: -(case.share or 0.0))


_VALUE = partial(ShownColumn, absent="")
_SECONDS = partial(_VALUE, form=format_seconds)
_SHARE = partial(_VALUE, form=percent)
COLUMNS = (
    ShownColumn(
        "case", right=False, keep=9, tells=True, value=lambda case: _name(case.job.case)
    ),
    *named(*(f"job.case.{name}" for name in ("case_id", "label", "collective", "dtype"))),
    ShownColumn(
        "size", keep=9, value="job.case.size_bytes", form=format_size, name="size_bytes"
    ),
    ShownColumn(
        "ranks",
        right=False,
        keep=8,
        value="job.case.ranks",
        name="ranks",
        show=lambda case: _ranks(case.job.case),
    ),
    *named("job.case.group_ranks", "job.case.groups"),
    ShownColumn("count", value="job.count", name="count"),
    _SHARE("share", name="share"),
    _SECONDS("in the job", value="seconds", name="job_seconds"),
    _SECONDS("transfer", name="transfer_seconds"),
    _SHARE("waiting", name="waiting_share"),
    ShownColumn(
        "last",
        value=lambda case: case.last[0] if case.last else None,
        name="last_rank",
        show=lambda case: (
            f"rank {case.last[0]} ({case.last[1]} of {case.decided})" if case.last else ""
        ),
    ),
    ShownColumn(name="last_count", value=lambda case: case.last[1] if case.last else 0),
    *named("decided"),
    _SECONDS("alone", value="alone.measured_seconds", name="measured_seconds"),
    _SECONDS("predicted", keep=6, value="alone.predicted_seconds", name="predicted_seconds"),
    _SECONDS("bound", keep=5, value="alone.bound_seconds", name="bound_seconds"),
    _VALUE("job/alone", form=format_ratio, name="ratio"),
    ShownColumn(
        REMARK,
        right=False,
        keep=9,
        value=lambda case: list(remarks_of(case)),
        form=lambda remarks: plain("; ".join(remarks), SENTENCES),
        name="remarks",
    ),
)
"""Of a case; times of one launch."""


def _numbered(replay: Replay) -> dict[str, int]:
    """Remark -> its number, from 1 on."""
    texts = dict.fromkeys(text for case in replay.cases for text in remarks_of(case))
    return {text: number for number, text in enumerate(texts, 1)}


def case_table(replay: Replay) -> Table:
    """Every case of the job, remarks by number; columns without any value left out."""
    numbers = _numbered(replay)

    def marks(case: CaseTime) -> str:
        return ", ".join(str(numbers[text]) for text in remarks_of(case))

    # Traces differ in what they know: a column in which no case has anything is no use to anybody.
    return filled(
        table_of((*COLUMNS[:-1], replace(COLUMNS[-1], show=marks)), ordered_cases(replay))
    )


def _name(case: Case) -> str:
    words = [case.collective, case.dtype if case.size_bytes else ""]
    words += [
        case.op if case.op not in ("none", "sum") else "",
        (f"root {case.root}" if case.root > 0 else ""),
    ]
    words += [(f"pair {case.pair}" if case.pair else ""), ("uneven" if case.traffic else "")]
    return " ".join(filter(None, words))


def _ranks(case: Case) -> str:
    return (
        f"{case.group_ranks} of {case.ranks}"
        if case.group_ranks < case.ranks
        else str(case.ranks)
    )


def _short(case: Case) -> str:
    return f"{_name(case)} {format_size(case.size_bytes)} on {_ranks(case)}"


def replay_document(replay: Replay) -> dict[str, Any]:
    """Plain values for JSON; docs/model.md names the keys."""
    trace, step = replay.trace, replay.step
    return {
        **values_of(replay, "verdict", "compared", "one_clock"),
        **values_of(trace, "kinds", "world_size", "ranks"),
        "backend": plain(trace.backend),
        "step": None if step is None else vars(step) | {"waiting_for": dict(step.waiting_for)},
        "cases": documents(COLUMNS, replay.cases),
        "what_if": [
            {"what": name, "transfer_seconds": seconds} for name, seconds in replay.what_if
        ],
        "findings": documents(
            named("severity", "kind", "devices", "subject", "evidence", "advice"),
            replay.findings,
        ),
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
            {"kind": warning.kind, "text": plain(warning.text, SENTENCES), "line": warning.line}
            for warning in (*trace.warnings, *replay.fold.warnings)
        ],
    }
