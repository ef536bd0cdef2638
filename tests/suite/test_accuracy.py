"""``accuracy`` of a sweep: its words and mapping, what is refused and where, and cases that keep their ids."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import INEXACT_SPREADS, Case, InexactData
from ccbench.errors import SuiteError
from ccbench.suite.accuracy import ACCURACY, KEYS, LARGEST_SEED, LARGEST_SPREAD, read_accuracy
from ccbench.suite.expansion import expand
from ccbench.suite.model import Suite, read_suite, suite_schema

from .offers import context


def suite_with(accuracy: str) -> Suite:
    return read_suite(f"sweep:\n  collective: all_reduce\n  accuracy: {accuracy}", "x.yaml")


def cases(sweeps: str) -> tuple[Case, ...]:
    return expand(read_suite(f"order: written\nsweep: {sweeps}"), context())


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("bit", "sweep.accuracy", "did you mean 'bits'"),
        ("3", "sweep.accuracy", "normal"),
        ("[bits]", "sweep.accuracy", "bits"),
        ("{date: normal}", "sweep.accuracy.date", "unknown key; did you mean 'data'"),
        ("{data: cancel}", "sweep.accuracy.data", "did you mean 'cancelling'"),
        ("{spread: 0.5}", "sweep.accuracy.spread", "write a number from 1 to 1e+30"),
        ("{spread: 1e31}", "sweep.accuracy.spread", "1e+31 is not a spread"),
        ("{spread: .nan}", "sweep.accuracy.spread", "write a finite"),
        ("{spread: much}", "sweep.accuracy.spread", "'much' is not a spread"),
        ("{spread: true}", "sweep.accuracy.spread", "write a number from 1 to 1e+30"),
        ("{spread: null}", "sweep.accuracy.spread", "write a number from 1 to 1e+30"),
        ("{seed: -1}", "sweep.accuracy.seed", "seed"),
        ("{seed: 1.5}", "sweep.accuracy.seed", "seed"),
        (f"{{seed: {LARGEST_SEED + 1}}}", "sweep.accuracy.seed", "seed"),
    ],
)
def test_what_is_no_data_is_refused_with_its_place_and_a_cure(
    text: str, place: str, words: str
) -> None:
    with pytest.raises(SuiteError) as problem:
        suite_with(text)
    message = str(problem.value)
    assert message.startswith("x.yaml")
    assert f"{place}: " in message
    assert words in message
    assert message.isprintable()


inexact_data = st.builds(
    InexactData,
    st.sampled_from(list(INEXACT_SPREADS)),
    st.floats(1, LARGEST_SPREAD),
    st.integers(0, LARGEST_SEED),
)


@given(data=st.none() | inexact_data)
def test_what_a_document_says_reads_as_it_was(data: InexactData | None) -> None:
    assert ACCURACY.write is not None
    assert read_accuracy(ACCURACY.write(data)) == data
    assert read_accuracy(data) is data


@given(data=inexact_data)
def test_a_text_names_all_that_is_not_usual(data: InexactData) -> None:
    text = str(data)
    assert text.startswith(data.distribution)
    assert ("spread" in text) == (data.spread != INEXACT_SPREADS[data.distribution])
    assert ("seed" in text) == (data.seed != 1)


@pytest.mark.parametrize(
    "text", ["bits", "gradients", "{data: cancelling, spread: 10, seed: 3}"]
)
def test_a_suite_with_it_is_the_same_written_and_read_again(text: str) -> None:
    suite = suite_with(text)
    again = read_suite(json.dumps(suite.as_document()))
    assert again == suite
    assert expand(again, context()) == expand(suite, context())


def test_the_schema_of_suites_has_its_words_and_keys() -> None:
    text = json.dumps(suite_schema()["$defs"]["Sweep"]["properties"]["accuracy"])
    for word in ("bits", *INEXACT_SPREADS, *KEYS, str(LARGEST_SEED)):
        assert word in text
