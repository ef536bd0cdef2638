"""The run folder: every case in its own parquet file, written whole or not at all, and read back."""

from __future__ import annotations

from ccbench.runs.folder import RunFolder, default_folder
from ccbench.runs.imported import Origin
from ccbench.runs.loading import Run, load_rows, load_run, load_runs, newest_run
from ccbench.runs.rows import measurement_of
from ccbench.runs.schema import SCHEMA, SCHEMA_VERSION, arrow_schema

__all__ = [
    "SCHEMA",
    "SCHEMA_VERSION",
    "Origin",
    "Run",
    "RunFolder",
    "arrow_schema",
    "default_folder",
    "load_rows",
    "load_run",
    "load_runs",
    "measurement_of",
    "newest_run",
]
