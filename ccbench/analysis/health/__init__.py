"""Is the machine well? Pairs of ranks against their links, and a verdict from a whole run."""

from ccbench.analysis.health.judging import ADVICE, HealthVerdict, health_of, wants_health
from ccbench.analysis.health.matrix import PairMatrix, PairMiss, pair_matrices, pair_misses

__all__ = [
    "ADVICE",
    "HealthVerdict",
    "PairMatrix",
    "PairMiss",
    "health_of",
    "pair_matrices",
    "pair_misses",
    "wants_health",
]
