"""Sizes that are slow for the run's own other sizes, while the run as a whole is as fast as others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest

from benchmarks.score.logs import points_of
from benchmarks.score.manifest import read_manifest
from ccbench.analysis.dips import Dip, dips_of
from ccbench.model.library.calibration import Observation
from ccbench.model.library.predictor import predict_library
from ccbench.results import Point
from ccbench.results.keys import grouped
from tests.analysis.test_speed_verdict import Slower, only, sweep, words, write_run

KIB, MIB = 1 << 10, 1 << 20
CHECKOUT = Path(__file__).resolve().parents[2]
DATA = CHECKOUT.parent / "shared" / "data"


def within(first: int, last: int, factor: float, level: float = 1.0) -> Slower:
    return lambda size_case: level * (factor if first <= size_case.size_bytes <= last else 1.0)


def test_the_rest_of_a_run_with_a_dip_stays_what_it_is_as_the_page_shows(
    tmp_path: Path,
) -> None:
    verdict = only(write_run(tmp_path / "run", sweep(), within(16 * MIB, 128 * MIB, 2.6)))
    page = (CHECKOUT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    (shown,) = re.findall(
        r"^(SLOW: .* own other sizes imply; normal: )\.\.\.$", page, re.MULTILINE
    )
    assert verdict.sentence.startswith(shown)
    assert set(words(verdict).values()) == {"NORMAL"}
    assert verdict.finding is not None
    assert "out-of-order counters" in verdict.finding.advice


def measured(seen: Observation) -> list[Point]:
    """Points of a published sweep, with what the model predicts."""
    asked = seen.request
    rows = zip(asked.size_bytes, seen.seconds, predict_library(seen.system, asked), strict=True)
    return [
        Point(
            *("log", "nccl", asked.collective, "default", "float32", "none"),
            *(size, size // 4, seen.system.ranks),
            in_place=asked.in_place,
            median_seconds=seconds,
            predicted_seconds=predicted.seconds,
        )
        for size, seconds, predicted in rows
    ]


def published() -> Iterator[tuple[str, bool | None, tuple[Dip, ...]]]:
    """File, health and dips of every published sweep, its two placements together."""
    for manifest in sorted(DATA.glob("nccl_logs*/manifest.yaml")):
        for entry in read_manifest(manifest):
            sweeps = grouped(
                points_of(entry, manifest.parent).observations,
                lambda seen: (seen.system, replace(seen.request, in_place=False)),
            )
            for (system, request), members in sweeps.items():
                placements = [
                    [measured(seen) for seen in members if seen.request.in_place is place]
                    for place in (False, True)
                ]
                for pair in zip_longest(*placements, fillvalue=[]):
                    points = [point for line in pair for point in line]
                    yield entry.file, entry.healthy, dips_of(system, request, points)


@pytest.mark.exhaustive
@pytest.mark.skipif(not DATA.is_dir(), reason="no logs beside the checkout")
def test_one_published_log_that_is_called_healthy_has_a_dip_and_the_others_have_theirs() -> (
    None
):
    logs = list(published())
    healthy = {file: dips for file, health, dips in logs if health}
    assert len(healthy) >= 40
    # 12 ms at 256 KiB, 0.3 ms at half of it: whoever collected it calls it healthy all the same.
    assert {file for file, health, dips in logs if health and dips} == {
        "v100_dgx2h_superpod_all_reduce.txt"
    }
    called = {file for file, health, dips in logs if dips and health is False}
    assert called == {
        "b200_16g_2n_all_gather_gke_dranet.txt",
        "a100pcie_2g_2n_all_reduce_sys_293.txt",
        "h100sxm_16g_2n_all_reduce_dgxpair.txt",
    }
    # What a network that reorders packets did to none of them is found in nearly all.
    hits = list[bool]()
    for manifest in sorted(DATA.glob("nccl_logs*/manifest.yaml")):
        for entry in read_manifest(manifest):
            for seen in points_of(entry, manifest.parent).observations if entry.healthy else ():
                if (
                    min(seen.request.size_bytes) > 4 * MIB
                    or max(seen.request.size_bytes) < 512 * MIB
                ):
                    continue
                points = [
                    replace(
                        point,
                        median_seconds=(point.median_seconds or 0.0)
                        * (2.6 if 16 * MIB <= point.size_bytes <= 128 * MIB else 1.0),
                    )
                    for point in measured(seen)
                ]
                hits.append(bool(dips_of(seen.system, seen.request, points)))
    assert len(hits) > 40
    assert sum(hits) > 0.9 * len(hits)
