"""Figures to files with matplotlib's own Figure and canvases: no pyplot, no display, no state.

A page has the same figures as SVG elements: text is text in the page's letters, colours are the page's variables, and
each point has a title. Its caption says what stands around a picture in a file.

Colours are those of M. Okabe and K. Ito, "Color Universal Design" (2008), safe for every common kind of
colour blindness. Each colour has its own marker and its own dashes, so that a grey print says the same. The
colours of maps are matplotlib's cividis (J. R. Nuñez, C. R. Anderton and R. S. Renslow, "Optimizing colormaps
with consideration for color vision deficiency", PLoS ONE 13 (2018)): even in lightness, also in grey.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.errors import UsageError
from ccbench.report.figure import (
    Figure,
    FigureAxis,
    FigureSeries,
    Grid,
    SeriesKind,
    ends_of,
    far_note,
    tick_text,
    value_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

ENDINGS = (".svg", ".png", ".pdf")
DOTS_PER_INCH = 150
MOST_MARKERS = 1000
"""Points of a series that are drawn apart; more are one raster image."""

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
INK, GREY, FAINT, EMPTY = "#222222", "#666666", "#d9d9d9", "#efefef"
MOST_TICKS = 7
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY)
ON_DARK, ON_BRIGHT = "#fdfdfd", "#202020"
"""Letters on coloured cells, which no page turns round."""
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
PREDICTED_SHADE = 0.15
"""Single points of a prediction and of a bound: no measured series has these."""

PALE = "#9a9a9a"
NO_RESULT: dict[str, Any] = {
    "linestyle": "none",
    "marker": "x",
    "markersize": 7,
    "markeredgewidth": 1.8,
}


@dataclass(frozen=True)
class Paper:
    """Inches of a picture: its width, height of the plot, and what is left free around it."""

    width: float
    plot: float
    left: float
    right: float
    top: float


FILE = Paper(9.6, 4.4, 0.95, 2.55, 0.78)
PAGE = Paper(5.4, 3.0, 0.78, 0.15, 0.12)
"""In a page title and small print are its caption, and the legend lies below."""

BAR_INCHES = 0.75
"""Room that the colours of a map take in a page."""

AXIS_INCHES, LINE_INCHES = 0.62, 0.165
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


def picture_bytes(draw: Callable[[], Canvas], form: str, salt: str = "ccbench") -> bytes:
    """Return what ``draw`` draws as a file of ``form``; the same figure gives the same bytes."""
    sink = io.BytesIO()
    # A date would make every file another one.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with drawing_settings(salt):
        draw().savefig(sink, format=form, dpi=DOTS_PER_INCH, metadata=dates.get(form, {}))
    return sink.getvalue()


def picture_address(draw: Callable[[], Canvas]) -> str:
    """Return a drawing as a data address, to be shown as an image, in which nothing can run."""
    return f"data:image/svg+xml;base64,{base64.b64encode(picture_bytes(draw, 'svg')).decode()}"


def page_picture(figure: Figure, name: str) -> str:
    """Return ``figure`` as an SVG element for a page, in which ``name`` keeps its parts apart from other figures'."""
    drawn = picture_bytes(lambda: canvas_of(figure, PAGE), "svg", salt=name).decode()
    named = {*re.findall(r"#([mp][0-9a-f]+)\b", drawn)}
    # A page needs no name spaces.
    root = ElementTree.fromstring(re.sub(r' xmlns="[^"]*"|(?<= )xlink:(?=href=)', "", drawn))
    for dropped in ("width", "height", "version"):
        del root.attrib[dropped]
    root.attrib |= {"role": "img", "aria-label": f"{figure.title}. {figure.subtitle}"}
    for parent in [*root.iter()]:
        for part in [*parent.iterfind("metadata"), *parent.iterfind("style")]:
            parent.remove(part)
    for part in root.iter():
        texts = tip_texts(figure, part.get("id", ""))
        for use, text in zip(part.iter("use"), texts, strict=False):
            ElementTree.SubElement(use, "title").text = text
        if part.get("id") not in named:
            part.attrib.pop("id", None)
        for name, value in part.items():
            part.set(name, _page_attribute(name, value))
        part.text, part.tail = ((text or "").strip() or None for text in (part.text, part.tail))
    return ElementTree.tostring(root, encoding="unicode")


def _page_attribute(name: str, value: str) -> str:
    """Return an attribute without what the page has of its own; hundredths of a point are enough."""
    if name in ("d", "x", "y", "transform"):
        return re.sub(r"(\.\d\d)\d+", r"\1", value)
    if name == "style":
        style = re.sub(MATPLOTLIBS_OWN, "", value)
        return re.sub(
            "#[0-9a-f]{6}", lambda colour: PAGE_COLOURS.get(colour[0], colour[0]), style
        )
    return value


