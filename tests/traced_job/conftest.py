"""The job's traces, made once for all tests that read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.backends.gloo import BACKEND

from .job import Files, Job, started

JOB = Job(ranks=4, steps=3, late=((2, 0.1),))
"""Rank 2 is late at every step."""

IN_TIME = replace(JOB, late=())


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the traces of ``JOB``."""
    return files_of(JOB, tmp_path_factory)


@pytest.fixture(scope="session")
def in_time(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the traces of ``IN_TIME``."""
    return files_of(IN_TIME, tmp_path_factory)


def files_of(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Files:
    missing = BACKEND.unavailable()
    if missing:
        pytest.skip(missing)
    return started(job, tmp_path_factory.mktemp("traced"))
