"""One series as inline SVG: medians with intervals, levels, steps, and marks where the environment changed.

Colours are CSS variables of the page, so that one picture serves light and dark. No text of a file reaches
the picture unescaped.
"""

from __future__ import annotations

from html import escape

from ccbench.analysis.history.series import Series
from ccbench.analysis.history.text import when
from ccbench.units import format_change, format_seconds

WIDTH = 720
HEIGHT = 180
LEFT, RIGHT, TOP, BOTTOM = 84, 12, 14, 24


def series_svg(one: Series) -> str:
    """The picture; its title and description are read by screen readers."""
    scale = _Scale(one)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(_description(one))}">',
        *scale.axis(),
        *_environment(one, scale),
        *_levels(one, scale),
        *_points(one, scale),
        *_steps(one, scale),
        "</svg>",
    ]
    return "\n".join(parts)


class _Scale:
    """Runs are evenly spaced from left to right; time grows upwards on a linear axis that starts near the
    data."""

    def __init__(self, one: Series) -> None:
        lows = [seen.low_seconds or seen.median_seconds for seen in one.seen]
        highs = [seen.high_seconds or seen.median_seconds for seen in one.seen]
        medians = [seen.median_seconds for seen in one.seen]
        # An interval may be far wider than the curve; beyond twice the largest median it is cut.
        self.top = min(max(highs), 2 * max(medians))
        self.bottom = min(lows)
        margin = 0.08 * (self.top - self.bottom) or 0.05 * self.top
        self.top, self.bottom = self.top + margin, max(0.0, self.bottom - margin)
        self.count = len(one.seen)

    def x(self, index: float) -> float:
        share = index / (self.count - 1) if self.count > 1 else 0.5
        return round(LEFT + 6 + share * (WIDTH - LEFT - RIGHT - 12), 1)

    def y(self, seconds: float) -> float:
        share = (min(seconds, self.top) - self.bottom) / (self.top - self.bottom)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def axis(self) -> list[str]:
        """Three lines with their times."""
        lines = []
        for share in (0.0, 0.5, 1.0):
            seconds = self.bottom + share * (self.top - self.bottom)
            y = self.y(seconds)
            lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            lines.append(
                f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{escape(format_seconds(seconds))}</text>'
            )
        return lines


def _environment(one: Series, scale: _Scale) -> list[str]:
    lines = []
    for index, changes in sorted(one.moved.items()):
        x = scale.x(index - 0.5) - 3  # beside the line of a step that came with it
        title = escape(f"changed before run {one.seen[index].run}: {'; '.join(changes)}")
        lines.append(
            f'<line class="moved" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{title}</title></line>"
        )
    return lines


def _levels(one: Series, scale: _Scale) -> list[str]:
    return [
        f'<line class="level" x1="{scale.x(level.start)}" x2="{scale.x(level.end - 1)}" '
        f'y1="{scale.y(level.median)}" y2="{scale.y(level.median)}"/>'
        for level in one.levels
    ]


def _points(one: Series, scale: _Scale) -> list[str]:
    lines = []
    for index, seen in enumerate(one.seen):
        x, y = scale.x(index), scale.y(seen.median_seconds)
        doubts = f"; flagged: {', '.join(seen.doubts)}" if seen.doubts else ""
        title = f"{seen.run}, {when(seen.created_at)}: {format_seconds(seen.median_seconds)}{doubts}"
        if seen.low_seconds is not None and seen.high_seconds is not None:
            low, high = scale.y(seen.low_seconds), scale.y(seen.high_seconds)
            lines.append(f'<line class="interval" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>')
        kind = "doubt" if seen.doubts else "point"
        lines.append(
            f'<circle class="{kind}" cx="{x}" cy="{y}" r="3"><title>{escape(title)}</title></circle>'
        )
    first, last = when(one.seen[0].created_at)[:10], when(one.seen[-1].created_at)[:10]
    lines.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(first)}</text>')
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(last)}</text>')
    return lines


def _steps(one: Series, scale: _Scale) -> list[str]:
    lines = []
    for level, change in zip(one.levels[1:], one.changes, strict=True):
        x = scale.x(level.start - 0.5)
        kind = "slower" if change.change > 0 else "faster"
        lines.append(f'<line class="{kind}" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        lines.append(
            f'<text class="{kind}" x="{x + 4}" y="{TOP - 2}">{"▲" if kind == "slower" else "▼"} '
            f"{format_change(change.change)}</text>"
        )
    return lines


def _description(one: Series) -> str:
    return f"{one.label} on {one.machine}: {len(one.seen)} runs, {len(one.changes)} steps"
