"""One picture in one file: which endings there are, settings that hold for one drawing, and writing it."""

from __future__ import annotations

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
_DATES = {".svg": "Date", ".pdf": "CreationDate"}


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
    form = path.suffix.lower()
    metadata = {_DATES[form]: None} if form in _DATES else {}
    with drawing_settings():
        try:
            draw().savefig(path, format=form[1:], dpi=DOTS_PER_INCH, metadata=metadata)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror}); choose another place") from None


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
