"""Reading runs: everything that can be read is, and everything that cannot is named.

Published results ship as one file per machine family; ``python -m benchmarks.publish`` makes them from a
folder of logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.documents import shipped_folder
from ccbench.errors import RunFolderError, UsageError
from ccbench.results.files import (
    MANIFEST_NAME,
    TABLE_NAME,
    has_cases,
    read_table,
    sensible,
    stored,
)
from ccbench.results.folder import read_manifest
from ccbench.results.points import ORDER, Manifest, Point, points_of_table
from ccbench.results.schema import arrow_schema
from ccbench.units import shown, suggestion

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types


RESULTS = Path("results")
"""Folder of the runs that nobody gave a place."""

LATEST = "latest"
"""Name of the newest of them."""

DETAILS = ("rank_samples_seconds", "group_samples_seconds", "warmup_seconds", "skew_seconds")
"""Most of a run's bytes: samples beside those of the cases themselves."""


@dataclass(frozen=True)
class Run:
    """A run as it lies on disk.

    manifest: run.json, empty when that cannot be read.
    table: one row per case, columns as in ``ccbench.results.SCHEMA``, in the order of ``points``.
    problems: one line for every file that could not be read, or is of another schema version.
    """

    path: Path
    manifest: Manifest
    table: pa.Table = field(compare=False, repr=False)
    problems: tuple[str, ...] = ()

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every case, sorted by what was asked of it, whatever order they were measured in."""
        return points_of_table(self.table, self.manifest)

    @cached_property
    def cases(self) -> pd.DataFrame:
        """The table with what follows from it as a pandas frame; see ``ccbench.results.frame``."""
        from ccbench.results.frame import frame_of

        return frame_of(self.table, self.points)

    @property
    def suite(self) -> str:
        """The suite's name, by the manifest or else by the cases."""
        return self.manifest.suite or next((point.suite for point in self.points), "")

    @property
    def is_published(self) -> bool:
        """True if ``open_run`` took it from what ships."""
        return str(self.path).startswith(PREFIX)

    @property
    def devices(self) -> tuple[str, ...]:
        """Models of the devices that ran, of a measured or imported run; () where nobody says."""
        named = [str(gpu.get("model") or "") for gpu in self.manifest.gpus]
        named += [model for point in self.points for model in (point.device_model, point.gpu)]
        return tuple(dict.fromkeys(model for model in named if model))


def load_run(path: Path | str, details: bool = True) -> Run:
    """Load one run folder, or the run that ``named_run`` knows; it may be going on still.

    details: False leaves out the columns DETAILS, for readers that do without, unless the run's suite asks
    for a verdict about the machine, which stands on every sample. Raises RunFolderError when ``path`` is no
    run folder at all.
    """
    path = named_run(path)
    file = path / MANIFEST_NAME
    if not file.exists() and not has_cases(path):
        raise RunFolderError(
            f"{path}: not a run folder (no {MANIFEST_NAME} and no {TABLE_NAME}); "
            "name a folder that 'ccbench run' wrote, or a run of 'ccbench list runs'"
        )
    document, reason = read_manifest(file)
    manifest = Manifest(document)
    shown_as = "what it says now is shown" if document else "the cases are shown without it"
    table, unread = stored(path)
    table, odd = sensible(path, table.select(arrow_schema().names))
    if not details and manifest.at("suite", "verdict") in (None, "speed"):
        table = table.drop_columns(list(DETAILS))
    named = [f"{file}: {reason}; {shown_as}"] if reason else []
    return Run(path, manifest, in_order(table), (*named, *unread, *odd))


def load_runs(paths: Iterable[Path | str], details: bool = True) -> list[Run]:
    """Load several run folders, in the order given."""
    return [load_run(path, details) for path in paths]


def runs_of() -> list[Path]:
    """The run folders directly below RESULTS, the newest last; not imports that have not ended."""
    created = {
        file.parent: Manifest(read_manifest(file)[0]).created_at
        for file in RESULTS.glob(f"[!.]*/{MANIFEST_NAME}")
    }
    return sorted(created, key=created.__getitem__)


