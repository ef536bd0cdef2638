"""What a person sees of a run, on every kind of stream."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.model import Prediction
from ccbench.runner.progress import (
    LiveProgress,
    PlainProgress,
    Progress,
    TolerantStream,
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


@pytest.mark.parametrize("kind", [PlainProgress, LiveProgress])
def test_a_stream_closed_under_way_stops_the_display_and_not_the_run(
    kind: Callable[[io.StringIO], Progress],
) -> None:
    stream = Terminal()
    run_three_cases(kind(stream), between=stream.close)


def test_text_the_stream_cannot_encode_is_escaped() -> None:
    raw = io.BytesIO()
    stream = TolerantStream(io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    stream.write("µs ok")
    stream.flush()
    assert raw.getvalue() == b"\\xb5s ok"


@given(st.text())
def test_one_line_holds_no_control_characters(text: str) -> None:
    assert one_line(text).isprintable()


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
    monkeypatch: pytest.MonkeyPatch,
    stream: io.StringIO | None,
    quiet: bool,
    terminal: str,
    kind: type[object],
) -> None:
    monkeypatch.setenv("TERM", terminal)
    assert type(progress_for(stream, quiet)) is kind
