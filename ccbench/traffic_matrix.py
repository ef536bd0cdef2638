"""Who sends how much to whom in an all_to_all_v: traffic by name, or as a matrix.

``balanced``: as much to everyone. ``zipf:S``: the k-th rank gets a share proportional to 1 / (k + 1)^S, from
every source alike: a few experts are asked for most. ``hot:F``: rank 0 gets the share F, the others the rest
evenly. ``[[1, 2], [3, 4]]``: relative amounts, a row for each source. The rank with the most to send sends
``count`` x ranks elements, which is the case's size; the others in proportion.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ccbench.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Amounts = NDArray[np.int64]
    Shares = NDArray[np.float64]

BALANCED = "balanced"

LONGEST_MATRIX = 100_000
"""Letters of a matrix."""

_NAMED = re.compile(r"(zipf|hot):([0-9]{1,3}(?:\.[0-9]{1,6})?)", re.ASCII)


def read_traffic(text: str) -> str:
    """The one spelling that cases are filed under, '' for balanced; UsageError where it is none."""
    text = text.strip()
    if text in ("", BALANCED):
        return ""
    if text.startswith("["):
        return json.dumps(_matrix(text))
    found = _NAMED.fullmatch(text)
    value = float(found.group(2)) if found else 0.0
    if not found or (found.group(1) == "hot" and not 0 < value <= 1):
        raise UsageError(
            f"traffic: {text[:80]!r} is none; write balanced, zipf:1.2, hot:0.5 (a share above 0, at most 1) "
            "or a matrix such as [[0, 1], [2, 0]]"
        )
    return f"{found.group(1)}:{value:g}" if value else ""


def _matrix(text: str) -> list[list[float]]:
    rows: Any = None
    with suppress(ValueError, RecursionError):
        rows = json.loads(text) if len(text) <= LONGEST_MATRIX else None
    square = isinstance(rows, list) and all(isinstance(row, list) and len(row) == len(rows) for row in rows)
    numbers = [one for row in rows for one in row] if square and isinstance(rows, list) else []
    sound = all(type(one) in (int, float) and 0 <= one < 1e12 for one in numbers)
    if not numbers or not sound or not any(numbers):
        raise UsageError(
            f"traffic: {text[:80]} is no square matrix of amounts from 0 on, one of them not 0; write a row "
            "for each source, such as [[0, 1], [2, 0]]"
        )
    found: list[list[float]] = rows
    return found


@lru_cache(maxsize=64)
def shares(text: str, ranks: int) -> Shares:
    """What each source sends to each target, [source, target], as shares of what the busiest source sends.

    UsageError where a matrix is not of ``ranks`` ranks.
    """
    import numpy as np

    spelled = read_traffic(text)
    if spelled.startswith("["):
        matrix = np.array(json.loads(spelled), dtype=np.float64)
        if len(matrix) != ranks:
            raise UsageError(
                f"traffic: a matrix of {len(matrix)} rows for {ranks} ranks; write a row for each"
            )
        relative = matrix / matrix.sum(axis=1).max()
    else:
        relative = np.tile(_targets(spelled, ranks), (ranks, 1))
    relative.setflags(write=False)
    return np.asarray(relative)


def _targets(spelled: str, ranks: int) -> Shares:
    import numpy as np

    name, _, number = spelled.partition(":")
    if name == "zipf":
        weights = np.arange(1, ranks + 1, dtype=np.float64) ** -float(number)
        return np.asarray(weights / weights.sum())
    if name == "hot" and ranks > 1:
        hot = float(number)
        return np.asarray([hot, *[(1 - hot) / (ranks - 1)] * (ranks - 1)])
    return np.full(ranks, 1 / ranks)


@lru_cache(maxsize=256)
def sent_elements(text: str, count: int, ranks: int) -> Amounts:
    """Elements that each source sends to each target, [source, target], int64.

    Whole numbers by largest remainders: a source's sum is what its shares make of ``count`` x ``ranks``,
    rounded down, and no amount is more than one element off its share. Balanced: ``count`` everywhere.
    """
    import numpy as np

    exact = shares(text, ranks) * (count * ranks)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    missing = np.floor(exact.sum(axis=1) + 1e-6).astype(np.int64) - whole.sum(axis=1)
    # The largest remainders first; of equal ones the lowest rank.
    places = np.argsort(-(exact - whole), axis=1, kind="stable")
    for source in np.nonzero(missing > 0)[0]:
        whole[source, places[source, : missing[source]]] += 1
    whole.setflags(write=False)
    return whole
