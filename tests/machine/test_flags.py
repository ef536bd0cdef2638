"""One registry of flags: what code writes, docs list and readers ask for is in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccbench.flags import DEVICE_FAULTS, DEVICE_FLAGS, LOAD_FLAGS, Flag

ROOT = Path(__file__).resolve().parents[2]

HOMONYMS = {
    Flag.OVERSUBSCRIBED: "a column of its own",
    Flag.SHARED_CORE: "a sample of the calibration",
    Flag.LOOPBACK: "a kind of network interface, and of finding",
    Flag.EMULATION: "a kind of finding",
    Flag.CPU_TIME: "a key of nccl-tests' JSON",
    Flag.INCOMPLETE: "a kind of finding",
}


def _literals(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _named_flags(node: ast.AST) -> bool:
    name = (
        node.attr
        if isinstance(node, ast.Attribute)
        else getattr(node, "id", getattr(node, "arg", ""))
    )
    return name == "flags"


def literal_flags(tree: ast.Module) -> list[str]:
    """Words written as plain text where a flag belongs: given to, or sought in, something named ``flags``."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and _named_flags(node):
            found += () if isinstance(node.value, ast.Call) else _literals(node.value)
        elif (
            isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
            and node.value is not None
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(map(_named_flags, targets)) and isinstance(node.value, ast.Tuple | ast.List):
                found += _literals(node.value)
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
            sought_in_flags = "flags" in "".join(map(ast.unparse, node.comparators))
            found += _literals(node.left) if sought_in_flags else ()
    return found


def test_flags_are_written_by_their_name_in_the_registry() -> None:
    words = {str(flag) for flag in Flag if flag not in HOMONYMS}
    for path in (ROOT / "ccbench").rglob("*.py"):
        if path.name != "flags.py":
            text = path.read_text(encoding="utf-8")
            if "flags" not in text and not any(word in text for word in words):
                continue
            tree = ast.parse(text)
            again = words & set(_literals(tree))
            assert (path, literal_flags(tree), again) == (path, [], set())


@pytest.mark.parametrize(
    "planted",
    [
        "measured = replace(measured, flags=('hot',))",
        "flags = ('hot', *more)",
        "self.flags = ['hot']",
        "seen = 'hot' in row['flags']",
    ],
)
def test_a_flag_written_as_text_is_seen(planted: str) -> None:
    assert literal_flags(ast.parse(planted)) == ["hot"]


def test_the_documentation_lists_every_flag_with_its_meaning() -> None:
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    listed = text.split("| flag | when |\n")[1].split("\n\n")[0].splitlines()
    assert listed[1:] == [f"| `{flag}` | {flag.meaning} |" for flag in Flag]


def test_flags_are_plain_words_wherever_they_are_written() -> None:
    assert f"{Flag.STEAL} {Flag.STEAL!s}" == "steal steal"
    assert Flag.STEAL in ["steal"]
    assert {*Flag} >= {"steal", "device_lost"}


def test_lists_of_flags_are_made_from_the_registry() -> None:
    assert LOAD_FLAGS == (Flag.OTHER_LOAD, Flag.STEAL, Flag.CPU_CONTENTION)
    assert set(DEVICE_FLAGS) - set(DEVICE_FAULTS) == {
        Flag.POWER_CAPPED,
        Flag.CLOCK_DROPPED,
        Flag.CLOCK_LOW,
    }
    assert not {*DEVICE_FLAGS, *LOAD_FLAGS} & {flag for flag in Flag if flag.arrangement}
