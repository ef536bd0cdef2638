"""The job's traces, made once for all tests that read them."""

from __future__ import annotations

import pytest

from ccbench.backends.gloo import BACKEND

from .job import Files, Job, started

JOB = Job(ranks=4, steps=3, late=((2, 0.1),))
"""Rank 2 is late at every step."""


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the traces of ``JOB``."""
    missing = BACKEND.unavailable()
    if missing:
        pytest.skip(missing)
    return started(JOB, tmp_path_factory.mktemp("traced"))
