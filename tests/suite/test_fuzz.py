"""Whatever is done to a suite, it works or it is refused by a SuiteError in one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from ccbench.cli import main
from ccbench.errors import SuiteError
from ccbench.suite.expansion import expand
from ccbench.suite.model import read_suite, shipped_suites
from tests.clocks import within
from tests.tiers import examples

from .offers import context

# Deterministic, so that a change is judged by the same examples as the change before it.
FUZZ = settings(
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

TEXTS = [path.read_text(encoding="utf-8") for path in shipped_suites().values()]
TREES = [read_suite(text).as_document() for text in TEXTS]
CONTEXT = context()
LIMIT_SECONDS = 1.0

FRAGMENTS = [
    "&a ",
    "*a",
    "!!python/object/apply:os.system ",
    "!x ",
    "<<: ",
    "---\n",
    "...\n",
    "\t",
    "\n",
    "  ",
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "'",
    '"',
    "|\n",
    ">\n",
    "? ",
    "#",
    "%YAML 1.1\n",
    "\x00",
    "\x1b",
    "\u2028",
    "\ufeff",
    "\u202e",
    "\ud7ff",
    "\U0001d7e0",
    "\u0663",
    ".nan",
    ".inf",
    "1e999",
    "9" * 400,
    "-1",
    "0",
    "null",
    "~",
    "true",
    "[" * 50,
    "{a: " * 50,
    "from: ",
    "to: ",
    "step: 1 B",
    "1 TiB",
    "all",
    "auto",
    "../..",
    "collective: all",
    "dtype: all",
    "op: all",
    "ranks: 1000000",
    "root: all",
    "per_decade: 100",
    "1 MiBs",
    "size: ",
]


@st.composite
def mutated_texts(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.sampled_from([0, 0, 1, 2, 8, 40])))
        piece = draw(
            st.one_of(
                st.sampled_from(FRAGMENTS),
                st.just(""),
                st.just(text[at:end] * 2),
                st.text(max_size=4),
            )
        )
        text = text[:at] + piece + text[end:]
    return text


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            0,
            -1,
            1,
            2,
            10**17,
            10**18,
            10**400,
            2**63,
            0.5,
            1e308,
            float("inf"),
            float("nan"),
            "",
            "all",
            "auto",
            "default",
            "8 B",
            "1 TiB",
            "1 PiB",
            "1 MiBs",
            "5%",
            "1 s",
            "100h",
            "ring",
            "ring:2",
            "\x00",
            "a\nb",
            "\u202e",
            "..",
            "x" * 1000,
            [],
            {},
            [[]],
            [{}],
            ["all", 5],
            {"from": 1, "to": 2**50, "step": 1},
            {"from": 1, "to": 10**6, "per_decade": 100},
            {"from": 0, "to": 8},
            {"from": 8, "to": 1 << 30},
            "8:1GiB:2",
        ]
    ),
    st.integers(),
    st.text(max_size=8),
    st.floats(),
)
KEYS = st.one_of(
    st.sampled_from(
        ["from", "to", "size", "sweep", "ranks", "root", "Size", "", "\x00", "a b", "0"]
    ),
    st.text(max_size=4),
)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside ``tree``."""
    inside: list[tuple[Any, Any]] = []
    if isinstance(tree, (dict, list)):
        inside = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
    return [(tree, key) for key, _ in inside] + [
        place for _, value in inside for place in places(value)
    ]


@st.composite
def mutated_trees(draw: st.DrawFn) -> str:
    tree = copy.deepcopy(draw(st.sampled_from(TREES)))
    for _ in range(draw(st.integers(1, 3))):
        found = places(tree)
        if not found:
            break
        container, key = found[draw(st.integers(0, len(found) - 1))]
        action = draw(st.sampled_from(["drop", "replace", "nest", "add", "swap"]))
        if action == "drop":
            del container[key]
        elif action == "replace":
            container[key] = copy.deepcopy(draw(VALUES))
        elif action == "nest":
            for _ in range(draw(st.sampled_from([1, 2, 30]))):
                container[key] = [container[key]]
        elif action == "add" and isinstance(container, dict):
            container[draw(KEYS)] = copy.deepcopy(draw(VALUES))
        else:
            other, another = found[draw(st.integers(0, len(found) - 1))]
            container[key] = copy.deepcopy(other[another])
    # Python writes Infinity and NaN, which YAML reads as text.
    return json.dumps(tree, ensure_ascii=draw(st.booleans()))


def works_or_is_refused(text: str) -> None:
    within(LIMIT_SECONDS, lambda: judged(text))  # a suite must never be a way to stall a run


def judged(text: str) -> None:
    try:
        suite = read_suite(text, "x.yaml")
        cases = expand(suite, CONTEXT)
    except SuiteError as problem:
        message = str(problem)
    else:
        assert 1 <= len(cases) <= 100_000
        return
    assert message.startswith("x.yaml:")
    assert message.isprintable()
    assert len(message) < 1000


@examples(100, 1000, FUZZ, text=mutated_texts())
def test_a_mutated_text_works_or_is_refused_in_one_line(text: str) -> None:
    works_or_is_refused(text)


@examples(100, 1000, FUZZ, text=mutated_trees())
def test_a_mutated_tree_works_or_is_refused_in_one_line(text: str) -> None:
    works_or_is_refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sweep: {collective: all_reduce, size: 8:1TiB:1.0000001}",
        "sweep: {collective: all_reduce, dtype: !!python/object/apply:os.system x}",
        "sweep: {collective: 'a\x1b[31m\u202eb'}",
    ],
)
def test_the_command_refuses_a_broken_suite_in_one_line_with_2(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as leaving:
        main(["run", str(path), "--plan"])
    out, err = capfd.readouterr()
    assert leaving.value.code == 2
    assert out == ""
    (line,) = err.removesuffix("\n").split("\n")
    assert line.isprintable()
    assert "x.yaml" in line
