"""Sizes of ccbench, its tests, benchmarks and docs, held under the ceilings of budget.yaml.

The unit is the node of the syntax tree: lines can be squeezed, nodes cannot, and how many nodes stand on a line says
whether lines were squeezed. A ceiling is in thousand nodes, since Pythons count some forms differently by a few nodes
in all. Each landing lowers the ceilings to what is there, and nobody raises one: what needs room takes out as much of
the same package. A line of code holds a token other than a comment, and no docstring; a function's length is that of
its body.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import yaml

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = yaml.safe_load((ROOT / "tests" / "budget.yaml").read_text(encoding="utf-8"))
FLAT = "flat modules"

# A ceiling may be this far above what is there: the room that a landing made is not for the next one to fill.
SLACK = 0.01

# Nodes on a line of code, formatted at 96 columns. No mark keeps lines from the formatter.
NODES_A_LINE = 9.5
KEPT_FROM_THE_FORMATTER = re.compile(r"#\s*fmt:")

# Names that say nothing of what they hold, in percent of all names that are bound; to reach: 1.5.
EMPTY_NAMES = frozenset(
    [
        "one",
        "ones",
        "found",
        "told",
        "said",
        "asked",
        "known",
        "wanted",
        "other",
        "others",
        "seen",
        "given",
    ]
)
EMPTY_NAMES_PERCENT = 0.5

# Class names that stand for two things or more; to reach: 15.
CLASSES_NAMED_TWICE = 1

# Functions.
HELPERS_USED_ONCE_PERCENT = 12.0
MEDIAN_FUNCTION, LONGEST_FUNCTION = 12, 60

# Of docs/.
MOST_PAGES, MOST_BYTES = 15, 180_000

# A floor, not a ceiling: comments per 100 lines of code, docstrings and marks for tools left out.
COMMENTS_PER_100 = 3.0
_MARK = re.compile(r"#\s*(noqa|type:|pragma)")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """Figures of one module; functions: the lines of code of each."""

    part: str
    nodes: int
    code: frozenset[int]
    comments: int
    functions: tuple[int, ...]
    helpers_used_once: int
    names: Counter[str]
    classes: tuple[str, ...]
    kept_from_the_formatter: int


def lines_of_code(text: str, tree: ast.Module) -> frozenset[int]:
    """The numbers of the lines that hold code."""
    lines = dict(enumerate(map(str.strip, text.splitlines()), 1))
    comments = {number for number, line in lines.items() if line.startswith("#")}
    code, documents = {number for number, line in lines.items() if line} - comments, set[int]()
    for node in ast.walk(tree):
        match node:
            # Any expression that is a bare string documents something: a module, a class, a constant.
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                documents |= set(range(first, (last or first) + 1))
            case ast.Constant(value=str(value), lineno=first, end_lineno=last) if last != first:
                code |= {
                    number
                    for number in range(first, (last or first) + 1)
                    if lines[number] in value
                }
    return frozenset(code - documents)


def comments(text: str) -> list[str]:
    """Comments that people read, also those at the end of a line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    texts = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [comment for comment in texts if not _MARK.match(comment)]


def bound_names(tree: ast.Module) -> Counter[str]:
    """Names that are bound: variables, parameters, attributes, functions, classes."""
    names: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names[name] += 1
            case ast.arg(arg=name):
                names[name] += 1
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names[name] += 1
    return names


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
    code, nodes = lines_of_code(text, tree), list(ast.walk(tree))
    lengths = (
        sum(line in code for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1))
        for node in nodes
        if isinstance(node, Function)
    )
    return Source(
        part,
        nodes=len(nodes),
        code=code,
        comments=len(comments(text)),
        functions=tuple(lengths),
        helpers_used_once=helpers_used_once(tree),
        names=bound_names(tree),
        classes=tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        kept_from_the_formatter=len(KEPT_FROM_THE_FORMATTER.findall(text)),
    )