def named_run(name: Path | str) -> Path:
    """The path ``name``; where there is none, the run of ``results`` that a bare name means.

    That is the folder's name, its number (``0007``, ``7``) or ``latest``. Raises RunFolderError where there is no
    latest run, and where several have the number.
    """
    path = Path(name)
    if len(path.parts) != 1 or path.exists():
        return path
    runs, words = runs_of(), (path.name, path.name.zfill(4))
    if path.name == LATEST and runs:
        return runs[-1]
    names = [run.name for run in runs if run.name in words or run.name[:4] in words]
    if len(names) > 1 or path.name == LATEST:
        raise RunFolderError(
            f"{RESULTS}: {' or '.join(names) or 'holds no run'}; write the whole name of a run, or measure one "
            "with 'ccbench run quick'"
        )
    return RESULTS / names[0] if names else path


def in_order(table: pa.Table) -> pa.Table:
    """The rows of ``table`` sorted by what was asked of the cases."""
    import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

    names = (*ORDER, "case_id")
    return table.take(
        pc.sort_indices(table.select(names), [(name, "ascending") for name in names])
    )


PREFIX = "published:"
"""Prefix that tells the name of published results from the path of a run."""

SERVERS = "servers"
SERVERS_FILE = f"{SERVERS}/all_reduce.parquet"

FURTHER_COLUMNS = (
    "machine",
    "gpu",
    "gpus_per_node",
    "interconnect",
    "network",
    "library_version",
    "forced",
)
"""Text columns beside those of a run: the family, then the words of whoever collected the logs."""


def published_folder() -> Path:
    """The folder of the files; CcbenchError when the installation lacks it."""
    return shipped_folder("results") / "published"


def published_names(folder: Path | None = None) -> tuple[str, ...]:
    """Names of the families that ship."""
    return tuple(sorted(path.stem for path in (folder or published_folder()).glob("*.parquet")))


def server_names(folder: Path | None = None) -> tuple[str, ...]:
    """Names of the all-reduces of servers of language models that ship: of all machines together, then of each.

    Nothing takes them but by name: launches in graphs are beside others, and nothing was learned from them.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

    file = (folder or published_folder()) / SERVERS_FILE
    if not file.is_file():
        return ()
    machines = pc.unique(pq.read_table(file, columns=["machine"])["machine"]).to_pylist()
    return (SERVERS, *(f"{SERVERS}/{machine}" for machine in sorted(machines)))


def load_published(name: str, folder: Path | None = None) -> Run:
    """The published results of the family ``name`` as a run. Raises UsageError, with near names."""
    folder = folder or published_folder()
    names = published_names(folder)
    kind, _, machine = name.partition("/")
    if kind == SERVERS:
        names = server_names(folder)
    if name not in names:
        raise UsageError(
            f"{PREFIX} {shown(name)} is not a machine with published results; {suggestion(name, names)}"
        )
    file = folder / (SERVERS_FILE if kind == SERVERS else f"{name}.parquet")
    table, problems = read_table(file)
    if problems:
        raise RunFolderError(f"{problems[0]}; install it again")
    if machine:
        table = table.filter([row == machine for row in table["machine"].to_pylist()])
    suite = {"name": f"{PREFIX}{name}"}
    # All servers together are of several machines: their devices tell those apart.
    place = machine or name.removeprefix(SERVERS)
    manifest = Manifest({"suite": suite, "machine": {"name": place}})
    return Run(Path(f"{PREFIX}{name}"), manifest, in_order(table))


def open_run(name: Path | str, details: bool = True) -> Run:
    """The published results that ``published:NAME`` names, or else the run folder at that path.

    details: as of ``load_run``. Raises RunFolderError or UsageError where there is none.
    """
    text = str(name)
    return (
        load_published(text.removeprefix(PREFIX))
        if text.startswith(PREFIX)
        else load_run(name, details)
    )


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
