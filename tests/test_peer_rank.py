"""What a peer library leaves in its buffers is filled, checked and, where it is wrong, told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.peer_rank import CopyEndpoint, CopyLibrary, PeerEndpoint
from benchmarks.points import SHARED
from ccbench.backends.control_block import Control
from ccbench.cases.axes import Case
from ccbench.verification import Array

CASE = Case("s", "cpu", "all_reduce", SHARED, "float32", "sum", 4000, 1000, 1)


class Forgetful(CopyLibrary):
    """One that leaves out the last element."""

    def launches(self, case: Case, source: Array, target: Array) -> Callable[[int], object]:
        return lambda times: np.copyto(target[:-1], source[:-1])


@pytest.mark.parametrize("kind", [PeerEndpoint, CopyEndpoint])
def test_data_of_a_peer_are_checked(kind: type[PeerEndpoint]) -> None:
    for library, wrong in ((CopyLibrary(), 0), (Forgetful(), 1)):
        endpoint = kind(library, 0, Control(1, 4), False)
        endpoint.prepare(CASE)
        endpoint.poison()
        endpoint.refill(3)
        endpoint.launch(2)
        found = endpoint.check(3, 2)
        assert (found.wrong_elements if found else 0) == wrong
        endpoint.finish()
