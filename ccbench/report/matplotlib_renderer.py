"""Figures to PNG, SVG and PDF with matplotlib's own Figure and canvases: no pyplot, no display, no state.

Colours are those of M. Okabe and K. Ito, "Color Universal Design" (2008), safe for every common kind of
colour blindness. Each colour has its own marker and its own dashes, so that a grey print says the same.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ccbench.report.axes import far_note, frames
from ccbench.report.charts import draw_bars, draw_lanes, draw_legend, draw_map
from ccbench.report.drawing import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    drawing_settings,
    picture_bytes,
)
from ccbench.report.figure import Figure, Kind, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
DASHES: tuple[tuple[float, ...], ...] = (
    (5, 2), (5, 2, 1, 2), (3, 1.5), (7, 2, 1, 1.5, 1, 2), (4, 3), (9, 3),
)  # fmt: skip
DOTS = (1, 1.6)
"""The bound's line; no prediction is drawn in dots alone."""

PREDICTED_MARKER, BOUND_MARKER = "_", "+"
"""Single points of a prediction and of a bound: no measured series has these."""

PALE = "#9a9a9a"
NO_RESULT: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 7, "markeredgewidth": 1.8}
ZORDER = {Kind.PREDICTED: 3, Kind.BOUND: 2, Kind.BASELINE: 2, Kind.REFERENCE: 1}

WIDTH_INCHES = 9.6
PLOT_INCHES = 4.4
LEFT_INCHES, RIGHT_INCHES = 0.95, 2.55
TITLE_INCHES, AXIS_INCHES, LINE_INCHES = 0.78, 0.62, 0.165
SPAN_INCHES = 0.46
FOOTNOTE_COLUMNS = 150
LEGEND_COLUMNS = 27
LEGEND_LINES = 4


def render(figure: Figure, form: str) -> bytes:
    """``figure`` as a file of ``form`` (png, svg or pdf); the same figure gives the same bytes."""
    return picture_bytes(lambda: _canvas(figure), form)


def render_pages(figures: Sequence[Figure]) -> bytes:
    """All figures as one PDF, a page each."""
    with drawing_settings():
        from matplotlib.backends.backend_pdf import PdfPages

        sink = io.BytesIO()
        with PdfPages(sink, metadata={"CreationDate": None}) as pages:
            for figure in figures:
                pages.savefig(_canvas(figure))
    return sink.getvalue()


def _canvas(figure: Figure) -> Canvas:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    matplotlib.rcParams.update({"font.size": 9, "axes.edgecolor": GREY, "axes.linewidth": 0.8})
    lines = [line for note in figure.footnote for line in _wrapped(note)]
    top = TITLE_INCHES + (SPAN_INCHES if figure.spans else 0.0)
    bottom = AXIS_INCHES + 0.18 + LINE_INCHES * len(lines)
    height = top + PLOT_INCHES + bottom
    canvas = Canvas(figsize=(WIDTH_INCHES, height), facecolor="white")
    FigureCanvasAgg(canvas)
    left = LEFT_INCHES / WIDTH_INCHES
    canvas.text(left, 1 - 0.20 / height, figure.title, fontsize=13, weight="bold", color=INK, va="top")
    canvas.text(left, 1 - 0.46 / height, figure.subtitle, fontsize=9.5, color=GREY, va="top")
    for index, line in enumerate(reversed(lines)):
        place = (0.10 + LINE_INCHES * index) / height
        canvas.text(left, place, line, fontsize=7.2, color=GREY, va="bottom")
    width = 1 - (LEFT_INCHES + RIGHT_INCHES) / WIDTH_INCHES
    axes = canvas.add_axes((left, bottom / height, width, PLOT_INCHES / height))
    if figure.topic == "nothing":
        axes.axis("off")
        axes.text(0.5, 0.5, figure.message, ha="center", va="center", fontsize=14, color=GREY)
        return canvas
    if figure.grid is not None:
        draw_map(figure, figure.grid, axes)
    elif figure.bars is not None:
        draw_bars(figure, figure.bars, axes)
    elif figure.lanes is not None:
        draw_lanes(figure, figure.lanes, axes)
    else:
        _draw(figure, axes)
    return canvas


def _wrapped(note: str) -> list[str]:
    return textwrap.wrap(note, FOOTNOTE_COLUMNS, subsequent_indent="    ") or [""]


