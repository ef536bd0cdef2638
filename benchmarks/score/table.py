"""Writes the tables of docs/accuracy.md from results/published: how far off predictions are of systems left out.

    python -m benchmarks.score.table

Every group of machines is predicted with levels that the others taught, from scales of one: about ten minutes. Run it
after the model, its levels or the published results changed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path

import numpy as np

from benchmarks.score import pcie
from benchmarks.score.keys import machine_key, system_key
from benchmarks.score.published import published_logs
from benchmarks.score.shipping import beside_pcie, fit_beside_pcie
from benchmarks.score.validation import (
    SystemErrors,
    coverage,
    figures,
    folds,
    held_out_systems,
    residuals_of,
)
from ccbench.cli.output import say
from ccbench.model.library.intervals import Residuals, kind_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
BANDS = ("up_to_32KiB", "32KiB_to_32MiB", "above_32MiB")
HEAD = "systems | points | median | to 32 KiB | to 32 MiB | above | in 80 % | in 95 % | width | NCCL's own |"


def main() -> None:
    """Replace what stands between the two marks."""
    joined = beside_pcie(published_logs())
    taught = folds(joined, system_key, say, fit_beside_pcie, machine_key)
    tested = held_out_systems(taught)
    boxes = pcie.observed()
    on_pcie = pcie.left_out(boxes)
    not_told = pcie.path_not_told(boxes, residuals_of(on_pcie))
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, tail = rest.split(END)
    text = "\n".join(
        tables(tested, on_pcie, not_told, f"{date.today().isoformat()}, {len(joined)} logs")
    )
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def tables(
    tested: Sequence[SystemErrors], on_pcie: Sequence[SystemErrors], not_told: str, of: str
) -> Iterator[str]:
    """Yield the lines of both tables: by what joins the GPUs, then by their generation."""
    known = residuals_of(tested)
    yield f"Made {of}."
    yield ""
    yield f"| joined by | {HEAD}"
    yield "|---" + "|--:" * 10 + "|"
    yield f"| **all but PCIe alone** | {_cells(tested, known)} |"
    for name, systems in _by(tested, lambda one: ", ".join(kind_of(one.system)[1:3])):
        yield f"| {name.removeprefix('no network, ')} | {_cells(systems, known)} |"
    boxes = residuals_of(on_pcie)
    for name, systems in _by(on_pcie, lambda one: kind_of(one.system)[2]):
        yield f"| {name} | {_cells(systems, boxes)} |"
    yield f"| PCIe, the path not told | {not_told} |"
    yield ""
    yield f"| generation | {HEAD}"
    yield "|---" + "|--:" * 10 + "|"
    for name, systems in _by(tested, lambda one: kind_of(one.system)[3]):
        yield f"| {name} | {_cells(systems, known)} |"


def _by(
    systems: Sequence[SystemErrors], word: Callable[[SystemErrors], str]
) -> list[tuple[str, list[SystemErrors]]]:
    found = defaultdict(list)
    for one in systems:
        found[word(one)].append(one)
    return sorted(found.items())


def _cells(systems: Sequence[SystemErrors], learned: Residuals) -> str:
    """Return the figures of one row: each system weighs the same."""
    found, held = figures(systems), coverage(systems, learned)
    theirs = np.median([np.median(np.abs(np.expm1(-one.of_nccl))) for one in systems])
    bands = [found["bands"][band].get("median_error") for band in BANDS]
    shares = [held["coverage_80"], held["coverage_95"]]
    points = sum(len(one.log_ratios) for one in systems)
    cells = [str(len(systems)), str(points), _percent(found["median_error"])]
    cells += [*map(_percent, [*bands, *shares]), f"{held['median_width']:.2f}"]
    return " | ".join([*cells, _percent(float(theirs))])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    main()
