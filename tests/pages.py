"""The fenced blocks of README.md, CONTRIBUTING.md and docs/*.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PAGES = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/*.md")])


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, what follows its fence, the comment on the line before, its lines."""

    page: Path
    number: int
    language: str
    mark: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}:{self.number}"

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def blocks_of(page: Path, text: str | None = None) -> Iterator[Block]:
    """Yield the blocks of ``page``, or of ``text`` in its place, without the indentation of their fence."""
    lines = (page.read_text(encoding="utf-8") if text is None else text).splitlines()
    opened: tuple[int, str, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(lines, 1):
        fence = re.fullmatch(r"( *)```([\w-]*(?: [\w-]+)*)", line)
        if opened is None and fence:
            mark = re.fullmatch(r" *<!-- (.*) -->", lines[number - 2] if number > 1 else "")
            opened = number, fence[1], fence[2], mark[1] if mark else ""
        elif opened is not None and fence and line == f"{opened[1]}```":
            yield Block(page, opened[0], opened[2], opened[3], tuple(inside))
            opened, inside = None, []
        elif opened is not None:
            inside.append(line.removeprefix(opened[1]))
    assert opened is None, f"{page.name}: the block of line {opened} never ends"


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
