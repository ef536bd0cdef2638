"""The page of a recorded job: verdict, one step over time, the costliest cases, the table of all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from ccbench.findings import Finding
from ccbench.plan.replay import Replay
from ccbench.report.drawing import BLUE, GREEN, GREY, PINK, VERMILION
from ccbench.report.page import Chart, ChartRow, PageContent, RunPart, render_page, stretches
from ccbench.report.replay_text import SENTENCES, answers, cases_of_page, ordered_cases
from ccbench.units import format_seconds, format_size, plain, plural

MOST_LANES = 16
MOST_PIECES = 6000
MOST_BARS = 12
"""Ranks, intervals and cases that are drawn; the table has all cases."""

TICKS = 5

COMPUTED, TRANSFERRED, WAITED = "computing", "transfer", "waiting for other ranks"
"""Pieces of a recorded step."""

COLOURS = {COMPUTED: BLUE, TRANSFERRED: GREEN, WAITED: VERMILION}
BAR_COLOURS = {
    "transfer": GREEN,
    "waiting": VERMILION,
    "alone": BLUE,
    "predicted": PINK,
    "bound": GREY,
}
GRAVEST_FIRST = ("problem", "doubt", "note")


def replay_page(replay: Replay, name: str) -> str:
    """Return the whole file as text. Raises MissingDependency without jinja2."""
    findings = list(replay.findings)
    # What a reader of traces or a fold remarks is a sentence, which is its own title.
    findings += [
        Finding("doubt", warning.kind, (), "", "", without_folders(warning.text))
        for warning in (*replay.trace.warnings, *replay.fold.warnings)
    ]
    findings += [
        Finding(
            "note", "not_a_case", (), "", "", f"{plural(count, 'call')} not compared: {reason}"
        )
        for reason, count in replay.fold.not_folded.items()
    ]
    findings = [
        replace(finding, subject=plain(finding.subject, SENTENCES))
        for finding in sorted(findings, key=lambda each: GRAVEST_FIRST.index(each.severity))
    ]
    sentences = [
        f"{text[:1].upper()}{text[1:]}." for text in (replay.verdict, *answers(replay))
    ]
    facts = (
        f"{', '.join(replay.trace.kinds)} · {plural(len(replay.trace.ranks), 'rank')} recorded"
    )
    drawn = (_timeline(replay), _bars(replay))
    return render_page(
        PageContent(
            title=plain(f"replay of {name}"),
            runs=(RunPart(plain(name), facts, tuple(sentences), tuple(findings)),),
            sections=(),
            table=cases_of_page(replay),
            table_text="Times of one launch; shares are of the job's communication time.",
            charts=tuple(chart for chart in drawn if chart is not None),
        )
    )


def without_folders(text: str) -> str:
    """Return ``text`` with the names of files in place of their whole paths."""
    return re.sub(r"(?<!\S)/(?:[^\s/:]+/)+(?=[^\s/])", "", text)


def _timeline(replay: Replay) -> Chart | None:
    """Return the step of median length, of the first ranks; None without times."""
    trace = replay.trace
    ranks = [
        rank for rank in trace.ranks[:MOST_LANES] if any(True for _ in _sent(replay, rank))
    ]
    steps = [
        trace.steps[rank] for rank in ranks if rank in trace.steps and len(trace.steps[rank])
    ]
    if not ranks:
        return None
    # The median step: the first is often slow, and a mean of pictures cannot be drawn.
    place = 0
    if steps:
        lengths = steps[0][:, 1] - steps[0][:, 0]
        place = int(np.argsort(lengths)[len(lengths) // 2])
    lanes = [(rank, _pieces(replay, rank, place)) for rank in ranks]
    step = "a step" if steps else "what was recorded"
    more = (
        f", the first {len(ranks)} of {len(trace.ranks)} ranks"
        if len(trace.ranks) > len(ranks)
        else ""
    )
    whole = max((end for _, pieces in lanes for _, end, _ in pieces), default=0.0) or 1.0
    kinds = [
        kind
        for kind in COLOURS
        if any(piece[2] == kind for _, pieces in lanes for piece in pieces)
    ]
    rows = [
        ChartRow(
            f"rank {rank}",
            tuple(
                (
                    COLOURS[kind],
                    stretches([piece[:2] for piece in pieces if piece[2] == kind], whole),
                )
                for kind in kinds
            ),
        )
        for rank, pieces in lanes
    ]
    return Chart(
        f"{step.capitalize()} over time",
        f"Each rank by its own clock{more}.",
        tuple((kind, COLOURS[kind]) for kind in kinds),
        tuple(rows),
        ("0", *(format_seconds(whole * place / (TICKS - 1)) for place in range(1, TICKS))),
    )


def _pieces(replay: Replay, rank: int, place: int) -> list[tuple[float, float, str]]:
    """Return (begin, end, kind) of what a rank did in the step at ``place``, from that step's begin on."""
    pieces = [
        (float(begin), float(end), COMPUTED)
        for begin, end in replay.trace.computing.get(rank, ())
    ]
    pieces += _sent(replay, rank)
    own = replay.trace.steps.get(rank)
    if own is not None and len(own) > place:
        begin, end = own[place]
    else:
        begins, ends, _ = zip(*pieces, strict=True)
        begin, end = min(begins), max(ends)
    # Cut at the borders of the step: what hangs over belongs to its neighbours' charts.
    return [
        (max(start, begin) - begin, min(until, end) - begin, kind)
        for start, until, kind in [
            piece for piece in pieces if piece[1] > begin and piece[0] < end
        ][:MOST_PIECES]
    ]


