"""Writes the table of docs/model.md that says how far off predictions are.

    python -m benchmarks.score MANIFEST --holdout --json > score.json
    python -m benchmarks.score.table score.json "DATE"

Run by hand after constants changed; the logs do not ship with ccbench.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
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
    """Totals, then every system as predicted by constants that were learned without it."""
    total, left_out = score["total"], score["learned_without_the_system"]
    rows = {
        "the model as it ships": total,
        "**constants learned without the system**": left_out["total"],
        "calibrated on every other size, tested on the rest": score["calibrated_on_every_other_size"][
            "total"
        ],
        "alpha-beta with nominal rates": total["comparison"]["alpha_beta"],
        "NCCL's own tuning constants": total["comparison"]["nccl_constants"],
    }
    lines = [
        f"{when}: {score['counted']} published logs, healthy ones only, in and out of place; "
        f"{score['not_modelled_count']} more could not be modelled.",
        "In %: median of |predicted / measured - 1|, its mean (MAPE), signed mean (bias), median by size.",
        "",
        "| predictor | points | median | MAPE | bias | to 32 KiB | to 32 MiB | above |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [f"| {name} | {cells(one)} |" for name, one in rows.items()]
    lines += [
        "",
        "System by system, each predicted by constants that were learned on all others:",
        "",
        "| system | points | median | MAPE | bias | to 32 KiB | to 32 MiB | above |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    known = [one for one in left_out["systems"] if one.get("points")]
    known.sort(key=lambda one: one["median_error"])
    return "\n".join([*lines, *(f"| {plain(one['system'])} | {cells(one)} |" for one in known)])


def cells(one: dict[str, Any]) -> str:
    """The figures of one row in percent."""
    figures = [str(one["points"])]
    figures += [percent(one["median_error"]), percent(one["mape"]), f"{100 * one['bias']:+.1f}"]
    figures += [percent(one["bands"][band]["median_error"]) for band in BANDS]
    return " | ".join(figures)


def percent(value: float | None) -> str:
    """One decimal; a dash for a band without points."""
    return "-" if value is None else f"{100 * value:.1f}"


def plain(text: str) -> str:
    """Safe inside a Markdown table."""
    return text.replace("|", "/")


if __name__ == "__main__":
    main(*sys.argv[1:3])
