"""Figures to files with matplotlib's own Figure and canvases: no pyplot, no display, no state.

Colours are those of M. Okabe and K. Ito, "Color Universal Design" (2008), safe for every common kind of
colour blindness. Each colour has its own marker and its own dashes, so that a grey print says the same. The
colours of maps are matplotlib's cividis (J. R. Nuñez, C. R. Anderton and R. S. Renslow, "Optimizing colormaps
with consideration for color vision deficiency", PLoS ONE 13 (2018)): even in lightness, also in grey.
"""

from __future__ import annotations

import base64
import io
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.errors import UsageError
from ccbench.report.figure import Figure, FigureSeries, Grid, SeriesKind, far_note, frames

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

ENDINGS = (".svg", ".png", ".pdf")
DOTS_PER_INCH = 150
LARGEST_PICTURE_BYTES = 1_500_000
"""Of an SVG in a page; a larger one is put there as PNG."""

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
INK, GREY, FAINT = "#222222", "#666666", "#d9d9d9"
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
DASHES: tuple[tuple[float, ...], ...] = (
    (5, 2),
    (5, 2, 1, 2),
    (3, 1.5),
    (7, 2, 1, 1.5, 1, 2),
    (4, 3),
    (9, 3),
)
DOTS = (1, 1.6)
"""The bound's line; no prediction is drawn in dots alone."""

PREDICTED_MARKER, BOUND_MARKER = "_", "+"
PREDICTED_SHADE = 0.1
"""Single points of a prediction and of a bound: no measured series has these."""

PALE = "#9a9a9a"
NO_RESULT: dict[str, Any] = {
    "linestyle": "none",
    "marker": "x",
    "markersize": 7,
    "markeredgewidth": 1.8,
}

WIDTH_INCHES = 9.6
PLOT_INCHES = 4.4
LEFT_INCHES, RIGHT_INCHES = 0.95, 2.55
TITLE_INCHES, AXIS_INCHES, LINE_INCHES = 0.78, 0.62, 0.165
SPAN_INCHES = 0.46
FOOTNOTE_COLUMNS = 150
LEGEND_COLUMNS, LEGEND_LINES = 27, 4
MAP_LEGEND_COLUMNS, MAP_TICKS = 34, 16


def check_ending(path: Path) -> None:
    """Raise UsageError where ``path`` does not end as a picture does."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"{path}: {path.suffix!r} is not a picture format; end in one of {', '.join(ENDINGS)}"
        )


def save_picture(draw: Callable[[], Canvas], path: Path) -> None:
    """Write what ``draw`` draws into ``path``; the same figure gives the same bytes.

    Raises UsageError for another ending, and where the file cannot be written.
    """
    check_ending(path)
    try:
        path.write_bytes(picture_bytes(draw, path.suffix.lower()[1:]))
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from None


def picture_bytes(
    draw: Callable[[], Canvas], form: str, dots_per_inch: int = DOTS_PER_INCH
) -> bytes:
    """Return what ``draw`` draws as a file of ``form``; the same figure gives the same bytes."""
    sink = io.BytesIO()
    # A date would make every file another one.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with drawing_settings():
        draw().savefig(sink, format=form, dpi=dots_per_inch, metadata=dates.get(form, {}))
    return sink.getvalue()


def picture_address(draw: Callable[[], Canvas]) -> str:
    """Return a drawing as a data address, to be shown as an image, in which nothing can run."""
    kind, content = "svg+xml", picture_bytes(draw, "svg")
    if len(content) > LARGEST_PICTURE_BYTES:
        kind, content = "png", picture_bytes(draw, "png", dots_per_inch=110)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@contextmanager
def drawing_settings() -> Iterator[None]:
    """Settings for one drawing only, whatever the user's matplotlibrc says."""
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": "DejaVu Sans",
                "svg.hashsalt": "ccbench",
                "svg.fonttype": "none",  # letters as paths take three times the bytes
                "pdf.fonttype": 42,
                "text.parse_math": False,
            }
        )
        # A name may have letters the font lacks; a box in their place is all that can be done.
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        yield


