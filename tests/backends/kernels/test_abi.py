"""The structures of Python and of the kernels are the same, field by field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ccbench.backends.kernels import abi, host_engine
from ccbench.backends.kernels.building import Build, built
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import UsageError

from . import library

STRUCTURES: dict[str, np.dtype[Any]] = {
    "Arguments": abi.ARGUMENTS,
    "RankView": abi.RANK_VIEW,
    "ErrorWord": abi.ERROR_WORD,
    "Record": host_engine.RECORD,
    "Options": host_engine.OPTIONS,
}


@pytest.fixture(scope="module")
def layout() -> dict[str, int]:
    return library.layout(built(Build("barrier.cu")))


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_field_lies_where_the_kernels_have_it(name: str, layout: dict[str, int]) -> None:
    structure = STRUCTURES[name]
    assert structure.fields is not None
    mine = {name: structure.itemsize} | {f"{name}.{f}": at for f, (_, at, *_) in structure.fields.items()}
    assert mine == {key: value for key, value in layout.items() if key.split(".")[0] == name}


def test_the_numbers_of_kinds_are_the_kernels(layout: dict[str, int]) -> None:
    assert layout["FLAG_KINDS"] == abi.FLAG_KINDS
    assert layout["FLAG_STRIDE_WORDS"] == abi.FLAG_STRIDE_WORDS
    assert layout["STATE_KINDS"] == abi.STATE_KINDS
    assert layout["TYPES"] == len(abi.TYPES)
    assert layout["OPS"] == len(abi.OPS)


def test_every_dtype_of_ccbench_has_a_kernel_type_of_its_size() -> None:
    assert {name: abi.TYPE_BYTES[name] for name in ITEM_BYTES} == ITEM_BYTES
    assert abi.TYPES.keys() == abi.TYPE_BYTES.keys()


def test_an_error_word_becomes_a_sentence_that_names_rank_and_peer() -> None:
    words = np.zeros((4, 2), abi.ERROR_WORD)
    words[3, 1] = (1, 3, 2, 1, 7, 6)
    (found,) = abi.given_up(words)
    assert str(found) == (
        "rank 3, channel 1: waited too long for rank 2 to send (message 7, the last one seen was 6)"
    )


@pytest.mark.parametrize("code", [*abi.WAITED_FOR, abi.BAD_PLAN, 99])
def test_every_code_has_a_sentence(code: int) -> None:
    assert "rank 1" in str(abi.GivenUp(code, 0, 1, 0, 2, 1))


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UsageError, match="float8_e4m3"):
        abi.type_number("float7")
    with pytest.raises(UsageError, match="avg"):
        abi.op_number("median")
