"""Dumps that real jobs left when they hung, and what was done to each job: the folder beside the traces."""

from __future__ import annotations

import pytest

from tests.readers.traces.recorded import ABSENT, TRACES

needs_hung_jobs = pytest.mark.skipif(
    TRACES is None or not (TRACES.parent / "hung_jobs").is_dir(), reason=ABSENT
)
"""Put on a test that reads them."""


def hung_job(name: str) -> str:
    """Return the folder of the dumps of one job. Skips the test where there is none."""
    if TRACES is None:
        pytest.skip(ABSENT)
    return str(TRACES.parent / "hung_jobs" / name)
