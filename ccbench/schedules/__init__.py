"""Algorithms as schedules: build, prove, count, describe."""

from ccbench.schedules.proof import prove
from ccbench.schedules.registry import (
    ALGORITHMS,
    Algorithm,
    algorithm_row,
    algorithms_of,
    parse_algorithm,
    schedule_for,
)
from ccbench.schedules.schedule import Advance, Phase, Schedule, Step, received_pieces, sent_pieces

__all__ = [
    "ALGORITHMS",
    "Advance",
    "Algorithm",
    "Phase",
    "Schedule",
    "Step",
    "algorithm_row",
    "algorithms_of",
    "parse_algorithm",
    "prove",
    "received_pieces",
    "schedule_for",
    "sent_pieces",
]
