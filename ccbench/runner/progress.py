"""Progress of a run, for a person: on stderr, between cases, never in the way of measuring.

Nothing here draws while a case runs. A ticking bar would take time from the cores being measured, so
the display moves when a case starts and when one ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO, cast

from ccbench.cases.axes import OVERLAP, Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.model import Prediction
from ccbench.runner.measure import rounds_of
from ccbench.stats import rounds_interval
from ccbench.units import format_rate, format_seconds, format_size, plural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import TaskID

Clock = Callable[[], float]


DRAWN_SECONDS = 0.1
"""Least time between two drawings on a terminal; one takes some milliseconds."""

RESULT_COLUMNS = ("case", "time", "bus bandwidth", "prediction")
MOST_RESULTS = 8
LINES_BESIDE = 4
"""Results that a terminal shows while others are measured, and lines that it keeps for the rest."""


class Progress:
    """Receiver of a run's reports, here silent; calls come from one thread, in this order."""

    def started(self, left: int) -> None:
        """The run begins, and so many rounds are to come."""

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


def result_text(measurement: Measurement, prediction: Prediction | None) -> str:
    """Return the outcome of a case: ``12.3 us, 85.2 GB/s busbw, predicted 11 us`` or status and detail."""
    if measurement.status is not Status.OK or not measurement.samples_seconds:
        words = [measurement.status.value]
        if measurement.wrong_elements:
            words.append(f"({measurement.wrong_elements} wrong elements)")
        return " ".join(words) + (f": {measurement.detail}" if measurement.detail else "")
    seconds = rounds_interval(measurement.samples_seconds, rounds_of(measurement)).median
    words = [format_seconds(seconds)]
    case = measurement.case
    row = COLLECTIVES.get(case.collective)
    if row is not None and row.moves_data and seconds > 0 and case.mode != OVERLAP:
        words.append(
            f"{format_rate(case.size_bytes / seconds * row.bus_factor(case.group_ranks))} busbw"
        )
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


def _short(case: Case) -> str:
    return f"{case.collective} {case.algorithm} {format_size(case.size_bytes)} {case.backend}"


def _is_news(measurement: Measurement, reported: set[str]) -> bool:
    """Return whether a case went wrong, or is unsupported for a reason not among those ``reported``."""
    if measurement.status is not Status.UNSUPPORTED:
        return measurement.status is not Status.OK
    repeated = measurement.detail in reported
    reported.add(measurement.detail)
    return not repeated


class PlainProgress(Progress):
    """Lines for a log: one for every case when it is first measured, and at once where one goes wrong.

    interval_seconds: least time between two lines about further rounds; the last one always has its line.
    """

    def __init__(
        self,
        stream: TextIO | None,
        interval_seconds: float = 2.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._stream = TolerantStream(stream)
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._began = clock()
        self._done = 0
        self._spoke_at = float("-inf")
        self._told: set[str] = set()
        self._measured: set[str] = set()

    def started(self, left: int) -> None:
        """Say how much there is to do."""
        self._began = self._clock()
        self.note(plural(left, "round"))

    def case_finished(
        self, measurement: Measurement, prediction: Prediction | None, left: int
    ) -> None:
        """One line, unless it is a further round right after the last line."""
        self._done += 1
        # A log of every round hides the line that matters.
        now = self._clock()
        again = measurement.case.case_id in self._measured
        self._measured.add(measurement.case.case_id)
        dispensable = not _is_news(measurement, self._told) and left > 0 and again
        if dispensable and now - self._spoke_at < self._interval_seconds:
            return
        self._spoke_at = now
        ending = left_text(now - self._began, self._done, left)
        self.note(
            f"[{self._done}/{self._done + left}] {measurement.case.label}: "
            f"{result_text(measurement, prediction)}{ending and f' ({ending})'}"
        )

    def note(self, text: str) -> None:
        """One line at once."""
        self._stream.write(one_line(text) + "\n")
        self._stream.flush()


class LiveProgress(Progress):
    """A table of the last results on a terminal, and a bar below it with the case that runs and the time left.

    Redrawn at most every DRAWN_SECONDS, so that short cases do not wait for it.
    """

    def __init__(self, stream: TextIO | None, width: int | None = None) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(
            file=cast(TextIO, TolerantStream(stream)), width=width, highlight=False
        )
        columns = [
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            *([] if console.width < 60 else [BarColumn(bar_width=20)]),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
        ]
        self._console = console
        self._bar = Bar(*columns, console=console, auto_refresh=False)
        self._results: dict[str, str] = {}
        # No refresh thread: see the head of this module.
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # stdout belongs to the result
            redirect_stderr=False,
            get_renderable=self._drawing,
        )
        self._drawn_at = float("-inf")
        self._task: TaskID | None = None
        self._done = 0
        self._began, self._left = 0.0, 0
        self._told: set[str] = set()

    def started(self, left: int) -> None:
        """Draw the empty bar."""
        self._began, self._left = time.monotonic(), left
        self._task = self._bar.add_task("", total=left, left="")
        self._live.start()
        self._live.refresh()

    def case_started(self, case: Case) -> None:
        """Show the case beside the bar."""
        self._move(_short(case))

    def case_finished(
        self, measurement: Measurement, prediction: Prediction | None, left: int
    ) -> None:
        """Move the bar and show the result; a case that went wrong leaves its line above both."""
        self._done, self._left = self._done + 1, left
        result = result_text(measurement, prediction)
        if _is_news(measurement, self._told):
            self.note(f"{measurement.case.label}: {result}")
        name = _short(measurement.case)
        self._results.pop(name, None)
        self._results[name] = result
        self._move(name)

    def note(self, text: str) -> None:
        """One line above the table."""
        self._console.print(one_line(text), markup=False, soft_wrap=True)

    def finished(self) -> None:
        """Take table and bar away and give the cursor back."""
        self._live.stop()

    def _move(self, description: str) -> None:
        now = time.monotonic()
        if self._task is None or (now - self._drawn_at < DRAWN_SECONDS and self._left):
            return
        self._drawn_at = now
        self._bar.update(
            self._task,
            total=self._done + self._left,
            completed=self._done,
            description=one_line(description),
            left=left_text(now - self._began, self._done, self._left),
        )
        self._live.refresh()

    def _drawing(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for _ in RESULT_COLUMNS:
            table.add_column(no_wrap=True, overflow="ellipsis")
        rows = min(MOST_RESULTS, max(0, self._console.height - LINES_BESIDE))
        for name, result in list(self._results.items())[len(self._results) - rows :]:
            # Only the first of them has a column where words follow instead of figures.
            cells = [name, *result.split(", ", len(RESULT_COLUMNS) - 2)]
            table.add_row(*(Text(one_line(cell)) for cell in cells))
        return Group(table, self._bar.get_renderable())


def progress_for(
    stream: TextIO | None, quiet: bool = False, variables: Mapping[str, str] | None = None
) -> Progress:
    """The display that suits ``stream``: live on a terminal that can move its cursor, else plain lines."""
    if quiet or stream is None:
        return Progress()
    terminal = (os.environ if variables is None else variables).get("TERM", "")
    if TolerantStream(stream).isatty() and terminal not in ("dumb", "unknown", ""):
        return LiveProgress(stream)
    return PlainProgress(stream)
