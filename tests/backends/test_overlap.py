"""What a processor computes while a collective goes on: a product, and a stream through memory."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends import overlap
from ccbench.backends.overlap import HostComputation


def test_a_product_is_the_product() -> None:
    made = HostComputation("matmul")
    expected = np.einsum("pij,pjk->pik", made._left, made._right)
    for multiply in (made.once, lambda: made.run(1)):
        made._product[:] = 0
        multiply()
        np.testing.assert_allclose(made._product, expected, rtol=1e-5)


def test_a_stream_goes_through_all_its_memory_and_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlap, "STREAM_BYTES", 4 * overlap.WINDOW_BYTES)
    made = HostComputation("memory")
    made.run(3)
    assert np.count_nonzero(made._target == 2) == len(made._target) * 3 // 4
    made.run(1)
    assert np.all(made._target == 2)
    made._target[:] = 0
    made.run(2)
    assert np.count_nonzero(made._target) == len(made._target) // 2
