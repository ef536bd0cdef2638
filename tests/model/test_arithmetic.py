from __future__ import annotations

import numpy as np
import pytest

from ccbench.dtypes import CPU_DTYPES, numpy_dtype
from ccbench.model.calibration_worker import BLOCK_BYTES, KEYS, Arithmetic
from ccbench.model.machine import ARITHMETIC, calls_of


def test_every_type_has_every_operation_and_each_can_be_timed() -> None:
    assert len(KEYS) == len(CPU_DTYPES) * len(ARITHMETIC)
    arithmetic = Arithmetic()
    with np.errstate(all="raise"):  # neither overflow nor underflow: both may take longer
        assert min(arithmetic.seconds(key) for key in KEYS) > 0


def test_a_block_holds_whole_elements_of_every_type() -> None:
    assert all(BLOCK_BYTES % numpy_dtype(dtype).itemsize == 0 for dtype in CPU_DTYPES)


@pytest.mark.parametrize(
    ("key", "calls"), [("uint8 average", 3), ("int64 average", 3), ("bfloat16 average", 1), ("int8 sum", 1)]
)
def test_only_averaging_whole_numbers_takes_three_calls(key: str, calls: int) -> None:
    assert calls_of(key) == calls
