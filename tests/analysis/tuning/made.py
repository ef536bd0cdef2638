"""Timings with a known truth."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from ccbench.analysis.tuning import Choice, Situation, Timing
from ccbench.results import Point

PLACE = Situation("all_reduce", 8, 1, "float32", "sum", False, "streaming", "hgx-h100")

NCCL = Choice("nccl")
RING = Choice("nccl", "ring", "simple")
TREE = Choice("nccl", "tree", "ll")
NVLS = Choice("nccl", "nvls")


def timing(
    choice: Choice,
    size_bytes: int,
    seconds: float,
    noise: float = 0.002,
    rounds: int = 12,
    situation: Situation = PLACE,
    seed: int = 0,
) -> Timing:
    """Samples around ``seconds``: every round has its own level, as on real machines."""
    random = np.random.default_rng([seed, size_bytes, zlib.crc32(choice.label.encode())])
    levels = seconds * (1 + noise * random.standard_normal(rounds))
    samples = np.repeat(levels, 4) * (1 + noise / 4 * random.standard_normal(4 * rounds))
    middle = float(np.median([np.median(part) for part in np.split(samples, rounds)]))
    timed = printed(choice, size_bytes, middle, situation)
    point = replace(timed.point, samples_seconds=samples, round_samples=(4,) * rounds)
    return replace(timed, point=point)


def printed(
    choice: Choice, size_bytes: int, seconds: float, situation: Situation = PLACE
) -> Timing:
    """An average without samples."""
    point = Point(
        "suite",
        choice.backend,
        situation.collective,
        choice.algorithm,
        situation.dtype,
        situation.op,
        size_bytes,
        size_bytes // 4,
        situation.ranks,
        median_seconds=seconds,
    )
    return Timing(situation, choice, point)