def _sent(replay: Replay, rank: int) -> Iterator[tuple[float, float, str]]:
    """Give (begin, end, kind) of what a rank sent, its waiting first, as far as that can be told."""
    for call in (instance for case in replay.cases for instance in case.job.instances):
        for record, own in zip_longest(call.timed, call.waits(replay.one_clock)):
            waited = own or 0.0
            begin, seconds = record.start_seconds, record.duration_seconds
            if record.rank == rank and begin is not None and seconds is not None:
                if waited > 0:
                    yield begin, begin + waited, WAITED
                yield begin + waited, begin + seconds, TRANSFERRED


def _bars(replay: Replay) -> Chart | None:
    """Return bars of the costliest cases: in the job, alone, predicted, at the bound."""
    # (name, layer -> seconds) of each bar
    bars: list[tuple[str, dict[str, float]]] = []
    for case in ordered_cases(replay)[:MOST_BARS]:
        name = f"{case.job.case.collective} {format_size(case.job.case.size_bytes)}"
        if case.seconds is not None:
            sent = case.seconds if case.transfer_seconds is None else case.transfer_seconds
            parts = {"transfer": sent, "waiting": case.seconds - sent}
            bars.append((f"{name} in the job", parts))
        for key, word in (
            ("measured", "alone"),
            ("predicted", "predicted"),
            ("bound", "bound"),
        ):
            seconds = getattr(case.alone, f"{key}_seconds")
            if seconds is not None:
                bars.append((f"{name} {word}", {word: seconds}))
    longest = max((sum(parts.values()) for _, parts in bars), default=0.0)
    if not longest:
        return None
    rows = []
    for name, parts in bars:
        paths, begin = [], 0.0
        for kind, seconds in parts.items():
            if seconds > 0:
                paths.append(
                    (BAR_COLOURS[kind], stretches([(begin, begin + seconds)], longest))
                )
            begin += seconds
        rows.append(ChartRow(name, tuple(paths), format_seconds(begin)))
    used = [kind for kind in BAR_COLOURS if any(parts.get(kind) for _, parts in bars)]
    return Chart(
        "What the costliest cases take",
        "One launch, in the job and alone.",
        tuple((kind, BAR_COLOURS[kind]) for kind in used),
        tuple(rows),
    )
