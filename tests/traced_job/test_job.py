"""The job that proves ``ccbench replay`` communicates as it says, by its files alone."""

from __future__ import annotations

import json
from collections import Counter

from .conftest import JOB
from .job import Files

EACH_STEP = {"gloo:all_reduce": JOB.layers + 1, "gloo:all_gather": 1, "gloo:all_to_all": 1}


def test_every_rank_of_the_job_communicates_as_often_as_it_says_in_every_kind_of_trace(
    traced: Files,
) -> None:
    expected = {name: count * JOB.steps for name, count in EACH_STEP.items()}
    for rank in range(JOB.ranks):
        events = json.loads(traced.kineto[rank].read_text())["traceEvents"]
        names = [event["name"] for event in events if event["name"].startswith("gloo:")]
        assert Counter(names) == expected
        entries = json.loads(traced.flight_recorder[rank].read_text())["entries"]
        seen = Counter(entry["profiling_name"] for entry in entries)
        assert all(seen[name] >= count for name, count in expected.items())
