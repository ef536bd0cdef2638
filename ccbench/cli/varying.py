"""``--vary``: two configurations or more, measured in turns in one run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import UsageError
from ccbench.units import shown, suggestion

FEWEST_ROUNDS = 6
"""Rounds that show a difference of two configurations at 95 %, with some to spare for a disturbed one."""

LIBRARY, BACKEND = "library", "backend"

AXES = ("algorithm", "protocol", "channels", "registration", "mode", "transport", "dtype")
"""Axes of a sweep whose values are ways to do the same work."""

_VARIABLE = re.compile(r"[A-Z][A-Za-z0-9_]{0,127}", re.ASCII)
_UNFIT = re.compile(r"[^A-Za-z0-9.+-]+", re.ASCII)


@dataclass(frozen=True)
class Varied:
    """What is varied. axis: its column. base: its first value. sweep, variants: of a suite. backends: of the run."""

    axis: str
    base: str
    sweep: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    backends: tuple[str, ...] = ()


def varied_of(texts: Sequence[str]) -> Varied | None:
    """Return what the values of ``--vary`` say; None of none. An empty value takes its variable away.

    Raises UsageError for a name that nothing has, for several names, and where there is one value alone.
    """
    if not texts:
        return None
    pairs = [text.partition("=") for text in texts]
    names = dict.fromkeys(name for name, _, _ in pairs)
    if "" in (sign for _, sign, _ in pairs):
        raise UsageError(
            "--vary: write NAME=VALUE, such as algorithm=default,ring or NCCL_ALGO=Ring"
        )
    if len(names) > 1:
        raise UsageError(
            f"--vary: {' and '.join(map(shown, names))}: vary one thing at a time; variants of a suite set several"
        )
    (name,) = names
    if _VARIABLE.fullmatch(name):
        return _of_variable(name, [value for _, _, value in pairs])
    values = [
        word.strip() for _, _, value in pairs for word in value.split(",") if word.strip()
    ]
    if name not in (*AXES, LIBRARY, BACKEND):
        known = (*AXES, LIBRARY, BACKEND)
        raise UsageError(
            f"--vary {shown(name)}: no variable, and no axis; {suggestion(name, known)}"
        )
    if len({*values}) < 2:
        raise UsageError(f"--vary {name}: write two values or more, such as {name}=A,B")
    if name == BACKEND:
        return Varied(BACKEND, values[0], backends=tuple(values))
    if name == LIBRARY:
        files = {_name_of(os.path.basename(path)): {"library": path} for path in values}
        if len(files) < len(values):
            files = {_name_of(path.strip("/")): {"library": path} for path in values}
        return Varied("variant", next(iter(files)), variants=files)
    return Varied(name, values[0], {name: values})


def _of_variable(name: str, values: Sequence[str]) -> Varied:
    """Variants of a variable; one value is set beside none."""
    every = list(dict.fromkeys(values))
    if not any(every):
        raise UsageError(
            f"--vary {name}=: write a value to compare with unset, such as {name}=1"
        )
    if len(every) == 1:
        every.insert(0, "")
    if "" in every:
        # What this process does not have the ranks do not have, but where a variant sets it.
        os.environ.pop(name, None)
    variants = {
        _name_of(value) or "unset": {"env": {name: value}} if value else {} for value in every
    }
    if len(variants) < len(every):
        raise UsageError(
            f"--vary {name}: values that differ in signs alone have no names; write a suite's variants"
        )
    return Varied("variant", next(iter(variants)), variants=variants)


def _name_of(value: str) -> str:
    """A name that a variant may have, of its value."""
    return _UNFIT.sub("_", value).strip("_.+-")[:32]