def part_of(path: Path) -> str:
    """The package that a file belongs to, from its path below ccbench/ or tests/."""
    return path.parts[0] if len(path.parts) > 1 else FLAT


@cache
def sources() -> tuple[Source, ...]:
    package = ROOT / "ccbench"
    return tuple(
        read(file.read_text(encoding="utf-8"), part_of(file.relative_to(package)))
        for file in sorted(package.rglob("*.py"))
    )


def nodes_of(folder: str) -> Counter[str]:
    """Nodes of every package of a folder of the checkout."""
    sizes: Counter[str] = Counter()
    for file in (ROOT / folder).rglob("*.py"):
        nodes = sum(1 for _ in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        sizes[part_of(file.relative_to(ROOT / folder))] += nodes
    return sizes


def expect_within(ceilings: Mapping[str, int], sizes: Mapping[str, int], step: int) -> None:
    """Fail for every size above its ceiling, and for every ceiling that is to be lowered."""
    lowest = {name: -(-size // step) for name, size in sizes.items()}
    too_large = {
        name: f"{size:,} of {ceilings.get(name, 0) * step:,}"
        for name, size in sizes.items()
        if lowest[name] > ceilings.get(name, 0)
    }
    assert not too_large, "above the ceiling: take out as much as came in"
    to_lower = {
        name: lowest.get(name, 0)
        for name, ceiling in ceilings.items()
        if ceiling > lowest.get(name, 0) + max(1, SLACK * lowest.get(name, 0))
    }
    assert not to_lower, "lower these ceilings in tests/budget.yaml"


def total(figure: Callable[[Source], int]) -> int:
    return sum(map(figure, sources()))


def lines() -> int:
    return total(lambda source: len(source.code))


def test_every_package_keeps_its_ceiling() -> None:
    sizes: Counter[str] = Counter()
    for source in sources():
        sizes[source.part] += source.nodes
    expect_within(CEILINGS["ccbench"], sizes, 1000)


def test_tests_and_benchmarks_keep_their_ceilings() -> None:
    expect_within(CEILINGS["tests"], nodes_of("tests"), 1000)
    expect_within(
        {"benchmarks": CEILINGS["benchmarks"]},
        {"benchmarks": nodes_of("benchmarks").total()},
        1000,
    )


def test_docs_keep_their_ceilings() -> None:
    pages = list((ROOT / "docs").glob("*.md"))
    size = sum(page.stat().st_size for page in pages)
    expect_within(CEILINGS["docs"], {"kilobytes": size, "pages": 1000 * len(pages)}, 1000)
    assert max(len(pages) / MOST_PAGES, size / MOST_BYTES) <= 1


def test_lines_are_not_squeezed() -> None:
    assert total(lambda source: source.nodes) / lines() <= NODES_A_LINE
    assert total(lambda source: source.kept_from_the_formatter) == 0


def test_few_names_say_nothing() -> None:
    names = sum((source.names for source in sources()), Counter[str]())
    empty = sum(names[name] for name in EMPTY_NAMES)
    assert 100 * empty / names.total() <= EMPTY_NAMES_PERCENT


def test_few_classes_share_a_name() -> None:
    classes = Counter(name for source in sources() for name in source.classes)
    assert sum(number > 1 for number in classes.values()) <= CLASSES_NAMED_TWICE


def test_few_private_helpers_are_used_once() -> None:
    functions = total(lambda source: len(source.functions))
    once = total(lambda source: source.helpers_used_once)
    assert 100 * once / functions <= HELPERS_USED_ONCE_PERCENT


def test_functions_are_short() -> None:
    lengths = [length for source in sources() for length in source.functions]
    assert median(lengths) <= MEDIAN_FUNCTION
    assert max(lengths) <= LONGEST_FUNCTION


def test_comments_say_why() -> None:
    assert 100 * total(lambda source: source.comments) / lines() >= COMMENTS_PER_100


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
    assert source.comments == 2
    assert source.functions == (1, 1, 3)
    assert source.helpers_used_once == 1
