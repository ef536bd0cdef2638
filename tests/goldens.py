"""Whole inputs and what ccbench makes of them, as files in the folder ``goldens`` of a package of tests.

A golden says "same", not "right": each was read when it was made. ``make goldens`` renews those that have changed,
and goldens.sha256, which shows in a review that one was renewed.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

TESTS = Path(__file__).parent
LIST = TESTS / "goldens.sha256"
RENEWING = os.environ.get("CCBENCH_GOLDENS") == "renew"

FIGURES = 9
"""Digits of a number: the last ones differ between releases of NumPy."""


def check(expected: Path, seen: str) -> None:
    """Compare a text with its golden, wherever the checkout is; write it where goldens are renewed."""
    seen = seen.replace(f"{TESTS.parent}/", "")
    if RENEWING:
        expected.parent.mkdir(parents=True, exist_ok=True)
        expected.write_text(seen, encoding="utf-8")
    assert seen == expected.read_text(encoding="utf-8"), f"differs from {expected.name}"


def text_of(value: Any) -> str:
    """Return any value as JSON whose lines a review can show."""
    return json.dumps(plain(value), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def plain(value: Any) -> Any:
    """Return a value as JSON's own types; fields at their default are left out, frames are rows."""
    match value:
        case enum.Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case float() | np.floating():
            return float(f"{float(value):.{FIGURES}g}")
        case np.generic() | np.ndarray():
            return plain(value.tolist())
        case BaseModel():
            return plain(value.model_dump(exclude_defaults=True))
        case pd.DataFrame():
            return [plain(row.dropna().to_dict()) for _, row in value.iterrows()]
        case pd.Series():
            return plain(value.to_dict())
        case Mapping():
            return {str(plain(key)): plain(entry) for key, entry in value.items()}
        case AbstractSet():
            return sorted((plain(entry) for entry in value), key=str)
        case tuple() | list():
            return [plain(entry) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(seen)
            for field in dataclasses.fields(value)
            if not _is_default(field, seen := getattr(value, field.name))
        }
    return str(value)


def _is_default(field: dataclasses.Field[Any], seen: object) -> bool:
    """Tell whether a field of a dataclass holds what it holds when nobody names it."""
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    return type(seen) is type(default) and repr(seen) == repr(default)


def digests() -> str:
    """Return the lines of goldens.sha256: one for each file of a folder ``goldens``."""
    files = sorted(path for path in TESTS.rglob("goldens/**/*") if path.is_file())
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(TESTS).as_posix()}\n"
        for path in files
    )


if __name__ == "__main__":
    LIST.write_text(digests(), encoding="utf-8")
