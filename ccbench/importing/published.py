"""Published results that ship: figures other people measured and published, one file per machine family.

``python -m benchmarks.publish`` makes the files from a folder of logs.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from ccbench.errors import UsageError
from ccbench.resources import shipped_folder
from ccbench.runs import Run, load_rows
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
    cases = load_rows(folder / f"{name}.parquet")
    manifest = {"suite": {"name": f"{PREFIX}{name}"}, "machine": {"name": name}}
    return Run(Path(f"{PREFIX}{name}"), manifest, cases)


@dataclass(frozen=True)
class Contents:
    """What is published of one family. teams: (ranks, nodes), 0 nodes where not known."""

    name: str
    rows: int
    sources: int
    collectives: tuple[str, ...]
    teams: tuple[tuple[int, int], ...]


def contents(name: str, folder: Path | None = None) -> Contents:
    """A summary of one family's file."""
    cases = load_published(name, folder).cases
    teams = sorted({(int(ranks), int(nodes)) for ranks, nodes in zip(cases.ranks, cases.nodes, strict=True)})
    collectives = tuple(sorted(set(map(str, cases["collective"]))))
    return Contents(name, len(cases), cases["source"].nunique(), collectives, tuple(teams))
