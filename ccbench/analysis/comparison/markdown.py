"""A comparison as Markdown for a pull request: the verdict, what changed, and the rest folded away."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ccbench.analysis.comparison.screen import change_text, interval_text, printable, seconds_text
from ccbench.analysis.comparison.values import FINE, REGRESSION, Compared, Comparison, Verdict

MOST_CHANGED = 50
MOST_FOLDED = 200
"""Rows; a comment on GitHub holds 65,536 characters."""

LONGEST_CELL = 160

_SIGNS = {FINE: "✅", REGRESSION: "❌"}


def markdown(compared: Compared) -> str:
    """Verdict line, table of changed points, details folded (GitHub and GitLab read ``<details>``)."""
    changed = [one for one in compared.points if _has_changed(one)]
    changed.sort(key=lambda one: (not one.wrong, -(one.ratio or 0.0)))
    rest = [one for one in compared.points if not _has_changed(one)]
    lines = [f"**{_SIGNS.get(compared.exit_code, '❔')} ccbench: {_escaped(compared.sentence)}**", ""]
    lines += [f"`{_code(compared.base)}` → `{_code(compared.new)}`", ""]
    lines += _table(changed, MOST_CHANGED) if changed else []
    if rest:
        lines += ["<details>", f"<summary>{len(rest)} other points</summary>", ""]
        lines += [*_table(rest, MOST_FOLDED), "</details>", ""]
    notes = [*compared.notes, *compared.left_out]
    if notes:
        lines += ["<details>", f"<summary>{len(notes)} notes</summary>", ""]
        lines += [f"- {_escaped(note)}" for note in notes[:MOST_FOLDED]]
        lines += ["", "</details>", ""]
    lines.append(
        "Time of new over base, median of the rounds' medians, minus one; intervals at "
        f"{compared.settings.confidence:.4g}; threshold {compared.settings.thresholds.default:.3g}"
        + (" and rules." if compared.settings.thresholds.rules else ".")
    )
    return "\n".join(lines) + "\n"


def _has_changed(one: Comparison) -> bool:
    return one.wrong or one.verdict in (Verdict.SLOWER, Verdict.FASTER)


def _table(points: Sequence[Comparison], most: int) -> list[str]:
    lines = ["| point | size | base | new | time | interval | verdict |", "|---|--:|--:|--:|--:|--:|---|"]
    for one in points[:most]:
        verdict = "wrong results" if one.wrong else one.verdict.value
        why = f"{verdict}: {one.reason}" if one.reason else verdict
        cells = (
            one.point.name, one.point.size, seconds_text(one.base_seconds), seconds_text(one.new_seconds),
            change_text(one), interval_text(one), why,
        )  # fmt: skip
        lines.append("| " + " | ".join(_escaped(cell) for cell in cells) + " |")
    if len(points) > most:
        lines += ["", f"and {len(points) - most} more"]
    return [*lines, ""]


def _escaped(text: str) -> str:
    """``text`` as Markdown shows it literally: no markup, no links, no mentions, no HTML."""
    plain = printable(text)
    plain = plain if len(plain) <= LONGEST_CELL else plain[: LONGEST_CELL - 1] + "…"
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A zero-width space after @ and # keeps people and issues from being mentioned.
    plain = re.sub(r"([@#])(?=\w)", "\\1\u200b", plain)
    return re.sub(r"([\\`*_\[\]|~!])", r"\\\1", plain)


def _code(text: str) -> str:
    return printable(text).replace("`", "'")