PAGE_COLOURS = {
    **{colour.lower(): f"var(--series-{n}, {colour})" for n, colour in enumerate(COLOURS)},
    INK: "currentColor",
    "#000000": "currentColor",
    GREY: "var(--grey)",
    FAINT: "var(--line)",
    "#ffffff": "var(--paper)",
    EMPTY: "var(--panel)",
}
"""A page's colours in place of matplotlib's. Where a style says nothing, texts and lines are of the page's ink."""

MATPLOTLIBS_OWN = r"font-family: [^;]*; |(?<=:) |(?<=;) |; stroke-linecap: square"
"""Parts of a style that a page has of its own."""


def tip_texts(figure: Figure, name: str) -> list[str]:
    """Return what each point says of those that are drawn together under ``name``: whose, where, how much."""
    match = re.fullmatch(r"points-(\d+)-(\w+)", name)
    if match is None:
        return []
    series, which = figure.series[int(match[1])], match[2]
    subject = figure.title.partition(":")[0]
    texts = []
    for place, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        trusted = not series.trusted or series.trusted[place]
        parts = [f"{subject}, {series.label}: {value_text(figure.x, x)}"]
        parts.append(value_text(figure.y, y))
        if series.low:
            edges = (series.low[place], series.high[place])
            parts[-1] += f" ({' to '.join(value_text(figure.y, edge) for edge in edges)})"
        parts += [] if trusted else ["flagged as doubtful"]
        texts += [", ".join(parts)] if which in ("all", str(trusted)) else []
    return texts


@contextmanager
def drawing_settings(salt: str = "ccbench") -> Iterator[None]:
    """Settings for one drawing only, whatever the user's matplotlibrc says. salt: of names in an SVG."""
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": "DejaVu Sans",
                "svg.hashsalt": salt,
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


