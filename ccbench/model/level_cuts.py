"""Bounds in closed form from the cuts that a fabric has by construction; for 100,000 ranks and more.

On symmetric fabrics these are the tightest cuts there are (tests compare them with maximum flows); on any
fabric they are cuts, so what they say holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from ccbench.errors import MachineError
from ccbench.topology.fabrics import Fabric, LevelCut


@dataclass(frozen=True)
class LevelBound:
    """No algorithm moves more than ``algbw_bytes_per_second`` (size over time), because of ``level``."""

    collective: str
    ranks: int
    algbw_bytes_per_second: Fraction
    level: LevelCut

    def __str__(self) -> str:
        rate = f"{self.level.bytes_per_second / 1e9:.4g} GB/s"
        return f"{rate} into each {self.level.name} of {self.level.ranks} ranks"

    def seconds(self, size_bytes: float) -> float:
        """Seconds that ``size_bytes`` take at least."""
        return float(size_bytes / self.algbw_bytes_per_second) if size_bytes > 0 else 0.0


def _all_gather(level: LevelCut, ranks: int) -> Fraction:
    return _rate(level) * ranks / (ranks - level.ranks)


def _rooted(level: LevelCut, ranks: int) -> Fraction:
    """The root's set must receive what is outside it; every other set must send what is inside it.

    Of a set that does not repeat nobody knows whether the root is in it, so the lesser of the two counts.
    """
    choose = max if level.groups else min
    outside = choose(ranks - level.ranks, level.ranks)
    return _rate(level) * ranks / outside


def _broadcast(level: LevelCut, ranks: int) -> Fraction:
    return _rate(level)


def _all_to_all(level: LevelCut, ranks: int) -> Fraction:
    return _rate(level) * ranks / (level.ranks * (ranks - level.ranks))


def _all_reduce(level: LevelCut, ranks: int) -> Fraction:
    """2 (k - 1) messages per byte leave the k groups; a set that does not repeat makes two with the rest."""
    groups = level.groups or 2
    return _rate(level) * groups / (2 * (groups - 1))


def _rate(level: LevelCut) -> Fraction:
    return Fraction(level.bytes_per_second)


LIMITS: dict[str, Callable[[LevelCut, int], Fraction]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _all_gather,
    "broadcast": _broadcast,
    "reduce": _broadcast,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all,
    "gather": _rooted,
    "scatter": _rooted,
    "send_recv": _broadcast,
}
"""What one level allows each collective, as size over time."""


def level_bound(fabric: Fabric, collective: str) -> LevelBound:
    """The least that any level of ``fabric`` allows. Raises MachineError for what has no bound here."""
    if collective not in LIMITS:
        raise MachineError(f"collective: {collective!r} moves no data; one of {', '.join(LIMITS)}")
    # A ring shift within a level need not leave it: only single ranks are sure to.
    levels = [
        level
        for level in fabric.levels
        if level.ranks < fabric.ranks and (collective != "send_recv" or level.ranks == 1)
    ]
    if not levels:
        raise MachineError(f"{fabric.name}: {fabric.ranks} ranks; a bound needs at least two")
    limit = LIMITS[collective]
    level = min(levels, key=lambda level: limit(level, fabric.ranks))
    return LevelBound(collective, fabric.ranks, limit(level, fabric.ranks), level)
