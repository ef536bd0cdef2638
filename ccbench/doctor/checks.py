"""What a check says, and what checks ask besides files."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from ccbench.backends import open_backend
from ccbench.environment import installed_version
from ccbench.errors import CcbenchError
from ccbench.nvidia import Session, opened

CheckStatus = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    status: ``note`` may explain odd figures, ``problem`` keeps something from working.
    seen: what is there. advice: what to do; empty when nothing needs doing.
    """

    name: str
    status: CheckStatus
    seen: str
    advice: str = ""


@dataclass(frozen=True)
class Surroundings:
    """What the checks ask besides files, so that a test can answer instead of the system.

    space_bytes: path -> (size, free) of the file system there, OSError where there is none.
    has_module: whether a Python module could be imported. version: of a distribution, None if absent.
    clock: the clock that samples are taken with, in seconds. finds_program: whether a program is on PATH.
    driver: opens the NVIDIA driver, DriverAbsent where there is none. unavailable: what a backend says keeps
    it from working, None where nothing does.
    """

    space_bytes: Callable[[str], tuple[int, int]]
    has_module: Callable[[str], bool]
    version: Callable[[str], str | None]
    clock: Callable[[], float]
    finds_program: Callable[[str], bool]
    driver: Callable[[], Session]
    unavailable: Callable[[str], str | None]


def this_system() -> Surroundings:
    """What the system itself answers."""
    return Surroundings(
        space_bytes=_space_bytes,
        has_module=_has_module,
        version=installed_version,
        clock=time.perf_counter,
        finds_program=lambda name: shutil.which(name) is not None,
        driver=opened,
        unavailable=_unavailable,
    )


def _unavailable(backend: str) -> str | None:
    try:
        return open_backend(backend).unavailable()
    except (CcbenchError, ImportError) as error:
        return str(error)


def _space_bytes(path: str) -> tuple[int, int]:
    space = os.statvfs(path)
    return space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail


def _has_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package is missing, or half-installed
        return False


def about(size_bytes: int) -> str:
    """A size to one decimal of its unit; exact digits say nothing here."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"
