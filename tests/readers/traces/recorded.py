"""Real traces of jobs, and what each holds: the folder beside the checkout.

It has ``manifest.yaml`` and the files it lists, and does not ship with ccbench; tests that need it skip where
it is absent. ``CCBENCH_TRACES`` names another place.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import yaml


def _folder() -> Path | None:
    named = os.environ.get("CCBENCH_TRACES")
    beside = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
    folder = Path(named) if named else beside
    return folder if (folder / "manifest.yaml").is_file() else None


TRACES: Path | None = _folder()
"""The folder, or None where there is none."""

ABSENT = "no recorded traces here: set CCBENCH_TRACES to a folder with manifest.yaml"

needs_traces = pytest.mark.skipif(TRACES is None, reason=ABSENT)
"""Put on a test (or ``pytestmark``) that reads them."""


@functools.cache
def _manifest() -> dict[str, dict[str, Any]]:
    """File -> what is expected of it. Only these lines are YAML: descriptions have colons in them."""
    by_file: dict[str, dict[str, Any]] = {}
    name = ""
    for line in (
        (TRACES / "manifest.yaml").read_text(encoding="utf-8").splitlines() if TRACES else ()
    ):
        key, _, value = line.strip(" -").partition(": ")
        if key == "file":
            name = value
        elif key == "expected":
            by_file[name] = yaml.safe_load(value)
    return by_file


def expected(name: str) -> dict[str, Any]:
    """Return what must be found in the file that the manifest calls ``name``."""
    if TRACES is None:
        pytest.skip(ABSENT)
    return _manifest()[name]


def path_of(name: str) -> str:
    """Where the file ``name`` lies. Skips the test where there are none."""
    if TRACES is None:
        pytest.skip(ABSENT)
    return str(TRACES / name)
