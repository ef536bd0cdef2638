"""What every picture must keep: no text covers another, none leaves the paper, none is too small to read."""

from __future__ import annotations

import itertools

from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

SMALLEST_POINTS = 7.0
LETTERS_APART_POINTS = 2.5
"""Lines of a box are set close: their extents may overlap by so much and the letters still do not touch."""


def nothing_overlaps(figure: Figure) -> None:
    """Fail where a text of ``figure`` covers another, leaves the paper or is too small."""
    figure.set_dpi(72)
    renderer: RendererBase = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]  # untyped there
    texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    with_labels = [axes for axes in figure.axes if axes.axison]
    texts += [text for axes in with_labels for text in (axes.title, *axes.get_yticklabels())]
    figure.draw(renderer)
    # Of an annotation without words the arrow alone is drawn.
    places = [
        (text, Text.get_window_extent(text, renderer)) for text in texts if text.get_text()
    ]
    assert places
    for (text, place), (second, beside) in itertools.combinations(places, 2):
        across = min(place.x1, beside.x1) - max(place.x0, beside.x0)
        along = min(place.y1, beside.y1) - max(place.y0, beside.y0)
        assert across <= 0 or along < LETTERS_APART_POINTS, (text.get_text(), second.get_text())
    for text, place in places:
        assert float(text.get_fontsize()) >= SMALLEST_POINTS, text.get_text()
        assert min(place.x0, place.y0) >= 0, text.get_text()
        assert place.x1 <= figure.bbox.width, text.get_text()
        assert place.y1 <= figure.bbox.height, text.get_text()
