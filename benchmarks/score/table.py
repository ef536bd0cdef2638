"""Writes the table of docs/model.md that says how far off predictions are.

    python -m benchmarks.score MANIFEST --holdout --json > score.json
    python -m benchmarks.score.table score.json "DATE"

Run by hand after constants changed; the logs do not ship with ccbench.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"
BEGIN, END = "<!-- score table: begin -->", "<!-- score table: end -->"
BANDS = ("up_to_32KiB", "32KiB_to_32MiB", "above_32MiB")


def main(source: str, when: str) -> None:
    """Replace what stands between the two marks."""
    score = json.loads(Path(source).read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(f"{head}{BEGIN}\n{section(score, when)}\n{END}{tail}", encoding="utf-8")


def section(score: dict[str, Any], when: str) -> str:
    """Figures by system, then of all points, then by network as predicted by what other machines taught."""
    total, left_out = score["total"], score["learned_without_the_system"]
    generation = score["learned_without_the_generation"]
    lines = [
        f"{when}: {score['counted']} published logs of {total['by_system']['systems']} healthy systems; "
        f"{score['not_modelled_count']} more could not be modelled.",
        "",
        "In %: the median over systems of each system's median |predicted / measured - 1|, its 95 % interval",
        "(systems drawn again), the 90th percentile, bias (above 0: predicted too slow), the median by size;",
        "how often 80 % and 95 % intervals held; and the factor from the middle of a 95 % interval to its",
        "edges, to 32 KiB, to 32 MiB, above.",
        "",
        "| learned | median | interval | 90th | bias | to 32 KiB | to 32 MiB | above | in 80 % | in 95 % "
        "| width |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    named = {
        "**without the machine**": left_out,
        "without its generation of GPUs": generation,
        "from all, as shipped": total,
    }
    lines += [f"| {name} | {by_system(one)} |" for name, one in named.items()]
    rows = {
        "the model as it ships": total,
        "learned without the machine": left_out["total"],
        "alpha-beta with nominal rates": total["comparison"]["alpha_beta"],
    }
    head = "| points | median | MAPE | bias | to 32 KiB | to 32 MiB | above |"
    rule = "|---|---:|---:|---:|---:|---:|---:|---:|"
    lines += [
        "",
        "All points alike, so that long logs rule (MAPE: mean of the errors' size):",
        "",
    ]
    lines += [f"| predictor {head}", rule]
    lines += [f"| {name} | {cells(one)} |" for name, one in rows.items()]
    lines += [
        "",
        "By network (none: one node or NVLink domain), each system predicted by what other machines taught:",
        "",
        "| network | systems | median | least | most |",
        "|---|---:|---:|---:|---:|",
    ]
    known = [one for one in left_out["systems"] if one.get("points")]
    return "\n".join([*lines, *by_kind(known)])


def by_kind(systems: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each kind of network: how many systems, and their median errors."""
    kinds = defaultdict(list)
    for one in systems:
        # The network stands last; remarks behind it may have commas.
        word = re.findall(r", (none|ib|roce|efa|slingshot|tcp)(?:xo?)?\b", one["system"])[-1]
        inside = " (NVSwitch)" * (word == "none" and "nvswitch" in one["system"])
        kinds[word + inside].append(one["median_error"])
    for kind, errors in sorted(kinds.items()):
        found = map(percent, (median(errors), min(errors), max(errors)))
        yield f"| {kind} | {len(errors)} | {' | '.join(found)} |"


def by_system(one: dict[str, Any]) -> str:
    """Figures in which every system weighs the same, and coverage."""
    found, bands = one["by_system"], one["bands"]
    figures = [
        percent(found["median_error"]),
        f"{percent(found['low'])} to {percent(found['high'])}",
    ]
    figures += [percent(found["percentile_90"]), f"{100 * found['bias']:+.1f}"]
    figures += [percent(found["bands"][band]["median_error"]) for band in BANDS]
    figures += [percent(one["coverage_80"]), percent(one["coverage_95"])]
    widths = ", ".join(f"{bands[band]['median_width']:.2f}" for band in BANDS)
    return " | ".join([*figures, widths])


def cells(one: dict[str, Any]) -> str:
    """The figures of one row in percent."""
    figures = [str(one["points"])]
    figures += [percent(one["median_error"]), percent(one["mape"]), f"{100 * one['bias']:+.1f}"]
    figures += [percent(one["bands"][band]["median_error"]) for band in BANDS]
    return " | ".join(figures)


def percent(value: float | None) -> str:
    """One decimal; a dash for a band without points."""
    return "-" if value is None else f"{100 * value:.1f}"


if __name__ == "__main__":
    main(*sys.argv[1:3])
