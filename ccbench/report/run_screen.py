"""A run on a screen: the answer first, a table that fits, then findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from statistics import mean

from ccbench.analysis.findings import MOST_NAMED, run_findings
from ccbench.analysis.machine_verdict import BLAMES, machine_verdict
from ccbench.analysis.speed_verdict import (
    SpeedVerdict,
    SpeedWord,
    expected_from,
    speed_verdicts,
)
from ccbench.analysis.winner import winner_sentence
from ccbench.cases.measurement import Status
from ccbench.report.bits_table import bits_table
from ccbench.report.case_table import rate_text, screen_table
from ccbench.report.nccl_tests import TYPE_NAMES, launch_time
from ccbench.report.page_card import CardRow, card_rows, headline
from ccbench.report.present import (
    ShownColumn,
    beyond,
    first,
    fitted_lines,
    hanging,
    table_of,
    wrapped,
)
from ccbench.report.wording import (
    DOUBTFUL,
    closeness,
    finding_lines,
    health_lines,
    measured_text,
    points_of,
    shared_text,
)
from ccbench.results import Point, Run
from ccbench.results.keys import POINT, grouped
from ccbench.units import plain, plural

MOST_ROWS = 40

FEW_CASES = 12
"""So many are shown one by one."""

LONGEST_SENTENCE = 2000

LAYOUTS = ALL, CARD, NCCL_TESTS = ("all", "card", "nccl-tests")
"""Every case in a row; three sizes of every collective; nccl-tests' columns, for a sweep of one collective."""


def run_screen(
    run: Run, width: int, layout: str = CARD, folds: bool = True, whole: bool = False
) -> list[str]:
    """Lines for a screen of ``width`` columns, the answer first; sentences are folded where ``folds``.

    whole: findings with their evidence.
    """

    def lines_of(texts: Sequence[str]) -> list[str]:
        # Who greps a file wants a sentence on one line.
        if not folds:
            return [plain(text, LONGEST_SENTENCE) for text in texts]
        return [line for text in texts for line in wrapped(text, width)]

    points = points_of(run)
    verdicts = speed_verdicts(run)
    rows = card_rows(points, verdicts)
    shared = shared_text(points)
    answer = (
        shared,
        *health_lines(run),
        winner_sentence(run),
        "" if shared else headline(rows, verdicts),
        expected_from(verdicts),
    )
    sums = [measured_text(points), *closeness(points)]
    # Without a verdict it is what was measured.
    lines = lines_of([*filter(None, answer)] or [sums.pop(0)])
    bits = bits_table(points)
    if bits.rows:
        lines += ["", *fitted_lines(bits, width), *lines_of([bits.text])]
    few = len(points) <= FEW_CASES or not rows or machine_verdict(run) is not None
    if layout == NCCL_TESTS and points:
        lines += ["", *nccl_tests_lines(points, width)]
    elif layout == ALL or few:
        lines += ["", screen_table(run, width)]
    else:
        lines += ["", *card_lines(rows, card_rows(points, verdicts, forced=True), width)]
        trusted = all(point.trusted for point in points)
        flagged = "" if trusted else f", {DOUBTFUL} flagged as doubtful"
        counted = f"three sizes of {plural(len(points), 'case')}"
        lines += lines_of([f"{counted}{flagged}; --all shows every case"])
    # Whom health blames stands in the answer.
    grave = [
        finding
        for finding in run_findings(run, points)
        if finding.severity != "note" and finding.kind not in BLAMES
    ]
    lines += ["", *lines_of(sums)]
    most = len(grave) if whole else MOST_NAMED
    for finding in grave[:most]:
        lines += finding_lines(finding, width if folds else LONGEST_SENTENCE, whole)
    more = len(grave) - most
    rest = [f"and {plural(more, 'more finding')}; "] if more > 0 else []
    told = "evidence: ccbench report -v; a code: ccbench check --explain CODE"
    return lines + lines_of(["".join([*rest, told])] if grave and not whole else [])


def card_lines(judged: Sequence[CardRow], every: Sequence[CardRow], width: int) -> list[str]:
    """The card as a table; forced algorithms, which no verdict is on, stand beside the library's choice.

    Backend, ranks and sizes that rows share stand in the header, so that a narrow screen has room for what is
    expected.
    """
    subjects = [row.subject for row in judged]
    rows = sorted(every, key=lambda row: row.subject not in subjects)
    backends = {row.subject.split()[0] for row in rows}
    teams = {row.subject.partition(", ")[2] for row in rows}
    prefix = f"{backends.pop()} " if len(backends) == 1 else ""
    suffix = f", {teams.pop()}" if len(teams) == 1 else ""
    columns = [
        ShownColumn(
            f"{prefix.rstrip()}{suffix}".removeprefix(", ") or "collective",
            right=False,
            keep=12,
            tells=True,
            show=lambda row: row.subject.removeprefix(prefix).removesuffix(suffix),
        ),
        *map(_cell_column, [rows] * 3, range(3)),
        ShownColumn("(expected)", right=False, keep=11, show=_expected),
    ]
    if any(row.word for row in judged):
        word = ShownColumn(
            "verdict", right=False, keep=9, tells=True, value="word.value", absent=""
        )
        columns.insert(0, word)
    lines = fitted_lines(table_of(columns, rows[:MOST_ROWS]), width)
    return [*lines, *beyond(rows, MOST_ROWS)]


