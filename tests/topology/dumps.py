"""Real machine dumps of many tools, and what a reader must find in each: the corpus beside the checkout.

The corpus is a folder with ``manifest.yaml`` and one folder per kind of dump. It does not ship with ccbench;
tests that need it skip when it is absent. ``CCBENCH_TOPOLOGY_DUMPS`` names another place.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest


def _folder() -> Path | None:
    named = os.environ.get("CCBENCH_TOPOLOGY_DUMPS")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data" / "topologies"
    folder = Path(named) if named else beside
    return folder if (folder / "manifest.yaml").is_file() else None


DUMPS: Path | None = _folder()
"""The corpus, or None where there is none."""

NOT_READ = r"hwloc|lstopo|graph XML|topo -c"
"""Kinds of dumps in the corpus that no reader takes."""

ABSENT = "no topology dumps here: set CCBENCH_TOPOLOGY_DUMPS to a folder with manifest.yaml"

needs_dumps = pytest.mark.skipif(DUMPS is None, reason=ABSENT)
"""Put on a test (or ``pytestmark``) that reads the corpus."""


@functools.lru_cache(maxsize=1)
def _manifest() -> tuple[dict[str, Any], ...]:
    if DUMPS is None:
        return ()
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    listed = yaml.load((DUMPS / "manifest.yaml").read_text(encoding="utf-8"), loader)["entries"]
    return tuple(entry for entry in listed if not re.search(NOT_READ, entry["kind"]))


def entries(kind_folder: str = "") -> list[dict[str, Any]]:
    """Manifest entries (dicts with ``file``, ``kind``, ``complete``, ``machine``, ``expected``, ``quirks``).

    kind_folder: nccl_graph_log, nccl_xml, other, smi_nvlink or smi_topo; empty for all. Empty list when the
    corpus is absent, so that a parametrised test skips by itself.
    """
    prefix = f"{kind_folder}/" if kind_folder else ""
    return [entry for entry in _manifest() if entry["file"].startswith(prefix)]


def text_of(entry: dict[str, Any] | str) -> str:
    """The dump's text, as a file opened in text mode gives it; bytes that are no UTF-8 are replaced.

    entry: a manifest entry, or the file's path below the corpus. Skips the test when the corpus is absent.
    """
    if DUMPS is None:
        pytest.skip(ABSENT)
    file = entry if isinstance(entry, str) else entry["file"]
    return (DUMPS / file).read_bytes().decode("utf-8", errors="replace")


def names(found: list[dict[str, Any]]) -> list[str]:
    """Ids for ``pytest.mark.parametrize``: the files' paths."""
    return [entry["file"] for entry in found]
