"""What NCCL chose for a case, from its tuning log, written for one launch only and read at once.

NCCL_DEBUG and its companions are read again after ncclResetDebugInit, which NCCL's header has from 2.24 on;
so the log is on for one launch before the samples, into a private file, and off again while they are taken.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ccbench.backends.nccl.tuning_log import Choice, read_choice

LOGGING = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")

RESET = "ncclResetDebugInit"


def observed_choice(native: Any, collective: str, launch: Callable[[], None]) -> Choice:
    """Do ``launch`` once with NCCL's tuning log on; an empty Choice where this NCCL cannot switch it, or the
    user keeps a log.

    native: the library by ctypes. What ``launch`` raises passes through, with the log off again.
    """
    reset = getattr(native, RESET, None)
    # NCCL opens a user's own log anew after each switch, and what was in it would be gone.
    if reset is None or os.environ.get("NCCL_DEBUG_FILE"):
        launch()
        return Choice()
    reset.restype = None
    with tempfile.TemporaryDirectory(prefix="ccbench-nccl-") as folder:
        file = Path(folder) / "tuning.log"
        before = {name: os.environ.get(name) for name in LOGGING}
        _set(dict(zip(LOGGING, ("INFO", "TUNING", str(file)), strict=True)))
        reset()
        try:
            launch()
        finally:
            _set(before)
            reset()  # NCCL closes the file with the first line that it would write after this
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    return read_choice(text, collective)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
