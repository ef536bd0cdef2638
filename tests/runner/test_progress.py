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


def test_plain_lines_come_for_the_start_for_bad_cases_and_for_the_last_one() -> None:
    stream, clock = io.StringIO(), FakeClock()

    def a_while() -> None:
        clock.now += 2.0

    progress = PlainProgress(stream, interval_seconds=60, clock=clock)
    run_three_cases(progress, between=a_while)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "3 rounds"
    assert lines[1].startswith("[1/3] all_reduce ring float32 sum")
    assert lines[2].endswith("failed: rank 1 died (left 0:02)")
    assert lines[3].startswith("[3/3]")
    assert "left" not in lines[3]
    assert lines[4] == "the team was started again"


def test_plain_lines_about_good_cases_keep_their_distance() -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, interval_seconds=2.0, clock=clock)
    progress.started(100)
    for number in range(1, 51):
        progress.case_started(CASE)
        clock.now += 0.125
        progress.case_finished(ended(), None, 100 - number)
    # The first case at once, then one line every sixteen cases of an eighth of a second.
    assert [int(count) for count in re.findall(r"\[(\d+)/100\]", stream.getvalue())] == [
        1,
        17,
        33,
        49,
    ]


def test_a_live_bar_leaves_only_bad_cases_and_notes_behind() -> None:
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
    lines_shown = [
        line
        for line in re.split("[\r\n]+", plain)
        if line.startswith(("[", "all_reduce ring float32"))
    ]
    assert [
        line.partition("unsupported: ")[2].removesuffix(" (left 0:00)") for line in lines_shown
    ] == [
        "no avg",
        "no float16",
    ]


@pytest.mark.parametrize("width", [10, 40, 79, 200])
def test_a_live_display_has_a_row_for_each_result_and_one_for_the_bar(width: int) -> None:
    stream = Terminal()
    progress = LiveProgress(stream, width=width)
    progress.started(3)
    progress.case_started(CASE)
    progress.case_finished(ended(), PREDICTION, 2)
    drawn = stream.getvalue()
    progress.finished()
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).replace("\r", "\n").split("\n")
    assert max(len(row) for row in rows) <= width
    # It is drawn anew over itself: as often one row up as the last drawing had rows above its last.
    assert drawn.count("\x1b[1A") <= 3


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
    progress = PlainProgress(stream, interval_seconds=0.0)
    progress.started(1)
    for left in (1, 0):
        progress.case_finished(ended(), PREDICTION, left)
    assert [line.split()[0] for line in stream.getvalue().splitlines()[1:]] == [
        "[1/2]",
        "[2/2]",
    ]
