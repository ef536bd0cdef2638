"""``accuracy`` of a sweep: the inexact data whose rounding is recorded beside the times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ccbench.cases.axes import INEXACT_SPREADS, InexactData
from ccbench.suite.readers import (
    MisfitError,
    Reads,
    one_word,
    read_at,
    refuse_unknown,
    whole_number,
)
from ccbench.units import shown

BITS = "bits"
"""Stands for normal data."""

LARGEST_SPREAD = 1e30
LARGEST_SEED = 2**31 - 1
KEYS = ("data", "spread", "seed")


def read_accuracy(value: Any) -> InexactData | None:
    """Return the data for ``bits``, a distribution, or a mapping of KEYS; None for false or nothing."""
    if value is None or value is False or isinstance(value, InexactData):
        return value or None
    keys = value if isinstance(value, Mapping) else {"data": value}
    refuse_unknown(keys, KEYS)
    place = ("data",) if keys is value else ()
    words = one_word("kind of data", (BITS, *INEXACT_SPREADS))
    name = read_at(place, words, keys.get("data", BITS))
    name = "normal" if name == BITS else name
    spread = keys.get("spread", INEXACT_SPREADS[name])
    try:
        number = float(spread)  # YAML takes 1e6 for a text
    except (TypeError, ValueError):
        number = math.nan
    if not 1 <= number <= LARGEST_SPREAD or isinstance(spread, bool):
        cure = f"write a number from 1 to {LARGEST_SPREAD:g}"
        raise MisfitError(f"{shown(spread)} is not a spread; {cure}", "spread")
    seed = read_at(
        ("seed",),
        lambda item: whole_number(item, 0, LARGEST_SEED, "seed"),
        keys.get("seed", 1),
    )
    return InexactData(name, number, seed)


_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": [BITS, *INEXACT_SPREADS, False, None]},
        {
            "type": "object",
            "properties": {
                "data": {"enum": [*INEXACT_SPREADS]},
                "spread": {"type": ["number", "string"], "examples": [1e6]},
                "seed": {"type": "integer", "minimum": 0, "maximum": LARGEST_SEED},
            },
            "additionalProperties": False,
        },
    ]
}


ACCURACY = Reads(
    read_accuracy,
    _SCHEMA,
    write=lambda data: (
        data.distribution
        if data and str(data) == data.distribution
        else data and {"data": data.distribution, "spread": data.spread, "seed": data.seed}
    ),
)
