"""Progress of a run, for a person: on stderr, between cases, never in the way of measuring.

Nothing here draws while a case runs. A ticking bar would take time from the cores being measured, so
the display moves when a case starts and when one ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TextIO, cast

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.model import Prediction
from ccbench.results.schema import BYTES_PER_GIGABYTE, bandwidths
from ccbench.runner.measure import rounds_of
from ccbench.stats import rounds_interval
from ccbench.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from rich.progress import TaskID

Clock = Callable[[], float]


DRAWN_SECONDS = 0.1
"""Least time between two drawings on a terminal; one takes some milliseconds."""


class Progress:
    """Receiver of a run's reports, here silent; calls come from one thread, in this order."""

    def started(self, left: int) -> None:
        """The run begins, and so many rounds of cases are to come."""

    def round_started(self, number: int, planned: int, cases: Sequence[Case]) -> None:
        """A round begins, of so many that are planned, and goes through ``cases`` in this order."""

    def case_started(self, case: Case) -> None:
        """A round of the case begins."""

    def case_finished(
        self, measurement: Measurement, prediction: Prediction | None, left: int
    ) -> None:
        """The case that began last has ended."""

    def note(self, text: str) -> None:
        """Something a person should know now: a team that was killed, a case that is skipped."""

    def finished(self) -> None:
        """The run is over, however it ended; may be called without ``started``."""


class TolerantStream:
    """A text stream that swallows writes once its reader is gone, so that measuring goes on."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, escaping what the stream's encoding lacks; its length, written or not."""
        # A terminal that was closed must not end a run of hours.
        if self._stream is not None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode("ascii", "backslashreplace").decode("ascii"))
            except (OSError, ValueError):  # ValueError: the stream was closed in this process
                self._stream = None
        return len(text)

    def flush(self) -> None:
        """Flush, if anybody still reads."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._stream = None

    def isatty(self) -> bool:
        """Return whether a person sees this."""
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        """The descriptor, which the terminal's width is asked from."""
        if self._stream is None:
            raise OSError("the stream is closed")
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        """The stream's encoding; decides whether bars are drawn with block characters."""
        return getattr(self._stream, "encoding", None) or "ascii"


def _median_seconds(measurement: Measurement) -> float:
    return rounds_interval(measurement.samples_seconds, rounds_of(measurement)).median


def label_text(case: Case) -> str:
    """The case's label, with its size as people read it."""
    return case.label.replace(f"{case.size_bytes} B", format_size(case.size_bytes), 1)


def span_text(measurements: Iterable[Measurement]) -> str:
    """``64 B 2.96 us ... 16 MiB 11.5 ms``: the fastest case of the smallest size and of the largest; '' of none."""
    timed = [
        (measurement.case.size_bytes, _median_seconds(measurement))
        for measurement in measurements
        if measurement.status is Status.OK and measurement.samples_seconds
    ]
    ends = (min(timed), min(timed, key=lambda each: (-each[0], each[1]))) if timed else ()
    figures = (
        (f"{format_size(size)} " if size else "") + format_seconds(took) for size, took in ends
    )
    return " ... ".join(dict.fromkeys(figures))


def result_text(measurement: Measurement, prediction: Prediction | None) -> str:
    """Return the outcome of a case: ``12.3 us, 85.2 GB/s busbw, predicted 11 us`` or status and detail."""
    if measurement.status is not Status.OK or not measurement.samples_seconds:
        words = [measurement.status.value]
        if measurement.wrong_elements:
            words.append(f"({measurement.wrong_elements} wrong elements)")
        return " ".join(words) + (f": {measurement.detail}" if measurement.detail else "")
    seconds = _median_seconds(measurement)
    words = [format_seconds(seconds)]
    _, busbw = bandwidths(measurement.case, seconds)
    if busbw is not None:
        words.append(f"{format_rate(busbw * BYTES_PER_GIGABYTE)} busbw")
    if prediction is not None:
        words.append(f"predicted {format_seconds(prediction.predicted_seconds)}")
    return ", ".join(words)


def one_line(text: str) -> str:
    """``text`` on one line, with nothing in it that moves a terminal's cursor or changes its colours."""
    return "".join(
        letter if letter.isprintable() else ascii(letter)[1:-1]
        for letter in " ".join(text.splitlines())
    )


