"""Sizes at which the library's choice of algorithm or protocol changes, to the byte."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.model.library.constants import LibraryConstants, shipped
from ccbench.model.library.predictor import Prices, priced
from ccbench.model.library.system import LibraryRequest, LibrarySystem

Places = NDArray[np.int64]

GRID_POINTS = 512
"""First looks between the ends, evenly spaced in log size. A choice that is best on less than one of these
steps (4 % of the size on 8 B to 16 GiB) may be missed."""


@dataclass(frozen=True)
class Crossover:
    """From ``size_bytes`` on, ``after`` is cheaper than ``before``; both as in ``ring ll128``."""

    size_bytes: int
    before: str
    after: str


def crossovers(
    system: LibrarySystem, request: LibraryRequest, constants: LibraryConstants | None = None
) -> tuple[Crossover, ...]:
    """Every change of choice between the least and the greatest size of ``request``, in rising order.

    Raises MachineError as ``predict_library`` does.
    """
    if not request.size_bytes:
        return ()
    table = (shipped() if constants is None else constants).table
    low, high = max(1, min(request.size_bytes)), max(request.size_bytes)

    def look(sizes: Places) -> tuple[Prices, Places]:
        prices = priced(system, replace(request, size_bytes=tuple(sizes.tolist())), table)
        return prices, prices.best if prices.options else np.zeros(len(sizes), dtype=np.int64)

    grid = np.unique(np.geomspace(low, max(low, high), GRID_POINTS).round().astype(np.int64))
    prices, choice = look(grid)
    changes = np.flatnonzero(choice[1:] != choice[:-1])
    ends = np.stack((grid[changes], grid[changes + 1], choice[changes], choice[changes + 1]))
    while ends.shape[1] and int((ends[1] - ends[0]).max()) > 1:
        middle = (ends[0] + ends[1]) // 2
        ends = _halved(ends, middle, look(middle)[1])
    names = [f"{option.shape.algorithm} {option.protocol}" for option in prices.options]
    return tuple(Crossover(size, names[before], names[after]) for _, size, before, after in ends.T.tolist())


def _halved(ends: Places, middle: Places, choice: Places) -> Places:
    """Intervals (low, high, choice at low, choice at high) cut at ``middle``; halves without a change go."""
    low, high, before, after = ends
    halves = np.stack(
        (
            np.stack((low, middle, before, choice)),
            np.stack((middle, high, choice, after)),
        ),
        axis=-1,
    ).reshape(4, -1)
    keep = (halves[2] != halves[3]) & (halves[0] < halves[1])
    return np.asarray(halves[:, keep])
