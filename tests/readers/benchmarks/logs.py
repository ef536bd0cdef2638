"""Published outputs of benchmark tools, and what each holds: the corpus beside the checkout.

The corpus is a folder with ``manifest.yaml`` and the files it lists. It does not ship with ccbench; tests
that need it skip when it is absent. ``CCBENCH_LOGS`` names another place.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest


def _folder() -> Path | None:
    named = os.environ.get("CCBENCH_LOGS")
    beside = Path(__file__).resolve().parents[4] / "shared" / "data" / "nccl_logs"
    folder = Path(named) if named else beside
    return folder if (folder / "manifest.yaml").is_file() else None


LOGS: Path | None = _folder()
"""The corpus, or None where there is none."""

NOT_READ = r"awkward_torch_|nvls_vs_ring_md|32g_4n_all_reduce_md|collectives_16gib_md"
"""Files of the corpus in forms that no reader takes: tables of a person's page, lines of ranks that mix."""

ABSENT = "no published logs here: set CCBENCH_LOGS to a folder with manifest.yaml"

needs_logs = pytest.mark.skipif(LOGS is None, reason=ABSENT)
"""Put on a test (or ``pytestmark``) that reads the corpus."""


@functools.lru_cache(maxsize=1)
def entries() -> tuple[dict[str, Any], ...]:
    """Manifest entries (dicts with ``file``, ``collective``, ``nodes`` ...); empty without the corpus."""
    if LOGS is None:
        return ()
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    listed: list[dict[str, Any]] = yaml.load(
        (LOGS / "manifest.yaml").read_text(encoding="utf-8"), loader
    )
    return tuple(entry for entry in listed if not re.search(NOT_READ, entry["file"]))


def text_of(entry: dict[str, Any]) -> str:
    """The log's text; bytes that are no UTF-8 are replaced. Skips the test when the corpus is absent."""
    if LOGS is None:
        pytest.skip(ABSENT)
    return (LOGS / name_of(entry)).read_bytes().decode("utf-8", errors="replace")


def name_of(entry: dict[str, Any]) -> str:
    """The id for ``pytest.mark.parametrize``: the file's name."""
    file: str = entry["file"]
    return file
