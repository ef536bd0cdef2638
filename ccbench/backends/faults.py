"""Deliberate faults for tests: ``CCBENCH_FAULT=kind:key=value:...`` makes one rank misbehave.

Kinds: ``kill`` and ``stop`` (signal itself before a sample), ``raise`` (a Python error), ``slow`` (sleeps
5 ms in each launch), ``element``, ``nan``, ``swap`` and ``stale`` (spoil the output of a timed sample
before it is checked), ``unsynchronised`` (does not wait for other ranks); of results on inexact data ``reordered``
(added in another order), ``racing`` (in another order every second launch), ``bfloat16`` (added in that type) and
``flipped`` (one bit of one element every second launch). Keys: ``rank`` (default 0, or
``all``), ``collective`` and ``algorithm`` (default: any), ``size`` in bytes (default: any).
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from dataclasses import dataclass

import numpy as np

from ccbench.cases.axes import Case
from ccbench.dtypes import numpy_dtype
from ccbench.errors import UsageError
from ccbench.inexact import INEXACT_PERIOD, inexact_values
from ccbench.verification import Array, poison

VARIABLE = "CCBENCH_FAULT"
_KINDS = (
    "kill",
    "stop",
    "raise",
    "slow",
    "element",
    "nan",
    "swap",
    "stale",
    "unsynchronised",
    "reordered",
    "racing",
    "bfloat16",
    "flipped",
)

_KEYS = {"rank", "collective", "algorithm", "size"}

_RESULTS = itertools.count()
"""Results of this process that a fault has looked at."""

ALL_RANKS = -1
SLOW_SECONDS = 0.005


class InjectedError(RuntimeError):
    """Raised by the fault ``raise``."""


@dataclass(frozen=True)
class Fault:
    """One fault; ``matches`` says whom it hits."""

    kind: str
    rank: int = 0
    collective: str = ""
    algorithm: str = ""
    size_bytes: int = -1

    def matches(self, case: Case, rank: int) -> bool:
        """Return whether this rank must misbehave in this case."""
        return (
            self.rank in (rank, ALL_RANKS)
            and self.collective in ("", case.collective)
            and self.algorithm in ("", case.algorithm)
            and self.size_bytes in (-1, case.size_bytes)
        )

    def before_sample(self) -> None:
        """Kill, stop or raise."""
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.kind == "raise":
            raise InjectedError("a fault was asked for by CCBENCH_FAULT")

    @property
    def slow(self) -> bool:
        """True where the rank must be late in every launch."""
        return self.kind == "slow"

    def before_launches(self, launches: int = 1) -> None:
        """Be late in so many launches, if that is the fault."""
        if self.slow:
            time.sleep(launches * SLOW_SECONDS)

    def spoil(self, output: Array) -> None:
        """Damage a result as a broken transport would."""
        if len(output) == 0:
            return
        # In the middle, where no chunk of a collective begins or ends.
        middle = len(output) // 2
        bits = output.view(f"u{output.dtype.itemsize}")
        if self.kind == "element":
            bits[middle] ^= 1
        if self.kind == "nan":
            bits[middle] = np.iinfo(
                bits.dtype
            ).max  # all ones: a NaN in every IEEE format, -1 as integer
        # Two chunks change places: every value is one that the buffer should hold, only not there.
        if self.kind == "swap":
            quarter = max(1, middle // 2)
            first = bits[:quarter].copy()
            bits[:quarter] = bits[middle : middle + quarter]
            bits[middle : middle + quarter] = first
        # As if these elements were never written since the output was poisoned.
        if self.kind == "stale":
            poison(output[middle : middle + max(1, middle // 2)])


def added_otherwise(fault: Fault, output: Array, case: Case, rank: int) -> Array:
    """Return the sum on inexact data as a library with the fault leaves it on ``rank`` of a group.

    case: as the group sees it.
    """
    second = next(_RESULTS) % 2
    if fault.kind == "flipped" and second:
        output = output.copy()
        output.view(f"u{output.dtype.itemsize}")[len(output) // 2] ^= 1
    if fault.kind in ("reordered", "bfloat16") or (fault.kind == "racing" and second):
        kind = numpy_dtype("bfloat16" if fault.kind == "bfloat16" else case.dtype)
        start = rank * case.count if case.collective == "reduce_scatter" else 0
        parts = [
            np.resize(inexact_values(case, peer, start, INEXACT_PERIOD), len(output)).astype(
                kind
            )
            for peer in range(case.ranks)
        ]
        # From the last rank to the first but one, which comes last.
        total = parts[-1]
        for part in (*parts[-2:1:-1], parts[0], *parts[1:2] * (case.ranks > 2)):
            total = total + part
        output = total.astype(output.dtype)
    return output


def fault_from_environment() -> Fault | None:
    """Return the fault that the environment asks for; UsageError when it is not understood."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    kind, *pairs = text.split(":")
    fields = dict(pair.partition("=")[::2] for pair in pairs)
    for key, otherwise in (("rank", "all"), ("size", "")):
        value = fields.get(key, "0")
        if not value.isdecimal() and value != otherwise:
            also = f" or {otherwise!r}" if otherwise else " of bytes"
            raise UsageError(
                f"{VARIABLE}: {text!r}: {key} is {value!r}; write a whole number{also}"
            )
    if kind not in _KINDS or not fields.keys() <= _KEYS:
        raise UsageError(
            f"{VARIABLE}: {text!r} is not a fault; write kind:key=value:..., a kind of {', '.join(_KINDS)}, "
            "and the keys rank, collective, algorithm, size"
        )
    rank = ALL_RANKS if fields.get("rank") == "all" else int(fields.get("rank", 0))
    size_bytes = int(fields.get("size") or -1)
    return Fault(
        kind, rank, fields.get("collective", ""), fields.get("algorithm", ""), size_bytes
    )
