"""A built library has the structures that Python has, field by field, and the arithmetic of NumPy."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ccbench.backends.kernels import abi, host_engine
from ccbench.backends.kernels.abi import OPS, TYPE_BYTES, TYPES
from ccbench.backends.kernels.building import Build, built
from ccbench.backends.kernels.host_engine import loaded
from ccbench.dtypes import ITEM_BYTES
from tests.backends.kernels.orders import (
    Array,
    combined,
    finished,
    numpy_type,
    same,
    values,
    whole,
)

STRUCTURES: dict[str, np.dtype[Any]] = {
    "Arguments": abi.ARGUMENTS,
    "RankView": abi.RANK_VIEW,
    "ErrorWord": abi.ERROR_WORD,
    "Record": host_engine.RECORD,
    "Options": host_engine.OPTIONS,
}


def structures(path: Path) -> dict[str, int]:
    """Sizes and offsets of the structures as a built library has them."""
    function = loaded(path).ccb_host_layout
    function.restype = ctypes.c_char_p
    lines = function().decode().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def computed(
    path: Path, dtype: str, op: str, first: Array, second: Array | None = None, ranks: int = 1
) -> Array:
    """The kernels' arithmetic alone: elements combined, or without ``second`` an average's total divided."""
    operands = [
        None if operand is None else np.ascontiguousarray(operand).view(np.uint64)
        for operand in (first, second)
    ]
    assert operands[0] is not None
    result = np.empty_like(operands[0])
    loaded(path).ccb_host_words(
        ctypes.c_int(abi.TYPES[dtype]),
        ctypes.c_int(abi.OPS[op]),
        ctypes.c_int(ranks),
        ctypes.c_longlong(len(result)),
        *(
            ctypes.c_void_p(None if operand is None else operand.ctypes.data)
            for operand in operands
        ),
        ctypes.c_void_p(result.ctypes.data),
    )
    return result.view(first.dtype)


@pytest.fixture(scope="module")
def library() -> Path:
    return built(Build("barrier.cu"))


@pytest.fixture(scope="module")
def layout(library: Path) -> dict[str, int]:
    return structures(library)


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_field_lies_where_the_kernels_have_it(name: str, layout: dict[str, int]) -> None:
    structure = STRUCTURES[name]
    assert structure.fields is not None
    mine = {name: structure.itemsize} | {
        f"{name}.{f}": at for f, (_, at, *_) in structure.fields.items()
    }
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


@pytest.mark.parametrize("code", [*abi.WAITED_FOR, abi.BAD_PLAN, 99])
def test_every_code_has_a_sentence(code: int) -> None:
    assert "rank 1" in str(abi.GivenUp(code, 0, 1, 0, 2, 1))


# -- arithmetic ----------------------------------------------------------------------------------------------

SAMPLES = 1 << 14


def operands(dtype: str) -> tuple[Array, Array]:
    """Every pair of 8-bit numbers, or many of 16 bits and more: any bits, and ordinary values."""
    kind = numpy_type(dtype)
    generator = np.random.default_rng(7)
    if kind.itemsize == 1:
        every = np.arange(256, dtype=np.uint8)
        return np.repeat(every, 256).view(kind), np.tile(every, 256).view(kind)
    bits = generator.integers(0, 256, (2, SAMPLES * kind.itemsize), np.uint8).view(kind)
    ordinary = [values(dtype, SAMPLES, generator) for _ in range(2)]
    return np.concatenate([bits[0], ordinary[0]]), np.concatenate([bits[1], ordinary[1]])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_two_elements_combine_as_in_numpy(dtype: str, op: str, library: Path) -> None:
    received, own = operands(dtype)
    assert same(computed(library, dtype, op, received, own), combined(received, own, op))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 127, 300])
@pytest.mark.parametrize("dtype", TYPES)
def test_an_average_is_divided_as_in_numpy(dtype: str, ranks: int, library: Path) -> None:
    total, _ = operands(dtype)
    if whole(total):
        total = total[: 1 << 12]
    assert same(
        computed(library, dtype, "avg", total, ranks=ranks), finished(total, "avg", ranks)
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_narrow_floats_round_like_their_own_numpy_type(dtype: str, library: Path) -> None:
    """Not only like our reference: the types' own addition and product, where those are defined."""
    received, own = operands(dtype)
    with np.errstate(all="ignore"):
        for op, expected in (("sum", received + own), ("prod", received * own)):
            assert same(
                computed(library, dtype, op, received, own), expected.astype(received.dtype)
            )


def test_elements_of_a_word_do_not_touch_each_other(library: Path) -> None:
    all_ones = np.full(8, 0xFF, np.uint8)
    addend = np.array([1, 0, 1, 0, 2, 0, 0, 1], np.uint8)
    total = computed(library, "uint8", "sum", all_ones, addend)
    assert total.tolist() == [0, 255, 0, 255, 1, 255, 255, 0]
    assert sorted(TYPE_BYTES.values())[0] == 1