def _cell_column(rows: Sequence[CardRow], place: int) -> ShownColumn:
    """Column of the figures at one of three sizes; of one size alone, only the last place has it."""

    def cell(row: CardRow) -> tuple[str, str, str]:
        at = place - 3 + len(row.cells)
        return row.cells[at] if at >= 0 else ("", "", "")

    sizes = Counter(cell(row)[0] for row in rows if cell(row)[0])
    usual = sizes.most_common(1)[0][0] if sizes else ""

    def text(row: CardRow) -> str:
        size, measured, _ = cell(row)
        return measured if size == usual else f"{size} {measured}".strip()

    return ShownColumn(usual or "-", keep=(4, 3, 11)[place], show=text)


def _expected(row: CardRow) -> str:
    """``(12 to 19)`` at the largest size, in the unit of what was measured, or with its own."""
    _, measured, expected = row.cells[-1] if row.cells else ("", "", "")
    text = expected.partition(" ")[2].removesuffix(measured[measured.find(" ") :])
    return f"({text})" if text else ""


def _placement(field: str, title: str) -> list[ShownColumn]:
    """Columns of nccl-tests for one placement, empty where it was not asked for; the first says which."""

    def time(point: Point) -> str:
        if point.median_seconds is None:
            return point.status.value
        return DOUBTFUL * (not point.trusted) + launch_time(point.median_seconds)

    def wrong(point: Point) -> str:
        return "N/A" if point.wrong_elements is None else f"{point.wrong_elements:g}"

    column = partial(ShownColumn, value=field, absent="")
    return [
        column(f"{title} us", keep=12, form=time),
        column("algbw", keep=6, form=lambda point: rate_text(point.algbw)),
        column("busbw", keep=11, form=lambda point: rate_text(point.busbw)),
        column("#wrong", keep=8, form=wrong),
    ]


SWEEP_COLUMNS = (
    ShownColumn("backend", right=False, keep=7, tells=True, value="point.backend"),
    ShownColumn("algorithm", right=False, keep=9, tells=True, value="point.algorithm"),
    ShownColumn("setting", right=False, keep=9, tells=True, value="point.setting"),
    ShownColumn("size B", keep=13, value="point.size_bytes"),
    ShownColumn("count", keep=4, value="point.count"),
    ShownColumn(
        "type",
        right=False,
        keep=9,
        tells=True,
        value="point.dtype",
        form=lambda dtype: TYPE_NAMES.get(dtype, dtype),
    ),
    ShownColumn("redop", right=False, keep=9, tells=True, value="point.op"),
    ShownColumn("root", keep=9, tells=True, value="point.root"),
    *_placement("out_of_place", "time"),
    *_placement("in_place", "in place"),
    ShownColumn(
        "predicted us", keep=9, value="point.predicted_seconds", form=launch_time, absent=""
    ),
)
"""Columns of nccl-tests, and the model's time."""


def nccl_tests_lines(points: Sequence[Point], width: int) -> list[str]:
    """The sweep as nccl-tests prints it, by size, with its closing lines."""
    fields = {False: "out_of_place", True: "in_place"}
    rows: list[dict[str, Point]] = [
        {"point": pair[0], **{fields[point.in_place]: point for point in pair}}
        for pair in grouped(points, POINT.without("in_place")).values()
    ]
    rows.sort(key=lambda row: attrgetter("backend", "algorithm", "size_bytes")(row["point"]))
    columns = [
        column
        for column in SWEEP_COLUMNS
        if column.title not in ("backend", "setting") or len({*map(column.text, rows)}) > 1
        if any(map(column.text, rows))
    ]
    rates = [point.busbw or 0.0 for point in points if point.median_seconds]
    wrong = sum(point.status is Status.WRONG for point in points)
    return [
        *fitted_lines(table_of(columns, rows), width),
        f"Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"Avg bus bandwidth    : {f'{mean(rates):g}' if rates else 'N/A'}",
    ]


def verdict_rows(verdicts: Sequence[SpeedVerdict], width: int) -> list[str]:
    """Many verdicts as counts and sentences, then what cannot be said by its reason; folded, never cut."""
    counts = Counter(verdict.word for verdict in verdicts)
    lines = [", ".join(f"{counts[word]} {word.value}" for word in SpeedWord if counts[word])]
    for verdict in verdicts:
        sentence = verdict.sentence
        if verdict.word is SpeedWord.CANNOT_SAY:
            names = first(verdict.subjects or (verdict.subject,), MOST_SUBJECTS, "{} more")
            sentence = f"CANNOT SAY: {verdict.reason or verdict.left_out}: {', '.join(names)}"
        lines += hanging(sentence, width)
    return [*lines, *wrapped(expected_from(verdicts), width)]


MOST_SUBJECTS = 6
"""Tables that one reason names."""
