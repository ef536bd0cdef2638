"""What kernels compute, in NumPy and in the same order: every element bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def numpy_type(dtype: str) -> np.dtype[Any]:
    import ml_dtypes

    odd: dict[str, type] = {
        "bfloat16": ml_dtypes.bfloat16,
        "float8_e4m3": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
    }
    kind: np.dtype[Any] = np.dtype(odd.get(dtype, dtype))
    return kind


def whole(array: Array) -> bool:
    return array.dtype.kind in "iu"


def wide(values: Array) -> Array:
    """8- and 16-bit floats as float32, all others as they are."""
    narrow = not whole(values) and values.dtype.itemsize < 4
    return values.astype(np.float32) if narrow else values


def combined(received: Array, own: Array, op: str) -> Array:
    """One step: 8- and 16-bit floats as float32, rounded once."""
    with np.errstate(all="ignore"):
        a, b = wide(received), wide(own)
        if op in ("sum", "avg"):
            result = a + b
        elif op == "prod":
            result = a * b
        else:
            first = (a < b) if op == "min" else (a > b)
            result = np.where(first | (a != a), a, b)
        rounded: Array = result.astype(own.dtype)
        return rounded


def finished(total: Array, op: str, ranks: int) -> Array:
    """An average's total divided; whole numbers towards zero."""
    if op != "avg":
        return total
    result: Array
    if whole(total):
        magnitude = np.abs(total.astype(object)) // ranks
        result = np.where(total < 0, -magnitude, magnitude).astype(total.dtype)
        return result
    with np.errstate(all="ignore"):
        wide = np.float32 if total.dtype.itemsize < 4 else total.dtype
        result = (total.astype(wide) / np.asarray(ranks, wide)).astype(total.dtype)
        return result


def folded(parts: Sequence[Array], op: str, ranks: int) -> Array:
    """((first + second) + third) ..., then finished."""
    result = parts[0]
    for part in parts[1:]:
        result = combined(result, part, op)
    return finished(result, op, ranks)


def accumulated(parts: Sequence[Array], op: str, ranks: int) -> Array:
    """As ``folded``, but rounded once: what one lane adds up. ranks: 0 where the total is not finished."""
    total = [wide(part) for part in parts]
    with np.errstate(all="ignore"):
        result: Array = folded(
            total, op if ranks else "sum" if op == "avg" else op, ranks
        ).astype(parts[0].dtype)
        return result


def values(dtype: str, count: int, generator: np.random.Generator) -> Array:
    """Numbers of all magnitudes, so that rounding and overflow happen."""
    kind = numpy_type(dtype)
    if kind.kind in "iu":
        return generator.integers(0, 256, count * kind.itemsize, np.uint8).view(kind)
    spread = 3.0 if kind.itemsize == 1 else 8.0
    with np.errstate(all="ignore"):
        numbers = generator.standard_normal(count) * np.exp2(
            generator.uniform(-spread, spread, count)
        )
        return numbers.astype(kind)


def same(actual: Array, expected: Array) -> bool:
    """Equal bit for bit, NaNs aside: one is as good as another."""
    bits = np.dtype(f"u{expected.dtype.itemsize}")
    equal = actual.view(bits) == expected.view(bits)
    if not whole(expected):
        with np.errstate(invalid="ignore"):  # a signalling NaN is one too
            equal |= np.isnan(actual.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    return bool(equal.all())


def channel_parts(count: int, channels: int, item_bytes: int) -> list[tuple[int, int]]:
    """``channel_part`` of block.cuh."""
    granule = 16 // item_bytes
    granules = -(-count // granule)
    each, more = divmod(granules, channels)
    edges = [min((c * each + min(c, more)) * granule, count) for c in range(channels + 1)]
    return list(itertools.pairwise(edges))


def ring_pieces(
    count: int, orders: Sequence[Sequence[int]], slot_bytes: int, item_bytes: int
) -> list[tuple[int, int, list[int]]]:
    """(begin, end, ranks in the order in which their contributions are added) of ring_all_reduce."""
    blocks = []
    granule = 16 // item_bytes
    for order, (begin, end) in zip(
        orders, channel_parts(count, len(orders), item_bytes), strict=True
    ):
        ranks = len(order)
        while begin < end:
            share = -(-(end - begin) // ranks)
            size = min(slot_bytes // item_bytes, -(-share // granule) * granule)
            for place in range(ranks):
                low, high = min(begin + place * size, end), min(begin + (place + 1) * size, end)
                blocks.append(
                    (low, high, [order[(place + 1 + i) % ranks] for i in range(ranks)])
                )
            begin += size * ranks
    return blocks
