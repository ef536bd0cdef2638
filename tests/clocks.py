"""Limits of time that tell work that explodes from a machine that is busy."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

ATTEMPTS = 3


def within(limit_seconds: float, action: Callable[[], Result]) -> Result:
    """Return what ``action`` gives; one attempt of three must take no more time of the processor.

    Without the garbage collector: in a process that ran thousands of tests, one collection takes a second.
    """
    took_seconds = []
    for _ in range(ATTEMPTS):
        gc.disable()
        began_seconds = time.process_time()
        try:
            result = action()
        finally:
            took_seconds.append(time.process_time() - began_seconds)
            gc.enable()
        if took_seconds[-1] <= limit_seconds:
            return result
    raise AssertionError(f"took {took_seconds} s, expected at most {limit_seconds} s")
