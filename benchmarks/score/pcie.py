"""Levels and residuals of machines whose GPUs nothing but PCIe joins, from what the repository holds.

    python -m benchmarks.score.pcie

Rows of one node over PCIe in results/published, the tables of servers there that fall back to NCCL, and the large
all_reduces of ``pcie_boxes.yaml``. A box is left out as a whole. Constants of all other links stay as they are.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.score.learning import ON_PCIE, fit
from benchmarks.score.published import logs_of, published_logs
from benchmarks.score.shipping import write_constants, write_residuals
from benchmarks.score.validation import SystemErrors, residuals_of
from ccbench.collectives import COLLECTIVES
from ccbench.model import Prediction
from ccbench.model.library import Intra, LibraryRequest, PciePath
from ccbench.model.library.calibration import Observation
from ccbench.model.library.constants import SHIPPED_FILE, LibraryConstants, shipped
from ccbench.model.library.intervals import (
    PATHS,
    PCIE_FILE,
    Residuals,
    intervals,
    is_pcie_alone,
    kind_of,
    without,
)
from ccbench.model.library.paths import BOXES, PcieBox, system_of_box
from ccbench.model.library.predictor import nccl_seconds, priced
from ccbench.results.loading import SERVERS_FILE, published_folder

LARGE_BYTES = 128 << 20
"""Size that stands for the large all_reduces of boxes."""

FALLS_BACK = "SGLang 0.5.12"
"""Its table of L40S is of a sound box, where its kernel does not run and NCCL does (README of the tables)."""

ILL_BOX = "l40s-c"
"""Its rows are a test of the verdict."""

BOX_OF = {
    "V100-PCIE-32GB": "v100-pcie-a",
    "RTX 2080 Ti": "rtx-2080-ti-a",
    "RTX 5090": "rtx-5090-a",
    "RTX 4090": "rtx-4090-b",
    "L40S": "l40s-c",
}
"""Box of ``pcie_boxes.yaml`` that published rows of these GPUs are of, where the number of GPUs does not tell."""

SMALLER_BOX_OF = {("RTX 4090", 4): "rtx-4090-a", ("L40S", 2): "l40s-a"}

Observed = Mapping[str, Sequence[Observation]]


def observed() -> Observed:
    """Return observations by box, of which those that stand for a whole sweep leave out the box's one figure."""
    found: dict[str, list[Observation]] = defaultdict(list)
    for box, observation in (*_published(), *_servers()):
        found[box].append(observation)
    for row in BOXES:
        swept = {kind_of(observation.system)[2] for observation in found.get(row.box, ())}
        if row.box != ILL_BOX and PATHS[row.path] not in swept:
            found[row.box].append(_of_box(row))
    return found


def _published() -> Iterator[tuple[str, Observation]]:
    for log in published_logs():
        for one in log.observations:
            box = SMALLER_BOX_OF.get(
                (log.entry.gpu, one.system.ranks), BOX_OF.get(log.entry.gpu)
            )
            if box and log.entry.healthy and is_pcie_alone(one.system):
                yield box, one


def _servers() -> Iterator[tuple[str, Observation]]:
    rows = pd.read_parquet(published_folder() / SERVERS_FILE)
    rows = rows[(rows["backend_version"] == FALLS_BACK) & (rows["machine"] == "l40s")]
    rows = rows.assign(tool="nccl-tests", algorithm="default", gpu="L40S", interconnect="pcie4")
    rows = rows.assign(network="", forced="", library_version="")
    for log in logs_of("servers", rows[(rows["mode"] == "graph") & (rows["ranks"] > 2)]):
        for one in log.observations:
            yield "l40s-b", one


def _of_box(box: PcieBox) -> Observation:
    """Return the one figure of a box: all_reduces of LARGE_BYTES."""
    factor = COLLECTIVES["all_reduce"].bus_factor(box.ranks)
    seconds = LARGE_BYTES * factor / (box.busbw * 1e9)
    return Observation(
        system_of_box(box), LibraryRequest("all_reduce", (LARGE_BYTES,)), (seconds,)
    )


def learned(observations: Observed, without: str = "") -> LibraryConstants:
    """Return the shipped constants with levels of PCIe learned from all boxes but one."""
    known = shipped()
    free = {level.name for level in ON_PCIE}
    learned = fit(
        [
            observation
            for box, of_box in observations.items()
            if box != without
            for observation in of_box
        ],
        known.learned_on,
        free=ON_PCIE,
        fixed={name: scale for name, scale in known.levels if name not in free},
    )
    # What the others were learned on is known as before; of PCIe alone the names of its boxes' GPUs are not.
    return replace(learned, domain=known.domain)


