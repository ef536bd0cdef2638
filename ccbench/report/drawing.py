"""One picture as a file or as part of a page, and the settings and colours that all drawings share.

Colours are those of M. Okabe and K. Ito, "Color Universal Design" (2008), safe for every common kind of
colour blindness.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ccbench.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".pdf")
DOTS_PER_INCH = 150
_DATES = {"svg": "Date", "pdf": "CreationDate"}

LARGEST_PICTURE_BYTES = 1_500_000
"""Of an SVG in a page; a larger one is put there as PNG."""

BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY, FAINT = "#222222", "#666666", "#d9d9d9"


def check_ending(path: Path) -> None:
    """Raise UsageError where ``path`` does not end as a picture does."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"{path}: {path.suffix!r} is not a picture format; end in one of {', '.join(ENDINGS)}"
        )


def save_picture(draw: Callable[[], Figure], path: Path) -> None:
    """Write what ``draw`` draws into ``path``; the same figure gives the same bytes.

    Raises UsageError for another ending, and where the file cannot be written.
    """
    check_ending(path)
    try:
        path.write_bytes(picture_bytes(draw, path.suffix.lower()[1:]))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); choose another place") from None


def picture_bytes(draw: Callable[[], Figure], form: str, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """What ``draw`` draws as a file of ``form``; the same figure gives the same bytes."""
    sink = io.BytesIO()
    with drawing_settings():
        metadata = {_DATES[form]: None} if form in _DATES else {}
        draw().savefig(sink, format=form, dpi=dots_per_inch, metadata=metadata)
    return sink.getvalue()


def picture_address(draw: Callable[[], Figure]) -> str:
    """A drawing as a data address, to be shown as an image, in which nothing can run."""
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
                "pdf.fonttype": 42,
                "text.parse_math": False,
            }
        )
        # A name may have letters the font lacks; a box in their place is all that can be done.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield
