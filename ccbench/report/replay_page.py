"""The page of a recorded job: verdict, one step over time, the costliest cases, the table of all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile, zip_longest

import numpy as np

from ccbench.findings import Finding
from ccbench.plan.replay import Replay
from ccbench.plan.timeline import LanePiece, Timeline
from ccbench.report.drawing import BLUE, GREEN, GREY, PINK, VERMILION, picture_address
from ccbench.report.figure import Figure, FigureAxis
from ccbench.report.page import PageContent, RunPart, render_page
from ccbench.report.plan_figures import COMPUTED, TRANSFERRED, WAITED, Bars, Layer, PlanFigure
from ccbench.report.replay_text import SENTENCES, answers, cases_of_page, ordered_cases
from ccbench.units import format_seconds, format_size, plain, plural

MOST_LANES = 16
MOST_PIECES = 6000
MOST_BARS = 12
"""Ranks, intervals and bars that are drawn; the table has all cases."""


def replay_page(replay: Replay, name: str) -> str:
    """Return the whole file as text. Raises MissingDependency without jinja2 or plotly."""
    findings = list(replay.findings)
    findings += [
        Finding(
            "doubt",
            picture.kind,
            (),
            plain(picture.text, SENTENCES),
            "",
            picture.kind.replace("_", " "),
        )
        for picture in (*replay.trace.warnings, *replay.fold.warnings)
    ]
    for reason, count in replay.fold.not_folded.items():
        findings.append(
            Finding(
                "note", "not_a_case", (), plain(reason, SENTENCES), "", f"{count} are no case"
            )
        )
    sentences = [
        f"{text[:1].upper()}{text[1:]}." for text in (replay.verdict, *answers(replay))
    ]
    facts = (
        f"{', '.join(replay.trace.kinds)} · {plural(len(replay.trace.ranks), 'rank')} recorded"
    )
    drawn = (picture for picture in (_timeline(replay), _bars(replay)) if picture is not None)
    return render_page(
        PageContent(
            title=plain(f"replay of {name}"),
            runs=(RunPart(plain(name), facts, tuple(sentences), tuple(findings)),),
            sections=(),
            table=cases_of_page(replay),
            table_text="Times of one launch; shares are of the job's communication time.",
            pictures=tuple(
                (picture.figure.title, picture.figure.subtitle, picture_address(picture.canvas))
                for picture in drawn
            ),
        )
    )


def _timeline(replay: Replay) -> PlanFigure | None:
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
    pieces: list[LanePiece] = []
    for lane, rank in enumerate(ranks):
        pieces_of_rank = [
            (float(begin), float(end), COMPUTED) for begin, end in trace.computing.get(rank, ())
        ]
        pieces_of_rank += _sent(replay, rank)
        own = trace.steps.get(rank)
        if own is not None and len(own) > place:
            begin, end = own[place]
        else:
            begins, ends, _ = zip(*pieces_of_rank, strict=True)
            begin, end = min(begins), max(ends)
        inside = [
            interval for interval in pieces_of_rank if interval[1] > begin and interval[0] < end
        ]
        # Cut at the borders of the step: what hangs over belongs to its neighbours' pictures.
        pieces += [
            LanePiece(lane, max(start, begin) - begin, min(until, end) - begin, kind)
            for start, until, kind in inside[:MOST_PIECES]
        ]
    step = "a step" if steps else "what was recorded"
    more = (
        f", the first {len(ranks)} of {len(trace.ranks)} ranks"
        if len(trace.ranks) > len(ranks)
        else ""
    )
    figure = Figure(
        "step",
        "plan",
        f"{step.capitalize()} over time",
        f"each rank by its own clock{more}",
        FigureAxis("time from its begin", "seconds", "linear"),
        FigureAxis("", "rank", "linear"),
    )
    return PlanFigure(
        figure, Timeline(tuple(f"rank {rank}" for rank in ranks), tuple(pieces), "")
    )


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


def _bars(replay: Replay) -> PlanFigure | None:
    """Return bars of the costliest cases: in the job, alone, predicted, at the bound."""
    cases = ordered_cases(replay)
    # (name, layer -> seconds) of each bar
    bars: list[tuple[str, dict[str, float]]] = []
    for case in takewhile(lambda _: len(bars) < MOST_BARS, cases):
        name = f"{case.job.case.collective} {format_size(case.job.case.size_bytes)}"
        if case.seconds is not None:
            # Medians of different launches: the one without waiting may be the longer of the two.
            sent = (
                case.seconds
                if case.transfer_seconds is None
                else min(case.transfer_seconds, case.seconds)
            )
            bars.append(
                (f"{name}\nin the job", {"transfer": sent, "waiting": case.seconds - sent})
            )
        for key, word in (
            ("measured", "alone"),
            ("predicted", "predicted"),
            ("bound", "bound"),
        ):
            seconds = getattr(case.alone, f"{key}_seconds")
            if seconds is not None:
                bars.append((f"{name}\n{word}", {word: seconds}))
    if not bars:
        return None
    looks = {
        "transfer": GREEN,
        "waiting": VERMILION,
        "alone": BLUE,
        "predicted": PINK,
        "bound": GREY,
    }
    layers = [
        Layer(name, colour, tuple(values.get(name, 0.0) for _, values in bars))
        for name, colour in looks.items()
    ]
    figure = Figure(
        "cases",
        "plan",
        "What the costliest cases take",
        "one launch, in the job and alone",
        FigureAxis("", "ranks", "linear"),
        FigureAxis("time of a launch", "seconds", "linear"),
    )
    tops = tuple(format_seconds(sum(values.values())) for _, values in bars)
    used = tuple(layer for layer in layers if any(layer.values))
    return PlanFigure(figure, Bars(tuple(name for name, _ in bars), used, tops=tops))
