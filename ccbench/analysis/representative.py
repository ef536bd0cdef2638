"""Choice of a few sizes that stand for all of a curve."""

from __future__ import annotations

import math
from collections.abc import Iterable


def representative_sizes(sizes: Iterable[int]) -> tuple[int, ...]:
    """Return the least, a middle and the largest of ``sizes`` in bytes, each once, in order.

    The middle is the size nearest to the geometric mean of the ends. 0 bytes stand for themselves only where
    nothing else was measured: no curve on a logarithmic axis has them.
    """
    ordered = sorted({*sizes})
    curve = [size for size in ordered if size > 0] or ordered[:1]
    if len(curve) < 3:
        return tuple(curve)
    middle = math.log(curve[0] * curve[-1]) / 2
    nearest = min(curve[1:-1], key=lambda size: round(abs(math.log(size) - middle), 9))
    return curve[0], nearest, curve[-1]
