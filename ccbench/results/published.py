"""Published results that ship: figures other people measured and published, one file per machine family.

``python -m benchmarks.publish`` makes the files from a folder of logs.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from ccbench.errors import UsageError
from ccbench.results.loading import Run, load_rows, load_run
from ccbench.results.manifest import Manifest
from ccbench.suite.documents import shipped_folder
from ccbench.units import shown

PREFIX = "published:"
"""What tells the name of published results from the path of a run."""

FURTHER_COLUMNS = (
    "machine", "gpu", "gpus_per_node", "interconnect", "network", "library_version", "forced",
)  # fmt: skip
"""Text columns beside those of a run: the family, then the words of whoever collected the logs."""


def published_folder() -> Path:
    """The folder of the files; CcbenchError when the installation lacks it."""
    return shipped_folder("results") / "published"


def published_names(folder: Path | None = None) -> tuple[str, ...]:
    """Names of the families that ship."""
    return tuple(sorted(path.stem for path in (folder or published_folder()).glob("*.parquet")))


def load_published(name: str, folder: Path | None = None) -> Run:
    """The published results of the family ``name`` as a run. Raises UsageError, with near names."""
    folder = folder or published_folder()
    names = published_names(folder)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        cure = f"did you mean {' or '.join(near)}" if near else f"there are {', '.join(names) or 'none'}"
        raise UsageError(f"{PREFIX} {shown(name)} is not a machine with published results; {cure}")
    manifest = Manifest({"suite": {"name": f"{PREFIX}{name}"}, "machine": {"name": name}})
    return Run(Path(f"{PREFIX}{name}"), manifest, load_rows(folder / f"{name}.parquet"))


def open_run(name: Path | str, details: bool = True) -> Run:
    """The published results that ``published:NAME`` names, or else the run folder at that path.

    details: as of ``load_run``. Raises RunFolderError or UsageError where there is none.
    """
    text = str(name)
    return load_published(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else load_run(name, details)


def contents(name: str, folder: Path | None = None) -> dict[str, Any]:
    """A summary of one family's file. teams: (ranks, nodes), 0 nodes where not known."""
    points = load_published(name, folder).points
    return {
        "name": name,
        "rows": len(points),
        "sources": len({point.source for point in points}),
        "collectives": sorted({point.collective for point in points}),
        "teams": sorted({(point.ranks, point.nodes) for point in points}),
    }
