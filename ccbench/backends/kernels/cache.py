"""What was compiled once: files of the user alone, each with a digest of itself at its end.

What lies here is loaded into this process, or run. So the folders belong to the user and nobody else may
enter them, and a file counts only if it is the user's own and ends with the SHA-256 of the rest: one
that was cut short, damaged or put there by somebody else is made anew. Linkers, loaders and CUDA's driver
follow the offsets in an ELF file's header and never see what comes behind it.

Files are written under another name and then renamed, so that several processes may fill a folder at once.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from ccbench.errors import UsageError

DIGEST_BYTES = 32
FOLDER_MODE = 0o700
FILE_MODE = 0o700
"""Programs among them are run."""

_OTHERS_MAY_WRITE = 0o022

_INTACT: dict[Path, tuple[int, ...]] = {}
"""What this process has read already, with what would have changed if the file had."""


def cache_folder() -> Path:
    """Where builds are kept: ``$CCBENCH_CACHE``, or ``ccbench`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get("CCBENCH_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ccbench"


def private_folder(name: str) -> Path:
    """The folder ``name`` of the cache, made if need be, for nobody but the user.

    UsageError where it cannot be made or belongs to somebody else.
    """
    folder = cache_folder() / name
    try:
        cache_folder().mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        seen = folder.lstat()
        if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
            if stat.S_IMODE(seen.st_mode) != FOLDER_MODE:
                folder.chmod(FOLDER_MODE)
            return folder
    except OSError as error:
        raise _unusable(folder, error) from None
    raise UsageError(
        f"{folder}: is no folder of user {os.geteuid()} (owner: {seen.st_uid}), and what lies there would "
        "be run; remove it or name a place of your own with CCBENCH_CACHE"
    )


def kept(path: Path, make: Callable[[Path], None]) -> Path:
    """``path``, filled by ``make`` unless it is there and intact.

    make: writes the file whose path it is given; what it raises is raised. UsageError where nothing can be
    written.
    """
    if not intact(path):
        try:
            _fill(path, make)
        except OSError as error:
            raise _unusable(path.parent, error) from None
    return path


def _fill(path: Path, make: Callable[[Path], None]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    os.close(handle)
    temporary = Path(name)
    try:
        make(temporary)
        made = temporary.read_bytes()
        with temporary.open("ab") as file:
            file.write(hashlib.sha256(made).digest())
        temporary.chmod(FILE_MODE)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _unusable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{folder}: builds cannot be kept here ({error.strerror}); name a place with CCBENCH_CACHE"
    )


def intact(path: Path) -> bool:
    """Whether ``path`` is a file that this user wrote and that is as it was written."""
    try:
        seen = path.lstat()
        facts = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        if not _is_own(seen):
            return False
        if _INTACT.get(path) == facts:
            return True
        if content(path) is None:
            return False
    except OSError:
        return False
    _INTACT[path] = facts
    return True


def content(path: Path) -> bytes | None:
    """What was kept in ``path``; None where nothing is, or it is damaged or not the user's own."""
    try:
        with path.open("rb") as file:
            if not _is_own(os.fstat(file.fileno())):
                return None
            stored = file.read()
    except OSError:
        return None
    found = stored[:-DIGEST_BYTES]
    return found if hashlib.sha256(found).digest() == stored[-DIGEST_BYTES:] else None


def _is_own(seen: os.stat_result) -> bool:
    return (
        stat.S_ISREG(seen.st_mode)
        and seen.st_uid == os.geteuid()
        and not stat.S_IMODE(seen.st_mode) & _OTHERS_MAY_WRITE
    )
