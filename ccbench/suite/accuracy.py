"""``accuracy`` of a sweep: the inexact data whose rounding is recorded beside the times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ccbench.cases.axes import INEXACT_SPREADS, InexactData
from ccbench.suite.readers import MisfitError, Reads, one_word, read_at, whole_number
from ccbench.units import shown, suggestion

BITS = "bits"
"""Stands for normal data."""

LARGEST_SPREAD = 1e30
LARGEST_SEED = 2**31 - 1
KEYS = ("data", "spread", "seed")


def read_accuracy(value: Any) -> InexactData | None:
    """Return the data for ``bits``, a distribution, or a mapping of KEYS; None for nothing."""
    if value is None or isinstance(value, InexactData):
        return value
    if not isinstance(value, Mapping):
        word = one_word("kind of data", (BITS, *INEXACT_SPREADS))(value)
        return _data("normal" if word == BITS else word)
    for key in value:
        if key not in KEYS:
            raise MisfitError(f"unknown key; {suggestion(key, KEYS)}", str(key))
    name = read_at(
        ("data",), one_word("distribution", [*INEXACT_SPREADS]), value.get("data", "normal")
    )
    spread = value.get("spread", INEXACT_SPREADS[name])
    if isinstance(spread, str):  # YAML takes 1e6 for a text
        spread = _number(spread)
    if (
        not isinstance(spread, (int, float))
        or isinstance(spread, bool)
        or not 1 <= spread <= LARGEST_SPREAD
    ):
        raise MisfitError(
            f"{shown(value['spread'])} is not a spread; write a number from 1 to {LARGEST_SPREAD:g}",
            "spread",
        )
    seed = read_at(
        ("seed",),
        lambda item: whole_number(item, 0, LARGEST_SEED, "seed"),
        value.get("seed", 1),
    )
    return InexactData(name, float(spread), seed)


def _data(name: str) -> InexactData:
    return InexactData(name, INEXACT_SPREADS[name])


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": [BITS, *INEXACT_SPREADS, None]},
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
        data and {"data": data.distribution, "spread": data.spread, "seed": data.seed}
    ),
)
