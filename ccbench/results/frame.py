"""A run as one pandas frame: the columns of its files, what follows from them, and the keys that group its cases.

pandas is imported only when a frame is made, here and elsewhere: no rank, no start of a run, no report waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccbench.results.keys import CURVE, POINT, WORK
from ccbench.results.points import Point

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

DERIVED = (
    "group_ranks",
    "bound_share",
    "beats_bound",
    "prediction_error",
    "emulated",
    "imported",
    "trusted",
    "complete",
)
"""Columns that follow from others; ``Point`` has each as a property, which says what it means."""

KEYS = {"point_key": POINT, "curve_key": CURVE, "work_key": WORK}
"""Columns of numbers: cases with the same number agree in the columns of the key."""


def frame_of(table: pa.Table, points: Sequence[Point]) -> pd.DataFrame:
    """Return the frame of a run's ``table``, whose rows are ``points``, in their order.

    Whole numbers stay whole where some are missing (Int64).
    """
    import pandas as pd
    import pyarrow as pa

    # Otherwise pandas makes floats of whole numbers as soon as one is missing.
    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    for name in DERIVED:
        frame[name] = [getattr(point, name) for point in points]
    for name, key in KEYS.items():
        numbers: dict[object, int] = {}
        frame[name] = [numbers.setdefault(key(point), len(numbers)) for point in points]
    return frame
