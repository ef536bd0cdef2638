"""Launches behind a computation: as many as asked, one at a time, and both are over at the end."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends import overlap
from ccbench.backends.overlap import HostComputation, run_while_computing
from ccbench.backends.rank_endpoint import Call, RankEndpoint

from .test_rank_endpoint import Mirror, case


@dataclass
class Counted:
    """A collective that is over after it was looked at so many times."""

    looks: int
    tells: bool = True
    log: list[str] = field(default_factory=list)
    left: int = 0

    def begin(self) -> None:
        assert self.left == 0, "one at a time"
        self.left = self.looks + 1
        self.log.append("begin")

    def over(self) -> bool:
        assert self.left > 0, "nothing is running"
        self.left -= 1
        self.log += [] if self.left else ["end"]
        return self.left == 0

    def wait(self) -> None:
        assert self.left > 0, "nothing is running"
        self.left = 0
        self.log += ["waited", "end"]


@given(launches=st.integers(1, 8), repetitions=st.integers(0, 40), looks=st.integers(0, 5))
def test_everything_asked_for_is_done_and_over(
    launches: int, repetitions: int, looks: int
) -> None:
    background = Counted(looks)

    def once() -> None:
        background.log.append("once")

    computed, communicated = run_while_computing(background, once, launches, repetitions)
    assert background.log.count("once") == repetitions
    assert background.log.count("begin") == background.log.count("end") == launches
    assert background.log[0] == "begin"
    assert computed >= 0
    assert communicated > 0
    hidden = min(launches, repetitions // (looks + 1))
    assert background.log.count("waited") == launches - hidden
    assert (computed > communicated) == (hidden == launches)


@given(launches=st.integers(1, 8), repetitions=st.integers(0, 40))
def test_what_does_not_tell_is_waited_for_after_its_share(
    launches: int, repetitions: int
) -> None:
    background = Counted(1000, tells=False)
    computed, communicated = run_while_computing(
        background, lambda: background.log.append("once"), launches, repetitions
    )
    assert communicated > computed
    shares = " ".join(background.log).split("begin")[1:]
    counts = [share.count("once") for share in shares]
    assert sum(counts) == repetitions
    assert max(counts) - min(counts) <= 1
    assert all(share.strip().endswith("waited end") for share in shares)
    assert len(shares) == launches


@given(launches=st.integers(1, 4), repetitions=st.integers(0, 10))
def test_who_stands_by_computes_alone(launches: int, repetitions: int) -> None:
    done: list[int] = []
    computed, communicated = run_while_computing(
        None, lambda: done.append(1), launches, repetitions
    )
    assert len(done) == repetitions
    assert computed >= communicated == 0.0


def test_what_goes_wrong_in_the_background_comes_out() -> None:
    class Broken(Counted):
        def over(self) -> bool:
            raise RuntimeError("the library says no")

    with pytest.raises(RuntimeError, match="says no"):
        run_while_computing(Broken(1), lambda: None, 1, 1)


class Computing(RankEndpoint):
    """Stands by in every launch."""

    def bind(self) -> Call:
        return lambda: None

    def barrier(self) -> None:
        """Nobody is late."""


def test_what_was_computed_on_is_given_back_with_the_case() -> None:
    endpoint = Computing(Mirror(["a", "a"]))
    endpoint.prepare(case(mode="overlap", overlap_with="memory"))
    endpoint.prepare_computing("memory")
    computation = weakref.ref(endpoint._computation)
    endpoint.compute(1)
    assert computation() is not None
    endpoint.finish()
    assert computation() is None


# -- the computation itself ------------------------------------------------------------------------------


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
