from __future__ import annotations

import re
from pathlib import Path

import pytest

from ccbench.backends.kernels.layout import PREFIX
from ccbench.cases.axes import AXES
from ccbench.suite.expansion import expand
from ccbench.suite.grouping import GROUP_MODES
from ccbench.suite.model import SamplingRules, Suite, Sweep, read_suite
from tests.pages import blocks_of

from .offers import context

PAGE = "\n".join(
    (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8")
    for name in ("suites.md", "backends.md")
)
EXAMPLES = [
    block.text for block in blocks_of(Path("suites.md"), PAGE) if block.language == "yaml"
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_is_a_suite(text: str) -> None:
    assert expand(read_suite(text), context())


def test_every_key_and_word_is_explained() -> None:
    keys = [
        field.alias or name
        for m in (Suite, Sweep, SamplingRules)
        for name, field in m.model_fields.items()
    ]
    for word in (
        *keys,
        *(value for axis in AXES for value in axis.values),
        *GROUP_MODES,
    ):
        assert f"`{word}`" in PAGE or f"{word}:" in PAGE, word


INTERNAL = re.compile(r"CCBENCH_(LEADER|HUB|AGENTS|RUNNER|ONE_HOST|HAND_ON|COMPLETE)")
"""What ccbench sets for its own processes."""


def test_every_variable_that_a_user_may_set_stands_in_a_document() -> None:
    root = Path(__file__).resolve().parents[2]
    sources = [path.read_text() for path in (root / "ccbench").rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"\bCCBENCH_[A-Z_]*[A-Z]\b", text)}
    documents = "".join(path.read_text() for path in (root / "docs").glob("*.md"))
    kernels = (f"{PREFIX}{name}" for name in ("CHANNELS", "LANES", "SLOTS", "SLOT_BYTES"))
    expected = {*kernels, *(name for name in named if not INTERNAL.match(name))}
    assert {"CCBENCH_FAULT", "CCBENCH_BLOCKING_KERNEL", "CCBENCH_CACHE"} <= expected
    assert [name for name in sorted(expected) if name not in documents] == []