def canvas_of(figure: Figure, paper: Paper = FILE) -> Canvas:
    """Return the drawn figure."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    in_file = paper is FILE
    matplotlib.rcParams.update(
        {"font.size": 9 if in_file else 10, "axes.edgecolor": GREY, "axes.linewidth": 0.8}
    )
    # The plot keeps its size; small print, or in a page the legend, makes the canvas higher.
    lines = [
        line
        for note in figure.footnote * in_file
        for line in textwrap.wrap(note, FOOTNOTE_COLUMNS, subsequent_indent="    ") or [""]
    ]
    rows = [] if figure.grid or figure.topic == "nothing" else _legend_rows(figure)
    below = LINE_INCHES * len(lines)
    if not in_file:
        halves = (rows[: -(-len(rows) // 2)], rows[-(-len(rows) // 2) :])
        below = max(
            sum(0.06 + 0.14 * (1 + label.count("\n")) for _, label in half) for half in halves
        )
    bottom = AXIS_INCHES + 0.18 * in_file + below
    height = paper.top + paper.plot + bottom
    canvas = Canvas(figsize=(paper.width, height), facecolor="white" if in_file else "none")
    FigureCanvasAgg(canvas)
    left = paper.left / paper.width
    if in_file:
        canvas.text(
            left,
            1 - 0.20 / height,
            figure.title,
            fontsize=13,
            weight="bold",
            color=INK,
            va="top",
        )
        canvas.text(
            left, 1 - 0.46 / height, figure.subtitle, fontsize=9.5, color=GREY, va="top"
        )
    for index, line in enumerate(reversed(lines)):
        place = (0.10 + LINE_INCHES * index) / height
        canvas.text(left, place, line, fontsize=7.2, color=GREY, va="bottom")
    right = paper.right + (0 if in_file or figure.grid is None else BAR_INCHES)
    width = 1 - (paper.left + right) / paper.width
    axes = canvas.add_axes((left, bottom / height, width, paper.plot / height))
    if figure.topic == "nothing":
        axes.axis("off")
        axes.text(0.5, 0.5, figure.message, ha="center", va="center", fontsize=14, color=GREY)
    elif figure.grid is not None:
        draw_map(figure, figure.grid, axes, in_file=in_file)
    else:
        _draw_lines(figure, axes)
        draw_legend(rows, axes, None if in_file else AXIS_INCHES / paper.plot)
    return canvas


def draw_legend(rows: Sequence[tuple[Any, str]], axes: Axes, below: float | None) -> None:
    """Draw a legend at the right of ``axes``, or ``below`` them by that share of their height, in two columns."""
    axes.legend(
        [handle for handle, _ in rows],
        # matplotlib leaves out labels that begin with an underscore.
        [f" {label}" if label.startswith("_") else label for _, label in rows],
        loc="upper left",
        bbox_to_anchor=(1.015, 1.0) if below is None else (-0.09, -below),
        ncols=1 if below is None else 2,
        frameon=False,
        fontsize=8.5,
        handlelength=2.4,
        borderaxespad=0.0,
        labelspacing=0.65,
        labelcolor=INK,
    )


def _draw_lines(figure: Figure, axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.grid(visible=True, color=FAINT, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    x, y = ends_of(figure)
    axes.set_xlabel(figure.x.label, labelpad=6)
    axes.set_ylabel(figure.y.label + (" (GB/s)" if figure.y.unit == "GB/s" else ""), labelpad=6)
    for kind, scale in ((figure.x.scale, axes.set_xscale), (figure.y.scale, axes.set_yscale)):
        if kind != "linear":
            scale("log", base=2 if kind == "log2" else 10)
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    set_ticks(axes.xaxis, figure.x)
    set_ticks(axes.yaxis, figure.y)
    note = far_note(figure)
    axes.text(
        0.99, 0.99, note, transform=axes.transAxes, ha="right", va="top", fontsize=8, color=GREY
    )
    # Measured lines lie over all others.
    order = {SeriesKind.PREDICTED: 3, SeriesKind.BOUND: 2, SeriesKind.BASELINE: 2}
    for number, series in enumerate(figure.series):
        if series.kind == SeriesKind.MEASURED:
            _draw_measured(series, axes, number)
        else:
            zorder = order.get(series.kind, 1 if series.joined else 6)
            axes.plot(
                series.x, series.y, zorder=zorder, gid=f"points-{number}-all", **_look(series)
            )
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


def set_ticks(part: Axis, axis: FigureAxis) -> None:
    """Set ticks in words people use between the ends of ``part``."""
    from matplotlib.ticker import (
        FixedLocator,
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullLocator,
    )

    low, high = part.get_view_interval()
    part.set_major_formatter(FuncFormatter(lambda value, _: tick_text(axis, value)))
    if axis.scale == "linear":
        whole = axis.unit == "rank"
        part.set_major_locator(MaxNLocator(MOST_TICKS, steps=(1, 2, 2.5, 5, 10), integer=whole))
        return
    decades = math.log10(high / low)
    if axis.scale == "log2":
        # 1 KiB is among the ticks for steps 1, 2, 5 and 10, and so are 1 MiB and 1 GiB.
        step = next((n for n in (1, 2, 5, 10) if math.log2(high / low) < n * MOST_TICKS), 20)
        places: Sequence[float] = [2.0**power for power in range(0, 1000, step)]
    else:
        # As many ticks of a decade as there is room for.
        steps = (1, 1.5, 2, 3, 5) if decades < 1 else (1, 2, 5) if decades < 2 else (1, 3)
        subs = steps if decades < 3.5 else (1,)
        places = LogLocator(10, subs, numticks=MOST_TICKS).tick_values(low, high)
    part.set_major_locator(FixedLocator([place for place in places if low <= place <= high]))
    part.set_minor_locator(NullLocator())


def _look(series: FigureSeries) -> dict[str, Any]:
    """Return how the points of a series are drawn; its row of the legend looks the same.

    Predictions and bounds are lines of dashes, or markers where neighbours are too far apart for a line.
    """
    colour = INK if series.style < 0 else COLOURS[series.style % len(COLOURS)]
    marker, line = MARKERS[series.style % len(MARKERS)], "-" if series.joined else "none"
    look: dict[str, Any] = {"linestyle": line, "marker": marker, "color": colour}
    match series.kind:
        case SeriesKind.MEASURED:
            return look | {"linewidth": 1.6, "markersize": 5, "markeredgewidth": 1.1}
        case SeriesKind.BASELINE:
            grey = {"color": PALE, "markerfacecolor": "white"}
            return look | grey | {"linewidth": 1.1, "markersize": 3.4}
        case SeriesKind.REFERENCE if series.joined:
            return {"color": GREY, "linewidth": 1.0}
        case SeriesKind.REFERENCE:
            dash = {"marker": PREDICTED_MARKER, "markersize": 16, "markeredgewidth": 2.4}
            return look | dash | {"color": VERMILION}
    is_bound = series.kind == SeriesKind.BOUND
    if series.joined:
        dashes = DOTS if is_bound else DASHES[series.style % len(DASHES)]
        return {"color": colour, "linewidth": 1.3, "linestyle": (0, dashes)}
    marker, size = (BOUND_MARKER, 9) if is_bound else (PREDICTED_MARKER, 13)
    return look | {"marker": marker, "markersize": size, "markeredgewidth": 1.4}


def _draw_measured(series: FigureSeries, axes: Axes, number: int) -> None:
    """Draw a line broken at missing cases, its interval as a band, and crosses where a result is missing.

    number: of the series in its figure, which names its points.
    """
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
    trusted = series.trusted or (True,) * len(series.x)
    # Filled markers for trusted points, hollow ones for flagged.
    for kind, face in ((True, colour), (False, "white")):
        if kind in trusted:
            axes.plot(
                [*compress(series.x, (each == kind for each in trusted))],
                [*compress(series.y, (each == kind for each in trusted))],
                linestyle="none",
                marker=marker,
                markersize=5.0 if len(series.x) <= 40 else 3.6,
                markerfacecolor=face,
                markeredgecolor=colour,
                markeredgewidth=1.1,
                zorder=5,
                gid=f"points-{number}-{kind}",
                rasterized=len(series.x) > MOST_MARKERS,
            )
    if series.missing:
        axes.plot(
            series.missing,
            [0.0] * len(series.missing),
            transform=axes.get_xaxis_transform(),
            color=colour,
            clip_on=False,
            zorder=6,
            **NO_RESULT,
        )


def _legend_rows(figure: Figure) -> list[tuple[Any, str]]:
    """Return a row for each measured series, then one for each kind of line that is drawn; labels are wrapped."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows: list[tuple[Any, str]] = [
        (Line2D([], [], **_look(series)), series.label)
        for series in figure.series
        if series.kind not in (SeriesKind.PREDICTED, SeriesKind.BOUND)
    ]
    shaded = {series.kind for series in figure.series if series.low and series.joined}
    for kind, shade, label in (
        (SeriesKind.MEASURED, 0.25, "interval of the median"),
        (SeriesKind.PREDICTED, PREDICTED_SHADE, "predicted, 80 % interval"),
    ):
        if kind in shaded:
            rows.append((Patch(facecolor=GREY, alpha=shade, linewidth=0), label))
    for kind in (SeriesKind.PREDICTED, SeriesKind.BOUND):
        drawn = [series for series in figure.series if series.kind == kind and series.x]
        own = any(series.style >= 0 for series in drawn)
        label, colour = (f"{kind.value}, same colour", GREY) if own else (kind.value, INK)
        looks = [_look(replace(series, style=0)) for series in drawn]
        by_marker = {look.get("marker"): look for look in looks}
        rows += [
            (Line2D([], [], **{**look, "color": colour}), label) for look in by_marker.values()
        ]
    if any(series.missing for series in figure.series):
        rows.append((Line2D([], [], color=GREY, **NO_RESULT), "no result"))
    if any(not all(series.trusted) for series in figure.series):
        hollow: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5}
        hollow |= {"markerfacecolor": "white", "markeredgecolor": GREY}
        rows.append((Line2D([], [], **hollow), "flagged as doubtful"))
    # Labels of runs may be as long as their authors like.
    fold = partial(
        textwrap.fill, width=LEGEND_COLUMNS, max_lines=LEGEND_LINES, placeholder=" ..."
    )
    return [(handle, fold(label.strip(), break_on_hyphens=False)) for handle, label in rows]


