"""Teams of real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ccbench.backends.base import TeamRequest
from ccbench.runner.workers.team import WorkerTeam
from tests.backends.cpu.test_groups import RANKS


@pytest.fixture(scope="module")
def team() -> Iterator[WorkerTeam]:
    """One for all tests of a file."""
    opened = WorkerTeam(TeamRequest("cpu", RANKS))
    yield opened
    opened.close()
