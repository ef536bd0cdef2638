"""Files at the paths that a user names, each read by the reader that knows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ccbench.readers.traces.one_job import one_job
from tests.readers.traces.jobs import job


def test_steps_that_some_ranks_do_not_mark_are_not_taken() -> None:
    made = job(steps=2)
    ranks = [
        replace(
            made,
            ranks=(rank,),
            sources=(f"rank{rank}",),
            computing={},
            communications=tuple(
                communication
                for communication in made.communications
                if communication.rank == rank
            ),
            steps={rank: made.steps[rank] if rank else np.empty((0, 2))},
        )
        for rank in range(4)
    ]
    whole = one_job(ranks)
    assert not whole.steps
    assert any(
        warning.text.startswith("no steps are marked on ranks 0;") for warning in whole.warnings
    )
    assert set(one_job(ranks[1:]).steps) == {1, 2, 3}