def left_out(observations: Observed) -> list[SystemErrors]:
    """Return the errors of every box and path, as predicted with what the others taught."""
    tested = []
    for box, of_box in observations.items():
        table = learned(observations, box).table
        for path in dict.fromkeys(kind_of(observation.system)[2] for observation in of_box):
            mine = [one for one in of_box if kind_of(one.system)[2] == path]
            tested.append(_errors(box, mine, table))
    return tested


def path_not_told(observations: Observed, learned_on: Residuals) -> str:
    """Return cells of a table's row: boxes, as predicted where nobody tells their path, each left out in turn.

    That is as if data were copied directly, with intervals that end where those through host memory do.
    """
    rows = []
    for box, of_box in observations.items():
        table = learned(observations, box).table
        direct, through = (
            _errors(
                box,
                [
                    replace(one, system=replace(one.system, intra=intra, path=path))
                    for one in of_box
                ],
                table,
            )
            for intra, path in ((Intra.PCIE, PciePath.DIRECT), (Intra.HOST, PciePath.HOST))
        )
        measured, edges = np.exp(direct.log_ratios), _edges(direct, learned_on)
        # Edges are relative to each one's own prediction.
        later = _edges(through, learned_on) * np.exp(direct.log_ratios - through.log_ratios)
        edges[1::2] = np.maximum(edges[1::2], later[1::2])
        inside = (edges[::2] <= measured) & (measured <= edges[1::2])
        off = np.median(np.abs(np.expm1(-direct.log_ratios)))
        rows.append([off, *inside.mean(axis=1), np.median(np.sqrt(edges[3] / edges[2]))])
    offs, inside_80, inside_95, widths = np.array(rows).T
    held = f"{100 * np.mean(inside_80):.1f} | {100 * np.mean(inside_95):.1f}"
    middle, width = f"{100 * np.median(offs):.1f}", f"{np.median(widths):.2f}"
    return f"{len(rows)} | - | {middle} | - | - | - | {held} | {width} | -"


def _edges(errors: SystemErrors, learned_on: Residuals) -> NDArray[np.float64]:
    """Return low and high of 80 %, low and high of 95 %, as multiples of the predictions: four rows."""
    shares = errors.transfer_shares.tolist()
    predictions = [Prediction(0.0, 1.0, 1.0 - share, share, "") for share in shares]
    known = without(errors.system.name, learned_on)
    names = ("low_80_seconds", "high_80_seconds", "low_95_seconds", "high_95_seconds")
    rows = intervals(errors.system, predictions, known, errors.octaves.tolist())
    return np.array([[getattr(row, name) for row in rows] for name in names])


def _errors(
    box: str, observations: Sequence[Observation], table: Mapping[str, float]
) -> SystemErrors:
    sizes, ratios, shares, theirs = [], [], [], []
    for observation in observations:
        prices = priced(observation.system, observation.request, table)
        seconds, best = prices.seconds, prices.best
        moving = [prices.options[place].bandwidth_seconds[at] for at, place in enumerate(best)]
        sizes.append(np.array(observation.request.size_bytes, np.int64))
        ratios.append(np.log(np.asarray(observation.seconds) / seconds))
        of_nccl = nccl_seconds(observation.system, observation.request)
        theirs.append(np.log(np.asarray(observation.seconds) / of_nccl))
        shares.append(np.asarray(moving) / seconds)
    system = observations[0].system
    named = replace(system, name=f"{box}, {system.name}")
    return SystemErrors(
        named,
        (),
        np.concatenate(sizes),
        np.concatenate(ratios),
        np.concatenate(shares),
        of_nccl=np.concatenate(theirs),
    )


def _say(one: SystemErrors) -> None:
    off = 100 * float(np.median(np.abs(np.expm1(-one.log_ratios))))
    path = one.system.path.value
    print(f"{one.system.name:60s} {path:28s} {len(one.log_ratios):4d} {off:6.1f} %")


def main() -> None:
    """Learn, and write both files."""
    observations = observed()
    points = sum(len(one.seconds) for of_box in observations.values() for one in of_box)
    words = f"{len(observations)} boxes with PCIe alone, {points} points, {date.today().isoformat()}"
    constants = learned(observations)
    tested = left_out(observations)
    for one in tested:
        _say(one)
    print(f"the path not told: {path_not_told(observations, residuals_of(tested))}")
    write_constants(
        constants, SHIPPED_FILE, f"{shipped().learned_on.partition('; ')[0]}; {words}"
    )
    write_residuals(residuals_of(tested), Path(PCIE_FILE), words)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    main()
