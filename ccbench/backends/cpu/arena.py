"""A rank's buffers in memory that all ranks of a host map.

Each arena is a file without a directory entry (memfd, or an unlinked temporary file where the system has
none) that grows with the largest case, and vanishes with the last process that holds it.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from ccbench.backends.control_block import anonymous_file
from ccbench.verification import Array


class Arena:
    """One rank's buffers, mapped by every rank. Only the owner grows it."""

    def __init__(self) -> None:
        self.file = anonymous_file()
        self._mapping: mmap.mmap | None = None
        self._bytes = 0

    def reserve(self, needed_bytes: int) -> None:
        """Grow the file (owner only) to at least ``needed_bytes``; pages are taken when first written."""
        if needed_bytes > os.fstat(self.file).st_size:
            os.ftruncate(self.file, needed_bytes)

    def release(self) -> None:
        """Forget the mapping; every view of it must be gone, or pages stay until it is."""
        self._mapping = None
        self._bytes = 0

    def shrink(self) -> None:
        """Give the memory back (owner only, after every rank released its mapping)."""
        os.ftruncate(self.file, 0)

    def view(self, offset_bytes: int, elements: int, dtype: np.dtype[np.generic]) -> Array:
        """Return ``elements`` elements from ``offset_bytes`` on, shared with every other rank."""
        if elements == 0:
            return np.empty(0, dtype)
        needed = offset_bytes + elements * dtype.itemsize
        # The owner may have grown the file since it was mapped here.
        if self._mapping is None or self._bytes < needed:
            self._bytes = os.fstat(self.file).st_size
            self._mapping = mmap.mmap(self.file, self._bytes)
        raw = np.frombuffer(self._mapping, np.uint8, elements * dtype.itemsize, offset_bytes)
        return raw.view(dtype)