def clock_text(seconds: float) -> str:
    """``1:05`` or ``2:00:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def left_text(took_seconds: float, done: int, left: int) -> str:
    """``left 1:05`` at the pace of the rounds done so far; '' before the first and after the last."""
    return f"left {clock_text(took_seconds / done * left)}" if done and left else ""


class PlainProgress(Progress):
    """Lines for a log: one for each collective of a round, as it ends, and at once for a case that goes wrong.

    every: one for every round of every case instead.
    """

    def __init__(
        self, stream: TextIO | None, every: bool = False, clock: Clock = time.monotonic
    ) -> None:
        self._stream = TolerantStream(stream)
        self._every = every
        self._clock = clock
        self._began = clock()
        self._done = self._left = 0
        self._told: set[str] = set()
        self._round = ""
        self._waiting: list[Case] = []
        self._measured: dict[str, list[Measurement]] = {}

    def started(self, left: int) -> None:
        """Time runs from here."""
        self._began, self._left = self._clock(), left

    def round_started(self, number: int, planned: int, cases: Sequence[Case]) -> None:
        """Close the round before; its last cases may have been skipped."""
        self._waiting = []
        self._close()
        self._waiting = list(cases)
        self._round = f"round {number}" + (f" of {planned}" if number <= planned else "")

    def case_finished(
        self, measurement: Measurement, prediction: Prediction | None, left: int
    ) -> None:
        """A line where the case went wrong or was its collective's last of the round."""
        self._done, self._left = self._done + 1, left
        case, status, detail = measurement.case, measurement.status, measurement.detail
        # That a case went wrong is news, and each reason why some are unsupported, once.
        unsupported = status is Status.UNSUPPORTED
        is_news = detail not in self._told if unsupported else status is not Status.OK
        if unsupported:
            self._told.add(detail)
        if is_news or self._every:
            self.note(
                f"[{self._done}/{self._done + left}] {label_text(case)}: "
                f"{result_text(measurement, prediction)}{self._ending()}"
            )
        self._measured.setdefault(case.collective, []).append(measurement)
        # What stood before it and did not end was skipped.
        if case in self._waiting:
            del self._waiting[: self._waiting.index(case) + 1]
        self._close()

    def note(self, text: str) -> None:
        """One line at once."""
        self._stream.write(one_line(text) + "\n")
        self._stream.flush()

    def finished(self) -> None:
        """Close the last round."""
        self._waiting = []
        self._close()

    def _close(self) -> None:
        """One line for each collective for which no case waits."""
        ended = [
            name
            for name in self._measured
            if all(case.collective != name for case in self._waiting)
        ]
        for name in ended:
            text = span_text(self._measured.pop(name))
            if text and not self._every:
                self.note(f"{self._round}  {name}  {text}{self._ending()}")

    def _ending(self) -> str:
        left = left_text(self._clock() - self._began, self._done, self._left)
        return left and f"  ({left})"


class LiveProgress(PlainProgress):
    """The same lines on a terminal, and a bar below them with the case that runs and the time left.

    Redrawn at most every DRAWN_SECONDS, so that short cases do not wait for it.
    """

    def __init__(self, stream: TextIO | None, every: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        super().__init__(stream, every)
        console = Console(file=cast(TextIO, self._stream), highlight=False)
        columns = [
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            *([] if console.width < 60 else [BarColumn(bar_width=20)]),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
        ]
        # No refresh thread: see the head of this module.
        self._bar = Bar(
            *columns,
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # stdout belongs to the result
            redirect_stderr=False,
        )
        self._drawn_at = float("-inf")
        self._task: TaskID | None = None

    def started(self, left: int) -> None:
        """Draw the empty bar."""
        super().started(left)
        self._task = self._bar.add_task("", total=left, left="")
        self._bar.start()

    def case_started(self, case: Case) -> None:
        """Show the case beside the bar."""
        self._move(case)

    def case_finished(
        self, measurement: Measurement, prediction: Prediction | None, left: int
    ) -> None:
        """Move the bar."""
        super().case_finished(measurement, prediction, left)
        self._move(measurement.case)

    def note(self, text: str) -> None:
        """One line above the bar."""
        self._bar.console.print(one_line(text), markup=False, soft_wrap=True)

    def finished(self) -> None:
        """Take the bar away and give the cursor back."""
        super().finished()
        self._bar.stop()

    def _move(self, case: Case) -> None:
        now = self._clock()
        if self._task is None or (now - self._drawn_at < DRAWN_SECONDS and self._left):
            return
        self._drawn_at = now
        self._bar.update(
            self._task,
            total=self._done + self._left,
            completed=self._done,
            description=one_line(label_text(case)),
            left=left_text(now - self._began, self._done, self._left),
        )
        self._bar.refresh()


def progress_for(stream: TextIO | None, quiet: bool = False, every: bool = False) -> Progress:
    """The display that suits ``stream``: with a bar on a terminal that can move its cursor, else lines alone.

    every: a line for every case.
    """
    if quiet or stream is None:
        return Progress()
    terminal = os.environ.get("TERM", "")
    if TolerantStream(stream).isatty() and terminal not in ("dumb", "unknown", ""):
        return LiveProgress(stream, every)
    return PlainProgress(stream, every)