def draw_map(figure: Figure, grid: Grid, axes: Axes, *, in_file: bool = True) -> None:
    """Draw rows from above, columns from the left; dark cells are the bad ones.

    in_file: the legend stands beside; a page has it in the caption.
    """
    import numpy as np
    from matplotlib.patches import Rectangle

    values = np.array(grid.values, dtype=float)  # None becomes NaN
    low, high = grid.limits
    colours = "cividis" if grid.large_is_good else "cividis_r"
    axes.set_facecolor(EMPTY)
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
                    color=ON_DARK if is_dark else ON_BRIGHT,
                )
    frame = partial(Rectangle, width=0.92, height=0.92, fill=False, edgecolor=VERMILION)
    for row, column in grid.marked:
        axes.add_patch(frame((column - 0.46, row - 0.46), linewidth=2.4))
    # Right of the map a bar of colours, and the lines of the legend below it.
    beside = axes.inset_axes((1.04, 0.56, 0.035, 0.44) if in_file else (1.03, 0, 0.035, 1))
    bar = axes.figure.colorbar(image, cax=beside)
    bar.set_label(grid.unit, fontsize=8.5)
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=8)
    lines = [part for line in grid.legend for part in textwrap.wrap(line, MAP_LEGEND_COLUMNS)]
    # A frame says the same in every map, so that its meaning stands with the legend.
    lines += ["framed: slower than its class"] if grid.marked else []
    if in_file:
        look: dict[str, Any] = {
            "va": "top",
            "fontsize": 7.6,
            "color": GREY,
            "linespacing": 1.35,
        }
        axes.text(1.03, 0.5, "\n".join(lines), transform=axes.transAxes, **look)
