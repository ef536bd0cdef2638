"""Text that comes from files and machines, made safe for a screen, Markdown and CSV."""

from __future__ import annotations

import re

from ccbench.units import MANIFOLD, format_ratio, plain
from ccbench.units import plural as plural

_SPECIAL_IN_MARKDOWN = re.compile(r"[\\`*\[\]$~#|<>&]")
_EMPHASIS = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "|": "&#124;", "$": "&#36;"}


def markdown(text: object, longest: int = 200) -> str:
    """``plain`` text that Markdown shows as it is, in a table's cell too.

    Underscores inside words are left alone: they are in every collective's name and mean nothing there.
    """
    line = plain(text, longest)
    line = _SPECIAL_IN_MARKDOWN.sub(lambda match: _ENTITIES.get(match[0], "\\" + match[0]), line)
    return _EMPHASIS.sub(r"\\_", line)


def csv_text(text: object) -> str:
    """Text for a CSV cell that no spreadsheet takes for a formula (CWE-1236): those get an apostrophe.

    Only for text; a negative number is written as a number.
    """
    line = " ".join(str(text).encode("utf-8", "replace").decode().replace("\0", "").split())
    return "'" + line if line[:1] in ("=", "+", "-", "@") else line


def file_name(text: str) -> str:
    """``text`` as a file name: lower-case letters, digits, dashes and underscores, at most 80."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")[:80] or "figure"


def percent(fraction: float) -> str:
    """A fraction as people read it: ``'87 %'``, ``'0.4 %'``, from ten on ``'26x'``."""
    if fraction > MANIFOLD:
        return format_ratio(fraction)
    value = 100 * fraction
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.1f} %"
