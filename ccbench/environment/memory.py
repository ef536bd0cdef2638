"""Memory of the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ccbench.environment.files import Files, chosen
from ccbench.environment.limits import control_group_limits


@dataclass(frozen=True)
class Memory:
    """Memory of the machine in bytes, and the settings of transparent huge pages in force."""

    total_bytes: int | None
    available_bytes: int | None
    swap_used_bytes: int | None
    huge_pages: str | None
    shared_memory_huge_pages: str | None


def read_memory(files: Files) -> Memory:
    """What the kernel says of the memory."""
    table = files.fields("/proc/meminfo")
    settings = "/sys/kernel/mm/transparent_hugepage"
    swap, swap_free = _kibibytes(table, "SwapTotal"), _kibibytes(table, "SwapFree")
    return Memory(
        total_bytes=_kibibytes(table, "MemTotal"),
        available_bytes=_kibibytes(table, "MemAvailable"),
        swap_used_bytes=None if swap is None or swap_free is None else swap - swap_free,
        huge_pages=chosen(files.text(f"{settings}/enabled")),
        shared_memory_huge_pages=chosen(files.text(f"{settings}/shmem_enabled")),
    )


def _kibibytes(table: Mapping[str, str], name: str) -> int | None:
    found = re.fullmatch(r"([0-9]+) kB", table.get(name, ""))
    return int(found[1]) * 1024 if found else None


def available_memory_bytes(files: Files | None = None) -> int | None:
    """Memory that can still be had: the system's, or the control group's where that is less."""
    files = files or Files()
    found = (read_memory(files).available_bytes, control_group_limits(files).memory_free_bytes)
    return min((amount for amount in found if amount is not None), default=None)
