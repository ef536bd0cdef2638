"""From content to one HTML file: everything inlined, every text escaped, nothing from the network.

Texts of a run reach the page in two ways only: through Jinja with autoescape, and as JSON in elements that no
browser executes, with every character that HTML or JavaScript could take for its own written as an escape.
A content security policy allows the page's two scripts by their hashes and nothing else, so that a mistake in
either would still run nothing, and nothing could be sent anywhere.

Figures reach the script as plain values; colours that depend on the theme are the words ``ink`` and ``grey``,
which the script replaces.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ccbench.errors import MissingDependency
from ccbench.report.axes import Frame, far_note, frames
from ccbench.report.figure import Axis, Figure, Grid, Kind, Series
from ccbench.report.matplotlib_renderer import COLOURS
from ccbench.report.page.content import PageContent

if TYPE_CHECKING:
    from jinja2 import Environment

SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon", "x", "triangle-left")
DASHES = {Kind.MEASURED: "solid", Kind.PREDICTED: "dash", Kind.BOUND: "dot", Kind.BASELINE: "solid",
          Kind.REFERENCE: "dash"}  # fmt: skip
BASELINE_DASHES = ("solid", "dashdot", "longdash", "dash")
LONE_SYMBOLS = {Kind.PREDICTED: "line-ew", Kind.BOUND: "cross-thin"}
"""Of predictions and bounds that no line joins: strokes, which no measured series has."""

SIGNIFICANT_DIGITS = 6
"""Of every number in the page; nobody reads more from a picture."""

_ESCAPES = {ord(one): f"\\u{ord(one):04x}" for one in "<>&'\u2028\u2029"}


def render_page(content: PageContent) -> str:
    """The page as text, to be stored as UTF-8. Raises MissingDependency without jinja2 or plotly."""
    from markupsafe import Markup

    drawing, own = _plotly(), _part("page.js")
    plots = plots_of(content)
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {_hashed(drawing)} {_hashed(own)}; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            page=content,
            policy=policy,
            style=Markup(_part("page.css")),
            plotly=Markup(drawing),
            script=Markup(own),
            names=plots.keys(),
            plots=Markup(json_for_html(plots)),
            table=Markup(json_for_html(content.table)),
        )
    )


def plots_of(content: PageContent) -> dict[str, Any]:
    """Name of a figure in the page -> what the script draws."""
    return {name: plot(figure) for section in content.sections for name, figure in section.figures}


def json_for_html(value: Any) -> str:
    """``value`` as JSON that neither ends a script element nor breaks a line of JavaScript."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


@cache
def _part(name: str) -> str:
    return files("ccbench.report.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    """plotly.js as the plotly package ships it."""
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # ships no types
    except ImportError:
        raise MissingDependency("report: the page needs plotly; pip install plotly") from None
    script: str = get_plotlyjs()
    # The parser of HTML ends a script at this word, wherever it stands; in JavaScript the two are the same.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hashed(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingDependency("report: the page needs jinja2; pip install jinja2") from None
    return Environment(
        loader=PackageLoader("ccbench.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def plot(figure: Figure) -> dict[str, Any]:
    """What the script needs to draw ``figure``."""
    drawn: dict[str, Any] = {"key": figure.key, "topic": figure.topic, "message": figure.message}
    if figure.topic == "nothing":
        return drawn
    if figure.grid is not None:
        return {**drawn, "x": _words(figure.x), "y": _words(figure.y), "grid": _grid(figure.grid)}
    if not any(series.x for series in figure.series):
        return {**drawn, "topic": "nothing", "message": "No case has a speed."}
    x, y = frames(figure)
    return {
        **drawn,
        "x": _axis(figure.x, x),
        "y": _axis(figure.y, y),
        "series": [_series(one) for one in figure.series],
        "spans": [[_short(one.low), _short(one.high), one.label, _colour(one.style)] for one in figure.spans],
        "marks": [[_short(one.x), one.label] for one in figure.marks],
        "note": far_note(figure),
    }


def _words(axis: Axis) -> dict[str, Any]:
    return {"label": axis.label, "unit": axis.unit, "log": axis.scale != "linear"}


def _axis(axis: Axis, frame: Frame) -> dict[str, Any]:
    found = {**_words(axis), "label": frame.label, "range": [_short(frame.low), _short(frame.high)]}
    if frame.ticks is not None:
        found["ticks"] = [[_short(place), text] for place, text in frame.ticks]
    return found


def _series(one: Series) -> dict[str, Any]:
    found: dict[str, Any] = {
        "label": one.label,
        "kind": one.kind.value,
        "colour": "grey" if one.kind == Kind.BASELINE else _colour(one.style),
        "symbol": LONE_SYMBOLS.get(one.kind, SYMBOLS[one.style % len(SYMBOLS)]),
        "dash": BASELINE_DASHES[one.style % 4] if one.kind == Kind.BASELINE else DASHES[one.kind],
        "x": [_short(value) for value in one.x],
        "y": [_short(value) for value in one.y],
        "joined": one.joined,
    }
    if one.low:
        found |= {"low": [_short(value) for value in one.low], "high": [_short(value) for value in one.high]}
    if not all(one.trusted):
        found["doubtful"] = [place for place, trusted in enumerate(one.trusted) if not trusted]
    if one.missing:
        found["missing"] = [_short(value) for value in one.missing]
    return found


def _colour(style: int) -> str:
    return "ink" if style < 0 else COLOURS[style % len(COLOURS)]


def _grid(grid: Grid) -> dict[str, Any]:
    return {
        "values": [[None if value is None else _short(value) for value in row] for row in grid.values],
        "texts": [list(row) for row in grid.texts],
        "marked": [list(cell) for cell in grid.marked],
        "unit": grid.unit,
        "good": grid.large_is_good,
        "range": [_short(end) for end in grid.limits],
        "legend": list(grid.legend),
    }


def _short(value: float) -> float | int | None:
    """``value`` with SIGNIFICANT_DIGITS; None for what JSON cannot say."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    # Sizes are whole numbers that people compare: all their digits stay.
    if value == int(value) and abs(value) < 2**53:
        return int(value)
    return short
