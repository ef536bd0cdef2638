"""Observations of a made-up library that moves one byte in a nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.score.logs import LogPoints
from ccbench.model.library import Generation, Intra, LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation
from tests.score.corpora import entry


def system(**changes: Any) -> LibrarySystem:
    """Eight H100, otherwise as given."""
    fields: dict[str, Any] = {
        "name": "board", "generation": Generation.HOPPER, "ranks_per_node": 8, "nodes": 1,
        "intra": Intra.NVSWITCH, "intra_bytes_per_second": 450e9,
    }  # fmt: skip
    return LibrarySystem(**{**fields, **changes})


def observation(sizes: Sequence[int], seconds: Sequence[float], **changes: Any) -> Observation:
    """An all-reduce on ``system(**changes)``."""
    return Observation(system(**changes), LibraryRequest("all_reduce", tuple(sizes)), tuple(seconds))


def log_points(file: str, sizes: Sequence[int], **changes: Any) -> LogPoints:
    """A healthy log of one observation whose times are a nanosecond a byte."""
    return LogPoints(entry(file=file), (observation(sizes, [size * 1e-9 for size in sizes], **changes),))


def twice_as_slow(_: LibrarySystem, request: LibraryRequest) -> Sequence[float]:
    """A predictor that is off by 100 per cent at every size."""
    return [size * 2e-9 for size in request.size_bytes]


def mixed_logs() -> list[LogPoints]:
    """One healthy log, one known to be sick, one of which nobody knows, one that cannot be modelled."""
    sick = replace(log_points("sick.txt", (64,)), entry=entry(file="sick.txt", healthy=False))
    dim = replace(log_points("dim.txt", (64,)), entry=entry(file="dim.txt", healthy=None))
    lost = LogPoints(entry(file="lost.txt"), (), ("the network is not known",))
    return [log_points("a.txt", (64, 1 << 20, 1 << 30, 1 << 31)), sick, dim, lost]
