"""The size of ccbench/, counted from the source and held under ceilings.

A ceiling is the figure of the day it was written. It may be lowered, never raised: code that needs room makes
it by removing what stands twice; only what moves between packages takes its lines along. The ceilings were
raised four times: by 922 lines when predictions got intervals and anchors, and reports a verdict; by 1,912
when traces of jobs were read and replayed, in some 3,200 lines, for part of which others made room; by 2,283
for fleet checks (880), variants of libraries (400), NCCL 2.28 to 2.32 and setups (240), backends of oneCCL,
RCCL and HCCL (550), and runs that are held against their own other sizes (200); by 76 when variants were
compared in pairs and each round could have ranks of its own. A
line of code holds a token other than a comment, and no docstring; a function's length is that of its lines
of code.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "ccbench"
FLAT = "flat modules"

# (lines of code, files) of ccbench/; to reach: 36,000 lines and 210 files.
WHOLE = (50_799, 261)

# Of every package (lines of code, files); to reach: 12 packages and 8 flat modules.
CEILINGS = {
    "analysis": (3_729, 16),
    "backends": (8_907, 46),
    "cli": (1_926, 15),
    "machine": (2_378, 11),
    "model": (5_214, 24),
    "plan": (2_578, 12),
    "report": (5_161, 27),
    "results": (6_894, 39),
    "runner": (3_678, 21),
    "schedules": (1_226, 9),
    "suite": (1_514, 7),
    "topology": (5_997, 24),
    FLAT: (1_597, 10),
}

# Functions; to reach: 12 % private helpers that are used once, none over 60 lines.
HELPERS_USED_ONCE_PERCENT = 12.0
MEDIAN_FUNCTION, LONGEST_FUNCTION = 12, 54

# A floor, not a ceiling: comment lines per 100 lines of code that say why; to reach: 3 to 6.
COMMENTS_PER_100 = 3.0

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """Figures of one module; functions: the lines of code of each."""

    part: str
    code: frozenset[int]
    comments: int
    functions: tuple[int, ...]
    helpers_used_once: int


def lines_of_code(text: str, tree: ast.Module) -> tuple[frozenset[int], int]:
    """The numbers of the lines that hold code, and how many hold a comment alone."""
    lines = dict(enumerate(map(str.strip, text.splitlines()), 1))
    comments = {number for number, line in lines.items() if line.startswith("#")}
    code, documents = {number for number, line in lines.items() if line} - comments, set[int]()
    for node in ast.walk(tree):
        match node:
            # Any expression that is a bare string documents something: a module, a class, a constant.
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                documents |= set(range(first, (last or first) + 1))
            case ast.Constant(value=str(value), lineno=first, end_lineno=last) if last != first:
                code |= {number for number in range(first, (last or first) + 1) if lines[number] in value}
    return frozenset(code - documents), len(comments - code - documents)


def helpers_used_once(tree: ast.Module) -> int:
    """Private functions and methods that their module names exactly once beside their definition."""
    named = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return sum(
        isinstance(node, Function)
        and node.name.startswith("_")
        and not node.name.endswith("__")
        and named[node.name] == 1
        for node in ast.walk(tree)
    )


def read(text: str, part: str = FLAT) -> Source:
    tree = ast.parse(text)
    code, comments = lines_of_code(text, tree)
    lengths = (
        sum(line in code for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for node in ast.walk(tree)
        if isinstance(node, Function)
    )
    return Source(part, code, comments, tuple(lengths), helpers_used_once(tree))


@cache
def sources() -> tuple[Source, ...]:
    return tuple(_sources())


def _sources() -> Iterator[Source]:
    for file in sorted(PACKAGE.rglob("*.py")):
        folders = file.relative_to(PACKAGE).parts[:-1]
        yield read(file.read_text(encoding="utf-8"), folders[0] if folders else FLAT)


def size(part: str | None = None) -> tuple[int, int]:
    """(lines of code, files) of ``part``; of everything without one."""
    mine = [source for source in sources() if part in (None, source.part)]
    return sum(len(source.code) for source in mine), len(mine)


def test_the_whole_package_keeps_its_budget() -> None:
    (lines, files), (most_lines, most_files) = size(), WHOLE
    assert lines <= most_lines
    assert files <= most_files


@pytest.mark.parametrize("part", CEILINGS)
def test_every_package_keeps_its_budget(part: str) -> None:
    (lines, files), (most_lines, most_files) = size(part), CEILINGS[part]
    assert lines <= most_lines
    assert files <= most_files


def test_every_package_has_a_budget() -> None:
    assert {source.part for source in sources()} == set(CEILINGS)


def test_few_private_helpers_are_used_once() -> None:
    functions = sum(len(source.functions) for source in sources())
    once = sum(source.helpers_used_once for source in sources())
    assert 100 * once / functions <= HELPERS_USED_ONCE_PERCENT


def test_functions_are_short() -> None:
    lengths = [length for source in sources() for length in source.functions]
    assert median(lengths) <= MEDIAN_FUNCTION
    assert max(lengths) <= LONGEST_FUNCTION


def test_comments_say_why() -> None:
    assert 100 * sum(source.comments for source in sources()) / size()[0] >= COMMENTS_PER_100


PLANTED = '''"""A docstring
of two lines."""

# Why.
LIMIT = 3  # bytes
"""What it limits."""


def use() -> int:
    """No code."""
    return _once() + _twice() + _twice()


def _once() -> int:
    return LIMIT

def _twice() -> int:
    return (
        1
    )
'''


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    source = read(PLANTED)
    assert len(source.code) == 9
    assert source.comments == 1
    assert source.functions == (2, 2, 4)
    assert source.helpers_used_once == 1