def render(figure: Figure, form: str) -> bytes:
    """Return ``figure`` as a file of ``form`` (png, svg or pdf); the same figure gives the same bytes."""
    return picture_bytes(lambda: canvas_of(figure), form)


def render_pages(figures: Sequence[Figure]) -> bytes:
    """Return all figures as one PDF, a page each."""
    with drawing_settings():
        from matplotlib.backends.backend_pdf import PdfPages

        sink = io.BytesIO()
        with PdfPages(sink, metadata={"CreationDate": None}) as pages:
            for figure in figures:
                pages.savefig(canvas_of(figure))
    return sink.getvalue()


def canvas_of(figure: Figure) -> Canvas:
    """Return the drawn figure."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    matplotlib.rcParams.update({"font.size": 9, "axes.edgecolor": GREY, "axes.linewidth": 0.8})
    # The plot keeps its size; small print makes the canvas higher.
    lines = [
        line
        for note in figure.footnote
        for line in textwrap.wrap(note, FOOTNOTE_COLUMNS, subsequent_indent="    ") or [""]
    ]
    top = TITLE_INCHES + (SPAN_INCHES if figure.spans else 0.0)
    bottom = AXIS_INCHES + 0.18 + LINE_INCHES * len(lines)
    height = top + PLOT_INCHES + bottom
    canvas = Canvas(figsize=(WIDTH_INCHES, height), facecolor="white")
    FigureCanvasAgg(canvas)
    left = LEFT_INCHES / WIDTH_INCHES
    canvas.text(
        left, 1 - 0.20 / height, figure.title, fontsize=13, weight="bold", color=INK, va="top"
    )
    canvas.text(left, 1 - 0.46 / height, figure.subtitle, fontsize=9.5, color=GREY, va="top")
    for index, line in enumerate(reversed(lines)):
        place = (0.10 + LINE_INCHES * index) / height
        canvas.text(left, place, line, fontsize=7.2, color=GREY, va="bottom")
    width = 1 - (LEFT_INCHES + RIGHT_INCHES) / WIDTH_INCHES
    axes = canvas.add_axes((left, bottom / height, width, PLOT_INCHES / height))
    if figure.topic == "nothing":
        axes.axis("off")
        axes.text(0.5, 0.5, figure.message, ha="center", va="center", fontsize=14, color=GREY)
    elif figure.grid is not None:
        draw_map(figure, figure.grid, axes)
    else:
        _draw_lines(figure, axes)
    return canvas


def draw_legend(handles: Sequence[Artist], labels: Sequence[str], axes: Axes) -> None:
    """Draw a legend at the right of ``axes``."""
    # matplotlib leaves out labels that begin with an underscore.
    shown = [f" {label}" if label.startswith("_") else label for label in labels]
    axes.legend(
        handles,
        shown,
        loc="upper left",
        bbox_to_anchor=(1.015, 1.0),
        frameon=False,
        fontsize=8.5,
        handlelength=2.4,
        borderaxespad=0.0,
        labelspacing=0.65,
        labelcolor=INK,
    )


def _draw_lines(figure: Figure, axes: Axes) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axes.set_axisbelow(True)
    axes.grid(visible=True, color=FAINT, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
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
    axes.text(
        0.99, 0.99, note, transform=axes.transAxes, ha="right", va="top", fontsize=8, color=GREY
    )
    # Measured lines lie over all others.
    order = {SeriesKind.PREDICTED: 3, SeriesKind.BOUND: 2, SeriesKind.BASELINE: 2}
    for series in figure.series:
        if series.kind == SeriesKind.MEASURED:
            _draw_measured(series, axes)
        else:
            zorder = order.get(series.kind, 1 if series.joined else 6)
            axes.plot(series.x, series.y, zorder=zorder, **_look(series))
            if series.low and series.joined:
                colour, band = (
                    COLOURS[series.style % len(COLOURS)],
                    (series.x, series.low, series.high),
                )
                axes.fill_between(
                    *band, color=colour, alpha=PREDICTED_SHADE, linewidth=0, zorder=0.5
                )
    if figure.topic == "ranks" and figure.y.unit == "ratio":
        axes.axhline(1.0, color=GREY, linewidth=0.9, zorder=1)
    _draw_spans(figure, axes)
    # Labels of runs may be as long as their authors like.
    rows = _legend_rows(figure)
    draw_legend([handle for handle, _ in rows], [legend_text(label) for _, label in rows], axes)


def _look(series: FigureSeries) -> dict[str, Any]:
    """Return how the points of a series are drawn; its row of the legend looks the same.

    Predictions and bounds are lines of dashes, or markers where neighbours are too far apart for a line.
    """
    colour = INK if series.style < 0 else COLOURS[series.style % len(COLOURS)]
    marker, line = MARKERS[series.style % len(MARKERS)], "-" if series.joined else "none"
    match series.kind:
        case SeriesKind.MEASURED:
            look = {"linewidth": 1.6, "linestyle": line, "marker": marker, "markersize": 5}
            return {**look, "color": colour, "markeredgewidth": 1.1}
        case SeriesKind.BASELINE:
            look = {"linewidth": 1.1, "linestyle": line, "marker": marker, "markersize": 3.4}
            return {**look, "color": PALE, "markerfacecolor": "white"}
        case SeriesKind.REFERENCE if series.joined:
            return {"color": GREY, "linewidth": 1.0}
        case SeriesKind.REFERENCE:
            look = {"linestyle": "none", "marker": PREDICTED_MARKER, "markersize": 16}
            return {**look, "color": VERMILION, "markeredgewidth": 2.4}
    is_bound = series.kind == SeriesKind.BOUND
    if series.joined:
        dashes = DOTS if is_bound else DASHES[series.style % len(DASHES)]
        return {"color": colour, "linewidth": 1.3, "linestyle": (0, dashes)}
    marker, size = (BOUND_MARKER, 9) if is_bound else (PREDICTED_MARKER, 13)
    look = {"color": colour, "linestyle": "none", "marker": marker}
    return {**look, "markersize": size, "markeredgewidth": 1.4}


def _draw_measured(series: FigureSeries, axes: Axes) -> None:
    """Draw a line broken at missing cases, its interval as a band, and crosses where a result is missing."""
    colour, marker = COLOURS[series.style % len(COLOURS)], MARKERS[series.style % len(MARKERS)]
    if series.joined:
        ends = [
            index
            for index in range(1, len(series.x))
            if any(series.x[index - 1] < gap < series.x[index] for gap in series.missing)
        ]
        for start, end in zip([0, *ends], [*ends, len(series.x)], strict=True):
            x, y = series.x[start:end], series.y[start:end]
            axes.plot(x, y, color=colour, linewidth=1.6, zorder=4)
            if series.low:
                low, high = series.low[start:end], series.high[start:end]
                axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0, zorder=3)
    elif series.low:
        axes.vlines(series.x, series.low, series.high, color=colour, linewidth=1.1, zorder=3)
    size = 5.0 if len(series.x) <= 40 else 3.6
    trusted = series.trusted or (True,) * len(series.x)
    # Filled markers for trusted points, hollow ones for flagged.
    for wanted, face in ((True, colour), (False, "white")):
        chosen = [
            (x, y)
            for x, y, one in zip(series.x, series.y, trusted, strict=True)
            if one == wanted
        ]
        if chosen:
            axes.plot(
                [x for x, _ in chosen],
                [y for _, y in chosen],
                linestyle="none",
                marker=marker,
                markersize=size,
                markerfacecolor=face,
                markeredgecolor=colour,
                markeredgewidth=1.1,
                zorder=5,
            )
    if series.missing:
        across = axes.get_xaxis_transform()
        foot = [0.0] * len(series.missing)
        axes.plot(
            series.missing,
            foot,
            transform=across,
            color=colour,
            clip_on=False,
            zorder=6,
            **NO_RESULT,
        )


def _draw_spans(figure: Figure, axes: Axes) -> None:
    """Draw a strip above the axes that says who leads, and a thin line at every crossover."""
    from matplotlib.patches import Rectangle

    across = axes.get_xaxis_transform()
    sizes = [x for series in figure.series for x in series.x]
    low, high = axes.get_xlim()

    def share(start: float, end: float) -> float:
        """Part of the axis' width that lies between two values."""
        points = axes.transData.transform([(start, 1.0), (end, 1.0)])
        return float((points[1][0] - points[0][0]) / axes.bbox.width)

    for span in figure.spans:
        # The axis is logarithmic: a width is a factor.
        hair = (high / low) ** 0.006
        begin, end = max(span.low, low), min(span.high, high)
        # Out to the axis' ends only where nothing else was measured; a single size still gets a width.
        begin = low if begin <= min(sizes) else begin
        end = high if end >= max(sizes) else end
        begin, end = (begin / hair, end * hair) if begin == end else (begin, end)
        colour = COLOURS[span.style % len(COLOURS)]
        axes.add_patch(
            Rectangle(
                (begin, 1.015),
                end - begin,
                0.045,
                transform=across,
                color=colour,
                clip_on=False,
                linewidth=0,
            )
        )
        # Roughly how many letters of this size a stretch of the strip holds.
        if len(span.label) <= int(78 * share(begin, end)):
            axes.text(
                (begin * end) ** 0.5,
                1.036,
                span.label,
                transform=across,
                ha="center",
                va="center",
                color="white",
                fontsize=7.5,
                weight="bold",
            )
    last = -1.0
    for mark in figure.marks:
        axes.axvline(mark.x, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=2)
        place = share(low, mark.x)
        # The footnote lists every crossover, so a label without room can be left out.
        if place - last > 0.09:
            axes.text(
                mark.x,
                1.075,
                mark.label,
                transform=across,
                ha="center",
                va="bottom",
                fontsize=7.8,
                color=INK,
            )
            last = place


