"""Variants of a suite: read, written back, and expanded as an axis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import Case, Variant
from ccbench.errors import SuiteError
from ccbench.suite.expansion import expand, left_out
from ccbench.suite.model import Suite, read_suite

from .offers import context

SUITE = """\
backends: [mpi]
variants: {base: {}, new: {library: /opt/mpi}, buf8: {env: {NCCL_BUFFSIZE: 8M, NCCL_MIN_CTAS: 4}}}
sweep: {collective: all_reduce, size: [8, 64], ranks: 2}
"""
BUFFERS = Variant("buf8", environment=(("NCCL_BUFFSIZE", "8M"), ("NCCL_MIN_CTAS", "4")))


def test_variants_are_read_in_the_order_of_the_file_and_written_back() -> None:
    suite = read_suite(SUITE)
    assert suite.variants == (Variant("base"), Variant("new", "/opt/mpi"), BUFFERS)
    assert Suite.model_validate(suite.as_document()) == suite
    plain = read_suite("sweep: {collective: all_reduce}")
    assert Suite.model_validate(plain.as_document()) == plain


def test_every_case_is_there_with_each_variant_side_by_side() -> None:
    cases = expand(read_suite(SUITE), context())
    assert len(cases) == len({case.case_id for case in cases}) == 6
    for first in (0, 3):
        assert len({case.point for case in cases[first : first + 3]}) == 1
        assert {case.variant for case in cases[first : first + 3]} == {"base", "new", "buf8"}
    assert {case.started_with for case in cases} == {*read_suite(SUITE).variants}
    assert ", variant buf8" in next(
        case.label for case in cases if case.started_with == BUFFERS
    )


def test_a_backend_without_variants_leaves_them_out_and_says_so() -> None:
    suite = read_suite(SUITE.replace("[mpi]", "[cpu, mpi]"))
    assert {one.backend for one in expand(suite, context())} == {"mpi"}
    assert left_out(suite, context()) == {"cpu has no variants": 6}


def test_a_suite_without_variants_has_the_cases_it_had() -> None:
    (case,) = expand(read_suite("sweep: {collective: barrier}"), context())
    assert (case.variant, case.started_with) == ("", Variant())
    assert (
        case.case_id
        == Case("other", "cpu", "barrier", "default", "uint8", "none", 0, 0, 4).case_id
    )


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ("[a]", "variants: ['a'] is no mapping of names; write {base: {}, new: {env: ...}}"),
        ("{a b: {}}", "variants: 'a b' is not a name of a variant; write letters, digits"),
        (
            "{a: 3}",
            "variants.a: 3 is not a mapping; write {} for nothing, or the keys library and env",
        ),
        ("{a: {lib: x}}", "variants.a.lib: unknown key; write one of library, env"),
        (
            "{a: {library: 3}}",
            "variants.a.library: 3 is not a path; write the path of a library",
        ),
        ("{a: {env: [x]}}", "variants.a.env: ['x'] is not a mapping; write {NAME: value}"),
        (
            "{a: {env: {a-b: x}}}",
            "variants.a.env: 'a-b' is not a name of a variable; write a name such as",
        ),
        ("{a: {env: {A: true}}}", "variants.a.env.A: is no value of a variable; write at most"),
        ("{a: {env: {A: [x]}}}", "variants.a.env.A: is no value of a variable; write at most"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_place(variants: str, message: str) -> None:
    with pytest.raises(SuiteError) as error:
        read_suite(f"sweep: {{collective: barrier}}\nvariants: {variants}")
    assert str(error.value).startswith(f"suite:2: {message}")


@given(st.text(st.characters(categories=["Lu", "Nd"]), min_size=12, max_size=40))
def test_what_a_variable_is_set_to_is_in_no_error(value: str) -> None:
    with pytest.raises(SuiteError) as error:
        read_suite(
            f"sweep: {{collective: barrier}}\nvariants: {{a: {{env: {{X: ['{value}']}}}}}}"
        )
    assert value not in str(error.value)
