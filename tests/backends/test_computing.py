"""The computation of mode overlap does what it says, and equally much every time."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends import computing
from ccbench.backends.computing import HostComputation
from ccbench.errors import UsageError


def test_a_product_is_the_product() -> None:
    made = HostComputation("matmul")
    made.once()
    expected = np.einsum("pij,pjk->pik", made._left, made._right)
    np.testing.assert_allclose(made._product, expected, rtol=1e-5)


def test_products_are_small_enough_for_one_thread() -> None:
    assert computing.MATRIX_EDGE**3 <= 65536 * 4


def test_a_stream_goes_through_all_its_memory_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "STREAM_BYTES", 4 * computing.WINDOW_BYTES)
    made = HostComputation("memory")
    made.run(3)
    assert np.count_nonzero(made._target == 2) == len(made._target) * 3 // 4
    made.run(1)
    assert np.all(made._target == 2)
    made._target[:] = 0
    made.run(2)
    assert np.count_nonzero(made._target) == len(made._target) // 2


def test_so_many_repetitions_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = HostComputation("matmul")
    turns: list[int] = []
    monkeypatch.setattr(made, "_multiply", lambda: turns.append(1))
    made.run(7)
    made.once()
    assert len(turns) == 8


def test_an_unknown_kind_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"computing: 'sorting' is not known; one of matmul, memory"):
        HostComputation("sorting")