def legend_text(label: str) -> str:
    """``label`` on a few lines; of a longer one the middle is left out, with dots, since both ends tell."""
    label = label.strip()
    lines = textwrap.wrap(label, LEGEND_COLUMNS, break_on_hyphens=False)
    if len(lines) > LEGEND_LINES:
        head = textwrap.wrap(label, LEGEND_COLUMNS - 4, break_on_hyphens=False)[
            : LEGEND_LINES - 2
        ]
        tail = textwrap.wrap(label[::-1], LEGEND_COLUMNS, break_on_hyphens=False)[:2]
        lines = [*head[:-1], f"{head[-1]} ...", *(one[::-1] for one in reversed(tail))]
    return "\n".join(lines)


def _legend_rows(figure: Figure) -> list[tuple[Any, str]]:
    """Return a row for each measured series, then one for each kind of line that is drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows: list[tuple[Any, str]] = [
        (Line2D([], [], **_look(series)), series.label)
        for series in figure.series
        if series.kind not in (SeriesKind.PREDICTED, SeriesKind.BOUND)
    ]
    shaded = {series.kind for series in figure.series if series.low and series.joined}
    if SeriesKind.MEASURED in shaded:
        rows.append((Patch(facecolor=GREY, alpha=0.25, linewidth=0), "interval of the median"))
    if SeriesKind.PREDICTED in shaded:
        rows.append(
            (
                Patch(facecolor=GREY, alpha=PREDICTED_SHADE, linewidth=0),
                "predicted, 80 % interval",
            )
        )
    measured = {series.label for series in figure.series if series.kind == SeriesKind.MEASURED}
    for kind in (SeriesKind.PREDICTED, SeriesKind.BOUND):
        drawn = [series for series in figure.series if series.kind == kind and series.x]
        own = any(series.style >= 0 for series in drawn)
        # Where a bound is that of several series, each bound has a row that names them; otherwise predictions
        # and bounds have their series' colour, and a row for each look is enough.
        if own and any(
            one.label.removesuffix(f": {kind.value}") not in measured for one in drawn
        ):
            rows += [(Line2D([], [], **_look(series)), series.label) for series in drawn]
            continue
        label, colour = (f"{kind.value}, same colour", GREY) if own else (kind.value, INK)
        for one in {series.joined: series for series in drawn}.values():
            rows.append(
                (Line2D([], [], **{**_look(replace(one, style=0)), "color": colour}), label)
            )
    if any(series.missing for series in figure.series):
        rows.append((Line2D([], [], color=GREY, **NO_RESULT), "no result"))
    if any(not all(series.trusted) for series in figure.series):
        hollow: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5}
        hollow |= {"markerfacecolor": "white", "markeredgecolor": GREY}
        rows.append((Line2D([], [], **hollow), "flagged as doubtful"))
    return rows


def draw_map(figure: Figure, grid: Grid, axes: Axes) -> None:
    """Draw rows from above, columns from the left; dark cells are the bad ones."""
    import numpy as np
    from matplotlib.patches import Rectangle

    values = np.array(grid.values, dtype=float)  # None becomes NaN
    low, high = grid.limits
    colours = "cividis" if grid.large_is_good else "cividis_r"
    axes.set_facecolor("#efefef")
    image = axes.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.grid(visible=False)
    for axis, cells in ((axes.yaxis, len(values)), (axes.xaxis, values.shape[1])):
        places = list(range(0, cells, -(-cells // MAP_TICKS)))
        labels = [grid.names[place] if grid.names else str(place) for place in places]
        axis.set_ticks(places, labels, fontsize=8.5)
        axis.set_tick_params(length=0)
    if grid.names:
        axes.xaxis.set_tick_params(rotation=90)
    axes.set_xlabel(figure.x.label, labelpad=6)
    axes.set_ylabel(figure.y.label, labelpad=6)
    for row, texts in enumerate(grid.texts):
        for column, text in enumerate(texts):
            number = grid.values[row][column]
            if text and number is not None:
                share = (number - low) / ((high - low) or 1.0)
                # Letters are white on dark cells, whichever end of the colours is dark.
                is_dark = share < 0.55 if grid.large_is_good else share > 0.45
                axes.text(
                    column,
                    row,
                    text,
                    ha="center",
                    va="center",
                    linespacing=1.15,
                    fontsize=9.5 if len(grid.values) <= 8 else 6.5,
                    color="white" if is_dark else INK,
                )
    frame = partial(Rectangle, width=0.92, height=0.92, fill=False, edgecolor=VERMILION)
    for row, column in grid.marked:
        axes.add_patch(frame((column - 0.46, row - 0.46), linewidth=2.4))
    # Right of the map a bar of colours, and the lines of the legend below it.
    beside = axes.inset_axes((1.04, 0.56, 0.035, 0.44))
    bar = axes.figure.colorbar(image, cax=beside)
    bar.set_label(grid.unit, fontsize=8.5)
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=8)
    lines = [part for line in grid.legend for part in textwrap.wrap(line, MAP_LEGEND_COLUMNS)]
    # A frame says the same in every map, so that its meaning stands with the legend.
    lines += ["framed: slower than its class"] * bool(grid.marked)
    axes.text(
        1.03,
        0.5,
        "\n".join(lines),
        transform=axes.transAxes,
        va="top",
        ha="left",
        fontsize=7.6,
        color=GREY,
        linespacing=1.35,
    )
