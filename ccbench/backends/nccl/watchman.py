"""A thread that aborts what a call of NCCL waits for in vain, because the call itself cannot be left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.5
"""How often the thread looks; between looks it takes no time from what is measured."""


class Watchman:
    """Calls ``on_expiry`` once when what stands in ``limited`` takes longer than its limit.

    The thread starts with the first use, in the process that uses it: threads do not survive a fork.
    """

    def __init__(self, on_expiry: Callable[[], None]) -> None:
        self._on_expiry = on_expiry
        self._deadline = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.expired = False

    @contextmanager
    def limited(self, limit_seconds: float) -> Iterator[None]:
        """Watch over what is done inside; ``expired`` tells afterwards whether it had to be ended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="ccbench-watchman", daemon=True)
            self._thread.start()
        self._deadline = time.monotonic() + limit_seconds
        try:
            yield
        finally:
            self._deadline = 0.0

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            deadline = self._deadline
            if deadline and time.monotonic() > deadline and not self.expired:
                self.expired = True
                self._on_expiry()

    def close(self) -> None:
        """End the thread."""
        self._over.set()
