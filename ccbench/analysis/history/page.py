"""A history as one HTML file: no network, no script, light and dark, readable on paper and at 400 pixels."""

from __future__ import annotations

from html import escape

from ccbench.analysis.history.picture import series_svg
from ccbench.analysis.history.series import Change, History, Series
from ccbench.analysis.history.text import change_text, when

MOST_PROBLEMS = 100
MOST_PICTURES = 400
"""More would make the page slow; series with steps come first, and what is left out is said."""

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1a1a1a; --quiet: #666; --grid: #ddd;
  --point: #1f5fa8; --level: #1a1a1a; --slower: #b3261e; --faster: #1e7a3c; --moved: #8a6d00; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181b; --ink: #e8e8e8; --quiet: #a0a0a0;
  --grid: #3a3d42; --point: #7db4f0; --level: #e8e8e8; --slower: #ff8a80; --faster: #7fd99a;
  --moved: #e0c050; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 60rem; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; } h3 { font-size: 1rem; margin: 1.5rem 0 0; }
.quiet { color: var(--quiet); margin: 0; } .slower { color: var(--slower); } .faster { color: var(--faster); }
a { color: inherit; } ol { padding-left: 1.5rem; } li { margin-bottom: .6rem; }
figure { margin: 0; break-inside: avoid; overflow-x: auto; }
svg { width: 100%; min-width: 34rem; height: auto; } @media print { svg { min-width: 0; } }
svg text { fill: var(--quiet); font: 11px system-ui, sans-serif; }
svg text.slower { fill: var(--slower); } svg text.faster { fill: var(--faster); }
svg .grid { stroke: var(--grid); } svg .level { stroke: var(--level); stroke-width: 2; opacity: .7; }
svg .interval { stroke: var(--point); opacity: .4; } svg .point { fill: var(--point); }
svg .doubt { fill: none; stroke: var(--point); stroke-width: 1.5; }
svg .moved { stroke: var(--moved); stroke-dasharray: 3 3; stroke-width: 2; }
svg line.slower { stroke: var(--slower); stroke-width: 1.5; }
svg line.faster { stroke: var(--faster); stroke-width: 1.5; }
""".strip()

_LEGEND = (
    "Points are medians of runs, bars their intervals, hollow points were flagged. Thick lines are levels; "
    "upright lines are steps, to slower (▲, red) and to faster (▼, green). Dashed lines: something that was "
    "recorded of the machine changed; what, is listed below each picture."
)


def history_page(history: History, title: str = "History") -> str:
    """The whole file as text; everything that comes from a run is escaped."""
    drawn = history.series[:MOST_PICTURES]
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_overview(history))}</p>",
        *_steps(history, {id(one): number for number, one in enumerate(drawn)}),
        "<h2>Series</h2>",
        f'<p class="quiet">{escape(_LEGEND)}</p>',
        *(_figure(number, one) for number, one in enumerate(drawn)),
    ]
    if len(history.series) > len(drawn):
        body.append(
            f"<p>{len(history.series) - len(drawn)} more series without newer steps are not drawn.</p>"
        )
    if history.problems:
        problems = "".join(f"<li>{escape(problem)}</li>" for problem in history.problems[:MOST_PROBLEMS])
        body.append(f"<h2>Could not be read: {len(history.problems)} files</h2><ul>{problems}</ul>")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style></head><body>",
            *body,
            "</body></html>",
            "",
        ]
    )


def _overview(history: History) -> str:
    slower = sum(change.change > 0 for change in history.changes)
    text = f"{history.runs} runs, {len(history.series)} series: {slower} steps to slower, "
    return text + f"{len(history.changes) - slower} to faster."


def _steps(history: History, numbers: dict[int, int]) -> list[str]:
    if not history.changes:
        return ["<p>No step was found.</p>"]
    place = {(one.label, one.machine): numbers.get(id(one)) for one in history.series}
    rows = [_step(change, place.get((change.series, change.machine))) for change in history.changes]
    return ["<h2>Steps, newest first</h2>", "<ol>", *rows, "</ol>"]


def _step(change: Change, number: int | None) -> str:
    kind = "slower" if change.change > 0 else "faster"
    name = escape(change.series)
    link = f'<a href="#series-{number}">{name}</a>' if number is not None else name
    reasons = "; ".join(change.environment) or "nothing that was recorded changed"
    return (
        f'<li><span class="{kind}">{escape(change_text(change))}</span> {link}<br>'
        f'<span class="quiet">{escape(when(change.created_at))}, {escape(change.run)}, '
        f"{escape(change.machine)}, {change.runs_after} runs on the new level</span><br>"
        f"{escape(reasons)}</li>"
    )


def _figure(number: int, one: Series) -> str:
    return (
        f'<figure id="series-{number}"><h3>{escape(one.label)}</h3><p class="quiet">{escape(one.machine)}</p>'
        f"{series_svg(one)}{_moves(one)}</figure>"
    )


def _moves(one: Series) -> str:
    """What changed on the machine before which run, to be unfolded: no pointer is needed to read it."""
    if not one.moved:
        return ""
    rows = "".join(
        f"<li>{escape(one.seen[index].run)}: {escape('; '.join(lines))}</li>"
        for index, lines in sorted(one.moved.items())
    )
    return f"<details><summary>{len(one.moved)} changes of the machine</summary><ul>{rows}</ul></details>"
