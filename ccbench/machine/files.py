"""The one seam through which ``/proc``, ``/sys``, ``/dev`` and ``/etc`` are read.

Everything is read below one root folder, so that a test can lay out another machine's files. What is absent
or unreadable is no error: a container often sees less than the host.
"""

from __future__ import annotations

import os
import re
from pathlib import Path


class Files:
    """Files below ``root``; never an exception."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def text(self, path: str) -> str | None:
        """The stripped content of ``path``, odd bytes as ``\\xNN``; None when it cannot be read."""
        try:
            content = (self.root / path.lstrip("/")).read_bytes()
        except OSError:
            return None
        return content.decode("utf-8", "backslashreplace").strip()

    def content(self, path: str, most: int = 4096) -> bytes:
        """The first ``most`` bytes of ``path``; none when it cannot be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(most)
        except OSError:
            return b""

    def number(self, path: str) -> int | None:
        """The whole number ``path`` holds, decimal or ``0x`` hexadecimal; None for anything else."""
        text = self.text(path) or ""
        if re.fullmatch(r"-?[0-9]+", text):
            return int(text)
        return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else None

    def fields(self, path: str, separator: str = ":") -> dict[str, str]:
        """Lines ``name: value`` of ``path``; the first of several equal names counts."""
        found: dict[str, str] = {}
        for line in (self.text(path) or "").splitlines():
            name, split, value = line.partition(separator)
            if split:
                found.setdefault(name.strip(), value.strip().strip('"'))
        return found

    def choice(self, path: str) -> str | None:
        """The word in brackets of a setting such as ``always [madvise] never``."""
        found = re.search(r"\[([^\]]+)\]", self.text(path) or "")
        return found[1] if found else None

    def cpus(self, path: str) -> list[int]:
        """The numbers of a list of the kernel, see ``expanded``."""
        return expanded(self.text(path))

    def matching(self, folder: str, pattern: str = "*") -> list[str]:
        """Paths below ``folder`` that match ``pattern``, sorted, as the other methods take them."""
        try:
            found = sorted((self.root / folder.lstrip("/")).glob(pattern))
        except OSError:
            return []
        return ["/" + path.relative_to(self.root).as_posix() for path in found]

    def target(self, path: str) -> str | None:
        """Where ``path`` leads after all links, as the other methods take it; None when it leads nowhere."""
        root = os.path.realpath(self.root)
        try:
            real = os.path.realpath(Path(root) / path.lstrip("/"), strict=True)
        except OSError:
            return None
        return real[len(root.rstrip("/")) :] if real.startswith(root.rstrip("/") + "/") else None

    def space_bytes(self, path: str) -> tuple[int, int] | None:
        """(size, free) of the file system at ``path``; None where there is none."""
        try:
            space = os.statvfs(self.root / path.lstrip("/"))
        except OSError:
            return None
        return space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail

    def exists(self, path: str) -> bool:
        """True where there is anything at ``path``, a link that leads nowhere too."""
        return os.path.lexists(self.root / path.lstrip("/"))


def expanded(ranges: str | None) -> list[int]:
    """The numbers of a list of the kernel: ``0-1,8`` -> 0, 1, 8; empty for anything else."""
    found: list[int] = []
    for part in (ranges or "").strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or part.endswith("-"):
            return []
        found += range(int(first), int(last or first) + 1)
    return found
