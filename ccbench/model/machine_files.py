"""Files of values that ``ccbench predict --from`` writes: strict YAML, and how old what they hold is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, timezone
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccbench.documents import yaml_text
from ccbench.errors import MachineError

Floats = NDArray[np.float64]

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
