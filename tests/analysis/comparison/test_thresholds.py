from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.verdicts import (
    ThresholdRule,
    Thresholds,
    load_thresholds,
    read_thresholds,
)
from ccbench.errors import UsageError

TEXT = b"""
default: 4%
rules:
  - size: {to: 32 KiB}
    threshold: 15%
  - collective: [all_reduce, all_gather]
    backend: nccl
    size: {from: 1 MiB, to: 1 GiB}
    threshold: 0.03
"""


def test_the_last_rule_that_fits_a_point_rules() -> None:
    thresholds = read_thresholds(TEXT)
    assert thresholds.of("all_reduce", "nccl", 2**20) == 0.03
    assert thresholds.of("all_reduce", "cpu", 2**20) == 0.04
    assert thresholds.of("broadcast", "nccl", 2**20) == 0.04
    assert thresholds.of("all_reduce", "nccl", 32 * 1024) == 0.15
    assert thresholds.of("all_reduce", "nccl", 2**30 + 1) == 0.04


POINTS = {("all_reduce", "nccl", 2**20), ("all_reduce", "cpu", 64)}


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("{threshold: 1%}", ""),
        ("{threshold: 1%, backend: nccl}", ""),
        (
            "{threshold: 1%, backend: ncll}",
            "t.yaml:2: rules[0].backend: 'ncll' is a backend of no point; did you",
        ),
        (
            "{threshold: 1%, backend: osu}",
            "'osu' is a backend of no point; write one of cpu, nccl",
        ),
        ("{threshold: 1%, backend: [cpu, ncll]}", "did you mean 'nccl'?"),
        (
            "{threshold: 1%, backend: cpu, size: {from: 1 KiB}}",
            "t.yaml:2: rules[0]: fits no point of either side",
        ),
        (
            "{threshold: 1%, collective: broadcast}",
            "fits no point of either side; check its collective and size",
        ),
    ],
)
def test_a_rule_that_is_in_force_nowhere_is_told(rule: str, sentence: str) -> None:
    thresholds = read_thresholds(f"rules:\n- {rule}".encode(), "t.yaml")
    lines = thresholds.unused(POINTS)
    assert len(lines) == bool(sentence)
    assert sentence in "".join(lines)
    assert thresholds.unused(()) == ()


def test_a_file_without_a_default_takes_that_of_the_command_line() -> None:
    assert read_thresholds(b"rules: []", default=0.2) == Thresholds(0.2)
    assert read_thresholds(b"default: 7%", default=0.2).default == 0.07


@pytest.mark.parametrize(
    ("text", "place", "complaint"),
    [
        ("default: 0%", ":1: default", "decides nothing"),
        ("default: 5 MiB", ":1: default", "not a percentage"),
        ("defualt: 5%", ":1: defualt", "did you mean 'default'"),
        ("rules: 5%", ":1: rules", "is not a list"),
        ("rules:\n- 5%", ":2: rules[0]", "is not a mapping"),
        ("rules:\n- size: {to: 1 KiB}", ":2: rules[0]", "has no 'threshold'"),
        (
            "rules:\n- threshold: 5%\n  size: {to: 1 KiBs}",
            ":3: rules[0].size.to",
            "is not a size",
        ),
        ("rules:\n- threshold: 5%\n  size: {from: 2, to: 1}", ":3: rules[0].size", "exchange"),
        ("rules:\n- threshold: 5%\n  size: 1 KiB", ":3: rules[0].size", "is not a mapping"),
        (
            "rules:\n- threshold: 5%\n  collective: allreduce",
            ":3: rules[0].collective",
            "all_reduce",
        ),
        ("rules:\n- threshold: 5%\n  backend: [1]", ":3: rules[0].backend", "neither a name"),
        (
            "rules:\n- threshold: 5%\n  bakend: nccl",
            ":3: rules[0].bakend",
            "did you mean 'backend'",
        ),
        ("default: 5%\ndefault: 6%", ":2: default", "given twice"),
        ("- a", "", "is not a mapping"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_place(
    text: str, place: str, complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_thresholds(text.encode(), "t.yaml")
    assert str(caught.value).startswith("t.yaml" + place)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: cannot be read"):
        load_thresholds(tmp_path / "none.yaml")


@given(st.binary(max_size=200))
def test_whatever_a_file_holds_ends_in_thresholds_or_one_line(content: bytes) -> None:
    text = ""
    try:
        read_thresholds(content)
    except UsageError as error:
        text = str(error)
    assert len(text.splitlines()) <= 1


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_the_ends_of_a_band_belong_to_it(low: int, high: int, size: int) -> None:
    rule = ThresholdRule(0.1, from_bytes=low, to_bytes=high)
    assert rule.fits("all_reduce", "cpu", size) == (low <= size <= high)
