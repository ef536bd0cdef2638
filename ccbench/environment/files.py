"""The one seam through which the machine is read."""

from __future__ import annotations

import os
import re
from pathlib import Path


class Files:
    """The one seam through which the machine is read: files below ``root``, never an exception."""

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
        """The whole number ``path`` holds, or None."""
        text = self.text(path)
        return int(text) if text is not None and re.fullmatch(r"-?[0-9]+", text) else None

    def fields(self, path: str, separator: str = ":") -> dict[str, str]:
        """Lines ``name: value`` of ``path``; the first of several equal names counts."""
        found: dict[str, str] = {}
        for line in (self.text(path) or "").splitlines():
            name, split, value = line.partition(separator)
            if split:
                found.setdefault(name.strip(), value.strip().strip('"'))
        return found

    def matching(self, folder: str, pattern: str) -> list[str]:
        """Paths below ``folder`` that match ``pattern``, sorted, as the other methods take them."""
        try:
            found = sorted((self.root / folder.lstrip("/")).glob(pattern))
        except OSError:
            return []
        return ["/" + path.relative_to(self.root).as_posix() for path in found]

    def real(self, path: str) -> str:
        """``path`` with every link followed, as the other methods take it."""
        found = os.path.realpath(self.root / path.lstrip("/"))
        try:
            return "/" + Path(found).relative_to(os.path.realpath(self.root)).as_posix()
        except ValueError:  # an absolute link inside another root
            return found

    def exists(self, path: str) -> bool:
        """Whether there is anything at ``path``."""
        return os.path.lexists(self.root / path.lstrip("/"))


def chosen(setting: str | None) -> str | None:
    """``always [madvise] never`` -> ``madvise``."""
    found = re.search(r"\[([^\]]+)\]", setting or "")
    return found[1] if found else None
