"""What endpoints without shared memory have in common, on an exchange that the test answers itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends import rank_endpoint
from ccbench.backends.base import OutOfMemory
from ccbench.backends.rank_endpoint import (
    HUGE_PAGE_BYTES,
    PAGE_BYTES,
    STAGGER_BYTES,
    Call,
    RankEndpoint,
)
from tests.backends.measuring import Channel, case_of


class Mirror(Channel):
    """Every other rank gives what this one gives, plus ``offset`` for each rank between."""

    def __init__(
        self, hosts: Sequence[str], one_clock: bool = True, offset: float = 0.0
    ) -> None:
        self.rank, self.ranks, self.hosts = 0, len(hosts), tuple(hosts)
        self.one_clock, self.oversubscribed, self.offset = one_clock, False, offset

    def all_gather(self, mine: bytes) -> list[bytes]:
        numbers = np.frombuffer(mine, np.float64)
        return [(numbers + self.offset * rank).tobytes() for rank in range(self.ranks)]

    def broadcast(self, mine: bytes | None, root: int) -> bytes:
        assert mine is not None
        return mine

    def barrier(self) -> None:
        """Nobody is late."""


class Copying(RankEndpoint):
    """Its collective copies the input to the output."""

    def bind(self) -> Call:
        return lambda: np.copyto(self.own.output, self.own.input)

    def barrier(self) -> None:
        """Nobody is late."""


case = partial(case_of, "mpi", "broadcast", "default", 2, 64, root=0)

MEMORY = Copying(Mirror(["a"])).memory


@given(
    st.integers(0, 5000),
    st.sampled_from(["u1", "f4", "f8"]),
    st.integers(0, 3),
    st.integers(0, 64),
)
def test_buffers_start_where_they_were_asked_to(
    elements: int, dtype: str, number: int, off: int
) -> None:
    buffer = MEMORY.new_buffer(elements, np.dtype(dtype), number, off)
    assert len(buffer) == elements
    if elements:
        assert (buffer.ctypes.data - off - number * STAGGER_BYTES) % PAGE_BYTES == 0


@given(st.integers(HUGE_PAGE_BYTES, 5 << 20), st.integers(0, 3), st.integers(0, 64))
def test_a_large_buffer_lies_in_memory_of_whole_huge_pages(
    size_bytes: int, number: int, off: int
) -> None:
    buffer = MEMORY.new_buffer(size_bytes, np.dtype("u1"), number, off)
    whole = buffer.base
    assert isinstance(whole, np.ndarray)
    assert whole.nbytes >= 2 * HUGE_PAGE_BYTES  # from where on NumPy asks for huge pages
    first = buffer.ctypes.data // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    end = -(-(buffer.ctypes.data + size_bytes) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    assert buffer.ctypes.data - first == off + number * STAGGER_BYTES
    assert whole.ctypes.data <= first
    assert end <= whole.ctypes.data + whole.nbytes


def test_a_launch_is_checked_on_the_data_of_its_seed() -> None:
    endpoint = Copying(Mirror(["a", "a"]))
    endpoint.prepare(case())
    endpoint.poison()
    endpoint.refill(7)
    mismatch = endpoint.check(7, 1)
    assert mismatch is not None
    assert mismatch.wrong_elements == 64
    endpoint.launch(3)
    assert endpoint.check(7, 3) is None
    assert endpoint.check(8, 3) is not None


def test_stamps_of_one_clock_are_kept_and_of_several_become_lengths() -> None:
    for one_clock, first in ((True, [10.0, 11.0]), (False, [0.0, 1.0])):
        endpoint = Copying(Mirror(["a", "b"], one_clock=one_clock, offset=0.25))
        endpoint.prepare(case())
        endpoint.stamps[0, 0] = (10.0, 11.0)
        endpoint.share_stamps(1)
        assert endpoint.stamps[0, 0].tolist() == first
        assert endpoint.stamps[1, 0].tolist() == [number + 0.25 for number in first]
        assert ("clocks of their own" in endpoint.remark()) == (not one_clock)


def test_memory_is_counted_host_by_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_endpoint, "available_memory_bytes", lambda: 700)
    with pytest.raises(OutOfMemory, match="2 ranks need 1024 bytes, 630 are available"):
        Copying(Mirror(["a", "a"])).prepare(case())
    Copying(Mirror(["a", "b"])).prepare(case())


@given(st.integers(-(2**62), 2**62))
def test_what_rank_0_decides_arrives_whole(value: int) -> None:
    assert Copying(Mirror(["a"])).agree(value) == value
