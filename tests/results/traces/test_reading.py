"""Files at the paths that a user names, each read by the reader that knows it."""

from __future__ import annotations

import json
from pathlib import Path

from ccbench.results.traces.reading import read_traces


def test_a_warning_about_several_files_is_told_once(tmp_path: Path) -> None:
    entry = {"profiling_name": "gloo:barrier", "process_group": ["0", "default_pg"], "collective_seq_id": 1}
    for rank in range(3):
        dump = {"version": "2.10", "pg_config": {}, "entries": [entry]}
        (tmp_path / f"flight_{rank}.json").write_text(json.dumps(dump))
    told = [one.text for one in read_traces([tmp_path]).warnings]
    assert len(told) == len(set(told))
    first = f"{tmp_path / 'flight_0.json'} and 2 more files: "
    assert f"{first}its rank is taken from the file's name" in told
