from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ccbench.documents import MOST_BYTES, MOST_NODES, read_document
from ccbench.errors import SuiteError


def read(text: str) -> Any:
    return read_document(text.encode(), "x.yaml").tree


def refusal(content: str | bytes) -> str:
    encoded = content.encode() if isinstance(content, str) else content
    with pytest.raises(SuiteError) as problem:
        read_document(encoded, "x.yaml")
    text = str(problem.value)
    assert text.startswith("x.yaml:")
    assert text.isprintable()
    return text


@pytest.fixture(params=["libyaml", "python"])
def _either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where PyYAML was built without libyaml both are the parser in Python.
    if request.param == "python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)


@pytest.mark.usefixtures("_either_parser")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-3", -3),
        ("010", 10),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ("~", None),
        ("'8'", "8"),
        ('"true"', "true"),
        ("8:30", "8:30"),
        ("no", "no"),
        ("on", "on"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("8 B", "8 B"),
        ("", None),
        ("|\n  a\n  b", "a\nb"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = read(f"key: {text}")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.usefixtures("_either_parser")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: &x 1", "x.yaml:1: a: anchors and aliases are not read; write the value out"),
        ("a: 1\nb: *a", "x.yaml:2: b: anchors and aliases are not read; write the value out"),
        (
            "a: !!python/name:os.system x",
            "x.yaml:1: a: the tag '!!python/name:os.system' is not read; write the plain value",
        ),
        ("a: !!int '3'", "x.yaml:1: a: the tag '!!int' is not read; write the plain value"),
        ("a: ! x", "x.yaml:1: a: the tag '!' is not read; write the plain value"),
        ("a: 1\n\na: 2", "x.yaml:3: a: the key is given twice, first on line 1; keep one"),
        (
            "a:\n  - b: 1\n    b: 1",
            "x.yaml:3: a[0].b: the key is given twice, first on line 2; keep one",
        ),
        ("? [a]\n: 1", "x.yaml:1: a key is not a plain word; write 'key: value'"),
        ("!!str a: 1", "x.yaml:1: a key is not a plain word; write 'key: value'"),
        ("a: 1\n---\nb: 1", "x.yaml:2: a second document starts; a file holds one suite"),
        ("", "x.yaml: is empty; write at least 'sweep:' with a collective"),
        ("# nothing", "x.yaml: is empty; write at least 'sweep:' with a collective"),
        ("a: .nan", "x.yaml:1: a: '.nan' is not a number to work with; write a finite one"),
        (
            "a: [1, -.inf]",
            "x.yaml:1: a[1]: '-.inf' is not a number to work with; write a finite one",
        ),
        ("a: 1e999", "x.yaml:1: a: '1e999' is too large; write a finite number"),
        (
            "a: 1234567890123456789",
            "x.yaml:1: a: a number of more than 18 digits; write a smaller one",
        ),
        ("a: '\u200b'", "x.yaml:1: holds the invisible character U+200B; delete it"),
        ("a: 1\nb: '\u202e'", "x.yaml:2: holds the invisible character U+202E; delete it"),
        ("a: \x1b[31m", "x.yaml:1: holds the invisible character U+001B; delete it"),
        ("a: '\u2028'", "x.yaml:1: holds the invisible character U+2028; delete it"),
        (b"a: 1\nb: \xff", "x.yaml:2: is not UTF-8 text; save the file as UTF-8"),
        (b"a: \xed\xa0\x80", "x.yaml:1: is not UTF-8 text; save the file as UTF-8"),
        ("[" * 1000, "x.yaml:1: nested deeper than 20 levels; a suite needs 4"),
        (
            "a: [" + "1," * MOST_NODES + "1]",
            f"more than {MOST_NODES} values; write ranges instead of lists",
        ),
        ("#" + "x" * MOST_BYTES, "x.yaml: is larger than 256 KiB; a suite is a page of YAML"),
    ],
)
def test_what_a_suite_does_not_need_is_refused(content: str | bytes, message: str) -> None:
    text = refusal(content)
    assert text == message or (message in text and len(content) > 10_000)


plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**17), 10**17),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=20),
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abc123", min_size=1), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain)
def test_what_json_can_say_is_read_as_json_says_it(value: object) -> None:
    text = json.dumps({"key": value}, ensure_ascii=False)
    found = read(text)["key"]
    assert found == value or (isinstance(value, float) and math.isclose(found, value))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_tree_or_a_suite_error(content: bytes) -> None:
    problem = ""
    try:
        tree = read_document(content, "x.yaml").tree
    except SuiteError as error:
        tree, problem = None, str(error)
    assert problem.isprintable()
    assert tree is None or isinstance(tree, (dict, list, str, int, float))
