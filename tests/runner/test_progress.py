"""What a person sees of a run, on every kind of stream."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import OVERLAP, Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.model import Prediction
from ccbench.runner.progress import (
    LiveProgress,
    PlainProgress,
    Progress,
    TolerantStream,
    clock_text,
    left_text,
    one_line,
    progress_for,
    result_text,
)

CASE = Case("quick", "cpu", "all_reduce", "ring", "float32", "sum", 1 << 20, 1 << 18, 4)
PREDICTION = Prediction(1e-4, 2e-4, 1e-5, 1.9e-4, "memory")


def ended(status: Status = Status.OK, **fields: object) -> Measurement:
    samples = (1e-3, 2e-3, 4e-3) if status is Status.OK else ()
    return Measurement(CASE, status, samples_seconds=samples, **fields)  # type: ignore[arg-type] # test fields


class FakeClock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_three_cases(progress: Progress, between: Callable[[], None] = lambda: None) -> None:
    progress.started(3)
    progress.round_started(1, 1, [CASE] * 3)
    for number, status in enumerate((Status.OK, Status.FAILED, Status.OK), start=1):
        progress.case_started(CASE)
        between()
        detail = "rank 1 died" if status is Status.FAILED else ""
        progress.case_finished(ended(status, detail=detail), None, 3 - number)
    progress.note("the team was started again")
    progress.finished()


def test_a_good_result_shows_its_median_time_bus_bandwidth_and_prediction() -> None:
    # 1 MiB in 2 ms is 0.5243 GB/s; all-reduce over 4 ranks counts 2 * 3 / 4 of it.
    assert result_text(ended(), PREDICTION) == "2 ms, 0.7864 GB/s busbw, predicted 200 us"


def test_the_time_of_both_together_is_no_bandwidth() -> None:
    case = replace(CASE, mode=OVERLAP, overlap_with="matmul")
    assert result_text(replace(ended(), case=case), None) == "2 ms"


def test_the_time_of_several_rounds_is_the_median_of_their_medians() -> None:
    """As in files and tables: a round that gave more samples counts no more than the others."""
    samples = (1e-3,) * 5 + (2e-3,) * 9 + (3e-3, 3e-3, 3e-3, 3e-3)
    rounds = Measurement(
        CASE, Status.OK, samples_seconds=samples, round_samples=(1, 1, 1, 1, 1, 9, 1, 1, 1, 1)
    )
    pooled = Measurement(CASE, Status.OK, samples_seconds=samples)
    assert result_text(rounds, None).startswith("1.5 ms, ")
    assert result_text(pooled, None).startswith("2 ms, ")


def test_a_case_without_a_speed_shows_its_status_and_detail() -> None:
    assert result_text(ended(Status.TIMED_OUT, detail="rank 2 was silent"), PREDICTION) == (
        "timed_out: rank 2 was silent"
    )
    assert (
        result_text(ended(Status.WRONG, wrong_elements=7), None) == "wrong (7 wrong elements)"
    )


SIZES = [replace(CASE, size_bytes=size) for size in (1024, 64, 1 << 24)]
BARRIER = replace(CASE, collective="barrier", dtype="uint8", op="none", size_bytes=0)


def timed(case: Case, seconds: float) -> Measurement:
    return Measurement(case, Status.OK, samples_seconds=(seconds,) * 3)


@pytest.mark.parametrize("live", [False, True])
def test_a_collective_has_a_line_when_its_last_case_of_the_round_ends(live: bool) -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = LiveProgress(stream) if live else PlainProgress(stream, clock=clock)
    progress._clock = clock
    progress.started(10)
    # Two algorithms at the largest size: the faster one counts.
    other = replace(SIZES[2], algorithm="tree")
    cases, seconds = [*SIZES, BARRIER, other], [2e-5, 2.96e-6, 1.5e-2, 1e-6, 1.15e-2]
    for number in (1, 2):
        progress.round_started(number, 2, cases)
        for place, (case, took) in enumerate(zip(cases, seconds, strict=True), start=1):
            progress.case_started(case)
            clock.now += 2.0
            progress.case_finished(timed(case, took), None, 15 - 5 * number - place)
    progress.finished()
    lines = [
        line.strip()
        for line in re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "\n", stream.getvalue()).split("\n")
        if line.startswith("round")
    ]
    assert lines == [
        "round 1 of 2  barrier  1 us  (left 0:12)",
        "round 1 of 2  all_reduce  64 B 2.96 us ... 16 MiB 11.5 ms  (left 0:10)",
        "round 2 of 2  barrier  1 us  (left 0:02)",
        "round 2 of 2  all_reduce  64 B 2.96 us ... 16 MiB 11.5 ms",
    ]


def test_what_goes_wrong_is_told_at_once_and_a_round_closes_although_cases_were_skipped() -> (
    None
):
    stream = io.StringIO()
    progress = PlainProgress(stream, clock=FakeClock())
    progress.started(3)
    progress.round_started(3, 2, SIZES)
    progress.case_finished(timed(SIZES[0], 1e-3), None, 2)
    failed = Measurement(SIZES[2], Status.FAILED, "rank 1 died")
    progress.case_finished(failed, None, 1)
    progress.note("the time limit is spent")
    progress.round_started(4, 2, SIZES[:1])
    progress.finished()
    assert stream.getvalue().splitlines() == [
        "[2/3] all_reduce ring float32 sum 16 MiB, 4 ranks, cpu: failed: rank 1 died  (left 0:00)",
        "round 3  all_reduce  1 KiB 1 ms  (left 0:00)",
        "the time limit is spent",
    ]


def test_with_v_every_round_of_every_case_has_its_line_and_no_collective() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream, every=True, clock=FakeClock())
    run_three_cases(progress)
    lines = stream.getvalue().splitlines()
    assert [
        line.split(" all_reduce ring float32 sum 1 MiB, 4 ranks, cpu: ")[0] for line in lines
    ] == [
        "[1/3]",
        "[2/3]",
        "[3/3]",
        "the team was started again",
    ]
    assert lines[0].endswith("2 ms, 0.7864 GB/s busbw  (left 0:00)")


def test_a_live_bar_goes_and_lines_and_notes_stay() -> None:
    stream = Terminal()
    run_three_cases(LiveProgress(stream, width=100))
    text = stream.getvalue()
    assert "failed: rank 1 died" in text
    assert "the team was started again" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is given back


@pytest.mark.parametrize("display", [PlainProgress, LiveProgress])
def test_what_is_unsupported_for_one_reason_has_one_line(
    display: Callable[[io.StringIO], Progress],
) -> None:
    stream = Terminal()
    progress = display(stream)
    progress.started(8)
    for number, reason in enumerate(["no avg", "no avg", "no float16", "no avg"], start=1):
        progress.case_started(CASE)
        progress.case_finished(ended(Status.UNSUPPORTED, detail=reason), None, 8 - number)
    progress.finished()
    plain = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", stream.getvalue())
    lines_shown = [line for line in re.split("[\r\n]+", plain) if "unsupported: " in line]
    assert [
        line.partition("unsupported: ")[2].removesuffix("  (left 0:00)") for line in lines_shown
    ] == [
        "no avg",
        "no float16",
    ]


@pytest.mark.parametrize("width", [10, 40, 79, 200])
def test_the_bar_is_no_wider_than_the_terminal(width: int) -> None:
    stream = Terminal()
    progress = LiveProgress(stream, width=width)
    progress.started(3)
    progress.case_started(CASE)
    drawn = stream.getvalue()
    progress.finished()
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).replace("\r", "\n").split("\n")
    assert 0 < max(len(row) for row in rows) <= width


def test_finishing_a_display_that_never_started_is_harmless() -> None:
    for progress in (LiveProgress(Terminal()), PlainProgress(io.StringIO()), Progress()):
        progress.finished()


@pytest.mark.parametrize("kind", [PlainProgress, LiveProgress])
def test_a_stream_closed_under_way_stops_the_display_and_not_the_run(
    kind: Callable[[io.StringIO], Progress],
) -> None:
    stream = Terminal()
    run_three_cases(kind(stream), between=stream.close)


@pytest.mark.parametrize("kind", [PlainProgress, LiveProgress])
def test_a_pipe_whose_reader_is_gone_stops_the_display_and_not_the_run(
    kind: Callable[[io.TextIOWrapper], Progress],
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = open(writer, "w", buffering=1, closefd=False, encoding="utf-8")  # noqa: SIM115 # closed below
    try:
        run_three_cases(kind(stream))
    finally:
        os.close(writer)
        # The buffered text can go nowhere; detach it from the descriptor that is closed already.
        with pytest.raises(OSError, match="Bad file descriptor"):
            stream.close()


def test_text_the_stream_cannot_encode_is_escaped() -> None:
    raw = io.BytesIO()
    stream = TolerantStream(io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    stream.write("µs ok")
    stream.flush()
    assert raw.getvalue() == b"\\xb5s ok"


@given(st.text())
def test_one_line_holds_no_control_characters(text: str) -> None:
    assert one_line(text).isprintable()


def test_escape_sequences_of_a_detail_do_not_reach_the_terminal() -> None:
    stream = io.StringIO()
    PlainProgress(stream).note("\x1b[31mred\nnext")
    assert stream.getvalue() == "\\x1b[31mred next\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65.4, "1:05"), (3599.7, "1:00:00"), (7205, "2:00:05")]
)
def test_clock_text(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_what_is_left_goes_at_the_pace_of_the_rounds_so_far() -> None:
    assert left_text(30.0, 4, 10) == "left 1:15"
    assert left_text(30.0, 0, 10) == left_text(30.0, 4, 0) == ""


@pytest.mark.parametrize(
    ("stream", "quiet", "terminal", "kind"),
    [
        (Terminal(), False, "xterm-256color", LiveProgress),
        (Terminal(), False, "dumb", PlainProgress),
        (Terminal(), False, "", PlainProgress),
        (io.StringIO(), False, "xterm", PlainProgress),
        (Terminal(), True, "xterm", Progress),
        (None, False, "xterm", Progress),
    ],
)
def test_the_display_suits_the_stream(
    stream: io.StringIO | None, quiet: bool, terminal: str, kind: type[object]
) -> None:
    assert type(progress_for(stream, quiet, {"TERM": terminal})) is kind


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGR sequences that set a colour are 3x, 4x, 9x and 38;...; bold and reset are none."""
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = {}
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        stream = Terminal()
        run_three_cases(LiveProgress(stream, width=100))
        assert "3/3" in stream.getvalue()
        coloured[value] = bool(
            re.search(r"\x1b\[[0-9;]*(3|4|9)[0-9](;[0-9;]*)?m", stream.getvalue())
        )
    assert coloured == {"": True, "1": False}


def test_a_run_that_grows_counts_on_to_its_new_total() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream, every=True)
    progress.started(1)
    for left in (1, 0):
        progress.case_finished(ended(), PREDICTION, left)
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["[1/2]", "[2/2]"]