def _draw(figure: Figure, axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.grid(visible=True, color=FAINT, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    _apply_frames(figure, axes)
    for series in figure.series:
        if figure.topic == "ranks":
            _draw_ranks(series, axes)
        elif series.kind == Kind.MEASURED:
            _draw_measured(series, axes)
        else:
            axes.plot(series.x, series.y, zorder=ZORDER[series.kind], **_look(series))
    if figure.topic == "ranks" and figure.y.unit == "ratio":
        axes.axhline(1.0, color=GREY, linewidth=0.9, zorder=1)
    _draw_spans(figure, axes)
    rows = _legend_rows(figure)
    draw_legend([handle for handle, _ in rows], [legend_text(label) for _, label in rows], axes)


def _apply_frames(figure: Figure, axes: Axes) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    x, y = frames(figure)
    axes.set_xlabel(x.label, labelpad=6)
    axes.set_ylabel(y.label, labelpad=6)
    for kind, scale in ((figure.x.scale, axes.set_xscale), (figure.y.scale, axes.set_yscale)):
        if kind != "linear":
            scale("log", base=2 if kind == "log2" else 10)
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(y.low, y.high)
    for frame, part in ((x, axes.xaxis), (y, axes.yaxis)):
        if frame.ticks is not None:
            part.set_major_locator(FixedLocator([place for place, _ in frame.ticks]))
            part.set_major_formatter(FixedFormatter([text for _, text in frame.ticks]))
            part.set_minor_locator(NullLocator())
    note = far_note(figure)
    axes.text(0.99, 0.99, note, transform=axes.transAxes, ha="right", va="top", fontsize=8, color=GREY)


def _look(series: Series) -> dict[str, Any]:
    """How the points of a series are drawn; its row of the legend looks the same.

    Predictions and bounds are lines of dashes, or markers where neighbours are too far apart for a line.
    """
    colour = INK if series.style < 0 else COLOURS[series.style % len(COLOURS)]
    marker, line = MARKERS[series.style % len(MARKERS)], "-" if series.joined else "none"
    match series.kind:
        case Kind.MEASURED:
            look = {"linewidth": 1.6, "linestyle": line, "marker": marker, "markersize": 5}
            return {**look, "color": colour, "markeredgewidth": 1.1}
        case Kind.BASELINE:
            look = {"linewidth": 1.1, "linestyle": line, "marker": marker, "markersize": 3.4}
            return {**look, "color": PALE, "markerfacecolor": "white"}
        case Kind.REFERENCE:
            return {"color": GREY, "linewidth": 1.0}
    is_bound = series.kind == Kind.BOUND
    if series.joined:
        dashes = DOTS if is_bound else DASHES[series.style % len(DASHES)]
        return {"color": colour, "linewidth": 1.3, "linestyle": (0, dashes)}
    marker, size = (BOUND_MARKER, 9) if is_bound else (PREDICTED_MARKER, 13)
    look = {"color": colour, "linestyle": "none", "marker": marker}
    return {**look, "markersize": size, "markeredgewidth": 1.4}


def _draw_measured(series: Series, axes: Axes) -> None:
    colour, marker = COLOURS[series.style % len(COLOURS)], MARKERS[series.style % len(MARKERS)]
    if series.joined:
        for piece in _unbroken(series):
            x, y = series.x[piece], series.y[piece]
            axes.plot(x, y, color=colour, linewidth=1.6, zorder=4)
            if series.low:
                low, high = series.low[piece], series.high[piece]
                axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, zorder=3)
    elif series.low:
        axes.vlines(series.x, series.low, series.high, color=colour, linewidth=1.1, zorder=3)
    _markers(series, axes, colour, marker, 5.0 if len(series.x) <= 40 else 3.6)
    if series.missing:
        across = axes.get_xaxis_transform()
        foot = [0.0] * len(series.missing)
        axes.plot(
            series.missing, foot, transform=across, color=colour, clip_on=False, zorder=6, **NO_RESULT
        )  # fmt: skip


def _unbroken(series: Series) -> Iterator[slice]:
    """Stretches of a line's points with no missing case between neighbours."""
    start = 0
    for index in range(1, len(series.x)):
        if any(series.x[index - 1] < gap < series.x[index] for gap in series.missing):
            yield slice(start, index)
            start = index
    yield slice(start, len(series.x))


def _markers(series: Series, axes: Axes, colour: str, marker: str, size: float) -> None:
    """Filled markers for trusted points, hollow ones for flagged."""
    trusted = series.trusted or (True,) * len(series.x)
    for wanted, face in ((True, colour), (False, "white")):
        chosen = [(x, y) for x, y, one in zip(series.x, series.y, trusted, strict=True) if one == wanted]
        if chosen:
            axes.plot(
                [x for x, _ in chosen], [y for _, y in chosen], linestyle="none", marker=marker,
                markersize=size, markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.1, zorder=5,
            )  # fmt: skip


def _draw_ranks(series: Series, axes: Axes) -> None:
    """A strip of dots for every rank and a bar at their median; dots are spread sideways to be seen."""
    if series.kind == Kind.REFERENCE:
        axes.hlines(
            series.y, [x - 0.32 for x in series.x], [x + 0.32 for x in series.x], color=COLOURS[1],
            linewidth=2.4, zorder=6,
        )  # fmt: skip
        return
    ranks = int(max(series.x)) + 1
    cases = max(1, len(series.x) // ranks)
    spread = [0.44 * ((index // ranks + 0.5) / cases - 0.5) for index in range(len(series.x))]
    moved = tuple(x + shift for x, shift in zip(series.x, spread, strict=True))
    shown = Series(series.label, series.kind, 0, moved, series.y, trusted=series.trusted)
    _markers(shown, axes, COLOURS[0], "o", 3.6 if len(series.x) <= 600 else 2.2)


def _draw_spans(figure: Figure, axes: Axes) -> None:
    """A strip above the axes that says who leads, and a thin line at every crossover."""
    from matplotlib.patches import Rectangle

    across = axes.get_xaxis_transform()
    sizes = [x for series in figure.series for x in series.x]
    low, high = axes.get_xlim()
    for span in figure.spans:
        hair = (high / low) ** 0.006
        begin, end = max(span.low, low), min(span.high, high)
        # Out to the axis' ends only where nothing else was measured; a single size still gets a width.
        begin = low if begin <= min(sizes) else begin
        end = high if end >= max(sizes) else end
        begin, end = (begin / hair, end * hair) if begin == end else (begin, end)
        colour = COLOURS[span.style % len(COLOURS)]
        axes.add_patch(
            Rectangle(
                (begin, 1.015), end - begin, 0.045, transform=across, color=colour, clip_on=False, linewidth=0
            )
        )
        # Roughly how many letters of this size a stretch of the strip holds.
        room = int(78 * _share(axes, begin, end))
        if len(span.label) <= room:
            middle = (begin * end) ** 0.5
            axes.text(
                middle, 1.036, span.label, transform=across, ha="center", va="center", color="white",
                fontsize=7.5, weight="bold",
            )  # fmt: skip
    last = -1.0
    for mark in figure.marks:
        axes.axvline(mark.x, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=2)
        place = _share(axes, low, mark.x)
        # The footnote lists every crossover, so a label without room can be left out.
        if place - last > 0.09:
            axes.text(
                mark.x, 1.075, mark.label, transform=across, ha="center", va="bottom", fontsize=7.8, color=INK
            )
            last = place


def _share(axes: Axes, low: float, high: float) -> float:
    """How much of the axis' width lies between two values."""
    points = axes.transData.transform([(low, 1.0), (high, 1.0)])
    return float((points[1][0] - points[0][0]) / axes.bbox.width)


def legend_text(label: str) -> str:
    """``label`` on a few lines; of a longer one the middle is left out, with dots, since both ends tell."""
    label = label.strip()
    lines = textwrap.wrap(label, LEGEND_COLUMNS, break_on_hyphens=False)
    if len(lines) > LEGEND_LINES:
        head = textwrap.wrap(label, LEGEND_COLUMNS - 4, break_on_hyphens=False)[: LEGEND_LINES - 2]
        tail = textwrap.wrap(label[::-1], LEGEND_COLUMNS, break_on_hyphens=False)[:2]
        lines = [*head[:-1], f"{head[-1]} ...", *(one[::-1] for one in reversed(tail))]
    return "\n".join(lines)


def _legend_rows(figure: Figure) -> list[tuple[Any, str]]:
    """One row for each measured series, then one for each kind of line that is drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows: list[tuple[Any, str]] = []
    for series in figure.series:
        look = _look(series)
        if figure.topic == "ranks":
            is_dot = series.kind == Kind.MEASURED
            look |= (
                {"linestyle": "none", "marker": "o"} if is_dot else {"color": COLOURS[1], "linewidth": 2.4}
            )
        if series.kind not in (Kind.PREDICTED, Kind.BOUND):
            rows.append((Line2D([], [], **look), series.label))
    if any(series.low and series.joined for series in figure.series):
        rows.append((Patch(facecolor=GREY, alpha=0.25, linewidth=0), "interval of the median"))
    rows += _kind_rows(figure)
    if any(series.missing for series in figure.series):
        rows.append((Line2D([], [], color=GREY, **NO_RESULT), "no result"))
    if any(not all(series.trusted) for series in figure.series):
        hollow: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5}
        hollow |= {"markerfacecolor": "white", "markeredgecolor": GREY}
        rows.append((Line2D([], [], **hollow), "flagged as doubtful"))
    return rows


def _kind_rows(figure: Figure) -> list[tuple[Any, str]]:
    """Rows for predictions and bounds, each look that occurs; several bounds have their series' colour.

    Where a bound is that of several series, each bound has a row that names them.
    """
    from matplotlib.lines import Line2D

    rows: list[tuple[Any, str]] = []
    measured = {series.label for series in figure.series if series.kind == Kind.MEASURED}
    for kind in (Kind.PREDICTED, Kind.BOUND):
        drawn = [series for series in figure.series if series.kind == kind and series.x]
        own = any(series.style >= 0 for series in drawn)
        if own and any(one.label.removesuffix(f": {kind.value}") not in measured for one in drawn):
            rows += [(Line2D([], [], **_look(series)), series.label) for series in drawn]
            continue
        label, colour = (f"{kind.value}, same colour", GREY) if own else (kind.value, INK)
        for one in {series.joined: series for series in drawn}.values():
            rows.append((Line2D([], [], **{**_look(replace(one, style=0)), "color": colour}), label))
    return rows
