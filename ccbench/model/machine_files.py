"""Files of values that ``ccbench predict --from`` writes: strict YAML, and how old what they hold is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ccbench.documents import yaml_text
from ccbench.errors import MachineError
from ccbench.units import shown

Floats = NDArray[np.float64]
T = TypeVar("T")

STRICT = {"extra": "forbid", "allow_inf_nan": False}
"""Settings with which pydantic reads these classes from a file; a plain dict, so that importing needs no pydantic."""


MOST_DAYS = 30
"""Age after which figures are said to be old: settings of power and, in
clouds, the hardware below change, and no name does."""


def has_line(name: str | Path, beginning: bytes) -> bool:
    """True if ``name`` is a YAML file with a line that begins so; nothing else of it is looked at."""
    path = Path(name)
    try:
        if path.suffix not in {".yaml", ".yml"} or not path.is_file():
            return False
        with path.open("rb") as file:
            return b"\n" + beginning in b"\n" + file.read(1 << 16)
    except OSError:
        return False  # whoever reads it next says why it cannot be read


def write_plain(plain: Mapping[str, object], path: str | Path) -> None:
    """Write values of a dataclass as YAML. Raises MachineError."""
    # asdict keeps tuples, which YAML's safe dialect does not know.
    text = yaml_text(json.loads(json.dumps(plain)))
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise MachineError(
            f"{path}: cannot be written ({error.strerror}); choose another place"
        ) from None


def typed(kind: type[T], plain: object, place: str | Path) -> T:
    """Plain values as a dataclass, nothing converted; MachineError, one line that begins with ``place``."""
    from pydantic import TypeAdapter, ValidationError

    try:
        # Through JSON, because only there does strict checking take a list for a tuple.
        return TypeAdapter(kind).validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    except (TypeError, MachineError) as error:
        raise MachineError(f"{place}: {error}") from None
    loc, value_text = first["loc"], shown(first["input"])
    if first["type"] == "unexpected_keyword_argument" and len(loc) == 1:
        raise MachineError(f"{place}: {shown(loc[0])} is not a field; remove it")
    where = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc
    ).lstrip(".")
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] != "missing":
        message += f"; seen {value_text}"
    if isinstance(first["input"], str) and first["type"] in {"float_type", "int_type"}:
        message += "; write numbers without quotes"
    raise MachineError(f"{place}: {where or 'the file'}: {message}")


def too_old(name: str, origins: Iterable[str], cure: str) -> str:
    """Return that ``name`` was measured more than MOST_DAYS ago, by the days in ``origins``, or ''."""
    # Without a day (shipped machines have theirs in the catalog's pages) nothing is old.
    days = sorted(
        day
        for text in origins
        for day in re.findall(r"\b2[0-9]{3}-[01][0-9]-[0-3][0-9](?![0-9])", text)
    )
    with suppress(ValueError, IndexError):  # somebody edited the file
        age = (datetime.now(timezone.utc).date() - date.fromisoformat(days[0])).days
        if age > MOST_DAYS:
            return f"{name} was measured on {days[0]}, {age} days ago; {cure}"
    return ""
