"""Files at the paths that a user names, each read by the reader that knows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from ccbench.readers.traces.one_job import one_job
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.jobs import job


def test_a_warning_about_several_files_is_told_once(tmp_path: Path) -> None:
    entry = {
        "profiling_name": "gloo:barrier",
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
    }
    for rank in range(3):
        dump = {"version": "2.10", "pg_config": {}, "entries": [entry]}
        (tmp_path / f"flight_{rank}.json").write_text(json.dumps(dump))
    texts = [warning.text for warning in read_traces([tmp_path]).warnings]
    assert len(texts) == len(set(texts))
    first = f"{tmp_path / 'flight_0.json'} and 2 more files: "
    assert f"{first}its rank is taken from the file's name" in texts


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
