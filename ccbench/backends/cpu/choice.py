"""Which algorithm ``default`` means on the CPU backend."""

from __future__ import annotations

ONE_SHOT_LIMIT_BYTES = 32 * 1024
"""Up to here one synchronisation less is worth reading every buffer whole (docs/performance.md)."""

_DIRECT = {
    "all_gather": "direct",
    "reduce_scatter": "direct",
    "broadcast": "direct",
    "reduce": "direct",
    "all_to_all": "direct",
    "all_to_all_v": "direct",
    "gather": "direct",
    "scatter": "direct",
    "send_recv": "shift",
    "barrier": "dissemination",
}


def default_algorithm(collective: str, size_bytes: int, ranks: int) -> str:
    """In shared memory every rank reaches every other at the same cost, so direct schedules win."""
    if collective == "all_reduce":
        return "one_shot" if size_bytes <= ONE_SHOT_LIMIT_BYTES else "two_shot"
    return _DIRECT[collective]
