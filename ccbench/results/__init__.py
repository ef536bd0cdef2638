"""Results: every case in its own file, written whole or not at all, and read back as points."""

from __future__ import annotations

from ccbench.results.folder import RunFolder, new_folder
from ccbench.results.loading import Run, load_run, load_runs, open_run
from ccbench.results.points import Manifest, Point
from ccbench.results.schema import SCHEMA, SCHEMA_VERSION, Origin, arrow_schema

__all__ = [
    "SCHEMA",
    "SCHEMA_VERSION",
    "Manifest",
    "Origin",
    "Point",
    "Run",
    "RunFolder",
    "arrow_schema",
    "load_run",
    "load_runs",
    "new_folder",
    "open_run",
]
