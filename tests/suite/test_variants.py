"""Variants of a suite: read, written back, and expanded as an axis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import Variant
from ccbench.errors import SuiteError
from ccbench.suite.model import Suite, read_suite

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
