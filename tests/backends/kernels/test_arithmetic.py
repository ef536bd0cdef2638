"""The kernels' arithmetic on the host, against NumPy and ml_dtypes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ccbench.backends.kernels.abi import OPS, TYPE_BYTES, TYPES
from ccbench.backends.kernels.building import Build, built
from tests.backends.kernels.library import words_combined, words_finished
from tests.backends.kernels.orders import Array, combined, finished, numpy_type, same, values, whole

SAMPLES = 1 << 14


@pytest.fixture(scope="module")
def library() -> Path:
    return built(Build("barrier.cu"))


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


def as_words(array: Array) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.ascontiguousarray(array).view(np.uint64)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_two_elements_combine_as_in_numpy(dtype: str, op: str, library: Path) -> None:
    received, own = operands(dtype)
    seen = words_combined(library, dtype, op, as_words(received), as_words(own)).view(received.dtype)
    assert same(seen, combined(received, own, op))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 127, 300])
@pytest.mark.parametrize("dtype", TYPES)
def test_an_average_is_divided_as_in_numpy(dtype: str, ranks: int, library: Path) -> None:
    total, _ = operands(dtype)
    if whole(total):
        total = total[: 1 << 12]
    seen = words_finished(library, dtype, ranks, as_words(total)).view(total.dtype)
    assert same(seen, finished(total, "avg", ranks))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_narrow_floats_round_like_their_own_numpy_type(dtype: str, library: Path) -> None:
    """Not only like our reference: the types' own addition and product, where those are defined."""
    received, own = operands(dtype)
    with np.errstate(all="ignore"):
        for op, expected in (("sum", received + own), ("prod", received * own)):
            seen = words_combined(library, dtype, op, as_words(received), as_words(own)).view(received.dtype)
            assert same(seen, expected.astype(received.dtype))


def test_elements_of_a_word_do_not_touch_each_other(library: Path) -> None:
    ones = np.full(8, 0xFF, np.uint8)
    other = np.array([1, 0, 1, 0, 2, 0, 0, 1], np.uint8)
    seen = words_combined(library, "uint8", "sum", as_words(ones), as_words(other)).view(np.uint8)
    assert seen.tolist() == [0, 255, 0, 255, 1, 255, 255, 0]
    assert sorted(TYPE_BYTES.values())[0] == 1
